// SPDX-License-Identifier: BSD-3-Clause
// A UCP context, and the origin of its settings.
#pragma once

#include "ucp/ucx.hpp"

/// Owns a ucp_context_h.
struct Context {
    ucp_context_h handle = nullptr;
    uint64_t features;          // ucp_feature bits
    uint64_t memory_types = 0;  // bit map of ucs_memory_type_t that the transports in use support
    uint64_t shm_nbytes;        // required in /dev/shm before a worker is made; 0 if posix is not among the transports
    size_t workers = 0;         // open ones: they must be closed first
    size_t memories = 0;
    size_t engines = 0;  // of open workers, and of closed ones whose data is still in use
    bool lasts = false;  // a worker could not be destroyed, so neither can this
    nb::dict config;     // name -> (value, who set it): only what differs from UCX's own defaults

    /// `settings` are explicit and come first, then the user's UCX_*, then `defaults`.
    Context(nb::dict settings, nb::dict defaults, nb::handle features, uint64_t shm_nbytes);
    Context(const Context &) = delete;
    ~Context() { close(); }
    void close() noexcept;
    /// UCX supports no atomic operations together with peer-error handling (none of their protocols in 1.22 declares
    /// it), and only with the latter can an endpoint be closed by force.
    bool peer_errors() const noexcept { return !(features & UCP_FEATURE_AMO64); }
    /// Raise UnsupportedError unless the context was made with the feature.
    void check_feature(uint64_t bits, const char *name, const char *op) const;
};

/// Raise NoMemoryError unless /dev/shm has room for `needed` bytes.
void check_shm(const char *op, uint64_t needed);
/// Raise NoMemoryError unless there are descriptors for a worker.
void check_descriptors(const char *op);
void define_context(nb::module_ &m);
