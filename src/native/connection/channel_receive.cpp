// SPDX-License-Identifier: BSD-3-Clause
// How a connection receives: whatever order messages arrive in, they are taken in the order they were sent.
#include <cstring>

#include "connection/wire.hpp"
#include "progress/worker.hpp"

// A peer's memory is bounded by its credit, so this many messages out of order are garbage.
constexpr uint64_t max_ahead = 1 << 20;

// ---- receiving --------------------------------------------------------------------------------------------

nb::object Channel::recv(PyObject *owner) {
    Request *r;
    nb::object request = make_request(worker, owner, "recv", 0, &r);
    r->channel = this;
    r->engine = link->engine.get();
    r->kind = Request::Kind::message;
    if (closed || closing)
        raise("ClosedError", "recv from " + name + ": the connection was closed by this side", "recv");
    if (waiters.empty())
        if (Message *m = take()) {
            r->message.reset(m);
            r->complete_now(UCS_OK);
            answer();
            acknowledge();
            return request;
        }
    r->hold();
    waiters.push_back(r);
    answer();
    deliver();
    return request;
}

ucs_status_t Channel::on_message(const Wire &wire, std::unique_ptr<Message> message, void *data,
                                 bool rendezvous) noexcept {
    if (wire.consumed > credited && wire.consumed <= sent_charge) {
        credited = wire.consumed;
        post_queue();
    }
    switch (wire.kind) {
        case data_kind:
        case bare_kind:
        case placed_kind: break;
        case goodbye_kind:
            ended = true;
            remote_count = wire.number;
            acknowledge();
            if (closing) return finish_close(nullptr), UCS_OK;
            if (!fault) {
                auto why = make_fault("PeerClosedError", name + ": the peer has closed the connection");
                fault = why;
                for (Request *r : queue) r->fail(why), r->end(UCS_OK);
                queue.clear();
            }
            end_waiters();
            return UCS_OK;
        case acknowledge_kind:
            if (goodbye_sent) finish_close(nullptr);
            return UCS_OK;
        case abort_kind: lose(make_fault("PeerLostError", name + ": the peer aborted the connection")); return UCS_OK;
        default: return UCS_OK;
    }
    uint64_t index = wire.number - head;
    if (closed || lost || closing || wire.number < head || index > max_ahead) return UCS_OK;
    while (inbox.size() <= index) inbox.push_back(nullptr);
    if (inbox[index]) return UCS_OK;
    if (wire.kind == placed_kind) {
        message->descriptor = rendezvous ? data : nullptr;
        inbox[index] = new Message;  // in its turn there is nothing to do
        inbox[index]->skipped = inbox[index]->ready = true;
        accept_placed(wire, std::move(message), rendezvous);
        return rendezvous ? UCS_INPROGRESS : UCS_OK;
    }

    size_t lent_nbytes = 0, staged_nbytes = 0;
    bool missing = false;
    for (size_t i = 0; i < message->lent.size(); ++i) {
        if (!message->lent[i]) continue;
        (message->staged[i] ? staged_nbytes : lent_nbytes) += message->sizes[i];
        missing |= !message->segments[i].data;
    }
    lent_received_nbytes += lent_nbytes;
    Pool::borrowed_total += lent_nbytes;
    Message *m = message.release();
    m->sequence = wire.number;
    m->charge = charge_of(m->nbytes, lent_nbytes, staged_nbytes);
    m->engine = link->engine.get();
    m->bare = wire.kind == bare_kind;
    m->sink = this;
    m->arrived = [](Message *message, void *sink) { static_cast<Channel *>(sink)->accept(message); };
    inbox[index] = m;
    if (missing) {
        m->status = UCS_ERR_NO_RESOURCE;
        m->ready = true;
        accept(m);
        return UCS_OK;
    }
    if (rendezvous) {
        m->descriptor = data;
        auto at = held.end();
        while (at != held.begin() && (*std::prev(at))->sequence > m->sequence) --at;
        held.insert(at, m);
        answer();
        return UCS_INPROGRESS;
    }
    unread_nbytes += m->nbytes;
    if (!m->copy(data)) m->status = UCS_ERR_NO_MEMORY, m->ready = true;
    accept(m);
    return UCS_OK;
}

// Answer the rendezvous that a reader waits for, and as many more as may lie here unread.
void Channel::answer() noexcept {
    while (!held.empty()) {
        Message *m = held.front();
        uint64_t position = m->sequence - head + returned.size();
        if (position >= waiters.size() && unread_nbytes + m->nbytes > landing_limit) return;
        held.pop_front();
        unread_nbytes += m->nbytes;
        m->land();
    }
}

// `m` is complete, or failed.
void Channel::accept(Message *m) noexcept {
    if (m->status != UCS_OK) {
        auto why =
            m->status == UCS_ERR_NO_MEMORY
                ? make_fault("NoMemoryError", name + ": no memory for a message of " + std::to_string(m->nbytes) + " B")
            : m->status == UCS_ERR_NO_RESOURCE
                ? make_fault("NoMemoryError", name +
                                                  ": memory that the peer lent did not arrive (is the limit of open "
                                                  "files reached?)")
                : make_fault("PeerLostError", name + ": " + ucx_status_string(m->status));
        tell(abort_kind, 0);
        return lose(why);
    }
    ++received;
    deliver();
    acknowledge();
}

