// SPDX-License-Identifier: BSD-3-Clause
// A UCP worker: progress, completion, and the three ways to wait for it (spin, sleep, asyncio's loop).
//
// A worker belongs to the thread that made it. UCX is nevertheless told "serialized", because the last reference may be
// dropped by another thread, after the owner has ended. Destructors run in any thread, so they leave the cleanup to the
// owner's next drain (`defer`). Only drain() connects completions with Python: UCX's callbacks write a status and link
// the request into the completed list.
//
// Operations and connections register state with a worker; the worker calls it without knowing what it is.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "progress/engine.hpp"
#include "progress/request.hpp"
#include "ucp/context.hpp"
#include "ucp/forks.hpp"

struct Worker;
struct AmQueue;
struct Links;

/// Something that arrived during progress and that drain delivers, because that may run Python code.
struct Arrival {
    virtual ~Arrival() = default;
    /// `self` owns this object, which is destroyed afterwards unless it is moved out.
    virtual void deliver(Worker &worker, std::unique_ptr<Arrival> &self) = 0;
};

/// A socket in the worker's epoll set that another object owns.
struct WatchedSocket : std::enable_shared_from_this<WatchedSocket> {
    virtual ~WatchedSocket() = default;
    /// Read what has arrived. False: the other side is gone.
    virtual bool ready(uint32_t events) noexcept = 0;
    /// The other side is gone, and everything that arrived before has been delivered.
    virtual void peer_gone() noexcept = 0;
};

/// What a worker progresses in addition to its engines, and checks before it sleeps: the rings of its links.
struct Poller {
    virtual ~Poller() = default;
    /// Progress; return the number of events.
    virtual unsigned turn() noexcept = 0;
    /// Let descriptors in the worker's epoll set report new events from now on. False: there is work left.
    virtual bool arm() noexcept = 0;
    /// Events need not be reported until the next `arm`: there will be turns.
    virtual void wake_up() noexcept = 0;
    /// Whether it needs a turn every now and then, because no descriptor reports what it waits for.
    virtual bool watches() const noexcept = 0;
    /// How many links a turn checks.
    virtual size_t looked_at() const noexcept = 0;
};

/// What depends on a worker and ends with it, in this order.
enum Standing : uint8_t { links_stand, listeners_stand, endpoints_stand, keys_stand, standing_kinds };
struct Dependent {
    std::shared_ptr<void> object;
    void (*close)(void *object, int64_t deadline_ns) noexcept;
};

/// How long to spin before sleeping: see wait.cpp.
struct Spin {
    static constexpr unsigned most = 2000;  // fruitless turns: 40-60 us on posix, 370 us on tcp
    static constexpr int most_credit = 32;
    unsigned budget = most;
    int64_t not_before_ns = 0;  // no spinning until then, because cores are scarce
    int64_t penalty_ns = 0;
    int credit = most_credit;  // a spin that pays restores it, each other one costs 1, and 1 more for each 50 us
    unsigned untried = 0;
    void paid(bool spun) noexcept;
    void missed(int64_t vain_ns) noexcept;
    void slept(int64_t waited_ns) noexcept;
    void preempted(int64_t now) noexcept;
    /// How many fruitless turns to take now: without credit, only one wait in 64 spins.
    unsigned turns(int64_t now) noexcept;
};

/// Owns its engines, the epoll set of their and other descriptors, and every request in flight.
struct Worker {
    nb::object context;             // None: without UCX, for links on this host
    std::vector<Engine *> polled;   // in each turn; the others are armed. Outlives the engines, which leave it
    std::vector<Engine *> resting;  // their descriptors report events and there is no work; looked at now and then
    std::shared_ptr<Poller> poller;
    std::shared_ptr<Engine> own;  // for tags, active messages and network links; null in a worker for links only
    int epoll_fd = -1;
    int wake_fd = -1;          // an eventfd in the epoll set, once a loop sleeps on that: signals deferred actions
    void *owner;               // the thread, as __builtin_thread_pointer gives it: pthread_self without the call
    PyObject *self = nullptr;  // borrowed: the Python object around this
    std::string address;
    size_t max_am_header = 0;
    uint64_t memory_types = Buffer::host_only;  // bit map of the memory types that UCX can use, from the context
    bool open = false;

    ucp_tag_recv_info_t last_info{};
    nb::object last_result;
    PyObject *spares[8];  // requests to be reused
    unsigned spare_count = 0;
    Request *completed = nullptr, **completed_end = &completed;
    Request *in_flight = nullptr;
    std::deque<std::unique_ptr<Arrival>> arrivals;
    std::mutex deferred_mutex;
    std::vector<std::function<void()>> deferred;

