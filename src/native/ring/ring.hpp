// SPDX-License-Identifier: BSD-3-Clause
// One direction of a link between two processes of a host: a byte queue in shared pages, with one writer and one
// reader. arena.hpp provides the pages; doorbell.hpp tells a reader that something was written.
//
// The receiver owns the pages, which start zeroed. A record is a word (length and kind) and its payload, padded to 64
// B: the reader fetches each cache line of a record from the writer's core, and a small record is in a single one. A
// record wraps around the end like any other byte, so it may be nearly as long as the ring, and a reader finds it in at
// most two parts. The word shows that the record exists: the reader looks where the next one must begin, and zero means
// "not yet". So a writer writes the payload, zeroes the word after it (or asks for room there), and then publishes with
// a single store of the record's word. What a killed writer did not publish does not exist, and its death cannot block
// anybody: nobody else writes there. Only the reader has cursors in the pages: everything before `tail` may be
// overwritten, and everything before `read` is read. It returns room rarely, because a writer looks at `tail` often,
// and the line would go back and forth. `read` has a line of its own, which a writer looks at only when it leaves.
//
// The usual way is a cursor of the writer's, `head`. It was measured first: 8 B took 0.205 us one way where two cores
// exchange a cache line in 0.133 us (Xeon, KVM guest). There, the reader fetches the cursor's line and then the
// record's; here both are one.
//
// Ordering. The word is stored with release and loaded with acquire: a reader that sees it also sees the payload and
// the zero after it. The same holds for `tail`: a writer that sees free room knows that its former content has been
// read. Nothing else orders the payload, so this is correct on Arm as on x86. These accesses are seq_cst, which
// includes release and acquire, for a second reason: the doorbell's flags are read after the word is stored, and stored
// before the word is read, and the two sides must not miss each other (doorbell.hpp). On x86, publishing becomes an
// xchg; on Arm nothing changes (stlr and ldar are both). Fences would work too, but ThreadSanitizer does not know them.
//
// Trust. The other side may write anything into the pages, at any time. So each side keeps its own cursor and position
// in private memory and never reads them back. What it must read from the pages (the reader's cursor, a record's word),
// it reads once, by an atomic load, and validates before use. Invalid values are a Fault, after which the Writer or
// Reader does nothing more. A payload may change while it is read in place: copy the parts that decisions depend on
// first. A writer may publish forever, so a reader limits the records of a turn.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ring/copy.hpp"

namespace Ring {

/// Protocol violations of the other side.
enum class Fault : uint8_t {
    none,
    bad_kind,    // a record has an unknown kind
    bad_length,  // a record is longer than the ring
    bad_tail,    // the reader's cursor went backwards, or past what was written, or into a record
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

/// `message` is complete. `begin` opens one that is longer than its record, and `announce` one that the reader must
/// first `answer` or `refuse`; each `piece` carries more of one of these. Other records may come in between. `room` is
/// not a record: the writer waits for room, and overwrites it when it has some.
enum class Kind : uint8_t { message = 1, begin, announce, answer, refuse, piece, room };

/// A record's word: the size of its payload (32 bits), its kind (8), and a note by its writer (24).
constexpr uint64_t word_of(Kind kind, size_t nbytes, uint32_t note = 0) noexcept {
    return uint64_t(note) << 40 | uint64_t(kind) << 32 | nbytes;
}

/// Records are aligned to this: a cache line.
constexpr uint64_t step_nbytes = 64;

/// At the start of the pages; the reader writes nothing else there. 128 B, because some Arm cores have such cache
/// lines, and x86 prefetches lines in pairs.
struct alignas(128) Cursor {
    std::atomic<uint64_t> tail;
    alignas(step_nbytes) std::atomic<uint64_t> read;  // stays 0 with a reader that does not write it
};
static_assert(sizeof(Cursor) == 128 && std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic_ref<uint64_t>::is_always_lock_free);

constexpr size_t word_nbytes = 8;
constexpr size_t min_nbytes = 4096, max_nbytes = size_t(1) << 30;

/// The room that a record takes.
constexpr uint64_t record_nbytes(size_t payload_nbytes) noexcept {
    return (word_nbytes + payload_nbytes + step_nbytes - 1) & ~(step_nbytes - 1);
}

/// The longest payload of a record in a ring of this capacity: the next record's word needs room, too.
constexpr size_t most_payload(size_t capacity) noexcept {
    return capacity - step_nbytes - word_nbytes;
}

/// Reads bytes sequentially from a list of buffers; owns nothing.
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
            copy_bytes(to, static_cast<const std::byte *>(iov->iov_base) + offset, n);
            to += n;
            nbytes -= n;
            offset += n;
        }
    }
};

