// SPDX-License-Identifier: BSD-3-Clause
// How a worker waits: it spins, sleeps, or leaves the wait to asyncio's loop.
//
// Spinning notices a message in 0.2 us, sleeping on the worker's descriptor in 45 us. But a spin occupies a core, and
// when cores are scarce, two spinners beside two busy processes wait 20-60 us for each other. So a wait spins for a
// bounded number of fruitless turns, and then sleeps. (Turns in which UCX had work do not count: with a fixed budget an
// awaited 1 MiB took 191 us instead of 77.) The budget grows when spinning pays, or would have paid, and halves when it
// does not; a spin that was preempted disables spinning for a while. Where spins seldom pay (in Dask's loop one in 170,
// for 8% of its processor time; never beside the peer on one core), only one wait in 64 spins.
//
// An awaiting task may keep the loop busy for `hold_ns` of completed awaits; then it yields even if its request is
// complete, and the loop's turns progress transfers in flight.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "progress/worker.hpp"
#include "shared/loan.hpp"

namespace {

constexpr int64_t us = 1'000, ms = 1'000'000;
constexpr int64_t hold_ns = 1 * ms;    // an awaiting task may hold the loop this long
constexpr int64_t socket_ns = 1 * ms;  // between checks of the other descriptors while spinning
// Longer than CPython's switch interval, after which a thread that waits for the GIL requests it: a wait that releases
// the GIL earlier would get it back each time, before a sleeper has woken.
constexpr int64_t gil_ns = 8 * ms;
constexpr int64_t sleep_slice_ms = 50;      // bounds the reaction time to Ctrl-C
constexpr unsigned clock_turns = 64;        // fruitless turns between readings of the clock, about 2 us on posix
constexpr int64_t preempted_ns = 500 * us;  // that many turns take this long only if preempted
constexpr int64_t would_have_paid_ns = 150 * us;
constexpr unsigned most_vain = 16;  // reports of a descriptor in a row without work, then its engine rests

/// Releases the GIL for its lifetime. Before 3.14, CPython unwinds the stack of a daemon thread that requests the GIL
/// back from a finalizing interpreter, which would end in std::terminate here. Such a thread sleeps instead until the
/// process ends, as from 3.14 on.
struct WithoutGil {
    PyThreadState *state = PyEval_SaveThread();
    WithoutGil() = default;
    WithoutGil(const WithoutGil &) = delete;
    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state);
        } catch (...) {
            for (;;) pause();
        }
    }
};

/// Sets what is being awaited for its lifetime: progress stops when it ends.
struct Awaiting {
    const Request *&awaited, *before;
    Awaiting(const Request *&slot, const Request *r) noexcept : awaited(slot), before(slot) { slot = r; }
    Awaiting(const Awaiting &) = delete;
    ~Awaiting() { awaited = before; }
};

}  // namespace

void Spin::paid(bool spun) noexcept {
    if (spun) credit = most_credit;
    budget = std::min(most, budget * 2 + 32);
}

void Spin::missed(int64_t vain_ns) noexcept {
    credit = int(std::max<int64_t>(0, credit - 1 - vain_ns / (50 * us)));
}

void Spin::slept(int64_t waited_ns) noexcept {
    if (waited_ns < would_have_paid_ns)
        budget = std::min(most, budget * 2 + 64);
    else
        budget /= 2;
}

unsigned Spin::turns(int64_t now) noexcept {
    if (now < not_before_ns || (credit == 0 && ++untried % 64)) return 0;
    return budget;
}

void Spin::preempted(int64_t now) noexcept {
    // Doubles while it keeps happening; reset after a second without.
    penalty_ns = now - not_before_ns > 1000 * ms ? 20 * ms : std::min<int64_t>(penalty_ns * 2, 1000 * ms);
    not_before_ns = now + penalty_ns;
}

// Arm the descriptors for the next event. False: there is work left that no descriptor would report.
bool Worker::arm(bool may_rest) {
    arm_idle(nullptr, may_rest);
    return polled.empty() && (!poller || poller->arm()) && !due();  // the poller may find a fault
}

// Arm the polled engines that are idle, except one. UCX arms a verbs completion queue without looking into it, and only
// some devices report what arrived since the last turn (not rxe, nor mlx5 without DevX, openucx/ucx#11728): messages
// stayed there until UCX's keepalive, 17 s later. So take one more turn after arming: later events will be reported.
void Worker::arm_idle(Engine *except, bool may_rest) {
    for (size_t i = 0; i < polled.size();) {
        Engine *engine = polled[i];
        if (engine == except || ucp.worker_arm(engine->handle) != UCS_OK || turn_of(engine)) {
            ++i;
            continue;
        }
        engine->armed = true;
        rest(engine, may_rest);
        std::erase(polled, engine);
    }
}

