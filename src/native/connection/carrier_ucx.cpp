// SPDX-License-Identifier: BSD-3-Clause
// UCX pairs endpoints made from worker addresses in the order of their creation. With one endpoint per connection, they
// could be paired crosswise, and closing one would break another. So each link has one endpoint.
#include "connection/carrier_ucx.hpp"

#include "connection/channel.hpp"
#include "connection/message.hpp"
#include "operations/active.hpp"
#include "operations/operation.hpp"
#include "ucp/lanes.hpp"

namespace {

// A header alone has neither buffer nor waiter.
void header_sent(void *ucx_request, ucs_status_t, void *engine) {
    ucp.request_free(ucx_request);
    --static_cast<Engine *>(engine)->headers_left;
}

void message_landed(void *message, ucs_status_t status) noexcept {
    static_cast<Message *>(message)->end(status);
}

void request_landed(void *ucx_request, ucs_status_t status, size_t, void *request) {
    auto *r = static_cast<Request *>(request);
    r->ucx = nullptr;
    ucp.request_free(ucx_request);
    r->channel->landed(r, status);
}

/// Owns the ucp_ep_h.
struct UcxCarrier : Carrier {
    Link *link;
    Worker *worker;
    ucp_ep_h endpoint = nullptr;

    UcxCarrier(Link *link, bool same_host);

    std::string address() const override {
        if (!engine) raise("PeerLostError", "the link was lost", "connect");
        return engine->address();
    }
    void offer(int) override {}
    int memory() const noexcept override { return -1; }
    void join(nb::bytes address, int, int) override { endpoint = create_endpoint(engine.get(), address, failed, this); }
    void post(Request *r, const void *header, size_t header_nbytes, const iovec *parts, size_t count,
              ucs_memory_type_t memory_type, bool rendezvous) noexcept override;
    void post_header(const void *header, size_t nbytes) noexcept override;
    void answer(Message *message) noexcept override;
    void answer_into(Request *r, void *descriptor) noexcept override;
    void refuse(void *descriptor) noexcept override { ucp.am_data_release(engine->handle, descriptor); }
    void attend() noexcept override {}
    bool has_headers_left() const noexcept override { return engine && engine->headers_left; }
    void flush(int64_t deadline_ns) noexcept override {
        if (engine) engine->flush(deadline_ns);
    }
    void close() noexcept override;
    nb::list transports() const override { return endpoint ? ::transports(endpoint) : nb::list(); }
    std::string print_info() const override { return endpoint ? ::print_info(endpoint) : ""; }
    nb::object evaluate_perf(size_t nbytes) const override {
        return endpoint ? ::evaluate_perf(endpoint, nbytes) : nb::none();
    }
    uintptr_t handle() const noexcept override { return reinterpret_cast<uintptr_t>(endpoint); }

    // Called by UCX.
    static void failed(void *carrier, ucp_ep_h, ucs_status_t status) {
        static_cast<UcxCarrier *>(carrier)->link->fail(ucx_status_string(status));
    }
    static ucs_status_t from_link(void *carrier, const void *header, size_t header_nbytes, void *data, size_t nbytes,
                                  const ucp_am_recv_param_t *param) {
        auto *self = static_cast<UcxCarrier *>(carrier);
        return receive(*self->worker, self->link->socket.get(), header, header_nbytes, data, nbytes, param);
    }
    static ucs_status_t from_network(void *worker, const void *header, size_t header_nbytes, void *data, size_t nbytes,
                                     const ucp_am_recv_param_t *param) {
        return receive(*static_cast<Worker *>(worker), nullptr, header, header_nbytes, data, nbytes, param);
    }
    static ucs_status_t receive(Worker &worker, FdSocket *socket, const void *header, size_t header_nbytes, void *data,
                                size_t nbytes, const ucp_am_recv_param_t *param) noexcept {
        const bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
        const bool kept = receive_message(worker, socket, header, header_nbytes, data, nbytes,
                                          rendezvous ? Way::rendezvous : Way::whole);
        return kept ? UCS_INPROGRESS : UCS_OK;
    }
};

UcxCarrier::UcxCarrier(Link *of, bool same_host) : Carrier(of->worker->memory_types), link(of), worker(of->worker) {
    engine = same_host ? std::make_shared<Engine>(worker) : worker->own;
    const ucs_status_t status = same_host ? set_am_callback(engine.get(), connection_am_id, from_link, this)
                                          : set_am_callback(engine.get(), connection_am_id, from_network, worker);
    check(status, "connect", ": preparing a link between two workers");
}

void UcxCarrier::post(Request *r, const void *header, size_t header_nbytes, const iovec *parts, size_t count,
                      ucs_memory_type_t memory_type, bool rendezvous) noexcept {
    worker->poll(engine.get());
    const Gathered data(parts, count);
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                         UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | (rendezvous ? UCP_AM_SEND_FLAG_RNDV : 0);
    param.cb.send = operation_ended;
    param.user_data = r;
    param.memory_type = memory_type;
    param.datatype = data.datatype;
    void *ucx_request =
        ucp.am_send_nbx(endpoint, connection_am_id, header, header_nbytes, data.buffer, data.count, &param);
    if (UCS_PTR_IS_PTR(ucx_request)) {
        r->ucx = ucx_request;
        r->hold();
    } else if (r->held) {
        r->end(UCS_PTR_STATUS(ucx_request));
    } else {
        r->complete_now(UCS_PTR_STATUS(ucx_request));
    }
}

void UcxCarrier::post_header(const void *header, size_t nbytes) noexcept {
    if (!endpoint) return;
    worker->poll(engine.get());
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | UCP_AM_SEND_FLAG_EAGER;
    param.cb.send = header_sent;
    param.user_data = engine.get();
    void *ucx_request = ucp.am_send_nbx(endpoint, connection_am_id, header, nbytes, nullptr, 0, &param);
    if (UCS_PTR_IS_PTR(ucx_request))
        ++engine->headers_left;
    else if (ucx_request)
        link->fail(ucx_status_string(UCS_PTR_STATUS(ucx_request)));
}

void UcxCarrier::answer(Message *message) noexcept {
    message->landing = {message, message_landed};
    engine->land(&message->landing, std::exchange(message->descriptor, nullptr), message->parts.data(),
                 message->parts.size());
}

void UcxCarrier::answer_into(Request *r, void *descriptor) noexcept {
    worker->poll(engine.get());
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv_am = request_landed;
    param.user_data = r;
    param.memory_type = r->buffer.memory_type;
    param.datatype = ucp_dt_make_contig(1);
    void *ucx_request = ucp.am_recv_data_nbx(engine->handle, descriptor, r->buffer.data(), r->nbytes, &param);
    if (UCS_PTR_IS_PTR(ucx_request))
        r->ucx = ucx_request;
    else
        r->channel->landed(r, UCS_PTR_STATUS(ucx_request));
}

void UcxCarrier::close() noexcept {
    if (!engine) return;
    if (endpoint) engine->force_close(endpoint);
    endpoint = nullptr;
    // Operations to a dead peer end within a few turns, or never: those end with the engine.
    if (engine != worker->own) engine->finish(now_ns() + 20'000'000);
    engine.reset();
}

}  // namespace

std::unique_ptr<Carrier> make_ucx_carrier(Link *link, bool same_host) {
    return std::make_unique<UcxCarrier>(link, same_host);
}
