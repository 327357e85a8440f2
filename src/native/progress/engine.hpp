// SPDX-License-Identifier: BSD-3-Clause
// One ucp_worker_h: what UCX progresses. A Worker has one of its own, and one more for each link on this host.
//
// Why one for each: a peer that is killed while it writes into a posix receive queue leaves the queue's next
// element reserved and never published, and the receiver's ucp_worker then hears nobody any more. In rendezvous
// the copy of each fragment lies in that window: of six kills in a row, one did it. So peers on one host do not share a
// queue, and what a dead one has broken goes with it. It costs 2 ms, 6 descriptors and 2.3 MiB a link.
#pragma once

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ucp/ucx.hpp"

struct Worker;
struct Message;
struct Request;

/// Owns a ucp_worker_h, and its descriptor's place in the owner's epoll set.
struct Engine {
    nb::object context;           // kept open by it
    Worker *worker;               // null once that has closed, and left the engine to who holds data of it
    struct Link *link = nullptr;  // if it has this engine to itself
    ucp_worker_h handle = nullptr;
    int event_fd = -1;
    bool armed = false;  // its descriptor tells of the next event; not in the owner's hot list
    unsigned work = 0;   // what progress found since the last look
    size_t closing_endpoints = 0;
    std::unordered_set<Message *> landing;
    std::vector<Request *> abandoned;  // under way when the worker left; UCX has them until `handle` is destroyed
    std::unordered_map<ucp_ep_h, std::shared_ptr<struct Reply>> replies;  // of the senders that are there

    explicit Engine(Worker *worker);
    Engine(const Engine &) = delete;
    ~Engine();

    /// The worker closes, or the link: out of the hot list and the epoll set. What is under way still ends for its
    /// waiter; it keeps its buffers until UCX lets go of it, which is when the engine is destroyed.
    void leave() noexcept;
    std::string address() const;
    void force_close(ucp_ep_h endpoint) noexcept;
    /// Flush what was sent, until `deadline_ns`.
    void flush(int64_t deadline_ns) noexcept;
    /// Progress until nothing of this engine is under way, or `deadline_ns`.
    void finish(int64_t deadline_ns) noexcept;

  private:
    void destroy() noexcept;
};
