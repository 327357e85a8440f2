// SPDX-License-Identifier: BSD-3-Clause
// A UCP endpoint made from a worker's address: it sends to that worker.
#pragma once

#include "worker.hpp"

/// Owns the ucp_ep_h, and a reference to its worker.
struct Endpoint {
    nb::object worker_object;
    Worker *worker;
    ucp_ep_h handle = nullptr;
    ucs_status_t status = UCS_OK;  // what UCX's error handler said

    ~Endpoint();
    /// The worker closes: the endpoint is forced closed.
    void abandon() noexcept;
    static nb::object create(nb::pointer_and_handle<Worker> worker, nb::bytes address);
    static const char *const doc_connect;
};

/// Make a ucp_ep_h with peer-error handling; `on_error(argument, ep, status)` is called in progress.
ucp_ep_h create_endpoint(Engine *engine, const std::string &address, ucp_err_handler_cb_t on_error, void *argument);
/// (transport, device) of every lane, as "transport/device".
nb::list transports(ucp_ep_h endpoint);
void define_endpoint(nb::module_ &m);
