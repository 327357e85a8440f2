// SPDX-License-Identifier: BSD-3-Clause
// One budget for the idle memory of all pools of a host: together they keep little more than they had in use at once.
//
// Each pool alone may keep what it had in use at its own peak. But the peaks of workers come at different times, so the
// idle memory of one would add to the peak of another. The pools tell each other what they use in a small file that all
// of them have mapped: no messages, nothing to wait for, and a process that dies only stops writing.
#pragma once

#include <cstddef>
#include <cstdint>

class HostBudget {
  public:
    HostBudget() = default;
    HostBudget(const HostBudget &) = delete;
    HostBudget &operator=(const HostBudget &) = delete;
    ~HostBudget() { leave(); }

    /// Join the processes that have joined with the file `fd`, of which this keeps a duplicate. False: the file is
    /// full, or cannot be written or mapped.
    bool join(int fd) noexcept;
    void leave() noexcept;
    /// Tell the others that this pool's process has `used` bytes in use, and by its own rule would keep `wish` bytes
    /// idle. Return how many it may keep: its part of what all of them may. As long as all of them together have less
    /// than their `low_water` bytes, used and idle, each may keep an even part of the rest as well.
    size_t share(size_t used, size_t wish, size_t low_water, int64_t now_ns, int64_t hold_ns) noexcept;
    /// The size of the file, and how many processes can join.
    static constexpr size_t nbytes = 16 * 1024, most_processes = nbytes / 64 - 1;

  private:
    struct File;
    File *file = nullptr;
    int locked = -1;  // a descriptor, whose lock on one byte reserves this process's entry until it ends
    size_t entry = 0;
    int64_t read_at_ns = 0;  // when the others were last read, and what they said
    size_t others = 0, others_used = 0, others_wish = 0, others_low_water = 0;
};
