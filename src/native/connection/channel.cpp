// SPDX-License-Identifier: BSD-3-Clause
// How a connection sends and how it ends; channel_receive.cpp is the receiving side.
#include "connection/channel.hpp"

#include <cstring>

Channel::Channel(Worker *w, std::shared_ptr<Link> over, uint64_t here, uint64_t there, std::string of)
    : worker(w), link(std::move(over)), local(here), remote(there), name(std::move(of)) {
    link->users.insert(this);
}

std::string channel_name(const Request &request) {
    return " (" + request.channel->name + ")";
}

bool withdraw_from_channel(Request &request) noexcept {
    return !request.ucx && request.channel->withdraw(&request);
}

constexpr Operation channel_operation{.withdraw = withdraw_from_channel, .where = channel_name};

void Channel::begin(Request *r, const Operation &operation) noexcept {
    r->operation = &operation;
    r->channel = this;
    r->engine = link->carrier->engine.get();
}

// ---- sending ----------------------------------------------------------------------------------------------

bool Channel::may_send(size_t charge) const noexcept {
    const size_t unread = sent_charge - credited;
    // The peer may leave less than a quarter of the window unreported while it has nothing to send. Without this rule,
    // a message that does not fit into the rest would wait forever.
    return unread < window / 4 || unread + charge <= window;
}

nb::object Channel::send(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage) {
    Request *r;
    nb::object request = make_request(worker, owner, "send", 0, &r);
    size_t large = rest.is_none() ? 0 : nb::len(rest);
    r->buffer.acquire(first, false, "send", large ? Buffer::host_only : link->carrier->memory_types);
    r->nbytes = r->buffer.nbytes();
    if (large > max_segments)
        raise("InvalidParamError", "send: more than " + std::to_string(max_segments) + " large segments", "send");
    if (large) {
        r->parts = std::make_unique<Parts>();
        r->parts->buffers.reserve(large);
        for (nb::handle item : rest) {
            Buffer part;
            part.acquire(item, false, "send");
            r->nbytes += part.nbytes();
            r->parts->buffers.push_back(std::move(part));
        }
    }
    // Only now: exporting a buffer may have run Python code.
    begin(r, channel_operation);
    if (closed || closing) raise("ClosedError", "send to " + name + ": the connection was closed by this side", "send");
    if (large && (lend || stage)) find_lendable(r, lend, stage);
    return queue_or_post(std::move(request), r);
}

nb::object Channel::queue_or_post(nb::object request, Request *r) {
    if (fault) {
        r->fault = fault;
        r->complete_now(UCS_OK);
        return request;
    }
    if (!sends.empty() || !advance(r)) {
        r->hold();
        sends.push_back(r);
    }
    return request;
}

// Post the request, or all of its messages, if permitted now.
bool Channel::advance(Request *r) noexcept {
    if (r->operation == &send_many_operation) return post_many(r);
    if (!may_lend(r) || !may_send(charge_of(*r))) return false;
    post(r);
    return true;
}

void Channel::post(Request *r) noexcept {
    if (!r->parts) [[likely]]
        return post_whole(r);
    Parts *parts = r->parts.get();
    const size_t large = parts ? parts->buffers.size() : 0;
    uint64_t header[max_header_nbytes / 8];
    Wire wire{Wire::magic_value, data_kind, uint16_t(large), remote, next_sequence++, consumed};
    if (parts && parts->bare) wire.kind = bare_kind;
    if (parts && parts->placed) wire.kind = placed_kind;
    std::memcpy(header, &wire, sizeof wire);
    uint64_t *end = header + sizeof(Wire) / 8 + large;
    if (wire.kind == placed_kind) *end++ = r->operand;
    const size_t charge = charge_of(*r);
    if (large && r->buffer.nbytes()) parts->iov.push_back({r->buffer.data(), r->buffer.nbytes()});
    for (size_t i = 0; i < large; ++i) {
        Buffer &buffer = parts->buffers[i];
        uint64_t &size = header[sizeof(Wire) / 8 + i];
        size = buffer.nbytes();
        if (!parts->pins.empty() && parts->pins[i]) {
            const bool staged = parts->is_staged(i);
            size |= lent_bit | (staged ? staged_bit : 0);
            Lent lent = link->socket->lend(std::move(parts->pins[i]));
            std::memcpy(end, &lent, sizeof lent);
            end += sizeof lent / 8;
            if (staged) {
                Pool::staged_total += buffer.nbytes();
                continue;
            }
            lent_sent_nbytes += buffer.nbytes();
            Pool::lent_total += buffer.nbytes();
        } else if (size) {
            parts->iov.push_back({buffer.data(), buffer.nbytes()});
        }
    }
    reported = consumed;
    sent_charge += charge;
    const bool rendezvous = r->nbytes >= rendezvous_nbytes || (parts && parts->placed);
    const iovec whole{r->buffer.data(), r->buffer.nbytes()};
    // Device memory is always alone in a message: as the first buffer, placed or not, or lent.
    const ucs_memory_type_t memory_type = parts && parts->bare ? parts->buffers[0].memory_type : r->buffer.memory_type;
    link->carrier->post(r, header, size_t(end - header) * 8, large ? parts->iov.data() : &whole,
                        large ? parts->iov.size() : 1, memory_type, rendezvous);
}

