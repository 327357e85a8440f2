// SPDX-License-Identifier: BSD-3-Clause
// One direction of a link between two processes of a host: a queue of bytes in shared pages, with one writer and one
// reader. Where the pages come from is in arena.hpp; how a reader learns that something was written, in doorbell.hpp.
//
// The receiver owns the pages; they begin zeroed. A record is a word (length and kind) and its payload, padded to 64 B:
// each line that a record lies in costs the reader a fetch from the writer's core, and a small one lies in one.
// It wraps around the end like any other byte, so it may be nearly as long as the ring, and a reader finds it in two
// pieces at most. The word says that the record is there: the reader looks where the next one must begin, and zero
// means "not yet". So a writer writes the payload, zeroes the word behind it, and then publishes with one store of the
// record's word. What a killed writer did not publish does not exist, and its death cannot stop anybody: nobody else
// writes there. Only the reader has a cursor in the pages, `tail`: all before it may be overwritten.
//
// A cursor of the writer's own, `head`, is the usual way and was measured first: 8 B took 0.205 us one way where two
// cores tell each other a cache line in 0.133 us (Xeon, KVM guest). The reader fetches the line of the cursor and then
// that of the record; here both are one.
//
// Ordering. The word is stored with release and loaded with acquire: who sees it sees the payload and the zero behind
// it. `tail` likewise: who sees that room is free knows that its former content has been read. Nothing else orders the
// payload, so this holds on Arm as on x86. Those accesses are seq_cst, which includes release and acquire, for a second
// reason: the doorbell's flags are read after the word is stored, and stored before the word is read, and both sides
// must not miss each other (doorbell.hpp). On x86 that makes a publication an xchg; on Arm nothing changes (stlr and
// ldar are both). Fences would do the same, but ThreadSanitizer does not know them.
//
// Trust. The other side may write anything into the pages, at any time. So each side keeps its own cursor and position
// in private memory and never reads them back; what it does read from the pages (the reader's cursor, a record's word)
// it reads once, by an atomic load, and checks against the ring before use. What does not pass is a Fault, after which
// the Writer or Reader does nothing more. A payload may change while it is read in place: whoever acts on what it says
// copies that part first. A writer can publish without end, so a reader bounds the records that it takes in a turn.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace Ring {

/// What the other side did that it must not do.
enum class Fault : uint8_t {
    none,
    bad_kind,    // a record is of no kind
    bad_length,  // a record is longer than the ring
    bad_tail,    // the reader's cursor went backwards, or beyond what was written, or is within a record
};

inline const char *name_of(Fault fault) noexcept {
    switch (fault) {
        case Fault::none: return "none";
        case Fault::bad_kind: return "bad_kind";
        case Fault::bad_length: return "bad_length";
        case Fault::bad_tail: return "bad_tail";
    }
    return "unknown";
}

/// `message` is whole. `begin` opens one that is longer than its record, and `announce` one that the reader has to
/// `answer` or `refuse` first; each `piece` carries more of one of these. Other records may lie between. `room` is no
/// record: the writer waits for room, and overwrites it when it has some.
enum class Kind : uint8_t { message = 1, begin, announce, answer, refuse, piece, room };

/// A record's word: how many bytes its payload has (32 bits), its kind (8), and a note of its writer's (24).
constexpr uint64_t word_of(Kind kind, size_t nbytes, uint32_t note = 0) noexcept {
    return uint64_t(note) << 40 | uint64_t(kind) << 32 | nbytes;
}

/// At the beginning of the pages, and the only thing in them that the reader writes. 128 B: some Arm cores have such
/// lines, and x86 prefetches lines in pairs.
struct alignas(128) Cursor {
    std::atomic<uint64_t> tail;
};
static_assert(sizeof(Cursor) == 128 && std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic_ref<uint64_t>::is_always_lock_free);

constexpr size_t word_nbytes = 8;
constexpr size_t min_nbytes = 4096, max_nbytes = size_t(1) << 30;

/// What a record begins at a multiple of: a line of the cache.
constexpr uint64_t step_nbytes = 64;

/// What a record takes of the ring.
constexpr uint64_t record_nbytes(size_t payload_nbytes) noexcept {
    return (word_nbytes + payload_nbytes + step_nbytes - 1) & ~(step_nbytes - 1);
}

/// The longest payload that a record can have in a ring of so many bytes: the next record's word needs room, too.
constexpr size_t most_payload(size_t capacity) noexcept {
    return capacity - step_nbytes - word_nbytes;
}

