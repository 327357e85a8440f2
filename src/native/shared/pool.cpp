// SPDX-License-Identifier: BSD-3-Clause
#include "shared/pool.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "ring/copy.hpp"
#include "shared/segments.hpp"
#include "shared/shared_file.hpp"
#include "ucp/forks.hpp"

namespace {

size_t round_to_pages(size_t nbytes) noexcept {
    static const size_t page = size_t(sysconf(_SC_PAGESIZE));
    return (nbytes + page - 1) / page * page;
}

size_t physical_memory() noexcept {
    static const size_t nbytes = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
    return nbytes;
}

struct State {
    std::mutex mutex;
    Segments segments{std::min(physical_memory() / 64, size_t(1) << 30)};
    size_t pinned = 0;
    std::vector<std::pair<Segment *, size_t>> marked;  // blocks that only their marks keep, or a lack of mappings
};

// Never destroyed: blocks may outlive static destructors.
State &state() noexcept {
    static State *s = new State;
    return *s;
}

bool is_marked(Segment *segment, const std::pair<const size_t, Segment::Used> &used) noexcept {
    return used.second.lent && SharedFile::is_marked(segment->fd, used.first, used.second.nbytes);
}

// The block has neither an owner nor a pin any more.
void end(State &s, Segment *segment, Segments::Block used) noexcept {
    if (!is_marked(segment, *used) && s.segments.give_back(segment, used)) return;
    used->second.freed = true;
    s.pinned += used->second.nbytes;
    s.marked.push_back({segment, used->first});
}

// End blocks whose marks have gone, because nothing reports that.
void end_unmarked(State &s) noexcept {
    std::erase_if(s.marked, [&](auto &block) {
        auto [segment, offset] = block;
        auto used = segment->used.find(offset);
        if (is_marked(segment, *used)) return false;
        const size_t nbytes = used->second.nbytes;
        if (!s.segments.give_back(segment, used)) return false;
        s.pinned -= nbytes;
        return true;
    });
}

// Release from resident memory what only other processes still read. The pages stay in the file.
void let_go(State &s, Segment &segment, size_t offset, Segment::Used &used) noexcept {
    if (!used.freed || std::exchange(used.out, true)) return;
    s.segments.out += used.nbytes;
    madvise(segment.base + offset, used.nbytes, MADV_DONTNEED);
    SharedFile::count(segment.counting, offset, used.nbytes, false);
}

void let_go_of_all(State &s) noexcept {
    for (auto &[base, segment] : s.segments.by_address)
        for (auto &[offset, used] : segment.used) let_go(s, segment, offset, used);
}

// A task may fill its worker's memory faster than the worker's monitor looks.
constexpr size_t large = 1 << 20;

Segments::Taken take(State &s, size_t nbytes, bool huge) noexcept {
    size_t length = round_to_pages(nbytes);
    if (!s.segments.has_hole(length, huge)) end_unmarked(s);
    Segments::Taken taken = s.segments.take(length, huge);
    if (length - taken.warm >= large && s.pinned > s.segments.out && s.segments.is_beyond_ceiling()) {
        end_unmarked(s);
        let_go_of_all(s);
    }
    return taken;
}

// Writing to pages that are there is far cheaper than taking new ones. But a large zeroed array is often a sparse one:
// it takes none that it may never need. The kernel makes no hole in locked memory (mlockall).
void zero(uint8_t *block, size_t nbytes, size_t warm) noexcept {
    const size_t length = round_to_pages(nbytes);
    const bool is_there = warm == length || (warm && length < Pool::huge_threshold);
    if (is_there || madvise(block, length, MADV_REMOVE) != 0) std::memset(block, 0, length);
}

}  // namespace

void Block::release() noexcept {
    if (!data) return;
    if (loan)
        loan.reset();
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

bool Pool::is_huge(size_t nbytes) noexcept {
    return nbytes >= huge_threshold || SharedFile::small_pages_are_slow();
}

Block Pool::allocate(size_t nbytes) noexcept {
    Block block;
    if (nbytes > physical_memory()) return block;
    block.nbytes = nbytes;
    if (nbytes >= page_threshold && !in_forked_child) {
        State &s = state();
        std::lock_guard lock(s.mutex);
        auto taken = take(s, nbytes, is_huge(nbytes));
        if (taken.segment) {
            block.data = taken.segment->base + taken.offset;
            block.segment = taken.segment;
            return block;
        }
    }
    // Small, or no segment could be made: memfd may be forbidden, or descriptors may have run out.
    block.data = static_cast<uint8_t *>(std::aligned_alloc(64, (nbytes + 64) / 64 * 64));
    return block;
}

void *Pool::acquire(size_t nbytes, bool zeroed, bool huge) noexcept {
    if (in_forked_child || nbytes > physical_memory()) return nullptr;
    State &s = state();
    Segments::Taken taken;
    {
        std::lock_guard lock(s.mutex);
        taken = take(s, nbytes, huge);
    }
    if (!taken.segment) return nullptr;
    uint8_t *block = taken.segment->base + taken.offset;
    if (zeroed) zero(block, nbytes, taken.warm);
    return block;
}

bool Pool::release(void *data) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto [segment, used] = s.segments.find(data);
    if (!segment) return false;
    if (in_forked_child) return true;  // it belongs to the parent
    if (used->second.pins)
        used->second.freed = true;
    else
        end(s, segment, used);
    return true;
}

