// SPDX-License-Identifier: BSD-3-Clause
#include "ucp/forks.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

bool in_forked_child = false;

namespace {

ForkSteps fork_steps{};

// Written only under the GIL; read by a forked child, which has one thread.
std::vector<int> &fds_of_parent() {
    static std::vector<int> fds;
    return fds;
}

void before_fork() noexcept {
    if (fork_steps.before) fork_steps.before();
}

void after_fork_in_parent() noexcept {
    if (fork_steps.in_parent) fork_steps.in_parent();
}

void after_fork_in_child() noexcept {
    const bool first = !in_forked_child;
    in_forked_child = true;
    for (int fd : fds_of_parent()) ::close(fd);
    fds_of_parent().clear();
    if (fork_steps.in_child) fork_steps.in_child(first);
}

}  // namespace

void set_fork_steps(const ForkSteps &steps) noexcept {
    fork_steps = steps;
}

void watch_forks() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
}

void close_in_child(int fd) {
    watch_forks();
    fds_of_parent().push_back(fd);
}

void keep_in_child(int fd) noexcept {
    auto &fds = fds_of_parent();
    fds.erase(std::remove(fds.begin(), fds.end(), fd), fds.end());
}