// While a connection of UCX's tcp waits for the other process to answer, its descriptor is ready all the time, with
// nothing to do: a loop took a whole core, 57,000 turns a second, until a busy peer had answered. So an engine whose
// descriptor reports in vain rests. It then reports what is new, and is looked at now and then: see longest_sleep_ms.
void Worker::rest(Engine *engine, bool may_rest) {
    engine->vain = engine->work ? 0 : engine->vain + engine->woken;
    engine->work = 0;
    engine->woken = false;
    if (engine->vain >= most_vain && !engine->reports()) engine->vain = 0;
    const bool rests = may_rest && engine->vain >= most_vain;
    if (rests == engine->rests) return;
    engine->report(rests);
    std::erase(resting, engine);
    if (engine->rests) resting.push_back(engine);
}

// Wait up to `timeout_ms` for an engine's descriptor or a socket; handle sockets whose other side is gone
// (peer_loss.cpp). Return whether anything was ready.
bool Worker::check_sockets(int timeout_ms) {
    epoll_event events[16];
    int n;
    if (timeout_ms) {
        WithoutGil release;
        n = epoll_wait(epoll_fd, events, 16, timeout_ms);
    } else {
        n = epoll_wait(epoll_fd, events, 16, 0);
    }
    sockets_seen_ns = now_ns();
    std::vector<std::shared_ptr<WatchedSocket>> gone;
    for (int i = 0; i < n; ++i)
        if (eventfd_t count; !events[i].data.u64)
            eventfd_read(wake_fd, &count);
        else if (events[i].data.u64 & 1) {
            auto *engine = reinterpret_cast<Engine *>(events[i].data.u64 & ~uint64_t(1));
            engine->woken |= engine->armed;
            poll(engine);
        } else if (auto *socket = static_cast<WatchedSocket *>(events[i].data.ptr); !socket->ready(events[i].events))
            gone.push_back(socket->shared_from_this());
    for (Engine *engine : resting) poll(engine);
    for (auto &socket : gone) end_after_arrivals(*socket);
    Borrowed::sweep();
    return n > 0;
}

// What arrived before the end is in this process's own queues, and is delivered.
void Worker::end_after_arrivals(WatchedSocket &gone) {
    for (int turns = 0; turns < 100'000 && progress(); ++turns) {
    }
    drain();
    gone.peer_gone();
    drain();
}

// ---- blocking -----------------------------------------------------------------------------------------------

bool Worker::wait(Request *r, double timeout_s) {
    if (waiting) raise("ThreadError", std::string(r->op) + ": another wait on this worker is running", r->op);
    struct Waiting {
        bool &flag;
        explicit Waiting(bool &f) : flag(f) { flag = true; }
        ~Waiting() { flag = false; }
    } guard(waiting);
    const Awaiting until(awaited, r);

    if (r->engine) poll(r->engine);
    if (progress() && completed) {  // complete already: the clock is not needed
        drain();
        if (r->done()) return true;
    }
    int64_t now = now_ns();
    int64_t gil_since = now;
    const int64_t deadline = timeout_s < 0 ? INT64_MAX : timeout_s > 1e9 ? INT64_MAX : now + int64_t(timeout_s * 1e9);
    int64_t vain_since = now;
    unsigned limit = spin_state.turns(now), fruitless = 0, since_clock = 0;
    bool spun = false;
    for (;;) {
        bool fruitful = progress();
        fruitless = fruitful ? 0 : fruitless + 1;
        if (fruitful) vain_since = now;
        if (due()) {
            drain();
            if (r->done()) {
                if (fruitless <= limit) spin_state.paid(spun);
                return true;
            }
        }
        spun |= !fruitful;
        if (++since_clock >= clock_turns || fruitless > limit) {
            int64_t before = now;
            now = now_ns();
            if (now - before > preempted_ns && fruitless >= since_clock) {
                spin_state.preempted(now);
                limit = 0;
            }
            since_clock = 0;
            if (now >= deadline) return false;
            if (now - sockets_seen_ns > socket_ns) {
                arm_idle(r->engine);
                check_sockets(0);
                if (PyErr_CheckSignals() != 0) throw nb::python_error();
                if (!deferred.empty()) drain();
                if (r->done()) return true;
            }
            if (now - gil_since > gil_ns) {
                progress_without_gil(r, deadline);
                gil_since = now = now_ns();
            }
        }
        if (fruitless <= limit) continue;
        if (!arm()) {                           // there is work that no descriptor reports, such as a peer's full queue
            progress_without_gil(r, deadline);  // the peer may be a thread of this process
            gil_since = now = now_ns();
            fruitless = since_clock = 0;
            continue;
        }
        const int64_t slice_ms = longest_sleep_ms();
        int64_t left_ms = deadline == INT64_MAX ? slice_ms : std::min((deadline - now + ms - 1) / ms, slice_ms);
        int64_t slept_from = now;
        if (limit) spin_state.missed(now - vain_since);
        check_sockets(int(std::max<int64_t>(left_ms, 1)));
        now = now_ns();
        if (poller && !loop.is_valid()) poller->wake_up();  // a loop may sleep again without another look
        spin_state.slept(now - slept_from);
        gil_since = now;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (closed()) refuse(r->op);
        drain();
        if (r->done()) return true;
        if (now >= deadline) return false;
        vain_since = now;
        limit = spin_state.turns(now);
        fruitless = since_clock = 0;
        spun = false;
    }
}

