// SPDX-License-Identifier: BSD-3-Clause
// How a connection receives: whatever order messages arrive in, they are taken in the order they were sent.
#include <cstring>

#include "connection/channel.hpp"

// A peer's memory is bounded by its credit, so this many messages out of order are garbage.
constexpr uint64_t max_ahead = 1 << 20;

namespace {

Message *message_of(const Request &r) noexcept {
    return static_cast<Message *>(r.taken);
}

PyObject *received(Request &r) {
    if (!r.taken) raise("CanceledError", "recv" + r.what() + ": the message went back to its connection", "recv");
    return message_of(r)->view().release().ptr();
}

// Take a block back out of the memoryview that was made of it; false if somebody else holds the view.
bool reclaim(PyObject *view, Block &segment) noexcept {
    if (Py_REFCNT(view) != 1) return false;
    PyObject *exporter = PyMemoryView_GET_BUFFER(view)->obj;
    segment = std::move(*nb::inst_ptr<Block>(exporter));
    return true;
}

// To the head of the connection. Task.__wakeup asks for the result before it resumes the coroutine: that is undone,
// unless the result got about.
void give_back(Request &r) noexcept {
    Message *message = message_of(r);
    if (!message) return;
    if (r.value) {
        if (Py_REFCNT(r.value) != 1) return;
        if (PyTuple_Check(r.value)) {
            for (size_t i = 0; i < message->segments.size(); ++i)
                if (!reclaim(PyTuple_GET_ITEM(r.value, Py_ssize_t(i)), message->segments[i])) return;
        } else if (!reclaim(r.value, message->segments[message->bare ? 1 : 0])) {
            return;
        }
        Py_CLEAR(r.value);
    }
    r.retrieved = true;
    r.taken = nullptr;
    auto channel = r.channel->shared_from_this();
    r.worker->defer([channel, message] { channel->return_message(std::unique_ptr<Message>(message)); });
}

void drop(Request &r) noexcept {
    if (!r.retrieved) give_back(r);
    delete message_of(r);
}

constexpr Operation recv_operation{
    .result = received, .withdraw = withdraw_from_channel, .give_back = give_back, .drop = drop, .where = channel_name};

}  // namespace

nb::object Channel::recv(PyObject *owner) {
    Request *r;
    nb::object request = make_request(worker, owner, "recv", 0, &r);
    begin(r, recv_operation);
    if (closed || closing)
        raise("ClosedError", "recv from " + name + ": the connection was closed by this side", "recv");
    if (receives.empty())
        if (Message *m = take()) {
            r->taken = m;
            r->complete_now(UCS_OK);
            answer();
            acknowledge();
            return request;
        }
    r->hold();
    receives.push_back(r);
    answer();
    deliver();
    return request;
}

