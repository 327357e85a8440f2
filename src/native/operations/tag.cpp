// SPDX-License-Identifier: BSD-3-Clause
// Tagged messages: send, synchronous send, receive, probe, and receive of a probed message.
#include "operations/endpoint.hpp"
#include "progress/fast_method.hpp"
#include "ucp/forks.hpp"

namespace {

/// Owns a message that a probe removed from the worker's queue, until it is received. If dropped, it is received and
/// discarded.
struct TagMessage {
    nb::object worker_object;
    Worker *worker;
    ucp_tag_message_h handle;
    ucp_tag_recv_info_t info;

    TagMessage(nb::object object, Worker *w, ucp_tag_message_h h, const ucp_tag_recv_info_t &i)
        : worker_object(std::move(object)), worker(w), handle(h), info(i) {}
    TagMessage(TagMessage &&other) noexcept
        : worker_object(std::move(other.worker_object)),
          worker(other.worker),
          handle(std::exchange(other.handle, nullptr)),
          info(other.info) {}
    ~TagMessage() {
        if (!handle || in_forked_child || worker->closed()) return;
        worker->defer([w = worker, message = handle] {
            if (w->closed()) return;
            ucp_request_param_t param{};
            void *ucx = ucp.tag_msg_recv_nbx(w->own->handle, nullptr, 0, message, &param);
            if (UCS_PTR_IS_PTR(ucx)) ucp.request_free(ucx);
        });
    }
};

PyType_Slot message_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(traverse<TagMessage, &TagMessage::worker_object>)}, {0, nullptr}};

nb::object tag_send(EndpointSelf self, nb::handle buffer, uint64_t tag) {
    Endpoint *e = usable(self, "tag_send");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "tag_send", 0, &r);
    ucp_request_param_t param;
    begin(param, r);
    take(self, r, param, buffer, false, "tag_send");
    posted(r, ucp.tag_send_nbx(e->handle, r->buffer.data(), r->nbytes, tag, &param));
    return request;
}

nb::object tag_send_sync(EndpointSelf self, nb::handle buffer, uint64_t tag) {
    Endpoint *e = usable(self, "tag_send_sync");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "tag_send_sync", 0, &r);
    ucp_request_param_t param;
    begin(param, r);
    take(self, r, param, buffer, false, "tag_send_sync");
    posted(r, ucp.tag_send_sync_nbx(e->handle, r->buffer.data(), r->nbytes, tag, &param));
    return request;
}

void tag_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data) {
    auto *r = static_cast<Request *>(user_data);
    r->ucx = nullptr;
    r->info = *info;
    ucp.request_free(request);
    r->end(status);
}

// UCX ends a receive that could be withdrawn, at once or later.
bool cancel_recv(Request &r) noexcept {
    if (r.ucx) ucp.request_cancel(r.engine->handle, r.ucx);
    return false;
}

PyObject *recv_result(Request &r) {
    return r.worker->tag_result(r.info);
}

constexpr Operation recv_operation{.result = recv_result, .withdraw = cancel_recv};

void take_for_recv(const WorkerSelf &self, Request *r, ucp_request_param_t &param, nb::handle buffer, const char *op) {
    r->operation = &recv_operation;
    begin(param, r);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
    param.cb.recv = tag_received;
    param.recv_info.tag_info = &r->info;
    take(self, r, param, buffer, true, op);
}

nb::object tag_recv(WorkerSelf self, nb::handle buffer, uint64_t tag, uint64_t mask) {
    Worker *w = usable(self, "tag_recv");
    Request *r;
    nb::object request = make_request(w, self.h.ptr(), "tag_recv", 0, &r);
    ucp_request_param_t param;
    take_for_recv(self, r, param, buffer, "tag_recv");
    posted(r, ucp.tag_recv_nbx(w->own->handle, r->buffer.data(), r->nbytes, tag, mask, &param));
    return request;
}

