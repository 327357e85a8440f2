// SPDX-License-Identifier: BSD-3-Clause
#include "endpoint.hpp"

#include <algorithm>

#include "fast.hpp"

const char *const Endpoint::doc_connect = R"(Make an endpoint that sends to the worker with this address.

Parameters
----------
address : bytes
    The other worker's :attr:`address`. It must come from somebody you trust: UCX parses it unchecked.

Raises
------
UnreachableError
    No transport of this context leads there.

Such an endpoint has no liveness: a peer that dies is noticed when UCX's keepalive does, or never.
:func:`weft.connect` notices within a second. Source: ``ucp_ep_create``.)";

ucp_ep_h create_endpoint(Engine *engine, const std::string &address, ucp_err_handler_cb_t on_error, void *argument) {
    ucp_ep_params_t params{};
    params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t *>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {on_error, argument};
    ucp_ep_h endpoint;
    check(ucp.ep_create(engine->handle, &params, &endpoint), "connect",
          ": no usable transport to the worker's address");
    return endpoint;
}

nb::list transports(ucp_ep_h endpoint) {
    ucp_transport_entry_t entries[64];
    ucp_ep_attr_t attr{};
    attr.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
    attr.transports = {entries, 64, sizeof entries[0]};
    check(ucp.ep_query(endpoint, &attr), "transports");
    nb::list lanes;
    for (unsigned i = 0; i < attr.transports.num_entries; ++i) {
        std::string lane = std::string(entries[i].transport_name) + "/" + entries[i].device_name;
        if (!nb::cast<bool>(lanes.attr("__contains__")(lane))) lanes.append(lane);
    }
    return lanes;
}

nb::object Endpoint::create(nb::pointer_and_handle<Worker> worker, nb::bytes address) {
    Worker *w = worker.p;
    w->check_owner("connect");
    w->check_own("connect");
    if (address.size() < 8) raise("InvalidParamError", "connect: that is no worker address", "connect");
    nb::object object = nb::inst_alloc(nb::type<Endpoint>());
    auto *e = new (nb::inst_ptr<Endpoint>(object)) Endpoint{nb::borrow(worker.h), w};
    nb::inst_mark_ready(object);
    e->handle = create_endpoint(
        w->own.get(), std::string(address.c_str(), address.size()),
        [](void *argument, ucp_ep_h, ucs_status_t status) { static_cast<Endpoint *>(argument)->status = status; }, e);
    w->endpoints.push_back(e);
    return object;
}

void Endpoint::abandon() noexcept {
    if (handle) worker->own->force_close(handle);
    handle = nullptr;
}

Endpoint::~Endpoint() {
    std::erase(worker->endpoints, this);
    if (!handle || in_forked_child || worker->closed()) return;
    // The error handler's argument dies here, so the endpoint must not outlive it unless its owner takes it down.
    worker->bury([w = worker, ep = handle] {
        if (!w->closed()) w->own->force_close(ep);
    });
}

namespace {

void sent(void *request, ucs_status_t status, void *user_data) {
    auto *r = static_cast<Request *>(user_data);
    r->ucx = nullptr;
    ucp.request_free(request);
    r->end(status);
}

using Self = nb::pointer_and_handle<Endpoint>;

Endpoint *usable(const Self &self, const char *op) {
    Endpoint *e = self.p;
    e->worker->check_owner(op);
    e->worker->heat(e->worker->own.get());
    if (!e->handle) [[unlikely]]
        raise("ClosedError", std::string(op) + ": the endpoint is closed", op);
    return e;
}

void begin(ucp_request_param_t &param, Request *r) {
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = sent;
    param.user_data = r;
}

void posted(Request *r, void *ucx) {
    if (UCS_PTR_IS_PTR(ucx)) {
        r->ucx = ucx;
        r->hold();
    } else {
        r->complete_now(UCS_PTR_STATUS(ucx));
    }
}

nb::object tag_send(Self self, nb::handle buffer, uint64_t tag) {
    Endpoint *e = usable(self, "tag_send");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "tag_send", 0, &r);
    r->buffer.acquire(buffer, false, "tag_send");
    r->nbytes = r->buffer.nbytes();
    ucp_request_param_t param;
    begin(param, r);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    posted(r, ucp.tag_send_nbx(e->handle, r->buffer.data(), r->nbytes, tag, &param));
    return request;
}

