// SPDX-License-Identifier: BSD-3-Clause
#include "pool.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "loan.hpp"
#include "shared_file.hpp"

namespace {

// `warm` bytes of a free range have been touched and cost no page fault; they are taken to lie at its start.
struct Range {
    size_t nbytes, warm;
};

struct Used {
    size_t nbytes;
    unsigned pins;
    bool freed;  // by its owner; it lives on while it is pinned, or marked by somebody who borrowed it of a borrower
    bool lent;   // it ever was pinned
    bool out;    // of this process's resident memory
};

size_t round_to_pages(size_t nbytes) noexcept {
    static const size_t page = size_t(sysconf(_SC_PAGESIZE));
    return (nbytes + page - 1) / page * page;
}

size_t physical_memory() noexcept {
    static const size_t nbytes = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
    return nbytes;
}

}  // namespace

/// Owns one file of memory and its mapping.
struct Segment {
    uint64_t id;
    int fd;
    uint8_t *base;
    size_t nbytes;
    std::map<size_t, Range> free;  // by offset, neighbours always merged
    std::map<size_t, Used> used;   // by offset
    bool pinned_once = false;      // another process may hold its descriptor
    int counting = -1;             // says to borrowers which pages this process counts
};

namespace {

// Best fit, and of equal fits the warmest: a touched hole before the untouched end of a segment.
struct Hole {
    size_t nbytes, cold;
    Segment *segment;
    size_t offset;
    bool operator<(const Hole &o) const noexcept {
        return std::tie(nbytes, cold, segment, offset) < std::tie(o.nbytes, o.cold, o.segment, o.offset);
    }
};

struct State {
    std::mutex mutex;
    std::map<const uint8_t *, Segment> segments;  // by address
    std::set<Hole> holes;                         // every free range of every segment
    size_t live = 0, idle = 0, mapped = 0, pinned = 0, out = 0;
    uint64_t dropped = 0;
    std::vector<std::pair<Segment *, size_t>> marked;  // blocks that only their marks keep
    size_t cap = std::min(physical_memory() / 64, size_t(1) << 30);

    void add_hole(Segment *segment, size_t offset, Range range) {
        segment->free[offset] = range;
        holes.insert({range.nbytes, range.nbytes - range.warm, segment, offset});
    }
    Range remove_hole(Segment *segment, std::map<size_t, Range>::iterator it) {
        Range range = it->second;
        holes.erase({range.nbytes, range.nbytes - range.warm, segment, it->first});
        segment->free.erase(it);
        return range;
    }
};

// Never destroyed: blocks may outlive static destructors.
State &state() noexcept {
    static State *s = new State;
    return *s;
}

Segment *add_segment(State &s, size_t nbytes) noexcept {
    int fd = SharedFile::make(nbytes);
    if (fd < 0) return nullptr;
    void *base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        close(fd);
        return nullptr;
    }
    // Where the kernel gives this file huge pages on advice; elsewhere it does nothing.
    madvise(base, nbytes, MADV_HUGEPAGE);
    auto *address = static_cast<uint8_t *>(base);
    Segment *segment = &s.segments.insert({address, {Pool::next_id++, fd, address, nbytes, {}, {}}}).first->second;
    s.add_hole(segment, 0, {nbytes, 0});
    s.mapped += nbytes;
    return segment;
}

void drop_segment(State &s, Segment *segment) noexcept {
    s.idle -= s.remove_hole(segment, segment->free.begin()).warm;
    s.mapped -= segment->nbytes;
    ++s.dropped;
    // Another process's descriptor would keep the pages.
    if (segment->pinned_once) madvise(segment->base, segment->nbytes, MADV_REMOVE);
    munmap(segment->base, segment->nbytes);
    close(segment->fd);
    if (segment->counting >= 0) close(segment->counting);
    s.segments.erase(segment->base);
}

void drop_idle(State &s, size_t most) noexcept {
    for (auto it = s.segments.begin(); it != s.segments.end() && s.idle > most;) {
        Segment &candidate = (it++)->second;
        if (candidate.used.empty()) drop_segment(s, &candidate);
    }
}

