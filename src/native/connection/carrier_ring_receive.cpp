// SPDX-License-Identifier: BSD-3-Clause
// How a link's ring is read. The other side may have written anything there, and may still be writing: values are first
// copied, then validated, and used only from the copy.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "connection/carrier_ring.hpp"
#include "connection/carrier_ring_records.hpp"
#include "connection/channel.hpp"
#include "ring/copy.hpp"

using Ring::Kind;

namespace {

constexpr unsigned most_records = 64;   // per turn: a writer may never stop
constexpr unsigned pieces_at_once = 4;  // read before the writer is told
constexpr size_t most_dropped = 1 << 16;

}  // namespace

// Before `join`, the other side's ring is not mapped, and a message may need an answer.
unsigned RingCarrier::receive() noexcept {
    if (!writer) return 0;
    unsigned n = 0, pieces = 0;
    Ring::Record record;
    while (n < most_records && !broken && reader->peek(record)) {
        piece_read = false;
        take(record);
        reader->consume();
        ++n;
        if (piece_read && ++pieces % pieces_at_once == 0) reader->release(true);
        // The writer has just touched the cache line of the next record: reading it now takes as long as a message.
        if (link->worker->is_served()) break;
    }
    if (reader->release(pieces)) ring_bell();
    if (reader->fault() != Ring::Fault::none) fail(Ring::name_of(reader->fault()));
    return n;
}

void RingCarrier::fail(const char *fault) noexcept {
    if (broken) return;
    broken = true;
    link->fail((std::string("the peer violated the ring protocol (") + fault + ")").c_str());
}

void RingCarrier::take(const Ring::Record &record) noexcept {
    switch (record.kind) {
        case Kind::message: return take_message(record);
        case Kind::begin:
        case Kind::announce: return take_opening(record);
        case Kind::piece: return take_piece(record);
        case Kind::answer:
        case Kind::refuse: return take_answer(record);
        case Kind::room: return;
    }
}

void RingCarrier::take_message(const Ring::Record &record) noexcept {
    const size_t header_nbytes = record.note;
    if (header_nbytes == sizeof(Wire) && record.nbytes >= header_nbytes && record.nbytes <= record.first_nbytes)
        [[likely]] {
        Wire wire;
        std::memcpy(&wire, record.first, sizeof wire);
        std::atomic_signal_fence(std::memory_order_seq_cst);  // keep the compiler from reading it again
        return receive_whole(*link->worker, link->socket.get(), wire,
                             const_cast<std::byte *>(record.first) + sizeof wire, record.nbytes - sizeof wire);
    }
    if (header_nbytes > record.nbytes || header_nbytes > Channel::max_header_nbytes) return fail("bad_header");
    alignas(8) std::byte header[Channel::max_header_nbytes];
    record.copy(header, 0, header_nbytes);
    const size_t nbytes = record.nbytes - header_nbytes;
    const std::byte *data = record.first + header_nbytes;
    if (header_nbytes >= record.first_nbytes) {
        data = record.second + (header_nbytes - record.first_nbytes);
    } else if (record.nbytes > record.first_nbytes) {
        record.copy(rings->scratch.data(), header_nbytes, nbytes);
        data = rings->scratch.data();
    }
    receive_message(*link->worker, link->socket.get(), header, header_nbytes, const_cast<std::byte *>(data), nbytes,
                    Way::whole);
}

void RingCarrier::take_opening(const Ring::Record &record) noexcept {
    Opening opening;
    if (record.nbytes < sizeof opening || record.nbytes - sizeof opening > Channel::max_header_nbytes)
        return fail("bad_opening");
    record.copy(&opening, 0, sizeof opening);
    const size_t header_nbytes = record.nbytes - sizeof opening;
    alignas(8) std::byte header[Channel::max_header_nbytes];
    record.copy(header, sizeof opening, header_nbytes);
    const bool announced = record.kind == Kind::announce;
    if (!opening.nbytes || (!announced && opening.nbytes >= rendezvous_nbytes) || incoming.contains(opening.id))
        return fail("bad_opening");
    auto &here = incoming[opening.id] = std::make_unique<Incoming>(Incoming{opening.id, opening.nbytes, announced});
    if (!receive_message(*link->worker, link->socket.get(), header, header_nbytes, here.get(), opening.nbytes,
                         announced ? Way::rendezvous : Way::streamed))
        refuse(here.get());
}

