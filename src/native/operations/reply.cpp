// SPDX-License-Identifier: BSD-3-Clause
#include "operations/reply.hpp"

#include "progress/worker.hpp"

namespace {

struct ReplyEnd : Arrival {
    std::shared_ptr<Reply> reply;
    explicit ReplyEnd(std::shared_ptr<Reply> ended) noexcept : reply(std::move(ended)) {}
    void deliver(Worker &, std::unique_ptr<Arrival> &) override { reply->end(); }
};

// Called by UCX. A drain must process it before it calls a handler, which may hold this endpoint.
void ended(void *request, ucs_status_t, size_t, void *argument) {
    ucp.request_free(request);
    Engine *engine = static_cast<Reply *>(argument)->engine;
    auto found = engine->replies.find(static_cast<Reply *>(argument)->handle);
    std::shared_ptr<Reply> reply = std::move(found->second);
    engine->replies.erase(found);
    reply->handle = nullptr;
    if (engine->worker) engine->worker->arrivals.push_front(std::make_unique<ReplyEnd>(std::move(reply)));
}

}  // namespace

std::shared_ptr<Reply> watch_reply(Engine *engine, ucp_ep_h handle) {
    auto found = engine->replies.find(handle);
    if (found != engine->replies.end()) return found->second;
    const bool watched = !(nb::inst_ptr<Context>(engine->context)->features & UCP_FEATURE_STREAM);
    auto reply = std::make_shared<Reply>(Reply{.engine = engine, .handle = handle, .watched = watched});
    if (!watched) return reply;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv_stream = ended;
    param.user_data = reply.get();
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    size_t nbytes;
    if (UCS_PTR_IS_PTR(ucp.stream_recv_nbx(handle, &reply->byte, 1, &nbytes, &param)))
        engine->replies[handle] = reply;
    else
        reply->handle = nullptr;  // without it, nothing would report its end
    return reply;
}

void Reply::refuse(const char *op) const {
    if (watched) raise("PeerLostError", std::string(op) + ": the sender of the message is gone", op);
    raise("ClosedError",
          std::string(op) + ": the handler has returned; with the feature stream, reply inside the handler", op);
}

void Reply::end() noexcept {
    handle = nullptr;
    for (ucp_ep_h *each : handles) *each = nullptr;
}