bool Channel::on_message(const Wire &wire, std::unique_ptr<Message> message, void *data, Way way) noexcept {
    const bool rendezvous = way == Way::rendezvous;
    if (wire.consumed > credited && wire.consumed <= sent_charge) {
        credited = wire.consumed;
        resume();
    }
    switch (wire.kind) {
        case data_kind:
        case bare_kind:
        case placed_kind: break;
        case goodbye_kind:
            ended = true;
            remote_count = wire.number;
            acknowledge();
            if (closing) return finish_close(nullptr), false;
            if (!fault) {
                auto why = make_fault("PeerClosedError", name + ": the peer has closed the connection");
                fault = why;
                for (Request *r : sends) r->fail(why), r->end(UCS_OK);
                sends.clear();
            }
            end_receives();
            return false;
        case acknowledge_kind:
            if (goodbye_sent) finish_close(nullptr);
            return false;
        case abort_kind: lose(make_fault("PeerLostError", name + ": the peer aborted the connection")); return false;
        default: return false;
    }
    uint64_t index = wire.number - head;
    if (closed || lost || closing || wire.number < head || index > max_ahead) return false;
    while (arrived.size() <= index) arrived.push_back(nullptr);
    if (arrived[index]) return false;
    if (wire.kind == placed_kind) {
        message->descriptor = rendezvous ? data : nullptr;
        arrived[index] = new Message;  // in its turn there is nothing to do
        arrived[index]->skipped = arrived[index]->ready = true;
        accept_placed(wire, std::move(message), rendezvous);
        return rendezvous;
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
    m->carrier = link->carrier.get();
    m->bare = wire.kind == bare_kind;
    m->channel = this;
    m->arrived = [](Channel *channel, Message *message) { channel->complete(message); };
    arrived[index] = m;
    if (missing) {
        m->status = UCS_ERR_NO_RESOURCE;
        m->ready = true;
        complete(m);
        return false;
    }
    if (rendezvous) {
        m->descriptor = data;
        auto at = unanswered.end();
        while (at != unanswered.begin() && (*std::prev(at))->sequence > m->sequence) --at;
        unanswered.insert(at, m);
        answer();
        return true;
    }
    unread_nbytes += m->nbytes;
    if (way == Way::streamed) {
        m->descriptor = data;
        m->answer();
        return true;
    }
    if (!m->copy(data)) m->status = UCS_ERR_NO_MEMORY, m->ready = true;
    complete(m);
    return false;
}

// Answer the rendezvous that a reader waits for, and as many more as may lie here unread.
void Channel::answer() noexcept {
    while (!unanswered.empty()) {
        Message *m = unanswered.front();
        uint64_t position = m->sequence - head + returned.size();
        if (position >= receives.size() && unread_nbytes + m->nbytes > landing_limit) return;
        unanswered.pop_front();
        unread_nbytes += m->nbytes;
        m->answer();
    }
}

// `m` is complete, or failed.
void Channel::complete(Message *m) noexcept {
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
    while (!arrived.empty() && arrived.front() && arrived.front()->skipped) {
        delete arrived.front();
        arrived.pop_front();
        ++head;
    }
    if (arrived.empty() || !arrived.front() || !arrived.front()->ready || arrived.front()->status != UCS_OK)
        return nullptr;
    Message *m = arrived.front();
    arrived.pop_front();
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
    while (!receives.empty()) {
        Message *m = take();
        if (!m) break;
        Request *r = receives.front();
        receives.pop_front();
        r->taken = m;
        r->end(UCS_OK);
        any = true;
    }
    if (any) answer();
    end_receives();
}

void Channel::return_message(std::unique_ptr<Message> message) noexcept {
    if (closed) return;
    auto at = returned.begin();
    while (at != returned.end() && (*at)->sequence < message->sequence) ++at;
    returned.insert(at, message.release());
    deliver();
}

// Waiters that nothing can reach any more end with the connection's fault.
void Channel::end_receives() noexcept {
    if (fault && (lost || (ended && received >= remote_count))) end_placed_receives(fault);
    if (!fault || receives.empty()) return;
    bool more = !returned.empty() || (ended && !lost && head < remote_count) ||
                (!arrived.empty() && arrived.front() && arrived.front()->ready && arrived.front()->status == UCS_OK);
    if (more) return;
    for (Request *r : receives) r->fail(fault), r->end(UCS_OK);
    receives.clear();
}

bool Channel::withdraw(Request *request) noexcept {
    if (std::erase_if(placed_receives, [&](auto &entry) { return entry.second == request; })) return true;
    for (auto *list : {&receives, &sends})
        for (auto it = list->begin(); it != list->end(); ++it)
            if (*it == request) {
                list->erase(it);
                return true;
            }
    return false;
}

// ---- from the carrier -------------------------------------------------------------------------------------

// Whatever arrives here may come from a stranger: nothing in it is believed before it is checked.

// The message with what was lent to it; null if it is garbage. What was lent is returned even when nobody is there
// any more to take the message.
static std::unique_ptr<Message> read_header(const Wire &wire, const uint8_t *rest, size_t rest_nbytes, size_t nbytes,
                                            FdSocket *socket) noexcept {
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
    if (rest_nbytes != sizes_nbytes + lents * sizeof(Lent) || (lents && !socket)) return nullptr;
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
        message->segments[i] = socket->borrow(lent, message->sizes[i]);
    }
    return message;
}

bool receive_message(Worker &worker, FdSocket *socket, const void *header, size_t header_nbytes, void *data,
                     size_t nbytes, Way way) noexcept {
    Wire wire;
    if (header_nbytes >= sizeof wire) std::memcpy(&wire, header, sizeof wire);
    if (header_nbytes < sizeof wire || wire.magic != Wire::magic_value) return ++worker.dropped_messages, false;
    auto message = read_header(wire, static_cast<const uint8_t *>(header) + sizeof wire, header_nbytes - sizeof wire,
                               nbytes, socket);
    if (!message) return ++worker.dropped_messages, false;
    auto &channels = worker.links->channels;
    auto found = channels.find(wire.channel);
    if (found == channels.end()) return ++worker.dropped_messages, false;
    auto user = found->second;  // kept: what the message says may end it
    return static_cast<Channel *>(user.get())->on_message(wire, std::move(message), data, way);
}