// A wait that has held the GIL for `gil_ns` continues without it until the request ends or the first pause: one release
// for each large message, and a chance for a peer in another thread of this process. Callbacks use no Python, so
// progress needs no GIL.
void Worker::progress_without_gil(Request *r, int64_t deadline) {
    WithoutGil release;
    for (unsigned fruitless = 0, turns = 0; fruitless < Spin::most && !r->ended && !r->fault && arrivals.empty();
         ++turns) {
        fruitless = progress() ? 0 : fruitless + 1;
        if (turns % clock_turns == 0) {
            int64_t now = now_ns();
            if (now >= deadline || now - sockets_seen_ns > socket_ns) return;
        }
    }
}

// ---- asyncio ------------------------------------------------------------------------------------------------

// CPython 3.11's asyncio keeps a thread's running loop under this name: a new object in each run of a loop.
static PyObject *running_mark() noexcept {
#if PY_VERSION_HEX < 0x030C0000
    static PyObject *name = PyUnicode_InternFromString("__asyncio_running_event_loop__");
    PyObject *here = PyThreadState_GetDict();
    return here ? PyDict_GetItemWithError(here, name) : nullptr;
#else
    return nullptr;
#endif
}

// In CPython 3.11 get_running_loop() calls getpid, 130 ns here, so call it only once per run of a loop.
nb::handle Worker::running_loop() {
    PyObject *mark = running_mark();
    if (mark && loop_mark.is(mark) && loop.is_valid()) return loop;
    nb::object running = asyncio_running_loop();
    attach(running);
    loop_mark = nb::borrow(mark);
    return loop;
}

void Worker::attach(nb::handle running) {
    if (loop.is(running)) return;
    detach();
    nb::object object = nb::borrow(self);
    if (wake_fd < 0) {
        std::lock_guard lock(deferred_mutex);
        wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        epoll_event event{};
        event.events = EPOLLIN;  // and no data: neither an engine nor a socket
        if (wake_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) {
            const std::string why = strerror(errno);
            if (wake_fd >= 0) ::close(std::exchange(wake_fd, -1));
            raise("NoMemoryError", "Worker: eventfd: " + why, "Worker");
        }
    }
    running.attr("add_reader")(epoll_fd, object.attr("_turn"));
    loop = nb::borrow(running);
    turn_method = object.attr("_turn");
    released_method = object.attr("_released");
    turn_scheduled = false;
    held_since_ns = next_look_ns = 0;
}

void Worker::detach() noexcept {
    if (!loop.is_valid()) return;
    try {
        if (!nb::cast<bool>(loop.attr("is_closed")())) loop.attr("remove_reader")(epoll_fd);
    } catch (nb::python_error &e) {
        e.discard_as_unraisable("weft: while leaving the event loop");
    }
    loop.reset();
    loop_mark.reset();
    turn_method.reset();
    released_method.reset();
}

bool Worker::says_closed(nb::handle loop, nb::python_error &e) {
    return e.matches(PyExc_RuntimeError) && nb::cast<bool>(loop.attr("is_closed")());
}

void Worker::schedule_turn() {
    if (turn_scheduled || !loop.is_valid()) return;
    try {
        loop.attr("call_soon")(turn_method);
    } catch (nb::python_error &e) {  // a loop that was closed: from now on the worker is used without, or by another
        if (!says_closed(loop, e)) throw;
        return detach();
    }
    turn_scheduled = true;
}

