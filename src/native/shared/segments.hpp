// SPDX-License-Identifier: BSD-3-Clause
// The files that the pool's blocks lie in: which of their pages are taken, which are free, and which of those are warm.
// What keeps a block, and which thread may be here, is pool.cpp's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

/// What segments are numbered by, this process's and those that others lent to it.
inline std::atomic<uint64_t> next_segment_id{1};

/// Owns one file of memory and its mapping.
struct Segment {
    // `warm` bytes of a free range have been touched and cost no page fault; they are taken to lie at its start.
    struct Range {
        size_t nbytes, warm;
    };

    struct Used {
        size_t nbytes;
        unsigned pins;
        bool freed;  // by its owner; it lives on while it is pinned, or marked by a borrower's borrower
        bool lent;   // it ever was pinned
        bool out;    // of this process's resident memory
        bool kept;   // mapped copy-on-write: what this process writes from now on is not in the file
    };

    uint64_t id;
    int fd;
    uint8_t *base;
    size_t nbytes;
    std::map<size_t, Range> free;  // by offset, neighbours always merged
    std::map<size_t, Used> used;   // by offset
    bool pinned_once = false;      // another process may hold its descriptor
    int counting = -1;             // says to borrowers which pages this process counts
};

/// Owns all of them.
struct Segments {
    using Block = std::map<size_t, Segment::Used>::iterator;

    // Best fit, and of equal fits the warmest: a touched hole before the untouched end of a segment.
    struct Hole {
        size_t nbytes, cold;
        Segment *segment;
        size_t offset;
        bool operator<(const Hole &) const noexcept;
    };

    static constexpr size_t segment_nbytes = 256 * 1024 * 1024;

    explicit Segments(size_t most_idle) noexcept : cap(most_idle) {}

    std::map<const uint8_t *, Segment> by_address;
    std::set<Hole> holes;  // every free range of every segment
    size_t live = 0, idle = 0, mapped = 0, out = 0, cap;
    uint64_t dropped = 0, taken = 0;
    int64_t hold_ns = 0;  // for how long as much is kept as was in use
    size_t other = 0;     // memory of the process beside the pool, when it was last told

    bool has_hole(size_t nbytes) const noexcept;
    /// The offset of a new block of whole pages; the segment is null when there is no memory.
    std::pair<Segment *, size_t> take(size_t nbytes) noexcept;
    void give_back(Segment *segment, Block used) noexcept;
    /// Leave the file as it is, whatever is written to the block from now on. False: that cannot be had.
    bool keep(Segment *segment, Block used) noexcept;
    /// The same for all that is not kept yet, of use or not.
    void keep_rest(Segment *segment) noexcept;
    /// The block that `data` lies in; the segment is null if it is in none.
    std::pair<Segment *, Block> find(const void *data) noexcept;
    /// How much may be idle now: the cap or, with a hold, what is not in use of what lately was.
    size_t may_be_idle() noexcept;
    /// Give idle memory back to the kernel until at most so much is left.
    void keep_idle(size_t most) noexcept;
    /// Give it all back, and keep the files, which others need not map anew then.
    void cool() noexcept;

  private:
    // The most that was in use, in the pool and beside it, since `began_ns` and in the hold before it.
    size_t most_used = 0, most_used_before = 0;
    int64_t began_ns = 0;

    void note_used() noexcept;
    Segment *add(size_t nbytes) noexcept;
    void drop(Segment *segment) noexcept;
    void drop_idle(size_t most) noexcept;
    void punch(size_t most) noexcept;
    void add_hole(Segment *segment, size_t offset, Segment::Range range);
    Segment::Range remove_hole(Segment *segment, std::map<size_t, Segment::Range>::iterator it);
};
