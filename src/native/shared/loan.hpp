// SPDX-License-Identifier: BSD-3-Clause
// What other processes lent to this one.
//
// A loan can be lent on. The next borrower maps the owner's pages too, from a descriptor of the owner's segment that
// this process hands over as one of its own; and this process keeps its lease until it has that one back. So leases
// come back from the last borrower to the owner one by one. If a process between them dies, the owner has its lease
// back too early: hence each lease of what is another's also leaves a mark on the owner's file (shared_file.hpp), which
// outlives the process that set it, until the borrower's mapping is a mark of its own.
//
// What a dead owner had and nobody holds would stay as long as any loan of the same file. So its borrowers give that
// back to the kernel: whether the owner is dead, and what is held, the marks tell.
#pragma once

#include <atomic>
#include <memory>

#include "shared/pool.hpp"
#include "shared/segments.hpp"

/// The other end of a loan. It is told of the lease's end, in the thread that dropped the last reference.
struct Lender {
    virtual ~Lender() = default;
    virtual void lease_over(uint64_t number) noexcept = 0;
};

/// Owns a descriptor of another process's segment.
struct Borrowed {
    uint64_t id = next_segment_id++;
    int fd;
    size_t nbytes;
    std::atomic<bool> left = false;    // its lender's link is over, so the owner may be dead
    std::atomic<bool> behind = false;  // it waits for `sweep`

    Borrowed(int fd, size_t nbytes) noexcept : fd(fd), nbytes(nbytes) {}
    Borrowed(const Borrowed &) = delete;
    ~Borrowed();

    /// The lender's link is over: nothing more will be lent from it.
    static void leave(const std::shared_ptr<Borrowed> &segment) noexcept;
    /// Give these pages of a dead owner back to the kernel, if nobody holds them; now, or in `sweep`.
    static void give_back(const std::shared_ptr<Borrowed> &segment, size_t offset, size_t nbytes) noexcept;
    /// Give back what dead owners had and nobody holds, where that could not be done at once.
    static void sweep() noexcept;
};

/// The right to what was lent; the lender is told of its end. It outlives the mapping while a third process has the
/// same memory from here.
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

/// Owns one mapping of lent bytes.
struct Loan {
    std::shared_ptr<Lease> lease;
    uint8_t *base;
    bool flagged = false;  // as memory that its owner counts

    Loan(std::shared_ptr<Lease> lease, void *base) noexcept;
    Loan(const Loan &) = delete;
    ~Loan();

    /// Keep the loan that all of `data` lies in, to lend it on. Empty if there is none, or this process wrote to it.
    static Pin pin(const void *data, size_t nbytes) noexcept;
    /// Have /proc/self/smaps tell what the owner counts: such a mapping has the flag `dd`, from its beginning.
    void set_flag() noexcept;
    static void flag_all() noexcept;
    /// What their owners count of all loans, as smaps would tell it with the flags of now.
    struct Counted {
        size_t resident, mapped;
        bool known;  // false: some is shared of which no owner says that it counts it, or the kernel does not tell
    };
    static Counted counted_elsewhere() noexcept;
    /// Whether all of `data` is such memory.
    static bool is_flagged(const void *data, size_t nbytes) noexcept;
};