Message *Channel::take() noexcept {
    if (!returned.empty()) {
        Message *m = returned.front();
        returned.pop_front();
        return m;
    }
    while (!inbox.empty() && inbox.front() && inbox.front()->skipped) {
        delete inbox.front();
        inbox.pop_front();
        ++head;
    }
    if (inbox.empty() || !inbox.front() || !inbox.front()->ready || inbox.front()->status != UCS_OK) return nullptr;
    Message *m = inbox.front();
    inbox.pop_front();
    ++head;
    unread_nbytes -= m->nbytes;
    consume(m->charge);
    return m;
}

// Less than a quarter of the window is left unreported: Channel::may_send never waits for that little.
void Channel::consume(size_t charge) noexcept {
    consumed += charge;
    if (consumed - reported >= window / 4 && !ended) tell(credit_kind, 0);
}

void Channel::deliver() noexcept {
    bool any = false;
    while (!waiters.empty()) {
        Message *m = take();
        if (!m) break;
        Request *r = waiters.front();
        waiters.pop_front();
        r->message.reset(m);
        r->end(UCS_OK);
        any = true;
    }
    if (any) answer();
    end_waiters();
}

void Channel::return_message(std::unique_ptr<Message> message) noexcept {
    if (closed) return;
    auto at = returned.begin();
    while (at != returned.end() && (*at)->sequence < message->sequence) ++at;
    returned.insert(at, message.release());
    deliver();
}

// Waiters that nothing can reach any more end with the connection's fault.
void Channel::end_waiters() noexcept {
    if (fault && (lost || (ended && received >= remote_count))) end_destinations(fault);
    if (!fault || waiters.empty()) return;
    bool more = !returned.empty() || (ended && !lost && head < remote_count) ||
                (!inbox.empty() && inbox.front() && inbox.front()->ready && inbox.front()->status == UCS_OK);
    if (more) return;
    for (Request *r : waiters) r->fail(fault), r->end(UCS_OK);
    waiters.clear();
}

bool Channel::withdraw(Request *request) noexcept {
    if (std::erase_if(destinations, [&](auto &entry) { return entry.second == request; })) return true;
    for (auto *list : {&waiters, &queue})
        for (auto it = list->begin(); it != list->end(); ++it)
            if (*it == request) {
                list->erase(it);
                return true;
            }
    return false;
}

// ---- UCX's side -------------------------------------------------------------------------------------------

// Whatever arrives here may come from a stranger: nothing in it is believed before it is checked.

// The message with what was lent to it; null if it is garbage. What was lent is returned even when nobody is there
// any more to take the message.
static std::unique_ptr<Message> read_header(const Wire &wire, const uint8_t *rest, size_t rest_nbytes, size_t nbytes,
                                            FdSocket *side) noexcept {
    const size_t sizes_nbytes = wire.large * sizeof(uint64_t);
    if (wire.large > Channel::max_segments || rest_nbytes < sizes_nbytes) return nullptr;
    auto message = std::make_unique<Message>();
    message->nbytes = nbytes;
    message->sizes.resize(wire.large + 1);
    if (sizes_nbytes) std::memcpy(&message->sizes[1], rest, sizes_nbytes);
    size_t left = nbytes, lents = 0;
    for (size_t i = 1; i <= wire.large; ++i) {
        if (message->sizes[i] & lent_bit) {
            ++lents;
        } else {
            if (message->sizes[i] > left) return nullptr;
            left -= message->sizes[i];
        }
    }
    message->sizes[0] = left;
    if (wire.kind == placed_kind) {
        if (wire.large || rest_nbytes != sizeof message->place || !nbytes) return nullptr;
        std::memcpy(&message->place, rest, sizeof message->place);
        return message;
    }
    if (rest_nbytes != sizes_nbytes + lents * sizeof(Lent) || (lents && !side)) return nullptr;
    if (wire.kind == bare_kind && (wire.large != 1 || left)) return nullptr;
    if (!lents) return message;
    message->lent.resize(wire.large + 1);
    message->staged.resize(wire.large + 1);
    message->segments.resize(wire.large + 1);
    const uint8_t *at = rest + sizes_nbytes;
    for (size_t i = 1; i <= wire.large; ++i) {
        if (!(message->sizes[i] & lent_bit)) continue;
        message->lent[i] = true;
        message->staged[i] = message->sizes[i] & staged_bit;
        message->sizes[i] &= ~(lent_bit | staged_bit);
        Lent lent;
        std::memcpy(&lent, at, sizeof lent);
        at += sizeof lent;
        message->segments[i] = side->borrow(lent, message->sizes[i]);
    }
    return message;
}

static ucs_status_t drop(Worker *worker) noexcept {
    ++worker->dropped_messages;
    return UCS_OK;
}

ucs_status_t on_channel_message(void *arg, const void *header, size_t header_nbytes, void *data, size_t nbytes,
                                const ucp_am_recv_param_t *param) noexcept {
    Worker *worker = static_cast<Engine *>(arg)->worker;
    Wire wire;
    if (header_nbytes < sizeof wire) return drop(worker);
    std::memcpy(&wire, header, sizeof wire);
    if (wire.magic != Wire::magic_value) return drop(worker);
    auto *engine = static_cast<Engine *>(arg);
    auto message = read_header(wire, static_cast<const uint8_t *>(header) + sizeof wire, header_nbytes - sizeof wire,
                               nbytes, engine->link ? engine->link->side.get() : nullptr);
    if (!message) return drop(worker);
    auto found = worker->channels.find(wire.channel);
    if (found == worker->channels.end()) return drop(worker);
    auto channel = found->second;
    return channel->on_message(wire, std::move(message), data, param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
}
