// SPDX-License-Identifier: BSD-3-Clause
// A UCP endpoint made from a worker's address: it sends to that worker.
#pragma once

#include "operations/operation.hpp"
#include "operations/reply.hpp"

/// What this process's own operations still do in a Memory of its own: it must not be unmapped meanwhile.
struct Uses {
    PyObject *memory;               // borrowed: the Memory; null once it is unmapped
    std::vector<Worker *> reading;  // of operations that end when they have accessed it, whose requests keep the worker
    size_t writing = 0;             // endpoints that have written to it since their last flush
};

/// Owns a reference to a Memory that an endpoint has written to since its last flush.
struct Written {
    std::shared_ptr<Uses> uses;
    nb::object memory;
    uint64_t number;  // of the last write, among those of all endpoints
};

/// Owns the ucp_ep_h, and a reference to its worker.
struct Endpoint {
    nb::object worker_object;
    Worker *worker;
    ucp_ep_h handle = nullptr;
    std::shared_ptr<Reply> reply;  // set: the endpoint is UCX's own
    // UCX's error handler stores its status here. It may be called until the endpoint is closed, and thus after this
    // object is gone.
    std::shared_ptr<ucs_status_t> status = std::make_shared<ucs_status_t>(UCS_OK);
    std::vector<Written> written;

    ~Endpoint();
    /// It writes to a Memory of this process.
    void writes(const std::shared_ptr<Uses> &uses);
    /// The writes up to this number have been done. Destroying what is `left` of them may run Python code.
    void flushed(uint64_t number, std::vector<nb::object> &left) noexcept;
    /// A reply's endpoint belongs to UCX: only forget it.
    void leave_reply() noexcept;
    /// Called when the worker closes, which forces the endpoint closed.
    void abandon() noexcept;
    static nb::object create(nb::pointer_and_handle<Worker> worker, nb::bytes address);
    /// `status` receives UCX's result.
    static nb::object create(nb::handle worker, const ucp_ep_params_t &params, ucs_status_t *status);
    static nb::object adopt(nb::handle worker, std::shared_ptr<Reply> reply);
    /// Raise the reason why it cannot be used: it has no handle.
    [[noreturn]] void refuse(const char *op) const;
};

using EndpointSelf = nb::pointer_and_handle<Endpoint>;

/// The endpoint, if this thread may use it and it is open; each turn then polls its worker.
inline Endpoint *usable(const EndpointSelf &self, const char *op) {
    Endpoint *e = self.p;
    e->worker->check_owner(op);
    e->worker->poll(e->worker->own.get());
    if (!e->handle) [[unlikely]]
        e->refuse(op);
    return e;
}

/// Make a ucp_ep_h; `on_error(argument, ep, status)` is called in progress.
ucs_status_t create_endpoint(Engine *engine, ucp_ep_params_t params, ucp_err_handler_cb_t on_error, void *argument,
                             ucp_ep_h *endpoint);
/// Connect to the worker with this address.
ucp_ep_h create_endpoint(Engine *engine, nb::bytes address, ucp_err_handler_cb_t on_error, void *argument);
nb::class_<Endpoint> define_endpoint(nb::module_ &m, nb::class_<Worker> &worker);
// Methods that the other files of this folder add to both classes.
void define_tags(nb::module_ &m, nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint);
void define_batches(nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint);
void define_streams(nb::class_<Endpoint> &endpoint);
