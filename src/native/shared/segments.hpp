// SPDX-License-Identifier: BSD-3-Clause
// The files that contain the pool's blocks: which pages are used, which are free, and which of those are warm. pool.cpp
// decides what keeps a block, and serializes threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "shared/extents.hpp"
#include "shared/host_budget.hpp"

/// Numbers segments, both this process's and borrowed ones.
inline std::atomic<uint64_t> next_segment_id{1};

/// Owns a file of memory and its mapping.
struct Segment {
    // `warm` bytes of a free range have been touched and cost no page fault.
    struct Range {
        size_t nbytes, warm;
    };

    struct Used {
        size_t nbytes;
        unsigned pins;
        bool freed;  // by its owner; it exists while it is pinned, or marked by a borrower's borrower
        bool lent;   // it was pinned at some time
        bool out;    // of this process's resident memory
        bool kept;   // mapped copy-on-write: later writes of this process do not reach the file
    };

    uint64_t id;
    int fd;
    uint8_t *base;
    size_t nbytes;
    bool huge;                     // its pages from `head` on, where the kernel gives huge ones on advice
    std::map<size_t, Range> free;  // by offset, adjacent ranges always merged
    std::map<size_t, Used> used;   // by offset
    Extents warm;                  // where in the free ranges
    bool pinned_once = false;      // another process may hold its descriptor
    int counting = -1;             // tells borrowers which pages this process counts
};

/// Owns all segments.
struct Segments {
    using Block = std::map<size_t, Segment::Used>::iterator;

    // Best fit, and among equal fits the warmest: a touched hole before the untouched end of a segment.
    struct Hole {
        bool huge;
        size_t nbytes, cold;
        Segment *segment;
        size_t offset;
        size_t warm() const noexcept { return nbytes - cold; }
        bool operator<(const Hole &) const noexcept;
    };

    static constexpr size_t segment_nbytes = 256 * 1024 * 1024;
    static constexpr size_t huge_nbytes = 2 * 1024 * 1024;

    explicit Segments(size_t most_idle) noexcept : cap(most_idle) {}

    std::map<const uint8_t *, Segment> by_address;
    std::set<Hole> holes;  // every free range of every segment
    size_t live = 0, idle = 0, mapped = 0, out = 0, cap;
    uint64_t dropped = 0, taken = 0;
    uint64_t fresh = 0;         // bytes of taken blocks whose pages were not touched before
    int64_t hold_ns = 0;        // for how long to keep as much as was in use
    size_t ceiling = SIZE_MAX;  // up to this much of the process's memory
    size_t low_water = 0;       // up to this much of it, for longer than the hold
    size_t other = 0;           // memory of the process outside the pool, as last read ...
    int64_t other_at_ns = 0;    // ... or tried to be, at this time
    HostBudget host;            // with a hold

    bool has_hole(size_t nbytes, bool huge) const noexcept;
    /// A new block; the segment is null if out of memory.
    struct Taken {
        Segment *segment = nullptr;
        size_t offset = 0, warm = 0;
    };
    /// Take a block of whole pages; a small block lies on huge ones where that saves new pages.
    Taken take(size_t nbytes, bool huge) noexcept;
    /// False: it cannot be mapped shared again, for now.
    bool give_back(Segment *segment, Block used) noexcept;
    /// Keep later writes to the block out of the file. False: that is not possible.
    bool keep(Segment *segment, Block used) noexcept;
    /// The same for all other used and free memory of the segment.
    void keep_rest(Segment *segment) noexcept;
    /// Return the block that contains `data`; the segment is null if there is none.
    std::pair<Segment *, Block> find(const void *data) noexcept;
    /// Read what memory the process has outside the pool.
    void read_other() noexcept;
    /// Whether more is in use, in the pool and outside it, than a hold allows.
    bool is_beyond_ceiling() const noexcept;
    /// How much may be idle now: the cap, or with a hold, the recent peak minus what is in use, within the host's
    /// budget.
    size_t may_be_idle() noexcept;
    /// Free idle memory until at most `most` is left, first that of the kind that was not taken last.
    void keep_idle(size_t most) noexcept;
    /// Free all of it, and keep the files, so that other processes need not map them again.
    void cool() noexcept;

  private:
    // The peak of use, in the pool and outside it, since `began_ns` and in the hold before it.
    size_t most_used = 0, most_used_before = 0;
    int64_t began_ns = 0;
    bool last_huge = false;  // the kind of the last block's pages

    std::set<Hole>::iterator fit(size_t nbytes, bool huge) const noexcept;
    void note_used() noexcept;
    Segment *add(size_t nbytes, bool huge) noexcept;
    void drop(Segment *segment) noexcept;
    void drop_idle(size_t most, bool huge) noexcept;
    void punch(Segment &segment, size_t most) noexcept;
    void add_hole(Segment *segment, size_t offset, Segment::Range range);
    Segment::Range remove_hole(Segment *segment, std::map<size_t, Segment::Range>::iterator it);
};
