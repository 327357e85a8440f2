// SPDX-License-Identifier: BSD-3-Clause
// Any contiguous object that exports its memory, held from post to completion: through the buffer protocol (here and in
// buffer.cpp), otherwise through DLPack or the CUDA array interface (array_import.cpp).
#pragma once

#include <utility>

#include "ucp/ucx.hpp"

/// Owns one Py_buffer. For other exports, only buf, len and obj, which owns the array, are set.
struct Buffer {
    static constexpr uint64_t host_only = uint64_t(1) << UCS_MEMORY_TYPE_HOST;

    Py_buffer view{};
    ucs_memory_type_t memory_type = UCS_MEMORY_TYPE_HOST;

    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    /// Leaves `other` empty, as a release does.
    Buffer(Buffer &&other) noexcept
        : view(std::exchange(other.view, {})), memory_type(std::exchange(other.memory_type, UCS_MEMORY_TYPE_HOST)) {}
    ~Buffer() { release(); }

    /// Export `object`, or raise the reason why it cannot be used; nothing is then held. `memory_types` is the bit map
    /// of memory types that the operation accepts: the worker's, if UCX may get device memory. True: Python code may
    /// have run meanwhile, and may have closed objects that the operation is about to use.
    bool acquire(nb::handle object, bool writable, const char *op, uint64_t memory_types = host_only);
    void release() noexcept {
        if (!view.obj) return;
        PyBuffer_Release(&view);
        view.buf = nullptr;  // nothing of it must reach the next use of the request that contains this
        view.len = 0;
        memory_type = UCS_MEMORY_TYPE_HOST;
    }
    void *data() const noexcept { return view.buf; }
    size_t nbytes() const noexcept { return size_t(view.len); }
    bool held() const noexcept { return view.obj != nullptr; }
};

/// Export an array without the buffer protocol; false if it supports no other protocol either.
bool acquire_array(Buffer &buffer, nb::handle object, bool writable, const char *op, uint64_t memory_types);

/// Call `__dlpack__`, of DLPack 1.0 or earlier.
nb::object export_capsule(nb::handle object, nb::dict arguments);

/// Raise the reason why `object` cannot be used in place.
[[noreturn]] void refuse_strided(nb::handle object, bool writable, const char *op);
[[noreturn]] void refuse_read_only(nb::handle object, const char *op);

void define_dlpack_export(nb::module_ &m);
