// SPDX-License-Identifier: BSD-3-Clause
#include "shared/segments.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "shared/mappings.hpp"
#include "shared/shared_file.hpp"
#include "ucp/ucx.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

static constexpr size_t most_looked_at = 16;

// Where small pages are slow, small blocks are on huge ones as well. The first bytes of a segment stay on small ones,
// so that a process with few of them does not take a huge page.
static size_t head() noexcept {
    return SharedFile::small_pages_are_slow() ? Segments::huge_nbytes : 0;
}

static void ask_for_huge(const Segment *segment, size_t offset, size_t nbytes) noexcept {
    const size_t from = std::max(offset, head());
    if (segment->huge && from < offset + nbytes) madvise(segment->base + from, offset + nbytes - from, MADV_HUGEPAGE);
}

bool Segments::Hole::operator<(const Hole &o) const noexcept {
    return std::tie(huge, nbytes, cold, segment, offset) < std::tie(o.huge, o.nbytes, o.cold, o.segment, o.offset);
}

void Segments::add_hole(Segment *segment, size_t offset, Segment::Range range) {
    segment->free[offset] = range;
    holes.insert({segment->huge, range.nbytes, range.nbytes - range.warm, segment, offset});
}

Segment::Range Segments::remove_hole(Segment *segment, std::map<size_t, Segment::Range>::iterator it) {
    Segment::Range range = it->second;
    holes.erase({segment->huge, range.nbytes, range.nbytes - range.warm, segment, it->first});
    segment->free.erase(it);
    return range;
}

bool Segments::has_hole(size_t nbytes, bool huge) const noexcept {
    return fit(nbytes, huge) != holes.end();
}

Segment *Segments::add(size_t nbytes, bool huge) noexcept {
    int fd = SharedFile::make(nbytes);
    if (fd < 0) return nullptr;
    void *base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        close(fd);
        return nullptr;
    }
    auto *address = static_cast<uint8_t *>(base);
    Segment *segment =
        &by_address.insert({address, {next_segment_id++, fd, address, nbytes, huge, {}, {}, {}}}).first->second;
    ask_for_huge(segment, 0, nbytes);
    add_hole(segment, 0, {nbytes, 0});
    mapped += nbytes;
    return segment;
}

void Segments::drop(Segment *segment) noexcept {
    idle -= remove_hole(segment, segment->free.begin()).warm;
    mapped -= segment->nbytes;
    ++dropped;
    // Otherwise another process's descriptor would keep the pages.
    if (segment->pinned_once) madvise(segment->base, segment->nbytes, MADV_REMOVE);
    munmap(segment->base, segment->nbytes);
    close(segment->fd);
    if (segment->counting >= 0) close(segment->counting);
    by_address.erase(segment->base);
}

// What the process has outside the pool grows between two looks of a worker's monitor, and fastest while its event loop
// reads spilled values and the monitor has no turn. Reading it takes 6 us (EPYC).
static constexpr int64_t other_lasts_ns = 10'000'000;

void Segments::read_other() noexcept {
    other_at_ns = now_ns();  // also if the kernel does not tell
    char text[128] = {};
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    size_t resident, shared;
    if (n <= 0 || std::sscanf(text, "%*u %zu %zu", &resident, &shared) != 2) return;
    other = (resident - std::min(resident, shared)) * size_t(sysconf(_SC_PAGESIZE));
}

bool Segments::is_beyond_ceiling() const noexcept {
    return hold_ns && live - out + other > ceiling;
}

void Segments::note_used() noexcept {
    if (!hold_ns) return;
    const int64_t now = now_ns();
    if (ceiling != SIZE_MAX && now - other_at_ns > other_lasts_ns) read_other();
    const size_t used = live + other;
    if (now - began_ns > hold_ns) {
        most_used_before = now - began_ns > 2 * hold_ns ? used : most_used;
        most_used = used;
        began_ns = now;
    }
    most_used = std::max(most_used, used);
}

// Memory that was in use a moment ago will soon be in use again, and a page fault costs more than any work on the page.
// If as much is kept as was in use at once, the process never has more than it had. Its memory outside the pool counts,
// too: otherwise both peaks, which come at different times, would add up.
size_t Segments::may_be_idle() noexcept {
    if (!hold_ns) return cap;
    note_used();
    const size_t used = live + other, kept = std::min(std::max(most_used, most_used_before), ceiling);
    const size_t part = host.share(used, kept - std::min(kept, used), low_water, now_ns(), hold_ns);
    return std::max(cap, std::min(part, ceiling - std::min(ceiling, used)));
}