    // Of operations and connections.
    std::vector<Dependent> dependents[standing_kinds];
    std::shared_ptr<Links> links;
    uint64_t dropped_messages = 0;  // garbage, and messages without a connection of this worker
    std::map<unsigned, std::shared_ptr<AmQueue>> am_queues;
    std::map<unsigned, nb::object> am_handlers;

    // Waiting.
    Spin spin_state;
    nb::object loop, loop_mark, turn_method, released_method;
    bool turn_scheduled = false;
    int64_t held_since_ns = 0;  // since then the loop has been held; 0: it is not
    int64_t look_ms = 1;        // the next sleep while the poller watches something
    int64_t next_look_ns = 0;   // from then on, the loop may be asked for a later turn again
    int64_t sockets_seen_ns = 0;
    int64_t slept_from_ns = 0;  // when an await last stopped spinning; 0: none has
    bool waiting = false;
    const Request *awaited = nullptr;  // the request of a wait, or of an await that spins

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
            raise("UnsupportedError",
                  std::string(op) +
                      ": this worker carries weft.connect and weft.listen only; make a weft.Worker for UCP operations",
                  op);
    }
    unsigned turn_of(Engine *engine) noexcept {
        unsigned n = ucp.worker_progress(engine->handle);
        engine->work += n;
        return n;
    }
    unsigned progress() noexcept {
        unsigned n = poller ? poller->turn() : 0;
        for (size_t i = 0; i < polled.size(); ++i) n += turn_of(polled[i]);
        return n;
    }
    /// Progress `engine` in each turn until it is armed again.
    void poll(Engine *engine) noexcept {
        if (!engine->armed) [[likely]]
            return;
        engine->armed = false;
        polled.push_back(engine);
    }
    void push(Request *request) noexcept;
    /// (nbytes, sender_tag): reuses the last tuple if it is the same.
    PyObject *tag_result(const ucp_tag_recv_info_t &info) {
        if (!last_result.is_valid() || info.length != last_info.length || info.sender_tag != last_info.sender_tag) {
            last_result = nb::make_tuple(info.length, info.sender_tag);
            last_info = info;
        }
        return Py_NewRef(last_result.ptr());
    }
    /// Whether the request that this thread spins for has ended.
    bool is_served() const noexcept { return awaited && awaited->ended; }
    /// Whether there is work for drain.
    bool due() const noexcept { return completed || !arrivals.empty(); }
    void drain();
    void drain_one();
    /// Let the owner's next drain run this. Callable from any thread.
    void defer(std::function<void()> action);
    void close();
    void add_dependent(Standing kind, std::shared_ptr<void> object, void (*close)(void *, int64_t) noexcept);
    /// The same for an object with another owner, who removes it before it is destroyed.
    void add_dependent(Standing kind, void *object, void (*close)(void *, int64_t) noexcept);
    void remove_dependent(Standing kind, const void *object) noexcept;

    // wait.cpp
    bool spin(Request *request, int64_t &now);
    bool wait(Request *request, double timeout_s);
    void progress_without_gil(Request *request, int64_t deadline);
    bool arm(bool may_rest = true);
    /// Arm the polled engines that are idle, except one.
    void arm_idle(Engine *except, bool may_rest = true);
    void rest(Engine *engine, bool may_rest);
    /// In the epoll data, the lowest bit distinguishes an engine from a socket.
    static uint64_t tag(Engine *engine) noexcept { return reinterpret_cast<uint64_t>(engine) | 1; }
    bool check_sockets(int timeout_ms);
    /// End a socket whose other side is gone.
    void end_after_arrivals(WatchedSocket &gone);
    /// Whether `call_soon` raised this because the loop is closed.
    static bool says_closed(nb::handle loop, nb::python_error &error);
    /// The running loop of this thread; the worker is attached to it.
    nb::handle running_loop();
    void attach(nb::handle running_loop);
    void detach() noexcept;
    void schedule_turn();
    bool needs_looks() const noexcept { return (poller && poller->watches()) || !resting.empty(); }
    int64_t longest_sleep_ms();
    void look_again(int64_t now);
    void turn();
    bool must_yield(int64_t now);
};

/// For the garbage collector: an object of class T refers by `member` to objects that may lead back to it. It has no
/// clear function, because in every such cycle the worker breaks the references.
template <typename T, nb::object T::*member>
int traverse(PyObject *self, visitproc visit, void *arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT((nb::inst_ptr<T>(self)->*member).ptr());
    return 0;
}

nb::class_<Worker> define_worker(nb::module_ &m);
void define_waiting(nb::class_<Worker> &cls);
