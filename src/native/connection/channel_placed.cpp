// SPDX-License-Identifier: BSD-3-Clause
// Messages that land in memory which the receiver brings: device memory, above all.
//
// UCX gathers from, and scatters into, memory of one type only, so what lies on a device cannot be a segment beside the
// host's. It travels alone, always by rendezvous, and is left unanswered until somebody comes with memory for it. A
// place is the number of such messages that its sender had sent before: it is known before the message is, so another
// message can name it, and two readers of one connection cannot take each other's.
#include <vector>

#include "connection/wire.hpp"
#include "progress/worker.hpp"

namespace {

void placed_landed(void *request, ucs_status_t status, size_t, void *user_data) {
    auto *r = static_cast<Request *>(user_data);
    r->ucx = nullptr;
    ucp.request_free(request);
    r->channel->landed(r, status);
}

}  // namespace

// What is refused is refused before anything is sent: a place that was named must be filled.
nb::object Channel::send_placed(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage,
                                nb::handle placed) {
    nb::list requests;
    std::vector<Request *> parts;
    requests.append(nb::none());
    for (nb::handle buffer : placed) {
        Request *r;
        requests.append(make_request(worker, owner, "send", 0, &r));
        r->buffer.acquire(buffer, false, "send", worker->memory_types);
        r->nbytes = r->buffer.nbytes();
        if (!r->nbytes) raise("InvalidParamError", "send: there are no bytes to place", "send");
        parts.push_back(r);
    }
    requests[0] = send(owner, first, rest, lend, stage);
    for (size_t i = 0; i < parts.size(); ++i) {
        Request *r = parts[i];
        r->channel = this;
        r->engine = link->engine.get();
        r->parts = std::make_unique<Parts>();
        r->parts->placed = true;
        r->operand = next_place++;
        queue_or_post(requests[i + 1], r);
    }
    return requests;
}

nb::object Channel::recv_placed(PyObject *owner, uint64_t place, nb::handle buffer) {
    Request *r;
    nb::object request = make_request(worker, owner, "recv", 0, &r);
    r->buffer.acquire(buffer, true, "recv", worker->memory_types);
    r->nbytes = r->buffer.nbytes();
    r->channel = this;
    r->engine = link->engine.get();
    if (closed || closing)
        raise("ClosedError", "recv from " + name + ": the connection was closed by this side", "recv");
    if (destinations.contains(place))
        raise("InvalidParamError", "recv from " + name + ": this place is already waited for", "recv");
    if (lost || (ended && received >= remote_count)) {
        r->fault = fault;
        r->complete_now(UCS_OK);
        return request;
    }
    r->hold();
    if (auto found = placed.extract(place))
        land(r, std::move(found.mapped()));
    else
        destinations[place] = r;
    return request;
}

// Garbage is refused by dropping it: its sender sees success, and whoever waits for it, the end of the connection.
void Channel::accept_placed(const Wire &wire, std::unique_ptr<Message> message, bool rendezvous) noexcept {
    message->sequence = wire.number;
    message->charge = charge_of(message->nbytes);
    message->engine = link->engine.get();
    if (!rendezvous || placed.contains(message->place)) {
        tell(abort_kind, 0);
        return lose(make_fault("PeerLostError", name + ": sent what should be placed in another way"));
    }
    if (auto found = destinations.extract(message->place))
        land(found.mapped(), std::move(message));
    else
        placed[message->place] = std::move(message);
    deliver();
}

void Channel::land(Request *r, std::unique_ptr<Message> message) noexcept {
    if (message->nbytes != r->nbytes) {
        r->fail(make_fault("TruncatedError", name + ": the message has " + std::to_string(message->nbytes) + " B"));
        message->drop();
        ++received;
        consume(message->charge);
        r->end(UCS_OK);
        return acknowledge();
    }
    void *from = message->descriptor;
    message->descriptor = nullptr;
    worker->heat(link->engine.get());
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv_am = placed_landed;
    param.user_data = r;
    param.memory_type = r->buffer.memory_type;
    param.datatype = ucp_dt_make_contig(1);
    void *request = ucp.am_recv_data_nbx(link->engine->handle, from, r->buffer.data(), r->nbytes, &param);
    if (UCS_PTR_IS_PTR(request))
        r->ucx = request;
    else
        landed(r, UCS_PTR_STATUS(request));
}

void Channel::landed(Request *r, ucs_status_t status) noexcept {
    r->end(status);
    if (closed || lost) return;
    if (status != UCS_OK) {
        tell(abort_kind, 0);
        return lose(make_fault("PeerLostError", name + ": " + ucx_status_string(status)));
    }
    ++received;
    consume(charge_of(r->nbytes));
    acknowledge();
    end_waiters();
}

void Channel::end_destinations(const std::shared_ptr<const Fault> &why) noexcept {
    for (auto &[place, r] : destinations) r->fail(why), r->end(UCS_OK);
    destinations.clear();
}
