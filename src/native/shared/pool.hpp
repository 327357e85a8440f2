// SPDX-License-Identifier: BSD-3-Clause
// Where messages land: warm, aligned memory that is used again.
//
// A fresh page costs 3-6x the copy into it (4 KiB pages, KVM guest), so blocks go back to a pool instead of to
// the kernel. From 64 KiB up a block is whole pages of a segment, a file that another process can map: such a block is
// lent, not copied, to processes of this host (fd_socket.hpp). Below, it is plain aligned memory from the C library.
// A block lives as long as the Python object that exports it: NumPy drops the buffer export at once and keeps
// only the exporter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "ucp/ucx.hpp"

struct Segment;
struct Loan;   // of a block that another process lent: loan.hpp
struct Lease;  // what it is lent by

/// Owns one block of pool memory; `segment` is null for memory of the C library, and for what was lent.
struct Block {
    uint8_t *data = nullptr;
    size_t nbytes = 0;
    Segment *segment = nullptr;
    std::shared_ptr<Loan> loan;

    Block() = default;
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    Block(Block &&other) noexcept { *this = static_cast<Block &&>(other); }
    Block &operator=(Block &&other) noexcept {
        std::swap(data, other.data);
        std::swap(nbytes, other.nbytes);
        std::swap(segment, other.segment);
        std::swap(loan, other.loan);
        return *this;
    }
    ~Block() { release(); }
    void release() noexcept;
};

/// Keeps a block from being used again, also after its owner has freed it: one of the pool, or one that was lent.
struct Pin {
    Segment *segment = nullptr;
    std::shared_ptr<Lease> lease;
    uint64_t segment_id = 0;  // which no other segment of this process ever has
    int fd = -1;              // of the segment, which owns it
    size_t block = 0;         // where the pool's block begins
    size_t offset = 0;        // of what was asked for; both in the segment

    Pin() = default;
    Pin(const Pin &) = delete;
    Pin &operator=(const Pin &) = delete;
    Pin(Pin &&other) noexcept { *this = static_cast<Pin &&>(other); }
    Pin &operator=(Pin &&other) noexcept {
        std::swap(segment, other.segment);
        std::swap(lease, other.lease);
        std::swap(segment_id, other.segment_id);
        std::swap(fd, other.fd);
        std::swap(block, other.block);
        std::swap(offset, other.offset);
        return *this;
    }
    ~Pin();
    explicit operator bool() const noexcept { return segment || lease; }
};

namespace Pool {

constexpr size_t page_threshold = 64 * 1024;

struct Statistics {
    size_t live, idle, mapped, segments, pinned, cap;
    uint64_t taken;
};

/// Bytes that this process lent to others, and borrowed from them, since it began.
inline std::atomic<uint64_t> lent_total{0}, borrowed_total{0};
/// Bytes that it copied into shared memory to hand them over.
inline std::atomic<uint64_t> staged_total{0};
/// Bytes of others that it has mapped now.
inline std::atomic<size_t> borrowed{0};

/// A block of `nbytes`; its `data` is null when there is no memory. Any thread, no Python.
Block allocate(size_t nbytes) noexcept;
/// Pin the block that `data` lies in, if it is one of the pool and holds all `nbytes`. With `keep`, what this process
/// writes there from now on is its own. Empty if that cannot be had, or has been, and this process wrote to it since.
Pin pin(const void *data, size_t nbytes, bool keep) noexcept;
/// Copy `data` to where only the pin keeps it, and not in this process's resident memory. Empty where there is no
/// memory, or when as much as the cap is gone from it that way.
Pin copy(const void *data, size_t nbytes) noexcept;
/// How many segments were dropped so far, and whether one still is there.
uint64_t dropped() noexcept;
bool exists(uint64_t segment_id) noexcept;

// For NumPy, which keeps a pointer and no block. `release` and `size_of` know by the address.
/// Null when there is no memory. `zeroed`: its pages are the kernel's zero pages.
void *acquire(size_t nbytes, bool zeroed) noexcept;
/// False: not of the pool.
bool release(void *data) noexcept;
/// Bytes that lie from `data` on in its block; 0: not of the pool.
size_t size_of(const void *data) noexcept;

/// The most bytes of touched, unused memory that are kept; what exceeds it goes back to the kernel.
void set_cap(size_t nbytes) noexcept;
/// For so long keep as much beyond that as was in use at once; `settle` is told what the process has beside the pool,
/// which counts as used, and gives back what was not used again.
void set_hold(int64_t nanoseconds) noexcept;
void settle(size_t other_nbytes) noexcept;
/// Give such memory back now, until at most `nbytes` of it are left. Blocks that were freed, but that others still
/// have, leave this process's resident memory too.
void trim(size_t nbytes) noexcept;
/// Give the pages of all such memory back, and keep the files.
void cool() noexcept;
Statistics statistics() noexcept;
/// A child sees the parent's blocks as they are, copy-on-write, and never allocates from them; nor does a child of it,
/// which is not the `first` and inherits what the child wrote.
void before_fork() noexcept;
void after_fork_in_parent() noexcept;
void after_fork_in_child(bool first) noexcept;

/// Wrap `block` in a Python exporter and return a writable memoryview of it.
nb::object view(Block &&block);
void define(nb::module_ &m);

}  // namespace Pool
