// SPDX-License-Identifier: BSD-3-Clause
// What a fork does. A forked child shares the parent's shared-memory queues and sockets, and would corrupt them: in it
// every worker is dead, and descriptors registered here are closed at once, so that a peer that watches them learns
// of the parent's death even while the child lives.
#pragma once

extern bool in_forked_child;

/// From now on this process notices its forks. Idempotent.
void watch_forks();
/// Have a forked child close `fd`.
void close_in_child(int fd);
void keep_in_child(int fd) noexcept;

/// What else happens at a fork. A child of a forked child is not the `first`.
struct ForkSteps {
    void (*before)() noexcept;
    void (*in_parent)() noexcept;
    void (*in_child)(bool first) noexcept;
};
/// Given once, before anything can fork: by the pool, which a child sees copy-on-write.
void set_fork_steps(const ForkSteps &steps) noexcept;