void give_back(State &s, Segment *segment, std::map<size_t, Used>::iterator used) noexcept {
    auto [offset, length] = std::pair(used->first, used->second.nbytes);
    if (used->second.out) {
        s.out -= length;
        SharedFile::count(segment->counting, offset, length, true);
    }
    segment->used.erase(used);
    s.live -= length;
    Range range{length, length};
    // Beyond the cap the pages go back now; segments that are wholly free are dropped instead, below.
    if (s.idle + length > s.cap && !segment->used.empty()) {
        madvise(segment->base + offset, length, MADV_REMOVE);
        range.warm = 0;
    }
    s.idle += range.warm;
    auto next = segment->free.lower_bound(offset);
    if (next != segment->free.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second.nbytes == offset) {
            offset = previous->first;
            Range before = s.remove_hole(segment, previous);
            range = {range.nbytes + before.nbytes, range.warm + before.warm};
        }
    }
    if (next != segment->free.end() && next->first == offset + range.nbytes) {
        Range after = s.remove_hole(segment, next);
        range = {range.nbytes + after.nbytes, range.warm + after.warm};
    }
    s.add_hole(segment, offset, range);
    drop_idle(s, s.cap);
}

bool is_marked(Segment *segment, const std::pair<const size_t, Used> &used) noexcept {
    return used.second.lent && SharedFile::is_marked(segment->fd, used.first, used.second.nbytes);
}

// Neither its owner nor a pin keeps the block any more.
void end(State &s, Segment *segment, std::map<size_t, Used>::iterator used) noexcept {
    if (!is_marked(segment, *used)) return give_back(s, segment, used);
    used->second.freed = true;
    s.pinned += used->second.nbytes;
    s.marked.push_back({segment, used->first});
}

// Nobody tells when a mark goes.
void end_unmarked(State &s) noexcept {
    std::erase_if(s.marked, [&](auto &block) {
        auto [segment, offset] = block;
        auto used = segment->used.find(offset);
        if (is_marked(segment, *used)) return false;
        s.pinned -= used->second.nbytes;
        give_back(s, segment, used);
        return true;
    });
}

// Idle memory between blocks in use goes back too: such a segment cannot be dropped.
void keep_idle(State &s, size_t most) noexcept {
    end_unmarked(s);
    drop_idle(s, most);
    for (auto &[base, segment] : s.segments)
        for (auto it = segment.free.begin(); it != segment.free.end() && s.idle > most;) {
            auto [offset, range] = *it++;
            if (range.warm == 0) continue;
            madvise(segment.base + offset, range.nbytes, MADV_REMOVE);
            s.remove_hole(&segment, segment.free.find(offset));
            s.add_hole(&segment, offset, {range.nbytes, 0});
            s.idle -= range.warm;
        }
}

// What only others still read is resident for them. Its pages stay in the file.
void let_go(State &s, Segment &segment, size_t offset, Used &used) noexcept {
    if (!used.freed || std::exchange(used.out, true)) return;
    s.out += used.nbytes;
    madvise(segment.base + offset, used.nbytes, MADV_DONTNEED);
    SharedFile::count(segment.counting, offset, used.nbytes, false);
}

// The offset of a new block; `segment` is null when there is no memory.
std::pair<Segment *, size_t> take(State &s, size_t nbytes, bool zeroed) noexcept {
    size_t length = round_to_pages(nbytes);
    if (s.holes.lower_bound({length, 0, nullptr, 0}) == s.holes.end()) end_unmarked(s);
    auto best = s.holes.lower_bound({length, 0, nullptr, 0});
    Segment *segment;
    size_t offset = 0;
    if (best != s.holes.end()) {
        segment = best->segment;
        offset = best->offset;
    } else {
        segment = add_segment(s, length > Pool::segment_size ? length : Pool::segment_size);
        if (!segment) return {};
    }
    Range range = s.remove_hole(segment, segment->free.find(offset));
    size_t warm = range.warm < length ? range.warm : length;
    if (range.nbytes > length) s.add_hole(segment, offset + length, {range.nbytes - length, range.warm - warm});
    segment->used[offset] = {length, 0, false, false, false};
    s.live += length;
    s.idle -= warm;
    // `warm` is an estimate of how much, not where: to be zero, the pages must be new. The kernel makes no hole in
    // locked memory (mlockall).
    uint8_t *block = segment->base + offset;
    if (zeroed && madvise(block, length, MADV_REMOVE) != 0) std::memset(block, 0, length);
    return {segment, offset};
}

// The block that `data` lies in; the segment is null if it is none of the pool's.
std::pair<Segment *, std::map<size_t, Used>::iterator> find(State &s, const void *data) noexcept {
    auto *address = static_cast<const uint8_t *>(data);
    auto at = s.segments.upper_bound(address);
    if (at == s.segments.begin()) return {};
    Segment &segment = std::prev(at)->second;
    size_t offset = size_t(address - segment.base);
    if (offset >= segment.nbytes) return {};
    auto used = segment.used.upper_bound(offset);
    if (used == segment.used.begin() || offset >= std::prev(used)->first + std::prev(used)->second.nbytes) return {};
    return {&segment, std::prev(used)};
}

}  // namespace

