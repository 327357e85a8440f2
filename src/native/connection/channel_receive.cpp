// SPDX-License-Identifier: BSD-3-Clause
// How messages arrive: in any order; they are taken in the order in which they were sent. The readers are in
// channel_readers.cpp.
#include <cstring>
#include <utility>

#include "connection/channel.hpp"

// A peer's memory is bounded by its credit, so a message this far ahead is garbage.
constexpr uint64_t max_ahead = 1 << 20;

void Channel::note_credit(const Wire &wire) noexcept {
    if (wire.consumed <= credited || wire.consumed > sent_charge) return;
    credited = wire.consumed;
    if (!sends.empty() || closing) resume();
}

bool Channel::on_message(const Wire &wire, std::unique_ptr<Message> message, void *data, Way way) noexcept {
    const bool rendezvous = way == Way::rendezvous;
    note_credit(wire);
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
                fault = make_fault("PeerClosedError", "the peer has closed the connection");
                for (Request *r : sends) stop(r, fault);
                sends.clear();
            }
            end_receives();
            return false;
        case acknowledge_kind:
            if (goodbye_sent) finish_close(nullptr);
            return false;
        case abort_kind: lose(make_fault("PeerLostError", "the peer aborted the connection")); return false;
        default: return false;
    }
    uint64_t index = wire.number - head;
    if (closed || lost || closing || wire.number < head || index > max_ahead) return false;
    while (arrived.size() <= index) arrived.push_back(nullptr);
    if (arrived[index]) return false;
    const size_t charge = charge_of(message->nbytes);
    if (unread_charge + charge > window) {
        tell(abort_kind, 0);
        return lose(make_fault("PeerLostError", "the peer sent more than this side allowed")), false;
    }
    unread_charge += charge;
    if (wire.kind == placed_kind) {
        message->descriptor = rendezvous ? data : nullptr;
        arrived[index] = new Message;  // nothing to do in its turn
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
        bring(m);
        return true;
    }
    if (!m->copy(data)) m->status = UCS_ERR_NO_MEMORY, m->ready = true;
    complete(m);
    return false;
}

// `m` is complete, or has failed.
void Channel::complete(Message *m) noexcept {
    if (std::exchange(m->timed, false)) landed_here.end(inflow.get(), now_ns(), m->status == UCS_OK ? m->nbytes : 0);
    if (m->into) leave_buffer(m);
    if (m->status != UCS_OK) {
        auto why =
            m->status == UCS_ERR_NO_MEMORY
                ? make_fault("NoMemoryError", "cannot allocate " + std::to_string(m->nbytes) + " B for a message")
            : m->status == UCS_ERR_NO_RESOURCE
                ? make_fault("NoMemoryError",
                             "the peer's lent memory could not be mapped (is the limit of open files reached, of the "
                             "address space (ulimit -v), or vm.max_map_count?)")
                : make_fault("PeerLostError", ucx_status_string(m->status));
        tell(abort_kind, 0);
        return lose(why);
    }
    ++received;
    deliver();
    acknowledge();
}

// Less than a quarter of the window stays unreported: Channel::may_send does not depend on that much.
void Channel::consume(size_t charge, size_t nbytes) noexcept {
    unread_charge -= charge_of(nbytes);
    consumed += charge;
    if (consumed - reported >= window / 4 && !ended) tell(credit_kind, 0);
}

// ---- from the carrier -------------------------------------------------------------------------------------

// Data from the other side is untrusted: everything is checked before it is used.

// The message with its lent segments; null if it is garbage. Lent memory is returned even if there is no channel left
// to take the message.
static std::unique_ptr<Message> read_header(const Wire &wire, const uint8_t *rest, size_t rest_nbytes, size_t nbytes,
                                            FdSocket *socket) noexcept {
    const size_t sizes_nbytes = wire.large * sizeof(uint64_t);
    if (wire.large > Channel::max_segments || rest_nbytes < sizes_nbytes) return nullptr;
    auto message = std::make_unique<Message>();
    message->nbytes = nbytes;
    if (!wire.large && wire.kind != placed_kind && wire.kind != bare_kind)
        return rest_nbytes ? nullptr : std::move(message);
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

// The message may end the channel, but not destroy it: only drain does that, through its Python object.
static Channel *channel_of(Worker &worker, FdSocket *socket, const Wire &wire) noexcept {
    auto &[id, user] = worker.links->last;
    if (id != wire.channel || !user) [[unlikely]] {
        auto found = worker.links->channels.find(wire.channel);
        if (found == worker.links->channels.end()) return nullptr;
        worker.links->last = {wire.channel, found->second.get()};
    }
    auto *channel = static_cast<Channel *>(user);
    // The id may also be valid over another link, but that link's messages belong to another carrier.
    return channel->link->socket.get() == socket ? channel : nullptr;
}

void receive_whole(Worker &worker, FdSocket *socket, const Wire &wire, void *data, size_t nbytes) noexcept {
    if (wire.magic == Wire::magic_value && wire.kind == data_kind && !wire.large && nbytes <= SmallBlock::most_nbytes) {
        Channel *channel = channel_of(worker, socket, wire);
        if (channel && channel->hand_over(wire, data, nbytes)) return;
    }
    receive_message(worker, socket, &wire, sizeof wire, data, nbytes, Way::whole);
}

bool receive_message(Worker &worker, FdSocket *socket, const void *header, size_t header_nbytes, void *data,
                     size_t nbytes, Way way) noexcept {
    Wire wire;
    if (header_nbytes >= sizeof wire) std::memcpy(&wire, header, sizeof wire);
    if (header_nbytes < sizeof wire || wire.magic != Wire::magic_value) return ++worker.dropped_messages, false;
    auto message = read_header(wire, static_cast<const uint8_t *>(header) + sizeof wire, header_nbytes - sizeof wire,
                               nbytes, socket);
    if (!message) return ++worker.dropped_messages, false;
    Channel *channel = channel_of(worker, socket, wire);
    if (!channel) return ++worker.dropped_messages, false;
    return channel->on_message(wire, std::move(message), data, way);
}
