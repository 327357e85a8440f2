// SPDX-License-Identifier: BSD-3-Clause
// One ucp_worker_h: what UCX progresses. A Worker has one of its own, and one more for each link on this host.
//
// Why one for each: a peer that is killed while it writes into a posix receive queue leaves the queue's next
// element reserved and never published, and nothing more reaches the receiver's ucp_worker. In rendezvous
// the copy of each fragment lies in that window: of six kills in a row, one did it. So peers on one host do not share a
// queue, and what a dead one has broken goes with it. It costs 2 ms, 0.65 MiB of /dev/shm and 5 descriptors at each
// side (7 with the link's socket and timer).
#pragma once

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ucp/ucx.hpp"

struct Worker;
struct Request;

/// The data of a rendezvous, on its way to where it was asked to go.
struct Landing {
    void *receiver = nullptr;
    /// Called once in progress, without Python: by UCX, or as canceled when the engine goes.
    void (*ended)(void *receiver, ucs_status_t status) noexcept = nullptr;
    struct Engine *engine = nullptr;
};

/// Owns a ucp_worker_h, and its descriptor's place in the owner's epoll set.
struct Engine {
    nb::object context;  // kept open by it
    Worker *worker;      // null once that has closed, and the engine is left to the holders of its data
    ucp_worker_h handle = nullptr;
    int event_fd = -1;
    bool armed = false;  // its descriptor tells of the next event; the owner does not poll it
    unsigned work = 0;   // what progress found since the last look
    size_t closing_endpoints = 0;
    size_t headers_left = 0;  // of connections, that wait for room at the other side
    std::unordered_set<Landing *> landings;
    std::vector<Request *> abandoned;  // under way when the worker left; UCX has them until `handle` is destroyed
    std::unordered_map<ucp_ep_h, std::shared_ptr<struct Reply>> replies;  // of the senders that are there

    explicit Engine(Worker *worker);
    Engine(const Engine &) = delete;
    ~Engine();

    /// The worker closes, or the link: out of what is polled, and of the epoll set. What is under way still ends for
    /// its waiter; it keeps its buffers until UCX lets go of it, which is when the engine is destroyed.
    void leave() noexcept;
    std::string address() const;
    /// Have the data that `descriptor` stands for brought into `parts` of host memory, which stay until it has ended.
    /// That may be before this returns.
    void land(Landing *landing, void *descriptor, const iovec *parts, size_t count) noexcept;
    void force_close(ucp_ep_h endpoint) noexcept;
    /// Flush what was sent, until `deadline_ns`.
    void flush(int64_t deadline_ns) noexcept;
    /// Progress until nothing of this engine is under way, or `deadline_ns`.
    void finish(int64_t deadline_ns) noexcept;

  private:
    void destroy() noexcept;
};