void Block::release() noexcept {
    if (!data) return;
    if (loan)
        delete std::exchange(loan, nullptr);
    else if (segment)
        Pool::release(data);
    else
        std::free(data);
    data = nullptr;
}

Pin::~Pin() {
    if (!segment || in_forked_child) return;
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto used = segment->used.find(block);
    s.pinned -= used->second.nbytes;
    if (!--used->second.pins && used->second.freed) end(s, segment, used);
}

uint64_t Pin::id() const noexcept {
    return segment ? segment->id : lease->segment->id;
}

int Pin::fd() const noexcept {
    return segment ? segment->fd : lease->segment->fd;
}

Block Pool::allocate(size_t nbytes) noexcept {
    Block block;
    if (nbytes > physical_memory()) return block;
    block.nbytes = nbytes;
    if (nbytes >= page_threshold && !in_forked_child) {
        State &s = state();
        std::lock_guard lock(s.mutex);
        auto [segment, offset] = take(s, nbytes, false);
        if (segment) {
            block.data = segment->base + offset;
            block.segment = segment;
            return block;
        }
    }
    // Small, or no segment is to be had: memfd may be forbidden, descriptors may have run out.
    block.data = static_cast<uint8_t *>(std::aligned_alloc(64, (nbytes + 64) / 64 * 64));
    return block;
}

void *Pool::acquire(size_t nbytes, bool zeroed) noexcept {
    if (in_forked_child || nbytes > physical_memory()) return nullptr;
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto [segment, offset] = take(s, nbytes, zeroed);
    return segment ? segment->base + offset : nullptr;
}

bool Pool::release(void *data) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto [segment, used] = find(s, data);
    if (!segment) return false;
    if (in_forked_child) return true;  // the parent's
    if (used->second.pins)
        used->second.freed = true;
    else
        end(s, segment, used);
    return true;
}

size_t Pool::size_of(const void *data) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto [segment, used] = find(s, data);
    return segment ? used->second.nbytes - (size_t(static_cast<const uint8_t *>(data) - segment->base) - used->first)
                   : 0;
}

Pin Pool::pin(const void *data, size_t nbytes) noexcept {
    Pin pin;
    if (in_forked_child) return pin;
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto [segment, used] = find(s, data);
    if (!segment) return pin;
    size_t offset = size_t(static_cast<const uint8_t *>(data) - segment->base);
    if (offset + nbytes > used->first + used->second.nbytes) return pin;
    ++used->second.pins;
    used->second.lent = true;
    s.pinned += used->second.nbytes;
    if (!std::exchange(segment->pinned_once, true))
        SharedFile::count(segment->counting = SharedFile::reopen(segment->fd), 0, segment->nbytes, true);
    pin.segment = segment;
    pin.block = used->first;
    pin.offset = offset;
    return pin;
}

// More than the cap would be new pages each time: what comes back beyond it is not kept.
Pin Pool::copy(const void *data, size_t nbytes) noexcept {
    State &s = state();
    {
        std::lock_guard lock(s.mutex);
        if (s.out + nbytes > s.cap) return Pin();
    }
    Block block = allocate(nbytes);
    if (!block.segment) return Pin();
    std::memcpy(block.data, data, nbytes);
    Pin pin = Pool::pin(block.data, nbytes);
    block.release();
    std::lock_guard lock(s.mutex);
    if (pin) let_go(s, *pin.segment, pin.block, pin.segment->used.find(pin.block)->second);
    return pin;
}

uint64_t Pool::dropped() noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    return s.dropped;
}

bool Pool::exists(uint64_t id) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    for (auto &[base, segment] : s.segments)
        if (segment.id == id) return true;
    return false;
}

void Pool::set_cap(size_t nbytes) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    s.cap = nbytes;
    keep_idle(s, nbytes);
}

void Pool::trim(size_t nbytes) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    keep_idle(s, nbytes);
    for (auto &[base, segment] : s.segments)
        for (auto &[offset, used] : segment.used) let_go(s, segment, offset, used);
}

Pool::Statistics Pool::statistics() noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    end_unmarked(s);
    return {s.live, s.idle, s.mapped, s.segments.size(), s.pinned, s.cap};
}

// A fork copies the mutex as it is: nobody may hold it then.
void Pool::before_fork() noexcept {
    state().mutex.lock();
}

void Pool::after_fork_in_parent() noexcept {
    state().mutex.unlock();
}

void Pool::after_fork_in_child(bool first) noexcept {
    if (first)
        for (auto &[base, segment] : state().segments) {
            mmap(segment.base, segment.nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                 segment.fd, 0);
            // It would count on when the parent has ended.
            if (segment.counting >= 0) close(std::exchange(segment.counting, -1));
        }
    state().mutex.unlock();
}
