// SPDX-License-Identifier: BSD-3-Clause
// UCP's own listener, for programs that speak UCX without weft: it takes connections to a socket address.
#pragma once

#include <deque>
#include <memory>

#include "operations/endpoint.hpp"

/// Owns the ucp_listener_h and the connection requests that nobody has accepted. It lives as long as its worker: a
/// connection on its way when UCX destroys a listener makes it use the freed one (1.22, uct_tcp_sockcm_ep), whenever
/// the other side sends its first bytes. So closing rejects, and the port is freed with the worker.
struct Listening {
    ucp_listener_h handle = nullptr;
    bool closed = false;
    std::deque<ucp_conn_request_h> arrived;
    std::deque<Request *> waiters;

    /// Reject the connections that wait to be accepted, and later ones; end the waiting accepts.
    void close() noexcept;
};

/// What Python holds: dropping it closes.
struct SockaddrListener {
    nb::object worker_object;
    Worker *worker;
    std::shared_ptr<Listening> listening;

    ~SockaddrListener();
};

void define_listener(nb::module_ &m, nb::class_<Worker> &worker);