/// Takes bytes in turn from a list of buffers; owns nothing.
struct Gather {
    const iovec *iov;
    size_t count;
    size_t offset = 0;  // in iov[0]

    void copy_to(std::byte *to, size_t nbytes) noexcept {
        while (nbytes) {
            if (offset == iov->iov_len) {
                ++iov;
                --count;
                offset = 0;
                continue;
            }
            const size_t left = iov->iov_len - offset, n = left < nbytes ? left : nbytes;
            std::memcpy(to, static_cast<const std::byte *>(iov->iov_base) + offset, n);
            to += n;
            nbytes -= n;
            offset += n;
        }
    }
};

/// The side that sends. Owns no pages: they outlive it. One thread at a time.
class Writer {
  public:
    /// `pages`: `nbytes` of zeroed pages that no other writer had; a multiple of 128 from `min_nbytes` to `max_nbytes`.
    Writer(void *pages, size_t nbytes) noexcept
        : cursor(static_cast<Cursor *>(pages)),
          bytes(static_cast<std::byte *>(pages) + sizeof(Cursor)),
          capacity(nbytes - sizeof(Cursor)) {}

    /// The longest payload that a record can have; room for it there is only in an empty ring.
    size_t max_payload() const noexcept { return most_payload(capacity); }
    Fault fault() const noexcept { return broken; }

    /// So much was written, and so much of it the reader is known to be done with.
    uint64_t written() const noexcept { return head; }
    uint64_t read() noexcept {
        look();
        return tail;
    }

    /// Write a record of the next `nbytes` of `from`, unseen until `publish`. False: no room now, too long for this
    /// ring, or a fault.
    bool append(Kind kind, Gather &from, size_t nbytes, uint32_t note = 0) noexcept {
        if (nbytes > max_payload() || !has_room(nbytes)) return false;
        begin(word_of(kind, nbytes, note));
        const size_t at = position + word_nbytes, before_end = capacity - at;
        if (nbytes <= before_end) {
            from.copy_to(bytes + at, nbytes);
        } else {
            from.copy_to(bytes + at, before_end);
            from.copy_to(bytes, nbytes - before_end);
        }
        end(nbytes);
        return true;
    }

    /// The same of a header and what follows it.
    bool append(Kind kind, const void *header, size_t header_nbytes, const void *data, size_t data_nbytes,
                uint32_t note) noexcept {
        const size_t nbytes = header_nbytes + data_nbytes;
        if (nbytes > capacity - position - word_nbytes) [[unlikely]] {
            const iovec both[] = {{const_cast<void *>(header), header_nbytes}, {const_cast<void *>(data), data_nbytes}};
            Gather from{both, 2};
            return append(kind, from, nbytes, note);
        }
        if (nbytes > max_payload() || !has_room(nbytes)) return false;
        begin(word_of(kind, nbytes, note));
        std::byte *to = bytes + position + word_nbytes;
        std::memcpy(to, header, header_nbytes);
        if (data_nbytes) std::memcpy(to + header_nbytes, data, data_nbytes);
        end(nbytes);
        return true;
    }

    /// Show the reader all that was appended. Whoever needs the reader to look rings its bell after this.
    void publish() noexcept {
        if (!first_word) return;
        at(first_position).store(first_word, std::memory_order_seq_cst);
        first_word = 0;
    }

    bool try_write(Kind kind, Gather &from, size_t nbytes) noexcept {
        if (!append(kind, from, nbytes)) return false;
        publish();
        return true;
    }

    /// After a write that found no room, with nothing left to publish: ask for that much. True: there is room by now.
    /// False: ring the reader's bell, and it will ring back when it has read all there is (`Reader::release`).
    bool want(size_t nbytes) noexcept {
        if (broken == Fault::none) at(position).store(word_of(Kind::room, 0), std::memory_order_seq_cst);
        return has_room(nbytes);
    }

  private:
    std::atomic_ref<uint64_t> at(size_t offset) noexcept {
        return std::atomic_ref(*reinterpret_cast<uint64_t *>(bytes + offset));
    }

    // The first word is stored by `publish`, and hides what follows it until then.
    void begin(uint64_t word) noexcept {
        if (!first_word) {
            first_word = word;
            first_position = position;
        } else {
            at(position).store(word, std::memory_order_relaxed);
        }
    }
    void end(size_t nbytes) noexcept {
        head += record_nbytes(nbytes);
        position += record_nbytes(nbytes);
        if (position >= capacity) position -= capacity;
        at(position).store(0, std::memory_order_relaxed);
    }

