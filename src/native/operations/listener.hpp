// SPDX-License-Identifier: BSD-3-Clause
// UCP's own listener, for programs that use UCX without weft: it accepts connections at a socket address.
#pragma once

#include <deque>
#include <memory>

#include "operations/endpoint.hpp"

/// Owns the ucp_listener_h and the connection requests not yet accepted. It lives as long as its worker: destroyed
/// earlier, a connection being made would use the freed listener once the other side sends its first bytes (1.22,
/// uct_tcp_sockcm_ep). So closing only rejects, and the port is freed with the worker.
struct Listening {
    ucp_listener_h handle = nullptr;
    bool closed = false;
    std::deque<ucp_conn_request_h> arrived;
    std::deque<Request *> waiters;

    /// Reject waiting and later connections, and end waiting accepts.
    void close() noexcept;
};

/// Python's handle: dropping it closes.
struct SockaddrListener {
    nb::object worker_object;
    Worker *worker;
    std::shared_ptr<Listening> listening;

    ~SockaddrListener();
};

void define_listener(nb::module_ &m, nb::class_<Worker> &worker);
