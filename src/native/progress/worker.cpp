// SPDX-License-Identifier: BSD-3-Clause
#include "progress/worker.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/fd_socket.hpp"

Worker::Worker(nb::object context_object, bool links_only)
    : context(std::move(context_object)), owner(__builtin_thread_pointer()) {
    if (!nb::isinstance<Context>(context) && !(context.is_none() && links_only))
        throw nb::type_error("Worker: pass a weft.Context");
    Context *c = context.is_none() ? nullptr : nb::inst_ptr<Context>(context);
    if (c && !c->handle) raise("ClosedError", "Worker: the context is closed", "Worker");
    if (c) memory_types = c->memory_types;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) raise("NoMemoryError", std::string("Worker: epoll: ") + strerror(errno), "Worker");
    if (!links_only) {
        try {
            own = std::make_shared<Engine>(this);
            ucp_worker_attr_t attr{};
            attr.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
            check(ucp.worker_query(own->handle, &attr), "Worker");
            max_am_header = attr.max_am_header;
            address = own->address();
        } catch (...) {
            own.reset();
            ::close(epoll_fd);
            throw;
        }
    }
    open = true;
    if (c) ++c->workers;
}

Worker::~Worker() {
    arrivals.clear();  // for handlers, which would be called with this worker
    close();
    if (epoll_fd >= 0) ::close(epoll_fd);
    if (wake_fd >= 0) ::close(wake_fd);
    while (spare_count) Py_DECREF(spares[--spare_count]);
}

void Worker::refuse(const char *op) const {
    if (in_forked_child)
        raise("ThreadError",
              std::string(op) +
                  ": this process was forked from one that uses weft and cannot use weft itself; start processes with "
                  "spawn or "
                  "forkserver",
              op);
    if (!open) raise("ClosedError", std::string(op) + ": the worker is closed", op);
    raise("ThreadError",
          std::string(op) + ": the worker belongs to another thread; use it only in the thread that made it", op);
}

void Worker::push(Request *r) noexcept {
    if (r->queued) return;
    r->queued = true;
    r->next = nullptr;
    *completed_end = r;
    completed_end = &r->next;
}

void Worker::drain() {
    for (;;) {
        while (completed) {
            Request *r = completed;
            completed = r->next;
            if (!completed) completed_end = &completed;
            r->queued = false;
            r->settle();
        }
        if (arrivals.empty() && deferred.empty()) [[likely]]
            return;
        drain_one();
    }
}

// Out of line: `drain` runs between an answer and the next send.
void Worker::drain_one() {
    if (!arrivals.empty()) {
        std::unique_ptr<Arrival> first = std::move(arrivals.front());
        arrivals.pop_front();
        return first->deliver(*this, first);
    }
    std::vector<std::function<void()>> actions;
    {
        std::lock_guard lock(deferred_mutex);
        actions.swap(deferred);
    }
    for (size_t i = 0; i < actions.size(); ++i) {
        try {
            actions[i]();
        } catch (...) {
            std::lock_guard lock(deferred_mutex);
            deferred.insert(deferred.begin(), actions.begin() + ptrdiff_t(i) + 1, actions.end());
            throw;
        }
    }
}

void Worker::defer(std::function<void()> action) {
    std::lock_guard lock(deferred_mutex);
    deferred.push_back(std::move(action));
    const bool comes_by_itself = owner == __builtin_thread_pointer() && turn_scheduled;
    if (wake_fd >= 0 && deferred.size() == 1 && !comes_by_itself && !in_forked_child) eventfd_write(wake_fd, 1);
}

void Worker::add_dependent(Standing kind, std::shared_ptr<void> object, void (*close)(void *, int64_t) noexcept) {
    dependents[kind].push_back({std::move(object), close});
}

void Worker::add_dependent(Standing kind, void *object, void (*close)(void *, int64_t) noexcept) {
    add_dependent(kind, std::shared_ptr<void>(std::shared_ptr<void>(), object), close);
}

void Worker::remove_dependent(Standing kind, const void *object) noexcept {
    std::erase_if(dependents[kind], [object](const Dependent &each) { return each.object.get() == object; });
}

// End everything that is open, in an order that lets the other sides know; bounded by about a second.
void Worker::close() {
    if (!open) return;
    if (in_forked_child) {
        open = false;
        return;
    }
    drain();
    detach();
    const int64_t deadline = now_ns() + 1'000'000'000;
    for (Standing kind : {links_stand, listeners_stand, endpoints_stand})
        while (!dependents[kind].empty()) {  // closing may run Python code, which may drop others
            const Dependent each = std::move(dependents[kind].back());
            dependents[kind].pop_back();
            each.close(each.object.get(), deadline);
        }
    FdSocket::sweep();
    for (Request *r = in_flight; r;) {
        Request *next = r->in_flight_next;
        if (r->operation->withdraw && r->operation->withdraw(*r)) r->end(UCS_ERR_CANCELED);
        r = next;
    }
    if (own) own->finish(deadline);
    // After the operations in flight, which used the keys.
    for (Dependent &each : dependents[keys_stand]) each.close(each.object.get(), deadline);
    // After everything else: UCX passes messages to these whenever anything progresses.
    am_queues.clear();
    am_handlers.clear();
    arrivals.clear();
    drain();
    if (own) own->leave();
    own.reset();
    open = false;
    if (!context.is_none()) --nb::inst_ptr<Context>(context)->workers;
    poller.reset();
    for (Request *r = in_flight; r; r = r->in_flight_next)
        if (!r->ucx) r->end(UCS_ERR_CANCELED);  // the others belong to an engine that someone still holds
    drain();
    ::close(epoll_fd);
    epoll_fd = -1;
    std::lock_guard lock(deferred_mutex);
    if (wake_fd >= 0) ::close(wake_fd);
    wake_fd = -1;
}

