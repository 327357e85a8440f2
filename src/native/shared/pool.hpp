// SPDX-License-Identifier: BSD-3-Clause
// The memory that messages are received into: warm, aligned memory that is reused.
//
// A fresh page costs 3-6x the copy into it (4 KiB pages, KVM guest), so blocks return to a pool instead of the kernel.
// From 64 KiB up, a block consists of whole pages of a segment, a file that other processes can map: such a block is
// lent to processes of this host, not copied (fd_socket.hpp). Smaller blocks are plain aligned memory from the C
// library. A block lives as long as the Python object that exports it: NumPy drops the buffer export at once and keeps
// only the exporter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "ucp/ucx.hpp"

struct Segment;
struct Loan;   // of a block that another process lent: loan.hpp
struct Lease;  // the right to a loan

/// Owns a block of pool memory; `segment` is null for memory of the C library, and for borrowed memory.
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

/// Keeps a block of the pool, or a loan, from being reused, even after its owner has freed it.
struct Pin {
    Segment *segment = nullptr;
    std::shared_ptr<Lease> lease;
    uint64_t segment_id = 0;  // unique within this process
    int fd = -1;              // of the segment, which owns it
    size_t block = 0;         // start of the pool's block in the segment
    size_t offset = 0;        // of the pinned data in the segment

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
/// An array of this size or more is on huge pages: it is mapped and read faster. Below, a fresh huge page can cost more
/// than it brings, as it does for the many temporaries of a table; where small pages are slow, it costs less
/// (docs/design.md).
constexpr size_t huge_threshold = 16 * 1024 * 1024;
/// Whether an array of `nbytes` is.
bool is_huge(size_t nbytes) noexcept;

struct Statistics {
    size_t live, idle, mapped, segments, pinned, cap;
    uint64_t taken, fresh;
};

/// Bytes that this process has lent, and borrowed, since its start.
inline std::atomic<uint64_t> lent_total{0}, borrowed_total{0};
/// Bytes that it has copied into shared memory in order to lend them.
inline std::atomic<uint64_t> staged_total{0};
/// Borrowed bytes that are mapped now.
inline std::atomic<size_t> borrowed{0};

/// Allocate a block of `nbytes`; its `data` is null if out of memory. Any thread, no Python.
Block allocate(size_t nbytes) noexcept;
/// Pin the block that contains `data`, if it is the pool's and has all `nbytes`. With `keep`, this process's later
/// writes are private. Empty if that is not possible, or was done before and this process has written to it since.
Pin pin(const void *data, size_t nbytes, bool keep) noexcept;
/// Copy `data` to memory that only the pin keeps, outside this process's resident memory. Empty if out of memory, or if
/// as much as the cap has already left resident memory this way.
Pin copy(const void *data, size_t nbytes) noexcept;
/// The number of segments dropped so far, and whether a segment still exists.
uint64_t dropped() noexcept;
bool exists(uint64_t segment_id) noexcept;

// For NumPy, which keeps a pointer and no block. `release` and `size_of` find the block by its address.
/// Null if out of memory. `zeroed`: all bytes are 0. `huge`: its pages are huge where possible.
void *acquire(size_t nbytes, bool zeroed, bool huge) noexcept;
/// False: not in the pool.
bool release(void *data) noexcept;
/// Bytes from `data` to the end of its block; 0: not in the pool.
size_t size_of(const void *data) noexcept;

/// Set the cap of touched, unused memory; the excess goes back to the kernel.
void set_cap(size_t nbytes) noexcept;
/// For this long, also keep as much as was in use at once, and no more than brings the process's memory to `ceiling`.
/// The process's memory outside the pool counts as used: with a ceiling it is read as blocks come and go, otherwise by
/// `settle`, which also frees what was not used again, and to which it can be given. What brings the process's memory
/// to no more than `low_water` is kept for longer.
void set_hold(int64_t nanoseconds, size_t ceiling, size_t low_water) noexcept;
void settle(std::optional<size_t> other_nbytes) noexcept;
/// Share one budget of such memory with all processes that have this file open (HostBudget). False: that failed.
bool join(int fd) noexcept;
/// Free such memory now, until at most `nbytes` are left. Freed blocks that other processes still have also leave this
/// process's resident memory.
void trim(size_t nbytes) noexcept;
/// Free the pages of all such memory, and keep the files.
void cool() noexcept;
Statistics statistics() noexcept;
/// A child sees the parent's blocks copy-on-write, and never allocates from them; nor does the child's own child, which
/// is not the `first`, and which inherits what the child wrote.
void before_fork() noexcept;
void after_fork_in_parent() noexcept;
void after_fork_in_child(bool first) noexcept;

/// Wrap `block` in a Python exporter and return a writable memoryview of it.
nb::object view(Block &&block);
void define(nb::module_ &m);

}  // namespace Pool
