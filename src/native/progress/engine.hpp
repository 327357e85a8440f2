// SPDX-License-Identifier: BSD-3-Clause
// One ucp_worker_h, the unit that UCX progresses. A Worker has one of its own, and one more for each link on this host.
//
// Why one for each link: a peer that is killed while it writes into a posix receive queue leaves the queue's next
// element reserved and never published, and nothing reaches the receiver's ucp_worker any more. With rendezvous, the
// copy of each fragment is in that window: one of six kills hit it. So peers on one host do not share a queue, and a
// queue broken by a dead peer is dropped with its link. The cost is 2 ms, 0.65 MiB of /dev/shm and 5 descriptors on
// each side (7 with the link's socket and timer).
#pragma once

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ucp/ucx.hpp"

struct Worker;
struct Request;

/// A rendezvous whose data is in flight to its destination.
struct Landing {
    void *receiver = nullptr;
    /// Called once in progress, without Python: by UCX, or as canceled when the engine is destroyed.
    void (*ended)(void *receiver, ucs_status_t status) noexcept = nullptr;
    struct Engine *engine = nullptr;
};

/// Owns a ucp_worker_h; its descriptor is in the owner's epoll set.
struct Engine {
    nb::object context;  // keeps it open
    Worker *worker;      // null once closed; the engine then belongs to the holders of its data
    ucp_worker_h handle = nullptr;
    int event_fd = -1;
    bool armed = false;  // its descriptor reports the next event; the owner does not poll it
    bool woken = false;  // its descriptor has reported an event since it was armed
    bool rests = false;  // its descriptor reports only what is new: see Worker::rest
    unsigned work = 0;   // events that progress has handled since it was armed
    unsigned vain = 0;   // how often in a row its descriptor reported an event, and there was no work
    size_t closing_endpoints = 0;
    size_t headers_left = 0;  // of connections, waiting for room at the other side
    std::unordered_set<Landing *> landings;
    std::vector<Request *> abandoned;  // in flight when the worker left; UCX keeps them until `handle` is destroyed
    std::unordered_map<ucp_ep_h, std::shared_ptr<struct Reply>> replies;  // by the endpoint to a living sender

    explicit Engine(Worker *worker);
    Engine(const Engine &) = delete;
    ~Engine();

    /// The worker or the link closes: leave the polled engines and the epoll set. Waiters of operations in flight end;
    /// buffers stay until UCX releases them, at the latest when the engine is destroyed.
    void leave() noexcept;
    std::string address() const;
    /// Receive the data that `descriptor` stands for into `parts` of host memory, which must stay valid until it has
    /// ended, perhaps before this returns.
    void land(Landing *landing, void *descriptor, const iovec *parts, size_t count) noexcept;
    void force_close(ucp_ep_h endpoint) noexcept;
    /// Whether its descriptor reports an event.
    bool reports() const noexcept;
    /// Let its descriptor report only what is new, or everything that is there.
    void report(bool only_new) noexcept;
    /// Flush everything sent, until `deadline_ns`.
    void flush(int64_t deadline_ns) noexcept;
    /// Progress until nothing of this engine is in flight, or until `deadline_ns`.
    void finish(int64_t deadline_ns) noexcept;

  private:
    void destroy() noexcept;
};