nb::object am_send(Self self, unsigned id, nb::handle header, nb::handle data) {
    Endpoint *e = usable(self, "am_send");
    if (id >= channel_am_id)
        raise("InvalidParamError", "am_send: id must be below " + std::to_string(channel_am_id), "am_send");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "am_send", 0, &r);
    Buffer head;
    head.acquire(header, false, "am_send");
    if (head.nbytes() > e->worker->max_am_header)
        raise("InvalidParamError",
              "am_send: a header of " + std::to_string(head.nbytes()) + " B; UCX holds at most " +
                  std::to_string(e->worker->max_am_header),
              "am_send");
    ucp_request_param_t param;
    begin(param, r);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.flags = UCP_AM_SEND_FLAG_COPY_HEADER;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    param.datatype = ucp_dt_make_contig(1);
    const void *address = nullptr;
    size_t count = 0;
    if (nb::isinstance<nb::list>(data) || nb::isinstance<nb::tuple>(data)) {
        r->parts = std::make_unique<Parts>();
        r->parts->buffers.reserve(nb::len(data));
        for (nb::handle item : data) {
            Buffer &part = r->parts->buffers.emplace_back();
            part.acquire(item, false, "am_send");
            if (part.nbytes()) r->parts->iov.push_back({part.data(), part.nbytes()});
            r->nbytes += part.nbytes();
        }
        param.datatype = UCP_DATATYPE_IOV;
        address = r->parts->iov.data();
        count = r->parts->iov.size();
    } else if (!data.is_none()) {
        r->buffer.acquire(data, false, "am_send");
        address = r->buffer.data();
        count = r->nbytes = r->buffer.nbytes();
    }
    posted(r, ucp.am_send_nbx(e->handle, id, head.data(), head.nbytes(), address, count, &param));
    return request;
}

nb::object flush(Self self) {
    Endpoint *e = usable(self, "flush");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "flush", 0, &r);
    ucp_request_param_t param;
    begin(param, r);
    posted(r, ucp.ep_flush_nbx(e->handle, &param));
    return request;
}

nb::object close_endpoint(Self self, bool force) {
    Endpoint *e = self.p;
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "close", 0, &r);
    if (!e->handle) {
        r->complete_now(UCS_OK);
        return request;
    }
    e->worker->check_owner("close");
    ucp_request_param_t param;
    begin(param, r);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    // A failed endpoint has nothing left to flush.
    param.flags = force || e->status != UCS_OK ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    posted(r, ucp.ep_close_nbx(e->handle, &param));
    e->handle = nullptr;
    e->worker->drain();
    return request;
}

constexpr const char *tag_send_doc = R"(Send `buffer` under `tag`.

Parameters
----------
buffer : contiguous buffer, any shape
    Locked until the request completes, and unchanged by it.
tag : int, 0 <= value < 2**64

Returns
-------
Request
    Done when `buffer` may be changed again, which does not mean that the peer has the message.

Raises
------
NotContiguousError
    Nothing was sent.
PeerLostError
    From the request.

Cancelling ends the waiter; the transfer goes on with the buffer locked. Source: ``ucp_tag_send_nbx``.)";

PyObject *fast_tag_send(const Arguments &a) {
    uint64_t tag;
    if (a.count != 2 || !read_u64(a.values[1], &tag)) return nullptr;
    return tag_send({nb::inst_ptr<Endpoint>(a.self), a.self}, a.values[0], tag).release().ptr();
}

constexpr const char *am_send_doc = R"(Send an active message.

Parameters
----------
id : int, 0 <= id < 63
header : bytes-like
    At most :attr:`Worker.max_am_header` bytes; copied at once.
data : contiguous buffer, or a list of them, optional
    Locked until the request completes. A list arrives as one piece.

Returns
-------
Request
    Done when the buffers may be changed again.

Raises
------
InvalidParamError
    The header is too long. Nothing was sent.

Cancelling ends the waiter; the transfer goes on. Source: ``ucp_am_send_nbx``.)";

}  // namespace

void define_endpoint(nb::module_ &m) {
    nb::class_<Endpoint> cls(m, "Endpoint", nb::is_weak_referenceable(),
                             "Sends to one other worker. Made by :meth:`Worker.connect`.");
    cls.def("tag_send", &tag_send, nb::arg("buffer"), nb::arg("tag"),
            nb::sig("def tag_send(self, buffer: typing_extensions.Buffer, tag: int) -> Request"), tag_send_doc)
        .def("am_send", &am_send, nb::arg("id"), nb::arg("header"), nb::arg("data") = nb::none(),
             nb::sig("def am_send(self, id: int, header: typing_extensions.Buffer, data: typing_extensions.Buffer | "
                     "list[typing_extensions.Buffer] | tuple[typing_extensions.Buffer, ...] | None = None) -> Request"),
             am_send_doc)
        .def("flush", &flush, nb::sig("def flush(self) -> Request"),
             "Return a request that is done once the peer has everything sent before. Source: ``ucp_ep_flush_nbx``.")
        .def("close", &close_endpoint, nb::kw_only(), nb::arg("force") = false,
             nb::sig("def close(self, *, force: bool = False) -> Request"),
             "Flush and close; `force` ends what is under way with an error instead. Source: ``ucp_ep_close_nbx``.")
        .def_prop_ro(
            "transports",
            [](Endpoint &e) {
                e.worker->check_owner("transports");
                if (!e.handle) raise("ClosedError", "transports: the endpoint is closed", "transports");
                return transports(e.handle);
            },
            nb::sig("def transports(self) -> list[str]"),
            "The lanes in use, as ``transport/device``. Source: ``ucp_ep_query``.")
        .def_prop_ro("closed", [](Endpoint &e) { return !e.handle; });
    Fast<fast_tag_send>::install(cls, "tag_send", "($self, buffer, tag)", tag_send_doc);
}
