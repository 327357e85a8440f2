// SPDX-License-Identifier: BSD-3-Clause
#include "worker.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include "endpoint.hpp"
#include "fast.hpp"
#include "side.hpp"

Worker::Worker(nb::object context_object, bool links_only)
    : context(std::move(context_object)), owner(__builtin_thread_pointer()) {
    if (!nb::isinstance<Context>(context)) throw nb::type_error("Worker: a Context is needed");
    auto *c = nb::inst_ptr<Context>(context);
    if (!c->handle) raise("ClosedError", "Worker: the context is closed", "Worker");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) raise("NoMemoryError", std::string("Worker: epoll: ") + strerror(errno), "Worker");
    if (!links_only) {
        try {
            own = std::make_shared<Engine>(this);
        } catch (...) {
            ::close(epoll_fd);
            throw;
        }
        ucp_worker_attr_t attr{};
        attr.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
        check(ucp.worker_query(own->handle, &attr), "Worker");
        max_am_header = attr.max_am_header;
        address = own->address();
    }
    open = true;
    ++c->workers;
}

Worker::~Worker() {
    close();
    if (epoll_fd >= 0) ::close(epoll_fd);
    while (spare_count) Py_DECREF(spares[--spare_count]);
}

void Worker::refuse(const char *op) const {
    if (in_forked_child)
        raise("ThreadError",
              std::string(op) +
                  ": this process was forked from one that uses weft, and cannot use it; start processes with spawn or "
                  "forkserver",
              op);
    if (!open) raise("ClosedError", std::string(op) + ": the worker is closed", op);
    raise("ThreadError", std::string(op) + ": the worker belongs to another thread", op);
}

nb::object Worker::tag_result(const ucp_tag_recv_info_t &info) {
    if (!last_result.is_valid() || info.length != last_info.length || info.sender_tag != last_info.sender_tag) {
        last_result = nb::make_tuple(info.length, info.sender_tag);
        last_info = info;
    }
    return last_result;
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
        if (!failed_links.empty()) {
            auto failed = std::move(failed_links);
            failed_links.clear();
            for (Link *link : failed) link->lose(ucx_status_string(link->status));
            links.remove_if([](auto &link) { return link->lost; });
        } else if (!graveyard.empty()) {
            std::vector<std::function<void()>> actions;
            {
                std::lock_guard lock(graveyard_mutex);
                actions.swap(graveyard);
            }
            for (auto &action : actions) action();
        } else if (!completed) {
            return;
        }
    }
}

void Worker::bury(std::function<void()> action) {
    std::lock_guard lock(graveyard_mutex);
    graveyard.push_back(std::move(action));
}

void Worker::fail_channel(Channel *channel, const std::shared_ptr<const Fault> &fault) noexcept {
    for (Request *r = in_flight; r; r = r->in_flight_next)
        if (r->channel == channel && r->ucx) r->fail(fault);
}

// Everything that is still open ends, in the order that lets the other sides know; bounded by a second or so.
void Worker::close() {
    if (!open) return;
    if (in_forked_child) {
        open = false;
        return;
    }
    drain();
    detach();
    for (auto &[id, channel] : std::unordered_map(channels))
        channel->abort("ClosedError", "the worker was closed", true);
    const int64_t deadline = now_ns() + 1'000'000'000;
    for (auto &link : links)
        if (link->engine) link->engine->flush(deadline);
    for (auto &link : links) link->lost = true, link->release();
    links.clear();
    Side::sweep();
    for (Endpoint *endpoint : endpoints) endpoint->abandon();
    for (Request *r = in_flight; r;) {
        Request *next = r->in_flight_next;
        if (r->ucx && r->kind == Request::Kind::tag_recv) ucp.request_cancel(r->engine->handle, r->ucx);
        r = next;
    }
    am_queues.clear();
    if (own) own->finish(deadline);
    drain();
    own.reset();
    open = false;
    --nb::inst_ptr<Context>(context)->workers;
    while (in_flight) {
        in_flight->end(UCS_ERR_CANCELED);
        drain();
    }
    ::close(epoll_fd);
    epoll_fd = -1;
}

// ---- low-level active messages --------------------------------------------------------------------------------