void Segments::drop_idle(size_t most, bool huge) noexcept {
    for (auto it = by_address.begin(); it != by_address.end() && idle > most;) {
        Segment &candidate = (it++)->second;
        if (candidate.huge == huge && candidate.used.empty() && candidate.free.begin()->second.warm <= idle - most)
            drop(&candidate);
    }
}

// The kind of the last block's pages goes last. Otherwise what one job leaves idle would stay, and each block of the
// other kind of the next job would go back to the kernel as soon as it is free.
void Segments::keep_idle(size_t most) noexcept {
    for (bool huge : {!last_huge, last_huge}) {
        drop_idle(most, huge);
        for (auto &[base, segment] : by_address)
            if (segment.huge == huge) punch(segment, most);
    }
}

void Segments::cool() noexcept {
    for (auto &[base, segment] : by_address) punch(segment, 0);
}

// Idle memory between used blocks is freed as well: such a segment cannot be dropped. Huge pages are freed whole where
// nothing of them is used: a partial one would be split.
void Segments::punch(Segment &segment, size_t most) noexcept {
    for (auto it = segment.free.begin(); it != segment.free.end() && idle > most;) {
        auto [offset, range] = *it++;
        if (range.warm == 0) continue;
        const size_t end = offset + range.nbytes;
        size_t warm = range.warm, from = end;
        while (warm && idle > most) {
            auto [begin, to] = segment.warm.last(offset, from);
            const size_t excess = idle - most;
            from = excess < to - begin ? std::max(begin, (to - excess) / huge_nbytes * huge_nbytes) : begin;
            const size_t freed = segment.warm.remove(from, to);
            warm -= freed;
            idle -= freed;
        }
        if (!segment.warm.count(offset, from)) from = offset;
        madvise(segment.base + from, end - from, MADV_REMOVE);
        remove_hole(&segment, segment.free.find(offset));
        add_hole(&segment, offset, {range.nbytes, warm});
    }
}

// A fresh page costs more than the rest of a larger hole, so of the next few holes the warmest is taken.
std::set<Segments::Hole>::iterator Segments::fit(size_t nbytes, bool huge) const noexcept {
    auto cold = [&](const Hole &hole) { return nbytes - std::min(nbytes, hole.warm()); };
    auto best = holes.lower_bound({huge, nbytes, 0, nullptr, 0});
    if (best != holes.end() && best->huge != huge) return holes.end();
    size_t left = most_looked_at;
    for (auto it = best; it != holes.end() && it->huge == huge && left && cold(*best); ++it, --left)
        if (cold(*it) < cold(*best)) best = it;
    return best;
}

// The start of a hole, unless a block has more touched pages where the first or before the last of them ends.
static size_t warmest(const Segment *segment, size_t begin, size_t end, size_t nbytes) noexcept {
    const size_t last = segment->warm.last(begin, end).second;
    size_t best = begin, most = segment->warm.count(begin, begin + nbytes);
    for (size_t offset : {segment->warm.first_begin(begin, end), last - std::min(last - begin, nbytes)}) {
        if (most == nbytes || offset + nbytes > end) continue;
        const size_t warm = segment->warm.count(offset, offset + nbytes);
        if (warm > most) best = offset, most = warm;
    }
    return best;
}

// Whether a huge page is free as a whole, within a free range, and none of it is touched yet.
static bool is_untouched(const Segment *segment, size_t begin, size_t end, size_t page) noexcept {
    return segment->huge && SharedFile::may_be_huge() && page >= std::max(begin, head()) &&
           page + Segments::huge_nbytes <= end && !segment->warm.count(page, page + Segments::huge_nbytes);
}

Segments::Taken Segments::take(size_t nbytes, bool huge) noexcept {
    auto hole = fit(nbytes, huge);
    // Touched huge pages are better than new small ones; what asks for huge ones is read faster there.
    if (!huge && (hole == holes.end() || hole->warm() < nbytes)) {
        auto other = fit(nbytes, true);
        if (other != holes.end() && other->warm() >= nbytes) hole = other;
    }
    Segment *segment;
    size_t begin = 0;
    if (hole != holes.end()) {
        segment = hole->segment;
        begin = hole->offset;
    } else {
        segment = add(std::max(nbytes, segment_nbytes), huge);
        if (!segment) return {};
    }
    Segment::Range range = remove_hole(segment, segment->free.find(begin));
    const size_t end = begin + range.nbytes, offset = warmest(segment, begin, end, nbytes);
    const size_t block_end = offset + nbytes;
    // The first touch of a huge page touches all of it: what the block leaves of its first and last one is warm.
    const size_t first = offset / huge_nbytes * huge_nbytes, last = (block_end - 1) / huge_nbytes * huge_nbytes;
    const size_t left = is_untouched(segment, begin, end, first) ? offset - first : 0;
    const size_t right = is_untouched(segment, begin, end, last) ? last + huge_nbytes - block_end : 0;
    const size_t warm = segment->warm.remove(offset, block_end);
    if (left) segment->warm.add(first, offset);
    if (right) segment->warm.add(block_end, block_end + right);
    const size_t before = segment->warm.count(begin, offset), after = range.warm + left + right - before - warm;
    if (offset > begin) add_hole(segment, begin, {offset - begin, before});
    if (block_end < end) add_hole(segment, block_end, {end - block_end, after});
    ++taken;
    last_huge = segment->huge;
    segment->used[offset] = {nbytes, 0, false, false, false, false};
    live += nbytes;
    idle += left + right - warm;
    fresh += nbytes - warm;
    note_used();
    // Blocks of the other kind may be idle: what is new here makes less of them worth keeping.
    if (warm < nbytes && hold_ns) keep_idle(may_be_idle());
    return {segment, offset, warm};
}