    // For a record and the word behind it.
    bool has_room(size_t payload_nbytes) noexcept {
        const uint64_t nbytes = record_nbytes(payload_nbytes) + word_nbytes;
        if (broken != Fault::none) return false;
        if (nbytes <= capacity - (head - tail)) return true;
        look();
        return broken == Fault::none && nbytes <= capacity - (head - tail);
    }

    void look() noexcept {
        const uint64_t seen = cursor->tail.load(std::memory_order_seq_cst);
        if (head - seen > head - tail || seen % step_nbytes)
            broken = Fault::bad_tail;
        else
            tail = seen;
    }

    Cursor *cursor;
    std::byte *bytes;
    size_t capacity;
    size_t position = 0;          // where `head` is in the ring
    uint64_t head = 0, tail = 0;  // what is written, and the reader's cursor when it was last looked at
    uint64_t first_word = 0;      // of the records that are not published; 0: there are none
    size_t first_position = 0;
    Fault broken = Fault::none;
};

/// A record in place: its payload lies in `first`, and what did not fit before the end of the ring in `second`.
struct Record {
    Kind kind;
    uint32_t note;
    size_t nbytes;
    const std::byte *first, *second;
    size_t first_nbytes;

    /// Copy `n` bytes of the payload from `offset` on, both within `nbytes`.
    void copy(void *to, size_t offset, size_t n) const noexcept {
        if (!n) return;
        const size_t before = offset < first_nbytes ? first_nbytes - offset : 0, part = n < before ? n : before;
        if (part) std::memcpy(to, first + offset, part);
        if (n > part)
            std::memcpy(static_cast<std::byte *>(to) + part, second + (offset + part - first_nbytes), n - part);
    }
};

/// The side that receives. Owns no pages: they outlive it. One thread at a time.
class Reader {
  public:
    /// As the Writer's.
    Reader(void *pages, size_t nbytes) noexcept
        : cursor(static_cast<Cursor *>(pages)),
          bytes(static_cast<std::byte *>(pages) + sizeof(Cursor)),
          capacity(nbytes - sizeof(Cursor)) {}

    Fault fault() const noexcept { return broken; }

    /// Look at the next record; it stays in place until `consume`. False: there is none, or a fault.
    bool peek(Record &record) noexcept {
        if (broken != Fault::none) return false;
        const std::atomic_ref<uint64_t> at(*reinterpret_cast<uint64_t *>(bytes + position));
        const uint64_t word = at.load(std::memory_order_seq_cst);
        if (!word) return false;
        const uint64_t nbytes = word & UINT32_MAX, kind = word >> 32 & UINT8_MAX;
        if (kind == uint64_t(Kind::room)) {
            asked = true;
            return false;
        }
        if (kind < uint64_t(Kind::message) || kind > uint64_t(Kind::piece)) return fail(Fault::bad_kind);
        if (nbytes > most_payload(capacity)) return fail(Fault::bad_length);
        const size_t begin = position + word_nbytes;
        record.kind = Kind(kind);
        record.note = uint32_t(word >> 40);
        record.nbytes = nbytes;
        record.first = bytes + begin;
        record.second = bytes;
        record.first_nbytes = nbytes < capacity - begin ? nbytes : capacity - begin;
        taken = record_nbytes(nbytes);
        return true;
    }

    /// Be done with the record that `peek` found.
    void consume() noexcept {
        tail += taken;
        position += taken;
        if (position >= capacity) position -= capacity;
        taken = 0;
    }

    /// Give the writer back the room of what was consumed, when that is much or it waits for it, or `at_once`. True: it
    /// waits, so ring its bell. To be called at the end of each turn at this ring.
    bool release(bool at_once = false) noexcept {
        const bool waits = asked && answered != tail + 1;
        asked = false;
        if (tail - released >= capacity / 4 || waits || (at_once && tail != released)) {
            released = tail;
            cursor->tail.store(tail, std::memory_order_seq_cst);
        }
        if (waits) answered = tail + 1;
        return waits;
    }

  private:
    bool fail(Fault fault) noexcept {
        broken = fault;
        taken = 0;
        return false;
    }

    Cursor *cursor;
    std::byte *bytes;  // only read
    size_t capacity;
    size_t position = 0;    // where `tail` is in the ring
    uint64_t tail = 0;      // what is consumed
    uint64_t taken = 0;     // by the record that is looked at
    uint64_t released = 0;  // what the writer knows of `tail`
    uint64_t answered = 0;  // one more than where the writer's wait was answered last; once for each place
    bool asked = false;     // the writer waits for room
    Fault broken = Fault::none;
};

}  // namespace Ring