nb::object tag_probe(WorkerSelf self, uint64_t tag, uint64_t mask, bool remove) {
    Worker *w = usable(self, "tag_probe");
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message = ucp.tag_probe_nb(w->own->handle, tag, mask, remove, &info);
    if (!message) return nb::none();
    if (remove) return nb::cast(TagMessage(nb::borrow(self.h), w, message, info));
    return nb::make_tuple(info.length, info.sender_tag);
}

nb::object tag_msg_recv(WorkerSelf self, nb::handle buffer, TagMessage &message) {
    Worker *w = usable(self, "tag_msg_recv");
    if (message.worker != w)
        raise("InvalidParamError", "tag_msg_recv: the message belongs to another worker, whose tag_probe took it",
              "tag_msg_recv");
    Request *r;
    nb::object request = make_request(w, self.h.ptr(), "tag_msg_recv", 0, &r);
    ucp_request_param_t param;
    take_for_recv(self, r, param, buffer, "tag_msg_recv");
    // Only now: exporting the buffer may have run Python code.
    if (!message.handle)
        raise("InvalidParamError", "tag_msg_recv: the message has already been received", "tag_msg_recv");
    r->info = message.info;
    ucp_tag_message_h handle = std::exchange(message.handle, nullptr);
    posted(r, ucp.tag_msg_recv_nbx(w->own->handle, r->buffer.data(), r->nbytes, handle, &param));
    return request;
}

constexpr const char *tag_send_doc = R"(Send `buffer` under `tag`.

Parameters
----------
buffer : contiguous buffer, DLPack tensor or CUDA array, any shape, C or Fortran order
    Locked until the request completes; not modified. The buffer protocol is tried first, then DLPack, then
    ``__cuda_array_interface__``. Device memory is sent directly, after the array's stream has finished (DLPack: the
    producer orders CUDA's default stream after its own, and weft waits for the default stream; CUDA array interface:
    weft waits for ``stream``, if there is one).
tag : int, 0 <= value < 2**64

Returns
-------
Request
    Done when `buffer` may be changed again. That does not mean that the peer has the message.

Raises
------
NotContiguousError
    Nothing was sent.
UnsupportedError
    `buffer` is in memory that UCX cannot reach here; see :attr:`Context.memory_types`. Nothing was sent.
PeerLostError
    From the request: the peer is gone.

Cancelling ends the request; the transfer goes on, and the buffer stays locked until it ends.
Source: ``ucp_tag_send_nbx``.)";

constexpr const char *tag_send_sync_doc = R"(Send `buffer` under `tag`; complete when the peer has matched it.

Like :meth:`tag_send`, but the request completes only when a receive of the peer has matched the message.
Source: ``ucp_tag_send_sync_nbx``.)";

constexpr const char *tag_recv_doc = R"(Post a receive for the next message whose tag matches.

Parameters
----------
buffer : writable contiguous buffer, DLPack tensor or CUDA array, any shape
    Filled in place. Locked until the request completes. A message has at most ``buffer.nbytes`` bytes. Protocols are
    tried as by :meth:`Endpoint.tag_send`. A DLPack tensor before version 1.0 cannot say that it is read-only.
tag, mask : int, 0 <= value < 2**64
    A message matches if ``(sent ^ tag) & mask == 0``.

Returns
-------
Request
    Its result is ``(nbytes, sender_tag)``.

Raises
------
ReadOnlyError, NotContiguousError, UnsupportedError
    weft cannot write to `buffer` in place. Nothing was posted.
TruncatedError
    From the request: the message was longer than `buffer`.

Cancelling withdraws the receive if it has not matched; a matched one completes.
Source: ``ucp_tag_recv_nbx``.)";

constexpr const char *tag_probe_doc = R"(Look for a message that has arrived and that no receive has matched.

Parameters
----------
tag, mask : int, 0 <= value < 2**64
    A message matches if ``(sent ^ tag) & mask == 0``.
remove : bool
    Remove the message, so that no receive posted later matches it.

Returns
-------
None, (int, int) or TagMessage
    None if there is no such message; else ``(nbytes, sender_tag)``; with `remove` a message for
    :meth:`tag_msg_recv`, which is lost if you drop it.