static bool map(const Segment *segment, size_t offset, size_t nbytes, int kind) noexcept {
    void *address = segment->base + offset;
    if (mmap(address, nbytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED | MAP_NORESERVE, segment->fd, off_t(offset)) ==
        MAP_FAILED)
        return false;
    ask_for_huge(segment, offset, nbytes);
    return true;
}

// By how many mappings there are more if this block is kept: the kernel joins it with neighbours that are kept, too.
static long boundaries(const Segment *segment, Segments::Block block) noexcept {
    long more = 2;
    if (block != segment->used.begin()) {
        auto &[offset, before] = *std::prev(block);
        if (before.kept && offset + before.nbytes == block->first) more -= 2;
    }
    auto after = std::next(block);
    if (after != segment->used.end() && after->second.kept && after->first == block->first + block->second.nbytes)
        more -= 2;
    return more;
}

// The pages stay mapped. This process counts them as its own, and distinguishes them from borrowed memory by a flag in
// /proc/self/smaps that the advice sets, and that has no other effect on memory.
bool Segments::keep(Segment *segment, Block used) noexcept {
    if (!Mappings::may_take() || !map(segment, used->first, used->second.nbytes, MAP_PRIVATE)) return false;
    used->second.kept = true;
    Mappings::taken += boundaries(segment, used);
    madvise(segment->base + used->first, used->second.nbytes, MADV_RANDOM);
    madvise(segment->base + used->first, used->second.nbytes, MADV_POPULATE_READ);
    return true;
}

void Segments::keep_rest(Segment *segment) noexcept {
    size_t from = 0;
    for (auto &[offset, used] : segment->used) {
        if (!used.kept) continue;
        if (offset > from) map(segment, from, offset - from, MAP_PRIVATE);
        from = offset + used.nbytes;
    }
    if (segment->nbytes > from) map(segment, from, segment->nbytes - from, MAP_PRIVATE);
}

bool Segments::give_back(Segment *segment, Block used) noexcept {
    auto [offset, length] = std::pair(used->first, used->second.nbytes);
    if (used->second.kept) {
        if (!map(segment, offset, length, MAP_SHARED)) return false;
        Mappings::taken -= boundaries(segment, used);
    }
    if (used->second.out) {
        out -= length;
        SharedFile::count(segment->counting, offset, length, true);
    }
    segment->used.erase(used);
    live -= length;
    segment->warm.add(offset, offset + length);
    Segment::Range range{length, length};
    idle += length;
    auto next = segment->free.lower_bound(offset);
    if (next != segment->free.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second.nbytes == offset) {
            offset = previous->first;
            Segment::Range before = remove_hole(segment, previous);
            range = {range.nbytes + before.nbytes, range.warm + before.warm};
        }
    }
    if (next != segment->free.end() && next->first == offset + range.nbytes) {
        Segment::Range after = remove_hole(segment, next);
        range = {range.nbytes + after.nbytes, range.warm + after.warm};
    }
    add_hole(segment, offset, range);
    keep_idle(may_be_idle());
    return true;
}

std::pair<Segment *, Segments::Block> Segments::find(const void *data) noexcept {
    auto *address = static_cast<const uint8_t *>(data);
    auto at = by_address.upper_bound(address);
    if (at == by_address.begin()) return {};
    Segment &segment = std::prev(at)->second;
    size_t offset = size_t(address - segment.base);
    if (offset >= segment.nbytes) return {};
    auto used = segment.used.upper_bound(offset);
    if (used == segment.used.begin() || offset >= std::prev(used)->first + std::prev(used)->second.nbytes) return {};
    return {&segment, std::prev(used)};
}
