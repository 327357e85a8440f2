// SPDX-License-Identifier: BSD-3-Clause
// A UCP worker: progress, completion, and the three ways to wait for it (spin, sleep, asyncio's loop).
//
// A worker belongs to the thread that made it (UCS_THREAD_MODE_SINGLE). Destructors run in any thread, so they
// only bury what must be taken down; the owner's next drain does it. drain() is the only place where
// completions meet Python: UCX's callbacks write a status and link the request into the completed list.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "connection/channel.hpp"
#include "progress/engine.hpp"
#include "ucp/context.hpp"
#include "ucp/forks.hpp"

struct AmQueue;
struct ActiveMessage;

/// How long to spin before sleeping: see wait.cpp.
struct Spin {
    static constexpr unsigned most = 2000;  // fruitless turns, 40-60 us on posix
    static constexpr int most_credit = 32;
    unsigned budget = most;
    int64_t not_before_ns = 0;  // cores are short: no spinning until then
    int64_t penalty_ns = 0;
    int credit = most_credit;  // of a loop's spins: what one that met something earns, and each in vain takes
    unsigned untried = 0;
    void paid() noexcept;
    void slept(int64_t waited_ns) noexcept;
    void preempted(int64_t now) noexcept;
    unsigned turns(int64_t now) const noexcept { return now < not_before_ns ? 0 : budget; }
    /// The same in a loop: without credit, for one in 16.
    unsigned turns_in_loop(int64_t now) noexcept;
    void met(bool something) noexcept { credit = something ? most_credit : credit - (credit > 0); }
};

/// Owns its engines, the epoll set over their and the links' descriptors, and every request in flight.
struct Worker {
    nb::object context;
    std::vector<Engine *> hot;    // polled in each turn; the others are armed. Outlives the engines, which leave it
    std::shared_ptr<Engine> own;  // of tags, active messages and network links; none in a worker for links only
    int epoll_fd = -1;
    int wake_fd = -1;          // an eventfd in the epoll set, once a loop sleeps on that: something was buried
    void *owner;               // the thread, as __builtin_thread_pointer gives it: pthread_self without the call
    PyObject *self = nullptr;  // borrowed: the Python object around this
    std::string address;
    size_t max_am_header = 0;
    uint64_t memory_types = Buffer::host_only;  // bit map of what UCX can reach, the context's
    bool open = false;

    ucp_tag_recv_info_t last_info{};
    nb::object last_result;
    PyObject *spares[8];  // requests to be used again
    unsigned spare_count = 0;
    Request *completed = nullptr, **completed_end = &completed;
    Request *in_flight = nullptr;
    std::unordered_map<uint64_t, std::shared_ptr<Channel>> channels;
    uint64_t dropped_messages = 0;  // garbage, and what was for no connection of this worker
    std::list<std::shared_ptr<Link>> links;
    std::map<unsigned, std::unique_ptr<AmQueue>> am_queues;
    std::deque<std::unique_ptr<ActiveMessage>> arrivals;  // for handlers, which drain calls
    std::vector<Link *> failed_links;                     // reported by UCX, waiting for drain
    std::mutex graveyard_mutex;
    std::vector<std::function<void()>> graveyard;
    std::vector<struct Endpoint *> endpoints;
    std::vector<struct Rkey *> rkeys;
    std::vector<std::shared_ptr<struct Listening>> listeners;

    // Waiting.
    Spin spin_state;
    nb::object loop, loop_mark, turn_method, released_method;
    bool turn_scheduled = false;
    int64_t held_since_ns = 0;  // the loop has been withheld since then; 0: not at all
    int64_t sockets_seen_ns = 0;
    int64_t slept_from_ns = 0;  // an await stopped spinning then; 0: none has
    bool waiting = false;

    Worker(nb::object context, bool links_only);
    Worker(const Worker &) = delete;
    ~Worker();

    bool closed() const noexcept { return !open; }
    /// Raise unless this thread owns the worker and it is open.
    void check_owner(const char *op) const {
        if (!open || in_forked_child || owner != __builtin_thread_pointer()) [[unlikely]]
            refuse(op);
    }
    [[noreturn]] void refuse(const char *op) const;
    void check_own(const char *op) const {
        if (!own) [[unlikely]]
            raise("UnsupportedError", std::string(op) + ": this worker is for connections only", op);
    }
    unsigned turn_of(Engine *engine) noexcept {
        unsigned n = ucp.worker_progress(engine->handle);
        engine->work += n;
        return n;
    }
    unsigned progress() noexcept {
        unsigned n = 0;
        for (size_t i = 0; i < hot.size(); ++i) n += turn_of(hot[i]);
        return n;
    }
    /// Poll `engine` in each turn until it is armed again.
    void heat(Engine *engine) noexcept {
        if (!engine->armed) [[likely]]
            return;
        engine->armed = false;
        hot.push_back(engine);
    }
    void push(Request *request) noexcept;
    /// (nbytes, sender_tag): the tuple given last, if it says the same.
    nb::object tag_result(const ucp_tag_recv_info_t &info);
    /// Something waits for drain.
    bool due() const noexcept { return completed || !failed_links.empty() || !arrivals.empty(); }
    void drain();
    void bury(std::function<void()> action);
    void close();
    void fail_channel(Channel *channel, const std::shared_ptr<const Fault> &fault) noexcept;

    // wait.cpp
    bool spin(Request *request, int64_t &now);
    bool wait(Request *request, double timeout_s);
    void progress_without_gil(Request *request, int64_t deadline);
    bool arm();
    void cool(Engine *except);
    /// In the epoll set, an engine is told from a link by the lowest bit.
    static uint64_t tag(Engine *engine) noexcept { return reinterpret_cast<uint64_t>(engine) | 1; }
    bool check_sockets(int timeout_ms);
    /// The loop that runs in this thread; the worker is attached to it.
    nb::handle running_loop();
    void attach(nb::handle running_loop);
    void detach() noexcept;
    void schedule_turn();
    void turn();
    bool must_yield(int64_t now);
};

/// For the garbage collector: an object of class T refers by `member` to what can lead back to it, and nothing is to be
/// cleared, because the worker in every such cycle lets go of the others.
template <typename T, nb::object T::*member>
int traverse(PyObject *self, visitproc visit, void *arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT((nb::inst_ptr<T>(self)->*member).ptr());
    return 0;
}

nb::class_<Worker> define_worker(nb::module_ &m);
void define_waiting(nb::class_<Worker> &cls);
