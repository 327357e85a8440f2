// SPDX-License-Identifier: BSD-3-Clause
// How a link's rings are made, how they send, and how they end; carrier_ring_receive.cpp is the receiving side.
#include "connection/carrier_ring.hpp"

#include <algorithm>
#include <cstring>

#include "connection/carrier_ring_records.hpp"
#include "connection/channel.hpp"
#include "ucp/forks.hpp"

using Ring::Kind;

namespace {

constexpr size_t most_parts = 8;           // of a message that fits in one record
constexpr size_t inline_nbytes = 4 << 10;  // of a piece sent through the ring
constexpr unsigned most_pieces = 64;       // per turn
constexpr unsigned most_hidden = 8;        // records published together
constexpr size_t most_headers = 1 << 16;   // for a peer that reads none of them

/// The contents of `address`. Offsets are into the arena whose descriptor goes with it.
struct Address {
    static constexpr uint64_t this_version = 2;
    uint64_t version, process, link;  // the process as a random number: a worker may be linked to itself
    uint64_t ring, ring_nbytes, bits, state, area, area_nbytes;
};

size_t nbytes_of(const iovec *parts, size_t count) noexcept {
    size_t nbytes = 0;
    for (size_t i = 0; i < count; ++i) nbytes += parts[i].iov_len;
    return nbytes;
}

}  // namespace

// ---- making the link ----

RingCarrier::RingCarrier(Link *of) : Carrier(Buffer::host_only), link(of), rings(Rings::of(*of->worker)) {
    pages = rings->carve(std::max(Rings::ring_nbytes, Ring::page_nbytes()));
    reader.emplace(pages.data, pages.nbytes);
    try {
        index = rings->add(this);
    } catch (...) {
        rings->free(pages);
        throw;
    }
}

RingCarrier::~RingCarrier() {
    close();
}

std::string RingCarrier::address() const {
    if (!rings) raise("PeerLostError", "the link was lost", "connect");
    const Address mine{Address::this_version,
                       rings->arena->id,
                       index,
                       pages.offset,
                       pages.nbytes,
                       rings->bits.offset,
                       rings->state.offset,
                       rings->area_pages->offset,
                       rings->area_pages->nbytes};
    return {reinterpret_cast<const char *>(&mine), sizeof mine};
}

void RingCarrier::offer(int socket) {
    if (!send_descriptor(socket, rings->arena->arena.fd()))
        raise("PeerLostError", std::string("connect: sending the memory of a ring: ") + strerror(errno), "connect");
}

void RingCarrier::join(nb::bytes told, int socket, int memory) {
    const auto refuse = [](const std::string &why) { raise("HandshakeError", "connect: the ring: " + why, "connect"); };
    if (!rings) raise("PeerLostError", "the link was lost", "connect");
    Address theirs;
    if (told.size() != sizeof theirs) refuse("the other side's address has " + std::to_string(told.size()) + " B");
    std::memcpy(&theirs, told.c_str(), sizeof theirs);
    if (theirs.version != Address::this_version || theirs.link >= Ring::max_links ||
        theirs.ring_nbytes < Rings::ring_nbytes || theirs.ring_nbytes > Ring::max_nbytes ||
        theirs.area_nbytes > Ring::max_nbytes)
        refuse("the other side's address is invalid");
    to_itself = theirs.process == rings->arena->id && theirs.ring == pages.offset;
    const int received = to_itself || memory >= 0 ? -1 : receive_descriptor(socket);
    const int file = to_itself ? rings->arena->arena.fd() : std::max(memory, received);
    if (file < 0 && errno == EMFILE)
        raise("NoMemoryError", "connect: no descriptor for the other side's ring (is the limit of open files reached?)",
              "connect");
    if (file < 0) refuse(std::string("the memory of the other side's ring was not received: ") + strerror(errno));
    const size_t page = Ring::page_nbytes();
    Ring::SealedFile sealed(file);
    int error = sealed.check();
    if (!error) error = their_ring.map(sealed, theirs.ring, theirs.ring_nbytes, true);
    if (!error) error = their_bits.map(sealed, theirs.bits, page, true);
    if (!error) error = their_state.map(sealed, theirs.state, page, false);
    if (!error) error = their_area.map(sealed, theirs.area, theirs.area_nbytes, false);
    if (received >= 0) ::close(received);
    if (error == EINVAL) refuse("the other side's memory cannot be mapped safely");
    if (error)
        raise("NoMemoryError", std::string("connect: mapping the other side's ring: ") + strerror(error), "connect");
    their_area_nbytes = theirs.area_nbytes;
    writer.emplace(their_ring.data(), theirs.ring_nbytes);
    bell.emplace(their_bits.data(), their_state.data(), theirs.link);
    attend();
}

nb::list RingCarrier::transports() const {
    nb::list names;
    if (rings) names.append("ring/memory");
    return names;
}

// ---- sending ----