AmQueue::~AmQueue() {
    for (Message *m : messages) {
        if (m->landing)
            m->arrived = nullptr;
        else
            delete m;
    }
    for (Request *r : waiters) r->end(UCS_ERR_CANCELED);
}

static void match(AmQueue &queue) noexcept {
    for (size_t i = 0; i < queue.messages.size() && i < queue.waiters.size(); ++i)
        if (queue.messages[i]->descriptor) queue.messages[i]->land();
    while (!queue.messages.empty() && !queue.waiters.empty() && queue.messages.front()->ready) {
        Request *r = queue.waiters.front();
        queue.waiters.pop_front();
        r->message.reset(queue.messages.front());
        queue.messages.pop_front();
        r->nbytes = r->message->nbytes;
        r->end(r->message->status);
    }
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_nbytes, void *data, size_t nbytes,
                          const ucp_am_recv_param_t *param) {
    auto *queue = static_cast<AmQueue *>(arg);
    auto *m = new Message;
    m->nbytes = nbytes;
    m->sizes.push_back(nbytes);
    m->engine = queue->worker->own.get();
    if (header_nbytes) m->header.assign(static_cast<const char *>(header), header_nbytes);
    m->sink = queue;
    m->arrived = [](Message *, void *sink) { match(*static_cast<AmQueue *>(sink)); };
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    if (rendezvous)
        m->descriptor = data;
    else if (!m->copy(data))
        m->status = UCS_ERR_NO_MEMORY, m->ready = true;
    queue->messages.push_back(m);
    match(*queue);
    return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

static nb::object am_recv(Worker &w, unsigned id) {
    w.check_owner("am_recv");
    w.check_own("am_recv");
    if (id >= channel_am_id)
        raise("InvalidParamError", "am_recv: id must be below " + std::to_string(channel_am_id), "am_recv");
    auto &queue = w.am_queues[id];
    if (!queue) {
        queue = std::make_unique<AmQueue>();
        queue->worker = &w;
        queue->id = id;
        ucp_am_handler_param_t handler{};
        handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                             UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
        handler.id = id;
        handler.flags = UCP_AM_FLAG_WHOLE_MSG;
        handler.cb = on_am;
        handler.arg = queue.get();
        check(ucp.worker_set_am_recv_handler(w.own->handle, &handler), "am_recv");
    }
    Request *r;
    nb::object request = make_request(&w, w.self, "am_recv", 0, &r);
    r->kind = Request::Kind::message;
    r->hold();
    queue->waiters.push_back(r);
    match(*queue);
    w.drain();
    return request;
}

// ---- tags -------------------------------------------------------------------------------------------------------

static void tag_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data) {
    auto *r = static_cast<Request *>(user_data);
    r->ucx = nullptr;
    r->info = *info;
    ucp.request_free(request);
    r->end(status);
}

static nb::object tag_recv(nb::pointer_and_handle<Worker> self, nb::handle buffer, uint64_t tag, uint64_t mask) {
    Worker *w = self.p;
    w->check_owner("tag_recv");
    w->check_own("tag_recv");
    Request *r;
    nb::object request = make_request(w, self.h.ptr(), "tag_recv", 0, &r);
    r->kind = Request::Kind::tag_recv;
    r->buffer.acquire(buffer, true, "tag_recv");
    r->nbytes = r->buffer.nbytes();
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv = tag_received;
    param.user_data = r;
    param.recv_info.tag_info = &r->info;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    w->heat(r->engine);
    void *ucx = ucp.tag_recv_nbx(w->own->handle, r->buffer.data(), r->nbytes, tag, mask, &param);
    if (UCS_PTR_IS_PTR(ucx)) {
        r->ucx = ucx;
        r->hold();
    } else {
        r->complete_now(UCS_PTR_STATUS(ucx));
    }
    return request;
}

static constexpr const char *tag_recv_doc = R"(Post a receive for the next message whose tag matches.

Parameters
----------
buffer : writable contiguous buffer, any shape
    Filled in place. Locked until the request completes; ``buffer.nbytes`` bytes is the most that can arrive.
tag, mask : int, 0 <= value < 2**64
    A message matches if ``(sent ^ tag) & mask == 0``.