// Requests need no visit: a pending one keeps its worker alive in any case.
static int traverse_worker(PyObject *self, visitproc visit, void *arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    auto *w = nb::inst_ptr<Worker>(self);
    for (const nb::object *each : {&w->loop, &w->loop_mark, &w->turn_method, &w->released_method})
        Py_VISIT(each->ptr());
    for (auto &[id, handler] : w->am_handlers) Py_VISIT(handler.ptr());
    return 0;
}

// The loop is garbage too, or closed: it refers to the worker while it watches the worker's descriptor.
static int clear_worker(PyObject *self) noexcept {
    if (!nb::inst_ready(self)) return 0;
    auto *w = nb::inst_ptr<Worker>(self);
    w->arrivals.clear();
    std::vector<nb::object> left{std::move(w->loop), std::move(w->loop_mark), std::move(w->turn_method),
                                 std::move(w->released_method)};
    for (auto &[id, handler] : w->am_handlers) left.push_back(std::move(handler));
    return 0;
}

static PyType_Slot worker_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(traverse_worker)},
                                     {Py_tp_clear, reinterpret_cast<void *>(clear_worker)},
                                     {0, nullptr}};

static void close_worker(Worker &w) {
    if (!w.closed()) w.check_owner("close");
    w.close();
}

nb::class_<Worker> define_worker(nb::module_ &m) {
    nb::class_<Worker> cls(m, "Worker", nb::type_slots(worker_slots), nb::is_weak_referenceable(),
                           R"(A UCP worker: it sends and receives for the one thread that made it.

A worker does not progress by itself. It progresses while a thread waits for a request, and in the turns of an
asyncio loop in which a request was awaited. With ``links_only``, it is for weft's own connections alone: it has no
address and makes no endpoints.)");
    cls.def(
           "__init__",
           [](nb::pointer_and_handle<Worker> self, nb::handle context, bool links_only) {
               if (in_forked_child)
                   raise("ThreadError",
                         "Worker: this process was forked from one that uses weft and cannot use weft itself; start "
                         "processes with spawn or forkserver",
                         "Worker");
               new (self.p) Worker(nb::borrow(context), links_only);
               self.p->self = self.h.ptr();
           },
           nb::arg("context").none(), nb::kw_only(), nb::arg("links_only") = false,
           nb::sig("def __init__(self, context: Context, *, links_only: bool = False) -> None"))
        .def_prop_ro(
            "address", [](Worker &w) { return nb::bytes(w.address.data(), w.address.size()); },
            "The worker's address: bytes for :meth:`connect` on another worker.")
        .def_ro("max_am_header", &Worker::max_am_header, "The longest header of an active message, in bytes.")
        .def(
            "fileno", [](Worker &w) { return w.epoll_fd; },
            "A descriptor that becomes readable when there is something to progress.")
        .def(
            "progress",
            [](Worker &w) {
                w.check_owner("progress");
                if (w.polled.empty()) w.check_sockets(0);  // armed engines are polled again once they have something
                unsigned n = w.progress();
                w.drain();
                return n;
            },
            "Progress once and complete the requests that ended; return the number of events that UCX handled.")
        .def(
            "arm",
            [](Worker &w) {
                w.check_owner("arm");
                return w.arm(false);  // what the caller sleeps on must report everything
            },
            "Arm :meth:`fileno` for the next event. False: there are events left; call :meth:`progress` first.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> typing_extensions.Self"))
        .def(
            "__exit__", [](Worker &w, nb::args) { close_worker(w); },
            nb::sig("def __exit__(self, *exc: object) -> None"))
        .def("close", &close_worker,
             "Close every endpoint and connection, end every request and destroy the worker. Idempotent.")
        .def_prop_ro(
            "handle",
            [](Worker &w) {
                w.check_owner("handle");
                w.check_own("handle");
                return reinterpret_cast<uintptr_t>(w.own->handle);
            },
            "The address of the ``ucp_worker_h``, for libraries that call UCX themselves; the worker keeps owning it.")
        .def_ro("dropped_messages", &Worker::dropped_messages,
                "How many messages were dropped: those without a valid connection id, from a stranger, and those for a "
                "connection that is closed.")
        .def_prop_ro("closed", &Worker::closed, "Whether the worker was closed.");
    define_waiting(cls);
    return cls;
}
