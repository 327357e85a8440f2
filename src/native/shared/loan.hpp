// SPDX-License-Identifier: BSD-3-Clause
// Memory that other processes lent to this one.
//
// A loan can be lent on. The next borrower also maps the owner's pages, from a descriptor of the owner's segment that
// this process hands over like one of its own; this process keeps its lease until its borrower has returned the memory.
// So leases return one by one from the last borrower to the owner. If a process in between dies, the owner gets its
// lease back too early. So each lease of another's memory also leaves a mark on the owner's file (shared_file.hpp),
// which outlives the process that set it, until the borrower's mapping is itself a mark.
//
// Without further steps, unheld memory of a dead owner would stay as long as any loan of the same file. So its
// borrowers free it: the marks show whether the owner is dead, and what is held.
#pragma once

#include <atomic>
#include <memory>

#include "shared/pool.hpp"
#include "shared/segments.hpp"

/// The other end of a loan. It is told of the lease's end by the thread that dropped the last reference.
struct Lender {
    virtual ~Lender() = default;
    virtual void lease_over(uint64_t number) noexcept = 0;
};

/// Owns a descriptor of another process's segment.
struct Borrowed {
    uint64_t id = next_segment_id++;
    int fd;
    size_t nbytes;
    std::atomic<bool> left = false;    // its lender's link has ended, so the owner may be dead
    std::atomic<bool> behind = false;  // waits for `sweep`

    Borrowed(int fd, size_t nbytes) noexcept : fd(fd), nbytes(nbytes) {}
    Borrowed(const Borrowed &) = delete;
    ~Borrowed();

    /// The lender's link has ended: nothing more will be lent from it.
    static void leave(const std::shared_ptr<Borrowed> &segment) noexcept;
    /// Free these pages of a dead owner, if nobody holds them; now, or in `sweep`.
    static void give_back(const std::shared_ptr<Borrowed> &segment, size_t offset, size_t nbytes) noexcept;
    /// Free memory of dead owners that nobody holds, if that was not possible at once.
    static void sweep() noexcept;
};

/// The right to lent memory; the lender is told when it ends. It outlives the mapping while a third process has the
/// same memory from this one.
struct Lease {
    std::shared_ptr<Lender> lender;
    uint64_t number;
    std::shared_ptr<Borrowed> segment;
    size_t nbytes, offset;  // in the segment

    Lease(std::shared_ptr<Lender> lender, uint64_t number, std::shared_ptr<Borrowed> segment, size_t nbytes,
          size_t offset) noexcept;
    Lease(const Lease &) = delete;
    ~Lease();
};

/// Owns a mapping of lent bytes.
struct Loan {
    std::shared_ptr<Lease> lease;
    uint8_t *base;
    bool flagged = false;  // as memory that its owner counts

    Loan(std::shared_ptr<Lease> lease, void *base) noexcept;
    Loan(const Loan &) = delete;
    ~Loan();

    /// Pin the loan that contains all of `data`, to lend it on. Empty if there is none, or this process wrote to it.
    static Pin pin(const void *data, size_t nbytes) noexcept;
    /// Set the flag `dd` in /proc/self/smaps, for a mapping whose memory the owner counts; a mapping starts with it.
    void set_flag() noexcept;
    static void flag_all() noexcept;
    /// What the owners of all loans count, as smaps would show it with the present flags.
    struct Counted {
        size_t resident, mapped;
        bool known;  // false: some shared memory is counted by no owner, or the kernel does not tell
    };
    static Counted counted_elsewhere() noexcept;
    /// Whether all of `data` is such memory.
    static bool is_flagged(const void *data, size_t nbytes) noexcept;
};