Returns
-------
Request
    Wait or await it for ``(nbytes, sender_tag)``.

Raises
------
ReadOnlyError, NotContiguousError
    `buffer` cannot be filled as it is. Nothing was posted.
TruncatedError
    From the request: the message was longer than `buffer`.

Cancelling withdraws the receive if it has not matched; a matched one completes.
Source: ``ucp_tag_recv_nbx``.)";

static PyObject *fast_tag_recv(const Arguments &a) {
    uint64_t tag, mask = UINT64_MAX;
    if (a.count < 2 || a.count > 3 || !read_u64(a.values[1], &tag)) return nullptr;
    if (a.count == 3 && !read_u64(a.values[2], &mask)) return nullptr;
    return tag_recv({nb::inst_ptr<Worker>(a.self), a.self}, a.values[0], tag, mask).release().ptr();
}

void define_worker(nb::module_ &m) {
    nb::class_<Worker> cls(m, "Worker", nb::is_weak_referenceable(),
                           R"(A UCP worker: it sends and receives for the one thread that made it.

A worker does not progress by itself: it does while a request is waited for, or while asyncio's loop runs in
which one was awaited.)");
    cls.def(
           "__init__",
           [](nb::pointer_and_handle<Worker> self, nb::handle context, bool links_only) {
               if (in_forked_child)
                   raise("ThreadError",
                         "Worker: this process was forked from one that uses weft, and cannot use it; start processes "
                         "with spawn or forkserver",
                         "Worker");
               new (self.p) Worker(nb::borrow(context), links_only);
               self.p->self = self.h.ptr();
           },
           nb::arg("context"), nb::kw_only(), nb::arg("links_only") = false,
           nb::sig("def __init__(self, context: Context, *, links_only: bool = False) -> None"))
        .def_prop_ro(
            "address", [](Worker &w) { return nb::bytes(w.address.data(), w.address.size()); },
            "The worker's address: bytes for :meth:`connect` on another worker.")
        .def_ro("max_am_header", &Worker::max_am_header, "The longest header of an active message, in bytes.")
        .def(
            "fileno", [](Worker &w) { return w.epoll_fd; },
            "A descriptor that is readable when there is something to progress.")
        .def(
            "progress",
            [](Worker &w) {
                w.check_owner("progress");
                unsigned n = w.progress();
                w.drain();
                return n;
            },
            "Make one turn of progress and complete what it ended; return how much UCX had to do.")
        .def(
            "arm",
            [](Worker &w) {
                w.check_owner("arm");
                return w.arm();
            },
            "Have :meth:`fileno` tell of the next event; False if there is something to progress first.")
        .def("connect", &Endpoint::create, nb::arg("address"), nb::sig("def connect(self, address: bytes) -> Endpoint"),
             Endpoint::doc_connect)
        .def("tag_recv", &tag_recv, nb::arg("buffer"), nb::arg("tag"), nb::arg("mask") = UINT64_MAX,
             nb::sig("def tag_recv(self, buffer: typing_extensions.Buffer, tag: int, mask: int = 0xffffffffffffffff) "
                     "-> Request"),
             tag_recv_doc)
        .def("am_recv", &am_recv, nb::arg("id"), nb::sig("def am_recv(self, id: int) -> Request"),
             R"(Receive the next active message with this id.

Parameters
----------
id : int, 0 <= id < 63
    The id given to :meth:`Endpoint.am_send`. The first call for an id registers it; messages with an id that was
    never registered are dropped by UCX.

Returns
-------
Request
    Wait or await it for ``(header, data)``: bytes, and a writable memoryview of pooled memory.

Cancelling withdraws the receive, never a message. Source: ``ucp_worker_set_am_recv_handler``.)")
        .def(
            "close",
            [](Worker &w) {
                if (!w.closed()) w.check_owner("close");
                w.close();
            },
            "Close every endpoint and connection, end every request, destroy the worker. Idempotent.")
        .def_prop_ro("closed", &Worker::closed);
    Fast<fast_tag_recv>::install(cls, "tag_recv", "($self, buffer, tag, mask=0xffffffffffffffff)", tag_recv_doc);
    define_waiting(cls);
}