void RingCarrier::ring_bell() noexcept {
    if (bell && bell->ring() && link->socket) link->socket->wake();
}

void RingCarrier::publish() noexcept {
    hidden = 0;
    writer->publish();
    ring_bell();
}

void RingCarrier::post(Request *r, const void *header, size_t header_nbytes, const iovec *parts, size_t count,
                       ucs_memory_type_t, bool rendezvous) noexcept {
    const size_t nbytes = nbytes_of(parts, count);
    const bool whole = !rendezvous && (nbytes + header_nbytes <= whole_nbytes || !nbytes);
    if (whole && writer && openings.empty() && count < most_parts) [[likely]] {
        iovec iov[most_parts] = {{const_cast<void *>(header), header_nbytes}};
        std::copy_n(parts, count, iov + 1);
        Ring::Gather from{iov, count + 1};
        if (writer->append(Kind::message, from, header_nbytes + nbytes, uint32_t(header_nbytes))) {
            publish();
            return finish(r, UCS_OK);
        }
    }
    Outgoing out{.request = r, .kind = whole ? Kind::message : rendezvous ? Kind::announce : Kind::begin};
    if (!whole) {
        out.id = next_id++;
        out.left = nbytes;
        append(out.head, Opening{out.id, nbytes});
    }
    append(out.head, header, header_nbytes);
    out.note = uint32_t(header_nbytes);
    out.iov.assign(parts, parts + count);
    out.from = {out.iov.data(), out.iov.size()};
    openings.push_back(std::move(out));
    send_queued();
    if (r->ended) return;
    r->ucx = this;  // marks it as in flight
    r->hold();
    if (has_unsent()) rings->wait_for_room(this);
}

bool RingCarrier::write(const void *header, size_t header_nbytes, const void *data, size_t nbytes, bool more) noexcept {
    if (header_nbytes + nbytes > whole_nbytes || !writer || !openings.empty()) return false;
    if (!writer->append(Kind::message, header, header_nbytes, data, nbytes, uint32_t(header_nbytes))) return false;
    if (++hidden == most_hidden || !more) publish();
    return true;
}

void RingCarrier::show() noexcept {
    if (hidden && writer) publish();
}

void RingCarrier::post_header(const void *header, size_t nbytes) noexcept {
    if (!rings) return;
    Outgoing out{.kind = Kind::message, .note = uint32_t(nbytes)};
    append(out.head, header, nbytes);
    queue(std::move(out));
}

void RingCarrier::tell(Kind kind, uint64_t id) noexcept {
    Outgoing out{.kind = kind};
    append(out.head, id);
    queue(std::move(out));
}

// Queue a header without a request. Before `join`, it waits.
void RingCarrier::queue(Outgoing &&out) noexcept {
    if (!rings) return;
    if (writer && openings.empty() && open_with(out)) return;
    if (headers_left >= most_headers) return fail("never_reads");
    openings.push_back(std::move(out));
    ++headers_left;
    rings->wait_for_room(this);
}

// Write the record that opens it, or contains all of it.
bool RingCarrier::open_with(Outgoing &out) noexcept {
    iovec head{out.head.data(), out.head.size()};
    std::vector<iovec> all;
    Ring::Gather from{&head, 1};
    size_t nbytes = out.head.size();
    if (out.kind == Kind::message && !out.iov.empty()) {
        all.push_back(head);
        all.insert(all.end(), out.iov.begin(), out.iov.end());
        from = {all.data(), all.size()};
        nbytes = nbytes_of(all.data(), all.size());
    }
    if (!writer->append(out.kind, from, nbytes, out.note)) return false;
    publish();
    return true;
}

unsigned RingCarrier::send_more() noexcept {
    if (writer) writer->stop_waiting();
    return send_queued() + look_at_reader();
}

bool RingCarrier::has_read(uint64_t end) noexcept {
    if (rings && end <= seen_read && openings.empty()) return true;
    watched = std::min(watched, end);
    if (rings) rings->wait_for_room(this);
    return false;
}

// Where it has read enough, take what it wrote before, such as an abort for lack of memory; then resume the users.
unsigned RingCarrier::look_at_reader() noexcept {
    if (!watches() || !writer || broken) return 0;
    const uint64_t read = writer->read();
    if (read < watched || !openings.empty()) return 0;
    if (unsigned n = receive()) return n;
    seen_read = read;
    watched = nothing;
    for (LinkUser *user : std::unordered_set<LinkUser *>(link->users)) user->resume();
    return 1;
}

