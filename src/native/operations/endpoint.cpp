// SPDX-License-Identifier: BSD-3-Clause
#include "operations/endpoint.hpp"

#include <algorithm>

#include "ucp/forks.hpp"
#include "ucp/lanes.hpp"

static constexpr const char *connect_doc = R"(Make an endpoint that sends to the worker with this address.

Parameters
----------
address : bytes
    The other worker's :attr:`address`. It must come from a source that you trust: UCX parses it unchecked.

Raises
------
UnreachableError
    No transport of this context reaches that worker.
Error
    This worker has already made 65,535 endpoints to that one, closed ones included, which is UCX's limit.

Such an endpoint has no liveness check: a dead peer is noticed by UCX's keepalive, or never. In UCX 1.22 a peer on
this host that ends before this side has answered it crashes this process (docs/faults.md). :func:`weft.connect`
notices a dead peer within a second. Source: ``ucp_ep_create``.)";

ucs_status_t create_endpoint(Engine *engine, ucp_ep_params_t params, ucp_err_handler_cb_t on_error, void *argument,
                             ucp_ep_h *endpoint) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_mode =
        nb::inst_ptr<Context>(engine->context)->peer_errors() ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler = {on_error, argument};
    return ucp.ep_create(engine->handle, &params, endpoint);
}

ucp_ep_h create_endpoint(Engine *engine, nb::bytes address, ucp_err_handler_cb_t on_error, void *argument) {
    if (address.size() < 8)
        raise("InvalidParamError", "connect: not a worker address; pass the other worker's Worker.address", "connect");
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t *>(address.c_str());
    ucp_ep_h endpoint;
    check(create_endpoint(engine, params, on_error, argument, &endpoint), "connect",
          ": no usable transport to the worker's address");
    return endpoint;
}

static void failed(void *told, ucp_ep_h, ucs_status_t status) {
    *static_cast<ucs_status_t *>(told) = status;
}

static uint64_t writes_so_far = 0;  // to memories of this process

nb::object Endpoint::create(nb::pointer_and_handle<Worker> worker, nb::bytes address) {
    Worker *w = usable(worker, "connect");
    nb::object object = adopt(worker.h, nullptr);
    auto *e = nb::inst_ptr<Endpoint>(object);
    e->handle = create_endpoint(w->own.get(), address, failed, e->status.get());
    return object;
}

nb::object Endpoint::create(nb::handle worker, const ucp_ep_params_t &params, ucs_status_t *status) {
    nb::object object = adopt(worker, nullptr);
    auto *e = nb::inst_ptr<Endpoint>(object);
    ucp_ep_h made;
    *status = create_endpoint(e->worker->own.get(), params, failed, e->status.get(), &made);
    if (*status == UCS_OK) e->handle = made;
    return object;
}

nb::object Endpoint::adopt(nb::handle worker, std::shared_ptr<Reply> reply) {
    auto *w = nb::inst_ptr<Worker>(worker);
    nb::object object = nb::inst_alloc(nb::type<Endpoint>());
    ucp_ep_h handle = reply ? reply->handle : nullptr;
    auto *e = new (nb::inst_ptr<Endpoint>(object)) Endpoint{nb::borrow(worker), w, handle, std::move(reply)};
    nb::inst_mark_ready(object);
    if (e->reply) e->reply->handles.push_back(&e->handle);
    w->add_dependent(endpoints_stand, e,
                     [](void *each, int64_t) noexcept { static_cast<Endpoint *>(each)->abandon(); });
    return object;
}

void Endpoint::refuse(const char *op) const {
    if (reply) reply->refuse(op);
    raise("ClosedError", std::string(op) + ": the endpoint is closed", op);
}

void Endpoint::abandon() noexcept {
    if (handle && !reply) worker->own->force_close(handle);
    handle = nullptr;
    std::vector<nb::object> left;
    flushed(writes_so_far, left);
}

void Endpoint::writes(const std::shared_ptr<Uses> &uses) {
    ++writes_so_far;
    for (Written &each : written)
        if (each.uses == uses) {
            each.number = writes_so_far;
            return;
        }
    written.push_back({uses, nb::borrow(uses->memory), writes_so_far});
    ++uses->writing;
}

void Endpoint::flushed(uint64_t number, std::vector<nb::object> &left) noexcept {
    std::erase_if(written, [&](Written &each) {
        if (each.number > number) return false;
        --each.uses->writing;
        left.push_back(std::move(each.memory));
        return true;
    });
}

void Endpoint::leave_reply() noexcept {
    if (!reply) return;
    std::erase(reply->handles, &handle);
    handle = nullptr;
    reply.reset();
}

Endpoint::~Endpoint() {
    std::vector<nb::object> left;
    if (in_forked_child)
        for (Written &each : written) each.memory.release();
    else
        flushed(writes_so_far, left);
    worker->remove_dependent(endpoints_stand, this);
    leave_reply();
    if (!handle || in_forked_child || worker->closed()) return;
    // The owner closes it; UCX may call the error handler until then.
    worker->defer([w = worker, ep = handle, told = status] {
        if (!w->closed()) w->own->force_close(ep);
    });
}

