// SPDX-License-Identifier: BSD-3-Clause
// Fork handling. A forked child shares the parent's shared-memory queues and sockets, and would corrupt them. So in a
// child every worker is dead, and descriptors registered here are closed at once, so that a peer that watches them
// detects the parent's death even while the child lives.
#pragma once

extern bool in_forked_child;

/// Start to watch for forks of this process. Idempotent.
void watch_forks();
/// Close `fd` in forked children.
void close_in_child(int fd);
void keep_in_child(int fd) noexcept;

/// Further steps of a fork. A child of a forked child is not the `first`.
struct ForkSteps {
    void (*before)() noexcept;
    void (*in_parent)() noexcept;
    void (*in_child)(bool first) noexcept;
};
/// Set once, before any fork: by the pool, which a child sees copy-on-write.
void set_fork_steps(const ForkSteps &steps) noexcept;