size_t Pool::size_of(const void *data) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto [segment, used] = s.segments.find(data);
    return segment ? used->second.nbytes - (size_t(static_cast<const uint8_t *>(data) - segment->base) - used->first)
                   : 0;
}

Pin Pool::pin(const void *data, size_t nbytes, bool keep) noexcept {
    Pin pin;
    if (in_forked_child) return pin;
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto [segment, used] = s.segments.find(data);
    if (!segment) return pin;
    size_t offset = size_t(static_cast<const uint8_t *>(data) - segment->base);
    if (offset + nbytes > used->first + used->second.nbytes) return pin;
    if (used->second.kept ? !SharedFile::is_untouched(data, nbytes) : keep && !s.segments.keep(segment, used))
        return pin;
    ++used->second.pins;
    used->second.lent = true;
    s.pinned += used->second.nbytes;
    if (!std::exchange(segment->pinned_once, true))
        SharedFile::count(segment->counting = SharedFile::reopen(segment->fd), 0, segment->nbytes, true);
    pin.segment = segment;
    pin.segment_id = segment->id;
    pin.fd = segment->fd;
    pin.block = used->first;
    pin.offset = offset;
    return pin;
}

// Without a hold, each copy beyond the cap would take new pages, because returned memory beyond it is not kept.
Pin Pool::copy(const void *data, size_t nbytes) noexcept {
    State &s = state();
    {
        std::lock_guard lock(s.mutex);
        if (!s.segments.hold_ns && s.segments.out + nbytes > s.segments.cap) return Pin();
    }
    Block block = allocate(nbytes);
    if (!block.segment) return Pin();
    copy_bytes(block.data, data, nbytes);
    Pin pin = Pool::pin(block.data, nbytes, false);
    block.release();
    std::lock_guard lock(s.mutex);
    if (pin) let_go(s, *pin.segment, pin.block, pin.segment->used.find(pin.block)->second);
    return pin;
}

uint64_t Pool::dropped() noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    return s.segments.dropped;
}

bool Pool::exists(uint64_t id) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    for (auto &[base, segment] : s.segments.by_address)
        if (segment.id == id) return true;
    return false;
}

void Pool::set_cap(size_t nbytes) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    s.segments.cap = nbytes;
    end_unmarked(s);
    s.segments.keep_idle(nbytes);
}

void Pool::set_hold(int64_t nanoseconds, size_t ceiling, size_t low_water) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    s.segments.hold_ns = nanoseconds;
    s.segments.ceiling = ceiling;
    s.segments.low_water = low_water;
    s.segments.keep_idle(s.segments.may_be_idle());
}

bool Pool::join(int fd) noexcept {
    if (in_forked_child) return false;  // its parent's entry
    State &s = state();
    std::lock_guard lock(s.mutex);
    return s.segments.host.join(fd);
}

void Pool::settle(std::optional<size_t> other_nbytes) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    if (other_nbytes)
        s.segments.other = *other_nbytes;
    else
        s.segments.read_other();
    end_unmarked(s);
    s.segments.keep_idle(s.segments.may_be_idle());
}

void Pool::trim(size_t nbytes) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    end_unmarked(s);
    s.segments.keep_idle(nbytes);
    let_go_of_all(s);
}

void Pool::cool() noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    end_unmarked(s);
    s.segments.cool();
}

Pool::Statistics Pool::statistics() noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    end_unmarked(s);
    const Segments &all = s.segments;
    return {all.live, all.idle, all.mapped, all.by_address.size(), s.pinned, all.cap, all.taken, all.fresh};
}

// A fork copies the mutex in its present state: no other thread may hold it then.
void Pool::before_fork() noexcept {
    state().mutex.lock();
}

void Pool::after_fork_in_parent() noexcept {
    state().mutex.unlock();
}

void Pool::after_fork_in_child(bool first) noexcept {
    if (first)
        for (auto &[base, segment] : state().segments.by_address) {
            state().segments.keep_rest(&segment);
            // Otherwise it would still count after the parent has ended.
            if (segment.counting >= 0) close(std::exchange(segment.counting, -1));
        }
    state().mutex.unlock();
}
