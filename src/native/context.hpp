// SPDX-License-Identifier: BSD-3-Clause
// A UCP context, and where each of its settings came from.
#pragma once

#include "ucx.hpp"

/// Owns a ucp_context_h.
struct Context {
    ucp_context_h handle = nullptr;
    bool uses_shm;       // posix is among the transports
    size_t workers = 0;  // open ones: they must be closed first
    nb::dict config;     // name -> (value, who set it): only what differs from UCX's own defaults

    /// `settings` are explicit; below them come the user's UCX_*, then `defaults`.
    Context(nb::dict settings, nb::dict defaults, bool uses_shm);
    Context(const Context &) = delete;
    ~Context() { close(); }
    void close() noexcept;
};

/// Raise NoMemoryError unless /dev/shm has room for a worker.
void check_shm(const char *op);
void define_context(nb::module_ &m);
