// SPDX-License-Identifier: BSD-3-Clause
// Messages that land in memory provided by the receiver: above all, device memory.
//
// UCX gathers from, and scatters into, memory of only one type, so a device buffer cannot be a segment next to host
// segments. It is sent alone, always by rendezvous, and stays unanswered until a receiver provides memory for it. A
// place is the number of such messages that the sender has sent before: it is known before the message, so another
// message can name it, and two readers of one connection cannot take each other's.
#include <vector>

#include "connection/channel.hpp"

// Errors are raised before anything is sent: a place that was named must be filled.
nb::object Channel::send_placed(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage,
                                nb::handle placed) {
    nb::list requests;
    std::vector<Request *> parts;
    requests.append(nb::none());
    for (nb::handle buffer : placed) {
        Request *r;
        requests.append(make_request(worker, owner, "send", 0, &r));
        r->buffer.acquire(buffer, false, "send", link->carrier->memory_types);
        r->nbytes = r->buffer.nbytes();
        if (!r->nbytes) raise("InvalidParamError", "send: a placed buffer is empty", "send");
        parts.push_back(r);
    }
    requests[0] = send(owner, first, rest, lend, stage);
    for (size_t i = 0; i < parts.size(); ++i) {
        Request *r = parts[i];
        begin(r, channel_operation);
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
    r->buffer.acquire(buffer, true, "recv", link->carrier->memory_types);
    r->nbytes = r->buffer.nbytes();
    begin(r, channel_operation);
    if (closed || closing)
        raise("ClosedError", "recv from " + name + ": the connection was closed by this side", "recv");
    if (placed_receives.contains(place))
        raise("InvalidParamError", "recv from " + name + ": another receive waits for this place", "recv");
    if (lost || (ended && received >= remote_count)) {
        r->fault = fault;
        r->complete_now(UCS_OK);
        return request;
    }
    r->hold_loosely();
    if (auto found = placed_messages.extract(place))
        answer_placed(r, std::move(found.mapped()));
    else
        placed_receives[place] = r;
    return request;
}

// An invalid message is dropped: its sender sees success, and its receiver sees the end of the connection.
void Channel::accept_placed(const Wire &wire, std::unique_ptr<Message> message, bool rendezvous) noexcept {
    message->sequence = wire.number;
    message->charge = charge_of(message->nbytes);
    message->carrier = link->carrier.get();
    if (!rendezvous || placed_messages.contains(message->place)) {
        tell(abort_kind, 0);
        return lose(
            make_fault("PeerLostError", "the peer violated the protocol: a placed message did not come by rendezvous"));
    }
    if (auto found = placed_receives.extract(message->place))
        answer_placed(found.mapped(), std::move(message));
    else
        placed_messages[message->place] = std::move(message);
    deliver();
}

void Channel::answer_placed(Request *r, std::unique_ptr<Message> message) noexcept {
    if (message->nbytes != r->nbytes) {
        r->fail(make_fault("TruncatedError", "the message has " + std::to_string(message->nbytes) + " B, the buffer " +
                                                 std::to_string(r->nbytes) + " B"));
        message->refuse();
        ++received;
        consume(message->charge, message->nbytes);
        r->end(UCS_OK);
        return acknowledge();
    }
    link->carrier->answer_into(r, std::exchange(message->descriptor, nullptr));
}

void Channel::landed(Request *r, ucs_status_t status) noexcept {
    r->end(status);
    if (closed || lost) return;
    if (status != UCS_OK) {
        tell(abort_kind, 0);
        return lose(make_fault("PeerLostError", ucx_status_string(status)));
    }
    ++received;
    consume(charge_of(r->nbytes), r->nbytes);
    acknowledge();
    end_receives();
}

void Channel::end_placed_receives(const std::shared_ptr<const Fault> &why) noexcept {
    for (auto &[place, r] : placed_receives) r->fail(why), r->end(UCS_OK);
    placed_receives.clear();
}
