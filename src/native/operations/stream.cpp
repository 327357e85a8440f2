// SPDX-License-Identifier: BSD-3-Clause
// Streams: the bytes of an endpoint, in order and without message boundaries.
#include "operations/endpoint.hpp"

namespace {

void check_feature(Endpoint *e, const char *op) {
    nb::inst_ptr<Context>(e->worker->context)->check_feature(UCP_FEATURE_STREAM, "stream", op);
}

void stream_received(void *ucx_request, ucs_status_t status, size_t nbytes, void *request) {
    auto *r = static_cast<Request *>(request);
    r->word += nbytes;
    operation_ended(ucx_request, status, request);
}

void *rest(const Request *r) {
    return static_cast<std::byte *>(r->buffer.data()) + r->word;
}

// Takes what has arrived, and adds its size to the result; true when nothing is left to wait for. UCX (1.22) must not
// be asked for a receive that is complete at once and waits for all, or is empty: it ends with the status that another
// operation left in the request, and if that was an error, the request goes back to UCX's pool twice.
bool take_arrived(Endpoint *e, Request *r, ucp_request_param_t param) {
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
    param.flags = 0;
    for (size_t nbytes; r->word < r->nbytes; r->word += nbytes)
        if (ucp.stream_recv_nbx(e->handle, rest(r), r->nbytes - r->word, &nbytes, &param)) return false;
    return true;
}

nb::object stream_send(EndpointSelf self, nb::handle buffer) {
    Endpoint *e = usable(self, "stream_send");
    check_feature(e, "stream_send");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "stream_send", 0, &r);
    ucp_request_param_t param;
    begin(param, r);
    take(self, r, param, buffer, false, "stream_send");
    posted(r, ucp.stream_send_nbx(e->handle, r->buffer.data(), r->nbytes, &param));
    return request;
}

nb::object stream_recv(EndpointSelf self, nb::handle buffer, bool wait_all) {
    Endpoint *e = usable(self, "stream_recv");
    check_feature(e, "stream_recv");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "stream_recv", 0, &r);
    r->operation = &word_operation;
    r->word = 0;
    ucp_request_param_t param;
    begin(param, r);
    take(self, r, param, buffer, true, "stream_recv");
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.cb.recv_stream = stream_received;
    param.flags = wait_all ? UCP_STREAM_RECV_FLAG_WAITALL : 0;
    size_t nbytes = 0;
    void *ucx = nullptr;
    if ((r->nbytes && !wait_all) || !take_arrived(e, r, param))
        ucx = ucp.stream_recv_nbx(e->handle, rest(r), r->nbytes - r->word, &nbytes, &param);
    if (!UCS_PTR_IS_PTR(ucx)) r->word += nbytes;
    posted(r, ucx);
    return request;
}

constexpr const char *send_doc = R"(Append `buffer` to the stream to the peer.

Parameters
----------
buffer : contiguous buffer, any shape
    Locked until the request completes; not modified.

Returns
-------
Request
    Done when `buffer` may be changed again.

Raises
------
UnsupportedError
    The context was made without the feature ``stream``.
NotContiguousError
    Nothing was sent.

Source: ``ucp_stream_send_nbx``.)";

constexpr const char *recv_doc = R"(Receive bytes of the stream from the peer.

Parameters
----------
buffer : writable contiguous buffer, any shape
    Filled from its beginning. Locked until the request completes.
wait_all : bool
    Complete only when `buffer` is full; otherwise as soon as any bytes arrive.

Returns
-------
Request
    Its result is the number of bytes.

Raises
------
UnsupportedError
    The context was made without the feature ``stream``.
ReadOnlyError, NotContiguousError
    weft cannot write to `buffer` in place.

Two endpoints share one stream if each was made from the address of the other's worker. Cancelling ends the request,
but UCX cannot withdraw the receive: it takes the next bytes, and the buffer stays locked until then.
Source: ``ucp_stream_recv_nbx``.)";

}  // namespace

void define_streams(nb::class_<Endpoint> &endpoint) {
    endpoint
        .def("stream_send", &stream_send, nb::arg("buffer"),
             nb::sig("def stream_send(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]"), send_doc)
        .def("stream_recv", &stream_recv, nb::arg("buffer"), nb::kw_only(), nb::arg("wait_all") = false,
             nb::sig("def stream_recv(self, buffer: weft.typing.BufferLike, *, wait_all: bool = False) -> "
                     "weft.typing.Request[int]"),
             recv_doc);
}