void RingCarrier::take_piece(const Ring::Record &record) noexcept {
    uint64_t id;
    if (record.nbytes < sizeof id) return fail("bad_piece");
    record.copy(&id, 0, sizeof id);
    auto found = incoming.find(id);
    if (found == incoming.end()) return fail("bad_piece");
    Incoming &here = *found->second;
    if (here.announced && !here.message && !here.request) return fail("bad_piece");
    if (record.note == inline_note) {
        const size_t nbytes = record.nbytes - sizeof id;
        if (!nbytes || nbytes > here.left) return fail("bad_piece");
        const size_t before = record.first_nbytes > sizeof id ? record.first_nbytes - sizeof id : 0;
        if (before) land(here, record.first + sizeof id, before);
        if (nbytes > before) land(here, record.second + (sizeof id + before - record.first_nbytes), nbytes - before);
    } else {
        AreaPiece piece;
        if (record.nbytes != sizeof piece) return fail("bad_piece");
        record.copy(&piece, 0, sizeof piece);
        if (!piece.nbytes || piece.nbytes > here.left || piece.offset > their_area_nbytes ||
            piece.nbytes > their_area_nbytes - piece.offset)
            return fail("bad_piece");
        piece_read = true;
        land(here, static_cast<const std::byte *>(their_area.data()) + piece.offset, piece.nbytes);
    }
    if (here.left) return;
    const std::unique_ptr<Incoming> whole = std::move(found->second);
    incoming.erase(found);
    if (whole->message)
        whole->message->end(UCS_OK);
    else if (whole->request)
        landed(whole->request, UCS_OK);
    else
        --dropped;
}

// The parts have room for all of it: a message is never longer than its opening announced.
void RingCarrier::land(Incoming &here, const std::byte *from, size_t nbytes) noexcept {
    here.left -= nbytes;
    while (nbytes && here.part < here.parts.size()) {
        iovec &to = here.parts[here.part];
        const size_t n = std::min(nbytes, to.iov_len);
        copy_bytes(to.iov_base, from, n);
        to.iov_base = static_cast<std::byte *>(to.iov_base) + n;
        to.iov_len -= n;
        from += n;
        nbytes -= n;
        here.part += !to.iov_len;
    }
}

void RingCarrier::landed(Request *r, ucs_status_t status) noexcept {
    r->ucx = nullptr;
    r->channel->landed(r, status);
}

void RingCarrier::take_answer(const Ring::Record &record) noexcept {
    uint64_t id;
    if (record.nbytes != sizeof id) return fail("bad_answer");
    record.copy(&id, 0, sizeof id);
    auto found = announced.extract(id);
    if (!found) return fail("bad_answer");
    if (record.kind == Kind::refuse) return finish(found.mapped().request, UCS_OK);
    transfers.push_back(std::move(found.mapped()));
    send_queued();
    if (has_unsent()) rings->wait_for_room(this);
}

// ---- called by channels ----

void RingCarrier::answer(Message *message) noexcept {
    auto &here = *static_cast<Incoming *>(std::exchange(message->descriptor, nullptr));
    here.message = message;
    here.parts = message->parts;
    if (here.announced) tell(Kind::answer, here.id);
}

void RingCarrier::answer_into(Request *r, void *descriptor) noexcept {
    auto &here = *static_cast<Incoming *>(descriptor);
    r->ucx = this;
    here.request = r;
    here.parts = {{r->buffer.data(), r->nbytes}};
    tell(Kind::answer, here.id);
}

// For an announced message, nothing follows; pieces of one that has begun are dropped as they arrive.
void RingCarrier::refuse(void *descriptor) noexcept {
    if (!rings) return;
    auto *here = static_cast<Incoming *>(descriptor);
    if (!here->announced) {
        if (++dropped > most_dropped) fail("too_many_begun");
        return;
    }
    tell(Kind::refuse, here->id);
    incoming.erase(uint64_t(here->id));
}

void RingCarrier::end_incoming() noexcept {
    auto ending = std::move(incoming);
    incoming.clear();
    for (auto &[id, here] : ending)
        if (here->message)
            here->message->end(UCS_ERR_CANCELED);
        else if (here->request)
            landed(here->request, UCS_ERR_CANCELED);
}
