// SPDX-License-Identifier: BSD-3-Clause
// Many tagged messages in one call, with one request: a Python call and a request cost more than sending 8 B.
#include "operations/endpoint.hpp"

namespace {

/// Many operations that complete as one. Their buffers are the request's parts.
struct Batch {
    struct Item {
        Request *request;
        void *ucx = nullptr;  // in flight
        ucp_tag_recv_info_t info{};
    };
    std::vector<Item> items;  // UCX refers to each by its address
    size_t under_way = 0;
    ucs_status_t status = UCS_OK;  // of the first failure
};

Batch *batch_of(const Request &r) noexcept {
    return static_cast<Batch *>(r.taken);
}

PyObject *result_of_all(Request &r) {
    nb::list results;
    for (auto &item : batch_of(r)->items) results.append(nb::steal(r.worker->tag_result(item.info)));
    return results.release().ptr();
}

bool cancel_all(Request &r) noexcept {
    // A cancelled item may end at once, and the last item ends the request.
    Batch *batch = batch_of(r);
    for (size_t i = 0; i < batch->items.size() && batch->under_way; ++i)
        if (batch->items[i].ucx) ucp.request_cancel(r.engine->handle, batch->items[i].ucx);
    return false;
}

void drop_batch(Request &r) noexcept {
    delete batch_of(r);
}

constexpr Operation send_operation{.drop = drop_batch};
constexpr Operation recv_operation{.result = result_of_all, .withdraw = cancel_all, .drop = drop_batch};

void item_ended(Batch::Item *item, void *ucx_request, ucs_status_t status) {
    Request *r = item->request;
    Batch *batch = batch_of(*r);
    item->ucx = nullptr;
    ucp.request_free(ucx_request);
    if (batch->status == UCS_OK) batch->status = status;
    if (--batch->under_way) return;
    r->ucx = nullptr;
    r->end(batch->status);
}

void item_sent(void *ucx_request, ucs_status_t status, void *item) {
    item_ended(static_cast<Batch::Item *>(item), ucx_request, status);
}

void item_received(void *ucx_request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data) {
    auto *item = static_cast<Batch::Item *>(user_data);
    item->info = *info;
    item_ended(item, ucx_request, status);
}

/// Export every buffer before anything is posted.
template <typename Self>
Batch *take_all(const Self &self, Request *r, nb::handle buffers, bool writable, const char *op) {
    auto *batch = new Batch;
    r->taken = batch;
    r->operation = writable ? &recv_operation : &send_operation;
    r->parts = std::make_unique<Parts>();
    if (r->parts->acquire(buffers, writable, op, r->worker->memory_types)) [[unlikely]]
        usable(self, op);
    for (Buffer &each : r->parts->buffers) r->nbytes += each.nbytes();
    batch->items.resize(r->parts->buffers.size(), {r});
    return batch;
}

void item_posted(Batch *batch, Batch::Item *item, void *ucx) {
    if (UCS_PTR_IS_PTR(ucx)) {
        item->ucx = ucx;
        ++batch->under_way;
    } else if (batch->status == UCS_OK) {
        batch->status = UCS_PTR_STATUS(ucx);
    }
}

void all_posted(Request *r) {
    if (batch_of(*r)->under_way) {
        r->ucx = r->taken;
        r->hold();
        return;
    }
    r->complete_now(batch_of(*r)->status);
}

nb::object tag_send_many(EndpointSelf self, nb::handle buffers, uint64_t tag) {
    Endpoint *e = usable(self, "tag_send_many");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "tag_send_many", 0, &r);
    Batch *batch = take_all(self, r, buffers, false, "tag_send_many");
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.send = item_sent;
    for (size_t i = 0; i < batch->items.size(); ++i) {
        Buffer &buffer = r->parts->buffers[i];
        param.user_data = &batch->items[i];
        param.memory_type = buffer.memory_type;
        item_posted(batch, &batch->items[i], ucp.tag_send_nbx(e->handle, buffer.data(), buffer.nbytes(), tag, &param));
    }
    all_posted(r);
    return request;
}

nb::object tag_recv_many(WorkerSelf self, nb::handle buffers, uint64_t tag, uint64_t mask) {
    Worker *w = usable(self, "tag_recv_many");
    Request *r;
    nb::object request = make_request(w, self.h.ptr(), "tag_recv_many", 0, &r);
    Batch *batch = take_all(self, r, buffers, true, "tag_recv_many");
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv = item_received;
    for (size_t i = 0; i < batch->items.size(); ++i) {
        Buffer &buffer = r->parts->buffers[i];
        param.user_data = &batch->items[i];
        param.memory_type = buffer.memory_type;
        param.recv_info.tag_info = &batch->items[i].info;
        item_posted(batch, &batch->items[i],
                    ucp.tag_recv_nbx(w->own->handle, buffer.data(), buffer.nbytes(), tag, mask, &param));
    }
    all_posted(r);
    return request;
}

constexpr const char *send_doc = R"(Send each of `buffers` under `tag`, in order, with one request for all.

Parameters
----------
buffers : sequence of contiguous buffers
    Each is one message. Locked until the request completes; not modified.
tag : int, 0 <= value < 2**64

Returns
-------
Request
    Done when all buffers may be changed again. It fails with the first error.

Raises
------
NotContiguousError
    Nothing was sent.

Source: ``ucp_tag_send_nbx``, once for each.)";

constexpr const char *recv_doc = R"(Post a receive into each of `buffers`, in order, with one request for all.

Parameters
----------
buffers : sequence of writable contiguous buffers
    Each takes one message. Locked until the request completes.
tag, mask : int, 0 <= value < 2**64
    A message matches if ``(sent ^ tag) & mask == 0``.

Returns
-------
Request
    Its result is a list of ``(nbytes, sender_tag)``. It fails with the first error.

Raises
------
ReadOnlyError, NotContiguousError
    weft cannot write to a buffer in place. Nothing was posted.

Cancelling withdraws the receives that have not matched; messages that arrived are in their buffers.
Source: ``ucp_tag_recv_nbx``.)";

}  // namespace

void define_batches(nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint) {
    endpoint.def("tag_send_many", &tag_send_many, nb::arg("buffers"), nb::arg("tag"),
                 nb::sig("def tag_send_many(self, buffers: collections.abc.Sequence[weft.typing.BufferLike], tag: "
                         "int) -> weft.typing.Request[None]"),
                 send_doc);
    worker.def("tag_recv_many", &tag_recv_many, nb::arg("buffers"), nb::arg("tag"), nb::arg("mask") = UINT64_MAX,
               nb::sig("def tag_recv_many(self, buffers: collections.abc.Sequence[weft.typing.BufferLike], tag: int, "
                       "mask: int = 0xffffffffffffffff) -> weft.typing.Request[list[tuple[int, int]]]"),
               recv_doc);
}
