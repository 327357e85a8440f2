// SPDX-License-Identifier: BSD-3-Clause
// Memory that peers may read and write: mapped here, packed into a key, unpacked by the peer for one endpoint.
#pragma once

#include "operations/endpoint.hpp"

/// Owns a ucp_mem_h and, unless UCX allocated the memory, the export of the mapped buffer.
struct Memory {
    nb::object context_object;
    Context *context;
    Buffer buffer;
    ucp_mem_h handle = nullptr;
    void *address = nullptr;
    size_t nbytes = 0;
    size_t exports = 0;
    bool allocated = false;
    std::shared_ptr<Uses> uses = std::make_shared<Uses>();

    Memory(nb::object object) : context_object(std::move(object)), context(nb::inst_ptr<Context>(context_object)) {}
    Memory(const Memory &) = delete;
    ~Memory() { unmap(); }
    void unmap() noexcept;
};

/// What a peer needs to access a Memory. Plain bytes: it can be pickled.
struct RemoteKey {
    uint64_t address;
    size_t nbytes;
    std::string packed;
};

/// Owns a ucp_rkey_h: a RemoteKey, unpacked for one endpoint.
struct Rkey {
    nb::object endpoint_object;
    Endpoint *endpoint;
    ucp_rkey_h handle = nullptr;
    uint64_t address;
    size_t nbytes;
    std::shared_ptr<Uses> uses;  // set: the memory is this process's own

    Rkey(nb::object endpoint, const RemoteKey &key);
    Rkey(const Rkey &) = delete;
    ~Rkey();
    /// Called when the worker closes: the key cannot be used any more.
    void destroy() noexcept;
};

void define_memory(nb::module_ &m, nb::class_<Endpoint> &endpoint);
void define_rma(nb::class_<Endpoint> &endpoint);