/// The sending side. Owns no pages: they outlive it. One thread at a time.
class Writer {
  public:
    /// `pages`: `nbytes` of zeroed pages that had no other writer; a multiple of 128 from `min_nbytes` to `max_nbytes`.
    Writer(void *pages, size_t nbytes) noexcept
        : cursor(static_cast<Cursor *>(pages)),
          bytes(static_cast<std::byte *>(pages) + sizeof(Cursor)),
          capacity(nbytes - sizeof(Cursor)) {}

    /// The longest payload of a record; there is room for it only in an empty ring.
    size_t max_payload() const noexcept { return most_payload(capacity); }
    Fault fault() const noexcept { return broken; }

    /// The total number of bytes written, and how many of them the reader has returned the room of.
    uint64_t written() const noexcept { return head; }
    uint64_t returned() noexcept {
        look();
        return tail;
    }
    /// How many of them it says that it has read: a claim, as good as the reader.
    uint64_t read() const noexcept { return cursor->read.load(std::memory_order_acquire); }

    /// Write a record of the next `nbytes` of `from`, invisible until `publish`. False: no room now, too long for this
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

    /// The same, for a header and the data after it.
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
        if (data_nbytes) copy_bytes(to + header_nbytes, data, data_nbytes);
        end(nbytes);
        return true;
    }

    /// Make everything appended visible to the reader. To make the reader look, ring its bell afterwards.
    void publish() noexcept {
        if (!first_word) return;
        at(first_position).store(first_word, std::memory_order_seq_cst);
        first_word = 0;
    }

    /// After a write that found no room, with everything published: request room. True: there is room now. False: ring
    /// the reader's bell; it will ring back when it has read everything (`Reader::release`). Records that are written
    /// meanwhile renew the request behind them, until `stop_waiting`.
    bool want(size_t nbytes) noexcept {
        if (broken == Fault::none) at(position).store(word_of(Kind::room, 0), std::memory_order_seq_cst);
        waits = !has_room(nbytes);
        return !waits;
    }

    /// From now on the writer looks for room by itself.
    void stop_waiting() noexcept { waits = false; }

  private:
    std::atomic_ref<uint64_t> at(size_t offset) noexcept {
        return std::atomic_ref(*reinterpret_cast<uint64_t *>(bytes + offset));
    }

    // `publish` stores the first word, which hides all records after it until then.
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
        at(position).store(waits ? word_of(Kind::room, 0) : 0, std::memory_order_relaxed);
    }

    // For a record and the word after it.
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
    size_t position = 0;          // of `head` in the ring
    uint64_t head = 0, tail = 0;  // bytes written, and the reader's cursor at the last look
    uint64_t first_word = 0;      // of the unpublished records; 0: there are none
    size_t first_position = 0;
    bool waits = false;  // room is wanted, and the reader must say when there is some
    Fault broken = Fault::none;
};

/// A record in place: its payload is in `first`, and in `second` after the wrap at the end of the ring.
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
        if (part) copy_bytes(to, first + offset, part);
        if (n > part)
            copy_bytes(static_cast<std::byte *>(to) + part, second + (offset + part - first_nbytes), n - part);
    }
};

/// The receiving side. Owns no pages: they outlive it. One thread at a time.
class Reader {
  public:
    /// As for the Writer.
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

    /// Release the record that `peek` found, and say so.
    void consume() noexcept {
        tail += taken;
        cursor->read.store(tail, std::memory_order_release);
        position += taken;
        if (position >= capacity) position -= capacity;
        taken = 0;
    }

    /// Return consumed room to the writer, if it is much, or the writer waits for it, or `at_once`. True: the writer
    /// waits, so ring its bell. Call this at the end of each turn at this ring.
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
    size_t position = 0;    // of `tail` in the ring
    uint64_t tail = 0;      // bytes consumed
    uint64_t taken = 0;     // by the record being looked at
    uint64_t released = 0;  // the value of `tail` that the writer knows
    uint64_t answered = 0;  // one more than the place at which the writer's wait was last answered; once for each place
    bool asked = false;     // the writer waits for room
    Fault broken = Fault::none;
};

}  // namespace Ring