It does not progress the worker: call :meth:`progress` between probes. Source: ``ucp_tag_probe_nb``.)";

constexpr const char *tag_msg_recv_doc = R"(Receive a message that :meth:`tag_probe` removed.

Parameters
----------
buffer : writable contiguous buffer, any shape
    At least ``message.nbytes`` long. Filled in place; locked until the request completes.
message : TagMessage
    Used up by this call, unless it raises.

Returns
-------
Request
    Its result is ``(nbytes, sender_tag)``.

Raises
------
ReadOnlyError, NotContiguousError
    weft cannot write to `buffer` in place.
TruncatedError
    From the request: the message was longer than `buffer`. It is lost.

Source: ``ucp_tag_msg_recv_nbx``.)";

PyObject *fast_tag_send(const Arguments &a) {
    uint64_t tag;
    if (a.count != 2 || !read_u64(a.values[1], &tag)) return nullptr;
    return tag_send({nb::inst_ptr<Endpoint>(a.self), a.self}, a.values[0], tag).release().ptr();
}

PyObject *fast_tag_recv(const Arguments &a) {
    uint64_t tag, mask = UINT64_MAX;
    if (a.count < 2 || a.count > 3 || !read_u64(a.values[1], &tag)) return nullptr;
    if (a.count == 3 && !read_u64(a.values[2], &mask)) return nullptr;
    return tag_recv({nb::inst_ptr<Worker>(a.self), a.self}, a.values[0], tag, mask).release().ptr();
}

}  // namespace

void define_tags(nb::module_ &m, nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint) {
    nb::class_<TagMessage>(
        m, "TagMessage", nb::type_slots(message_slots),
        "A message that :meth:`Worker.tag_probe` removed from the queue; :meth:`Worker.tag_msg_recv` receives it.")
        .def_prop_ro(
            "nbytes", [](const TagMessage &t) { return t.info.length; }, "Length of the message in bytes.")
        .def_prop_ro("tag", [](const TagMessage &t) { return t.info.sender_tag; }, "The tag that it was sent with.");
    endpoint
        .def("tag_send", &tag_send, nb::arg("buffer"), nb::arg("tag"),
             nb::sig("def tag_send(self, buffer: weft.typing.BufferLike, tag: int) -> weft.typing.Request[None]"),
             tag_send_doc)
        .def("tag_send_sync", &tag_send_sync, nb::arg("buffer"), nb::arg("tag"),
             nb::sig("def tag_send_sync(self, buffer: weft.typing.BufferLike, tag: int) -> weft.typing.Request[None]"),
             tag_send_sync_doc);
    worker
        .def("tag_recv", &tag_recv, nb::arg("buffer"), nb::arg("tag"), nb::arg("mask") = UINT64_MAX,
             nb::sig("def tag_recv(self, buffer: weft.typing.BufferLike, tag: int, mask: int = 0xffffffffffffffff) "
                     "-> weft.typing.Request[tuple[int, int]]"),
             tag_recv_doc)
        .def("tag_probe", &tag_probe, nb::arg("tag"), nb::arg("mask") = UINT64_MAX, nb::kw_only(),
             nb::arg("remove") = false,
             nb::sig("def tag_probe(self, tag: int, mask: int = 0xffffffffffffffff, *, remove: bool = False) -> "
                     "tuple[int, int] | TagMessage | None"),
             tag_probe_doc)
        .def("tag_msg_recv", &tag_msg_recv, nb::arg("buffer"), nb::arg("message"),
             nb::sig("def tag_msg_recv(self, buffer: weft.typing.BufferLike, message: TagMessage) -> "
                     "weft.typing.Request[tuple[int, int]]"),
             tag_msg_recv_doc);
    Fast<fast_tag_send>::install(endpoint, "tag_send", "($self, buffer, tag)", tag_send_doc);
    Fast<fast_tag_recv>::install(worker, "tag_recv", "($self, buffer, tag, mask=0xffffffffffffffff)", tag_recv_doc);
}