// Called when an await is complete: whether this task has held the loop for too long.
bool Worker::must_yield(int64_t now) {
    if (!loop.is_valid() || (held_since_ns && now - held_since_ns <= hold_ns)) return false;
    running_loop();  // may be another one than before
    if (!held_since_ns) {
        loop.attr("call_soon")(released_method);
        held_since_ns = now;
    }
    return now - held_since_ns > hold_ns;
}

// Spin for an await, and update the time. False: the task must wait in the loop, which is scheduled to continue.
bool Worker::spin(Request *r, int64_t &now) {
    if (must_yield(now)) {
        schedule_turn();
        return false;
    }
    if (r->engine) poll(r->engine);
    const Awaiting until(awaited, r);
    int64_t vain_since = now;
    const unsigned limit = spin_state.turns(now);
    bool spun = false;
    for (unsigned fruitless = 0, since_clock = 0; fruitless <= limit;) {
        bool fruitful = progress();
        fruitless = fruitful ? 0 : fruitless + 1;
        if (fruitful) vain_since = now;
        if (due()) {
            drain();
            if (r->done()) {
                spin_state.paid(spun);
                return true;
            }
        }
        spun |= !fruitful;
        since_clock += fruitful ? 8 : 1;
        if (since_clock < clock_turns) continue;
        since_clock = 0;
        int64_t before = now;
        now = now_ns();
        if (now - before > preempted_ns && fruitless >= clock_turns) {
            spin_state.preempted(now);
            break;
        }
        if (now - held_since_ns > hold_ns) {
            schedule_turn();
            return false;
        }
    }
    if (limit) spin_state.missed(now - vain_since);
    slept_from_ns = now;
    if (!arm()) {
        slept_from_ns = 0;
        schedule_turn();
    } else {
        look_again(now);
    }
    return false;
}

// The loop's turn: a descriptor is ready, or work is left.
void Worker::turn() {
    turn_scheduled = false;
    if (closed()) return;
    if (poller) poller->wake_up();
    const int64_t start = now_ns();
    if (slept_from_ns) {
        spin_state.slept(start - slept_from_ns);
        slept_from_ns = 0;
    }
    check_sockets(0);
    const unsigned limit = in_flight ? spin_state.turns(start) : 0;
    int64_t vain_since = start;
    for (unsigned fruitless = 0, turns = 0; fruitless <= limit; ++turns) {
        fruitless = progress() ? 0 : fruitless + 1;
        if (limit && fruitless == 1) vain_since = now_ns();
        if (due() || !deferred.empty()) {
            bool woke = completed;
            drain();
            if (closed()) return;
            if (woke) return schedule_turn();  // after the woken tasks, which may themselves wait
        }
        if (turns % 16 == 15 && now_ns() - start > hold_ns) return schedule_turn();
    }
    if (limit) spin_state.missed(now_ns() - vain_since);
    if (!arm()) return schedule_turn();
    const int64_t now = now_ns();
    if (in_flight) slept_from_ns = now;
    look_again(now);
}

// While the poller watches something, sleeps begin short and double: usually that takes as long as a message. So they
// do while an engine rests.
int64_t Worker::longest_sleep_ms() {
    if (!needs_looks()) {
        look_ms = 1;
        return sleep_slice_ms;
    }
    return std::exchange(look_ms, std::min(look_ms * 2, sleep_slice_ms));
}

// The same in a loop.
void Worker::look_again(int64_t now) {
    const bool needed = needs_looks();
    if (!needed) look_ms = 1, next_look_ns = 0;
    if (!needed || !loop.is_valid() || now < next_look_ns) return;
    const int64_t after_ms = longest_sleep_ms();
    next_look_ns = now + after_ms * ms / 2;  // a loop may be early
    try {
        loop.attr("call_later")(double(after_ms) / 1000, turn_method);
    } catch (nb::python_error &e) {
        if (!says_closed(loop, e)) throw;
        return detach();
    }
}

void define_waiting(nb::class_<Worker> &cls) {
    cls.def("_turn", &Worker::turn)
        .def("_released", [](Worker &w) { w.held_since_ns = 0; })
        .def(
            "attach",
            [](Worker &w, nb::handle loop) {
                w.check_owner("attach");
                w.attach(loop);
                w.schedule_turn();
            },
            nb::arg("loop"), nb::sig("def attach(self, loop: asyncio.AbstractEventLoop) -> None"),
            "Progress in this event loop's turns, also while no request is awaited.")
        .def_prop_ro("_spin_credit", [](Worker &w) { return w.spin_state.credit; })
        .def_prop_ro("_resting", [](Worker &w) { return w.resting.size(); })
        .def_prop_ro("_attended", [](Worker &w) { return w.poller ? w.poller->looked_at() : 0; });
}