unsigned RingCarrier::send_queued() noexcept {
    unsigned n = 0;
    if (!writer) return n;
    for (; !openings.empty(); ++n) {
        if (!open_with(openings.front())) break;
        Outgoing out = std::move(openings.front());
        openings.pop_front();
        if (out.kind == Kind::announce)
            announced.emplace(out.id, std::move(out));
        else if (out.kind == Kind::begin)
            transfers.push_back(std::move(out));
        else if (out.request)
            finish(out.request, UCS_OK);
        else
            --headers_left;
    }
    while (!transfers.empty() && n < most_pieces) {
        Outgoing &out = transfers.front();
        if (out.left && !send_piece(out)) break;
        ++n;
        if (out.left) continue;
        Request *done = out.request;
        transfers.pop_front();
        finish(done, UCS_OK);
    }
    if (writer->fault() != Ring::Fault::none) fail(Ring::name_of(writer->fault()));
    return n;
}

// A piece goes through the ring only if other links' pieces fill the area. If this link's own pieces fill it, wait for
// the other side to read some first.
bool RingCarrier::send_piece(Outgoing &out) noexcept {
    Area &area = rings->area;
    Area::Free &free = area.of(out.kind == Kind::announce && rings->uses_large_piece(out.left));
    if (!free.count || unread.size() >= Area::most_for_one) {
        collect();
        if (unread.size() >= Area::most_for_one) return false;
        if (!free.count) rings->collect();
    }
    const int number = free.take();
    if (number < 0) {
        const size_t nbytes = std::min(out.left, inline_nbytes);
        std::byte bytes[sizeof(uint64_t) + inline_nbytes];
        Ring::Gather ahead = out.from;
        std::memcpy(bytes, &out.id, sizeof out.id);
        ahead.copy_to(bytes + sizeof out.id, nbytes);
        const iovec all{bytes, sizeof out.id + nbytes};
        Ring::Gather from{&all, 1};
        if (!writer->append(Kind::piece, from, all.iov_len, inline_note)) return false;
        out.from = ahead;
        out.left -= nbytes;
        publish();
        return true;
    }
    const size_t nbytes = std::min(out.left, Area::nbytes_of(number));
    const AreaPiece piece{out.id, uint32_t(Area::offset_of(number)), uint32_t(nbytes)};
    const iovec all{const_cast<AreaPiece *>(&piece), sizeof piece};
    Ring::Gather from{&all, 1};
    if (!writer->append(Kind::piece, from, sizeof piece)) {
        area.put_back(number);
        return false;
    }
    out.from.copy_to(area.data + piece.offset, nbytes);  // before it is published
    out.left -= nbytes;
    unread.push_back({writer->written(), number});
    publish();
    return true;
}

void RingCarrier::collect() noexcept {
    if (unread.empty()) return;
    const uint64_t read = writer->returned();
    for (; !unread.empty() && unread.front().written <= read; unread.pop_front())
        rings->area.put_back(unread.front().number);
}

bool RingCarrier::finds_room() noexcept {
    if (broken || send_queued() || look_at_reader()) return true;
    if (!writer || !has_unsent()) return false;
    size_t nbytes = sizeof(uint64_t) + inline_nbytes;
    if (!openings.empty()) {
        const Outgoing &next = openings.front();
        nbytes = next.head.size() + (next.kind == Kind::message ? nbytes_of(next.iov.data(), next.iov.size()) : 0);
    } else if (!unread.empty()) {
        nbytes = writer->max_payload();  // wait until the other side has read everything, and thus the pieces
    }
    if (writer->want(nbytes)) return true;
    ring_bell();
    return false;
}

void RingCarrier::finish(Request *r, ucs_status_t status) noexcept {
    r->ucx = nullptr;
    if (r->held)
        r->end(status);
    else
        r->complete_now(status);
}

// ---- ending ----

void RingCarrier::attend() noexcept {
    if (rings) rings->attend(this);
}

void RingCarrier::flush(int64_t deadline_ns) noexcept {
    while (rings && writer && has_unsent() && !broken && now_ns() < deadline_ns) link->worker->progress();
    if (!rings || !writer) return;
    // Data that the other side has not read must stay unchanged; its cursor ends with its ring, once it learns of this.
    collect();
    if (!unread.empty() && !to_itself) link->socket->keep(rings->area_pages);
}

// A forked child has neither the pages nor the requests.
void RingCarrier::close() noexcept {
    if (!rings || in_forked_child) return;
    rings->remove(this);
    for (auto *list : {&openings, &transfers}) {
        for (Outgoing &out : *list)
            if (out.request) finish(out.request, UCS_ERR_CANCELED);
        list->clear();
    }
    for (auto &[id, out] : announced) finish(out.request, UCS_ERR_CANCELED);
    announced.clear();
    end_incoming();
    for (const Piece &piece : unread) rings->area.put_back(piece.number);
    unread.clear();
    rings->free(pages);
    reader.reset();
    writer.reset();
    bell.reset();
    for (Ring::Mapping *theirs : {&their_ring, &their_bits, &their_state, &their_area}) theirs->unmap();
    rings.reset();
}

std::unique_ptr<Carrier> make_ring_carrier(Link *link) {
    return std::make_unique<RingCarrier>(link);
}
