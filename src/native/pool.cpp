// SPDX-License-Identifier: BSD-3-Clause
#include "pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <utility>

namespace {

// `warm` bytes of a free range have been touched and cost no page fault; they are taken to lie at its start.
struct Range {
    size_t nbytes, warm;
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

/// Owns one memfd and its mapping.
struct Segment {
    int fd;
    uint8_t *base;
    size_t nbytes;
    std::map<size_t, Range> free;  // by offset, neighbours always merged
    size_t live = 0;
};

namespace {

struct State {
    std::mutex mutex;
    std::list<Segment> segments;
    size_t live = 0, idle = 0, mapped = 0;
    size_t cap = physical_memory() / 16;
};

// Never destroyed: blocks may outlive static destructors.
State &state() noexcept {
    static State *s = new State;
    return *s;
}

Segment *add_segment(State &s, size_t nbytes) noexcept {
    int fd = memfd_create("weft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return nullptr;
    void *base = MAP_FAILED;
    if (ftruncate(fd, off_t(nbytes)) == 0)
        base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        close(fd);
        return nullptr;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    s.segments.push_back({fd, static_cast<uint8_t *>(base), nbytes, {{0, {nbytes, 0}}}});
    s.mapped += nbytes;
    return &s.segments.back();
}

void drop_segment(State &s, std::list<Segment>::iterator it) noexcept {
    s.idle -= it->free.begin()->second.warm;
    s.mapped -= it->nbytes;
    munmap(it->base, it->nbytes);
    close(it->fd);
    s.segments.erase(it);
}

// Best fit, and of equal fits the warmest: a touched hole before the untouched end of a segment.
Block take(State &s, size_t nbytes, size_t length) noexcept {
    Segment *segment = nullptr;
    std::map<size_t, Range>::iterator best;
    for (auto &candidate : s.segments)
        for (auto it = candidate.free.begin(); it != candidate.free.end(); ++it) {
            auto [have, warm] = it->second;
            if (have < length) continue;
            if (!segment || have < best->second.nbytes || (have == best->second.nbytes && warm > best->second.warm)) {
                segment = &candidate;
                best = it;
            }
        }
    if (!segment) {
        segment = add_segment(s, length > Pool::segment_size ? length : Pool::segment_size);
        if (!segment) return {};
        best = segment->free.begin();
    }
    auto [offset, range] = *best;
    segment->free.erase(best);
    size_t warm = range.warm < length ? range.warm : length;
    if (range.nbytes > length) segment->free[offset + length] = {range.nbytes - length, range.warm - warm};
    segment->live += length;
    s.live += length;
    s.idle -= warm;
    Block block;
    block.data = segment->base + offset;
    block.nbytes = nbytes;
    block.segment = segment;
    return block;
}

void give_back(State &s, Segment *segment, size_t offset, size_t length) noexcept {
    segment->live -= length;
    s.live -= length;
    Range range{length, length};
    // Beyond the cap the pages go back now; segments that are wholly free are dropped instead, below.
    if (s.idle + length > s.cap && segment->live) {
        madvise(segment->base + offset, length, MADV_REMOVE);
        range.warm = 0;
    }
    s.idle += range.warm;
    auto next = segment->free.lower_bound(offset);
    if (next != segment->free.end() && next->first == offset + length) {
        range = {range.nbytes + next->second.nbytes, range.warm + next->second.warm};
        next = segment->free.erase(next);
    }
    if (next != segment->free.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second.nbytes == offset) {
            offset = previous->first;
            range = {range.nbytes + previous->second.nbytes, range.warm + previous->second.warm};
        }
    }
    segment->free[offset] = range;
    for (auto it = s.segments.begin(); it != s.segments.end() && s.idle > s.cap;) {
        auto candidate = it++;
        if (!candidate->live) drop_segment(s, candidate);
    }
}

int block_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    Block *block = nb::inst_ptr<Block>(self);
    return PyBuffer_FillInfo(view, self, block->data, Py_ssize_t(block->nbytes), 0, flags);
}

PyType_Slot block_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(block_getbuffer)}, {0, nullptr}};

}  // namespace

Block &Block::operator=(Block &&other) noexcept {
    std::swap(data, other.data);
    std::swap(nbytes, other.nbytes);
    std::swap(segment, other.segment);
    return *this;
}

void Block::release() noexcept {
    if (!data) return;
    if (!segment) {
        std::free(data);
    } else if (!in_forked_child) {
        State &s = state();
        std::lock_guard lock(s.mutex);
        give_back(s, segment, size_t(data - segment->base), round_to_pages(nbytes));
    }
    data = nullptr;
}

Block Pool::allocate(size_t nbytes) noexcept {
    if (nbytes >= page_threshold && !in_forked_child) {
        if (nbytes > physical_memory()) return {};
        State &s = state();
        std::lock_guard lock(s.mutex);
        return take(s, nbytes, round_to_pages(nbytes));
    }
    Block block;
    block.data = static_cast<uint8_t *>(std::aligned_alloc(64, (nbytes + 64) / 64 * 64));
    block.nbytes = nbytes;
    return block;
}

void Pool::set_cap(size_t nbytes) noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    s.cap = nbytes;
    for (auto it = s.segments.begin(); it != s.segments.end() && s.idle > s.cap;) {
        auto candidate = it++;
        if (!candidate->live) drop_segment(s, candidate);
    }
}

Pool::Statistics Pool::statistics() noexcept {
    State &s = state();
    std::lock_guard lock(s.mutex);
    return {s.live, s.idle, s.mapped, s.segments.size(), s.cap};
}

void Pool::after_fork_in_child() noexcept {
    for (auto &segment : state().segments)
        mmap(segment.base, segment.nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, segment.fd,
             0);
}

nb::object Pool::view(Block &&block) {
    nb::object owner = nb::inst_alloc(nb::type<Block>());
    new (nb::inst_ptr<Block>(owner)) Block(static_cast<Block &&>(block));
    nb::inst_mark_ready(owner);
    return nb::steal(PyMemoryView_FromObject(owner.ptr()));
}

void Pool::define(nb::module_ &m) {
    nb::class_<Block>(m, "Block", nb::type_slots(block_slots), nb::pooled(),
                      "Memory of the receive pool; `memoryview(block)` is writable and keeps it.")
        .def_prop_ro("nbytes", [](const Block &b) { return b.nbytes; })
        .def_prop_ro("address", [](const Block &b) { return reinterpret_cast<uintptr_t>(b.data); })
        .def_prop_ro("pooled", [](const Block &b) { return b.segment != nullptr; });
    m.def(
        "pool_allocate",
        [](size_t nbytes) {
            Block block = allocate(nbytes);
            if (!block.data)
                raise("NoMemoryError", "the receive pool has no room for " + std::to_string(nbytes) + " B", "allocate");
            return view(static_cast<Block &&>(block));
        },
        nb::arg("nbytes"), nb::sig("def pool_allocate(nbytes: int) -> memoryview"));
    m.def("pool_set_cap", &set_cap, nb::arg("nbytes"));
    m.def(
        "pool_statistics",
        [] {
            auto s = statistics();
            nb::dict d;
            d["live_nbytes"] = s.live;
            d["idle_nbytes"] = s.idle;
            d["mapped_nbytes"] = s.mapped;
            d["segments"] = s.segments;
            d["cap_nbytes"] = s.cap;
            return d;
        },
        nb::sig("def pool_statistics() -> dict[str, int]"));
}
