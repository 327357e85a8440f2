// SPDX-License-Identifier: BSD-3-Clause
// Any contiguous object that exports a buffer, held from post to completion.
#pragma once

#include "ucx.hpp"

/// Owns one Py_buffer export.
struct Buffer {
    Py_buffer view{};

    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    Buffer(Buffer &&other) noexcept : view(other.view) { other.view.obj = nullptr; }
    ~Buffer() { release(); }

    /// Export `object`, or raise the exception that says why it cannot be used; nothing is then held.
    void acquire(nb::handle object, bool writable, const char *op);
    void release() noexcept {
        if (!view.obj) return;
        PyBuffer_Release(&view);
        view.buf = nullptr;  // the request around this may be used again
        view.len = 0;
    }
    void *data() const noexcept { return view.buf; }
    size_t nbytes() const noexcept { return size_t(view.len); }
    bool held() const noexcept { return view.obj != nullptr; }
};