namespace {

void flushed_worker(Request &r) noexcept {
    std::vector<nb::object> left;  // destroyed last: that may run Python code, and end endpoints
    for (Dependent &each : r.worker->dependents[endpoints_stand])
        static_cast<Endpoint *>(each.object.get())->flushed(r.operand, left);
}

void flushed_endpoint(Request &r) noexcept {
    std::vector<nb::object> left;
    nb::inst_ptr<Endpoint>(r.owner)->flushed(r.operand, left);
}

void dropped_worker_flush(Request &r) noexcept {
    if (r.ended && !r.failed()) flushed_worker(r);
}

void dropped_endpoint_flush(Request &r) noexcept {
    if (r.ended && !r.failed()) flushed_endpoint(r);
}

constexpr Operation worker_flush{.drop = dropped_worker_flush, .delivered = flushed_worker};
constexpr Operation endpoint_flush{.drop = dropped_endpoint_flush, .delivered = flushed_endpoint};

nb::object flush_worker(WorkerSelf self) {
    Worker *w = usable(self, "flush");
    Request *r;
    nb::object request = make_request(w, self.h.ptr(), "flush", 0, &r);
    r->operation = &worker_flush;
    r->operand = writes_so_far;
    ucp_request_param_t param;
    begin(param, r);
    posted(r, ucp.worker_flush_nbx(w->own->handle, &param));
    return request;
}

nb::object flush(EndpointSelf self) {
    Endpoint *e = usable(self, "flush");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "flush", 0, &r);
    r->operation = &endpoint_flush;
    r->operand = writes_so_far;
    ucp_request_param_t param;
    begin(param, r);
    posted(r, ucp.ep_flush_nbx(e->handle, &param));
    return request;
}

nb::object close_endpoint(EndpointSelf self, bool force) {
    Endpoint *e = self.p;
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "close", 0, &r);
    e->leave_reply();
    if (!e->handle) {
        r->complete_now(UCS_OK);
        return request;
    }
    e->worker->check_owner("close");
    ucp_request_param_t param;
    begin(param, r);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    // A failed endpoint has nothing left to flush.
    const bool forceable = nb::inst_ptr<Context>(e->worker->context)->peer_errors();
    param.flags = forceable && (force || *e->status != UCS_OK) ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    posted(r, ucp.ep_close_nbx(e->handle, &param));
    e->handle = nullptr;
    e->worker->drain();
    return request;
}

}  // namespace

static PyType_Slot endpoint_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(traverse<Endpoint, &Endpoint::worker_object>)}, {0, nullptr}};

nb::class_<Endpoint> define_endpoint(nb::module_ &m, nb::class_<Worker> &worker) {
    nb::class_<Endpoint> cls(m, "Endpoint", nb::type_slots(endpoint_slots), nb::is_weak_referenceable(),
                             "Sends to one other worker. Made by :meth:`Worker.connect`.");
    cls.def("flush", &flush, nb::sig("def flush(self) -> weft.typing.Request[None]"),
            "Return a request that completes when the peer has everything sent before. Source: ``ucp_ep_flush_nbx``.")
        .def("close", &close_endpoint, nb::kw_only(), nb::arg("force") = false,
             nb::sig("def close(self, *, force: bool = False) -> weft.typing.Request[None]"),
             "Flush and close; `force` ends what is under way with an error instead, but not where the context has "
             "``amo``. "
             "Source: ``ucp_ep_close_nbx``.")
        .def_prop_ro(
            "transports", [](EndpointSelf e) { return transports(usable(e, "transports")->handle); },
            nb::sig("def transports(self) -> list[str]"),
            "The lanes in use, as ``transport/device``. Source: ``ucp_ep_query``.")
        .def(
            "print_info", [](EndpointSelf e) { return print_info(usable(e, "print_info")->handle); }, print_info_doc)
        .def(
            "evaluate_perf",
            [](EndpointSelf e, size_t nbytes) { return evaluate_perf(usable(e, "evaluate_perf")->handle, nbytes); },
            nb::arg("nbytes"), nb::sig("def evaluate_perf(self, nbytes: int) -> float | None"), evaluate_perf_doc)
        .def_prop_ro(
            "handle",
            [](Endpoint &e) {
                if (!e.handle) e.refuse("handle");
                return reinterpret_cast<uintptr_t>(e.handle);
            },
            "The address of the ``ucp_ep_h``, for libraries that call UCX themselves; the endpoint keeps owning it.")
        .def_prop_ro("closed", [](Endpoint &e) { return !e.handle; }, "Whether the endpoint is closed.");
    worker
        .def("connect", nb::overload_cast<nb::pointer_and_handle<Worker>, nb::bytes>(&Endpoint::create),
             nb::arg("address"), nb::sig("def connect(self, address: bytes) -> Endpoint"), connect_doc)
        .def("flush", &flush_worker, nb::sig("def flush(self) -> weft.typing.Request[None]"),
             "Return a request that completes when the peers have everything sent, put and added before. Source: "
             "``ucp_worker_flush_nbx``.");
    return cls;
}