// A message of a single buffer.
void Channel::post_whole(Request *r) noexcept {
    const Wire wire{Wire::magic_value, data_kind, 0, remote, next_sequence++, consumed};
    reported = consumed;
    sent_charge += charge_of(r->nbytes);
    if (link->carrier->write(&wire, sizeof wire, r->buffer.data(), r->nbytes, false))
        return r->held ? r->end(UCS_OK) : r->complete_now(UCS_OK);
    const iovec whole{r->buffer.data(), r->nbytes};
    link->carrier->post(r, &wire, sizeof wire, &whole, 1, r->buffer.memory_type, r->nbytes >= rendezvous_nbytes);
}

void Channel::resume() noexcept {
    while (!sends.empty()) {
        Request *r = sends.front();
        if (!advance(r)) break;
        if (!sends.empty() && sends.front() == r) sends.pop_front();
    }
    if (!closing || closed || !sends.empty()) return;
    if (last_posted == UINT64_MAX && !is_under_way()) last_posted = link->carrier->posted();
    if (!std::exchange(goodbye_sent, true)) tell(goodbye_kind, next_sequence);
    if (lost) return;
    const bool is_all = last_posted != UINT64_MAX;
    if (link->carrier->has_read(is_all ? last_posted : link->carrier->posted()) && is_all) finish_close(nullptr);
}

void Channel::tell(uint16_t kind, uint64_t number) noexcept {
    if (link->lost) return;
    Wire wire{Wire::magic_value, kind, 0, remote, number, consumed};
    reported = consumed;
    link->carrier->post_header(&wire, sizeof wire);
}

// ---- ending -----------------------------------------------------------------------------------------------

void Channel::acknowledge() noexcept {
    if (!ended || acknowledged || !(closing || received >= remote_count)) return;
    acknowledged = true;
    tell(acknowledge_kind, 0);
}

nb::object Channel::close(PyObject *owner) {
    if (close_request && close_request->state == Request::State::pending) return nb::borrow(close_request->self);
    Request *r;
    nb::object request = make_request(worker, owner, "close", 0, &r);
    begin(r, channel_operation);
    if (closed) {
        r->complete_now(UCS_OK);
        return request;
    }
    if (close_request) {  // its waiter gave up, and the new one takes its place
        std::exchange(close_request, r)->end(UCS_ERR_CANCELED);
        r->hold();
        return request;
    }
    closing = true;
    auto why = make_fault("ClosedError", "the connection was closed by this side");
    for (Request *waiter : receives) stop(waiter, why);
    receives.clear();
    end_placed_receives(why);
    if (lost || ended) {
        if (lost && !ended) r->fault = fault;
        acknowledge();
        finish_close(nullptr);
        r->complete_now(UCS_OK);
        return request;
    }
    close_request = r;
    r->hold();
    resume();
    return request;
}

// Complete a close; `why` is set if the peer was lost before it acknowledged.
void Channel::finish_close(const std::shared_ptr<const Fault> &why) noexcept {
    Request *r = close_request;
    close_request = nullptr;
    auto self = shared_from_this();
    closed = true;
    if (!fault || ended) fault = make_fault("ClosedError", "the connection was closed by this side");
    clear();
    unregister();
    if (r) {
        if (why) r->fail(why);
        r->end(UCS_OK);
    }
}

void Channel::abort(const char *error, const std::string &reason, bool tell_peer) noexcept {
    if (closed) return;
    if (tell_peer && !lost && !acknowledged) tell(abort_kind, 0);  // a peer that has said goodbye waits for an answer
    fault = make_fault(error, reason);
    closed = closing = true;
    fail_under_way(fault);
    auto self = shared_from_this();
    clear();
    unregister();
    Request *r = close_request;
    close_request = nullptr;
    if (r) r->fail(fault), r->end(UCS_OK);
}

void Channel::lose(const std::shared_ptr<const Fault> &why) noexcept {
    if (lost || closed) return;
    lost = true;
    if (!fault) fault = why;
    for (Message *m : unanswered) m->refuse();
    unanswered.clear();
    placed_messages.clear();
    for (Request *r : sends) stop(r, why);
    sends.clear();
    fail_under_way(fault);
    end_receives();
    if (closing) finish_close(why);
}

void Channel::clear() noexcept {
    landed_here.give_up(inflow.get(), now_ns());
    for (auto *list : {&receives, &sends}) {
        for (Request *r : *list) stop(r, fault);
        list->clear();
    }
    end_placed_receives(fault);
    placed_messages.clear();
    unanswered.clear();
    for (Message *m : arrived) {
        if (!m) continue;
        if (m->on_its_way)
            m->channel = nullptr;  // deleted when the carrier releases its blocks
        else
            delete m;
    }
    arrived.clear();
    for (Message *m : returned) delete m;
    returned.clear();
}

bool Channel::is_under_way() const noexcept {
    for (Request *r = worker->in_flight; r; r = r->in_flight_next)
        if (r->channel == this && r->ucx) return true;
    return false;
}

void Channel::fail_under_way(const std::shared_ptr<const Fault> &why) noexcept {
    for (Request *r = worker->in_flight; r; r = r->in_flight_next)
        if (r->channel == this && r->ucx) r->fail(why);
}

void Channel::unregister() noexcept {
    link->users.erase(this);
    Links &links = Links::of(*worker);
    links.channels.erase(local);
    links.last = {};
}

Channel::~Channel() {
    clear();
}
