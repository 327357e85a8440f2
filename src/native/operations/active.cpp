// SPDX-License-Identifier: BSD-3-Clause
#include "operations/active.hpp"

#include <cstring>

#include "ring/copy.hpp"
#include "ucp/forks.hpp"

ucs_status_t set_am_callback(Engine *engine, unsigned id, ucp_am_recv_callback_t callback, void *argument,
                             uint32_t flags) noexcept {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    handler.id = id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG | flags;
    handler.cb = callback;
    handler.arg = argument;
    return ucp.worker_set_am_recv_handler(engine->handle, &handler);
}

namespace {

/// A message for a handler. Owns UCX's descriptor, which holds the data (eager) or stands for it (rendezvous), and the
/// engine that the descriptor belongs to, because lent data may outlive the worker's close.
struct ActiveMessage : Arrival {
    nb::object worker_object;  // set once Python sees it
    std::shared_ptr<Engine> engine;
    unsigned id = 0;
    std::string header;
    size_t nbytes = 0;
    bool rendezvous = false;
    void *descriptor = nullptr;    // null once received, or without data
    std::shared_ptr<Reply> reply;  // null unless the sender requested one
    size_t exports = 0;

    ActiveMessage() = default;
    ActiveMessage(const ActiveMessage &) = delete;
    ~ActiveMessage() override;
    /// Call the handler.
    void deliver(Worker &worker, std::unique_ptr<Arrival> &self) override;
};

ActiveMessage::~ActiveMessage() {
    if (!descriptor || in_forked_child) return;
    if (engine->worker)
        engine->worker->defer([e = engine, d = descriptor] { ucp.am_data_release(e->handle, d); });
    else
        ucp.am_data_release(engine->handle, descriptor);
}

void ActiveMessage::deliver(Worker &worker, std::unique_ptr<Arrival> &self) {
    auto found = worker.am_handlers.find(id);
    if (found == worker.am_handlers.end() || !found->second.is_valid()) return;
    nb::object handler = found->second;
    worker_object = nb::borrow(worker.self);
    const std::shared_ptr<Reply> its_reply = reply;
    try {
        self.release();
        handler(nb::cast(this, nb::rv_policy::take_ownership));
    } catch (nb::python_error &e) {
        // Ctrl-C is for the waiter: raise it again once the message is done.
        e.matches(PyExc_KeyboardInterrupt) ? PyErr_SetInterrupt() : e.discard_as_unraisable(handler);
    }
    if (its_reply && !its_reply->watched) its_reply->end();
}

/// A message for am_recv: complete, or a rendezvous that is answered when a reader waits for it.
struct ReceivedMessage {
    std::string header;
    size_t nbytes = 0;
    Block block;
    Engine *engine = nullptr;
    void *descriptor = nullptr;  // a rendezvous not yet answered
    Landing landing;
    bool on_its_way = false, here = false;
    ucs_status_t status = UCS_OK;
    AmQueue *queue = nullptr;  // null: no reader is left to take it

    ReceivedMessage() = default;
    ReceivedMessage(const ReceivedMessage &) = delete;
    ~ReceivedMessage() {
        if (descriptor && !in_forked_child) ucp.am_data_release(engine->handle, descriptor);
    }
};

}  // namespace

/// Incoming active messages of one id: for a handler, or for waiters of am_recv.
struct AmQueue {
    Worker *worker;
    unsigned id;
    bool for_handler;
    std::deque<ReceivedMessage *> messages = {};
    std::deque<Request *> waiters = {};
    ~AmQueue();
};

AmQueue::~AmQueue() {
    for (ReceivedMessage *m : messages) {
        if (m->on_its_way)
            m->queue = nullptr;
        else
            delete m;
    }
    for (Request *r : waiters) r->end(UCS_ERR_CANCELED);
}

namespace {

void check_id(unsigned id, const char *op) {
    if (id >= connection_am_id)
        raise("InvalidParamError", std::string(op) + ": id must be below " + std::to_string(connection_am_id), op);
}

void match(AmQueue &queue) noexcept;

void arrived(void *message, ucs_status_t status) noexcept {
    auto *m = static_cast<ReceivedMessage *>(message);
    m->on_its_way = false;
    m->here = true;
    m->status = status;
    if (m->queue)
        match(*m->queue);
    else
        delete m;
}

// `arrived` follows, perhaps before this returns.
void answer(ReceivedMessage *m) noexcept {
    void *descriptor = std::exchange(m->descriptor, nullptr);
    m->block = Pool::allocate(m->nbytes);
    if (!m->block.data) {
        ucp.am_data_release(m->engine->handle, descriptor);
        return arrived(m, UCS_ERR_NO_MEMORY);
    }
    const iovec part{m->block.data, m->nbytes};
    m->landing = {m, arrived};
    m->on_its_way = true;
    m->engine->land(&m->landing, descriptor, &part, 1);
}

void match(AmQueue &queue) noexcept {
    for (size_t i = 0; i < queue.messages.size() && i < queue.waiters.size(); ++i)
        if (queue.messages[i]->descriptor) answer(queue.messages[i]);
    while (!queue.messages.empty() && !queue.waiters.empty() && queue.messages.front()->here) {
        Request *r = queue.waiters.front();
        ReceivedMessage *m = queue.messages.front();
        queue.waiters.pop_front();
        queue.messages.pop_front();
        r->taken = m;
        r->nbytes = m->nbytes;
        r->end(m->status);
    }
}

PyObject *received(Request &r) {
    auto *m = static_cast<ReceivedMessage *>(r.taken);
    nb::object view = Pool::view(std::move(m->block));
    return nb::make_tuple(nb::bytes(m->header.data(), m->header.size()), view).release().ptr();
}

bool withdraw_recv(Request &r) noexcept {
    bool withdrawn = false;
    for (auto &[id, queue] : r.worker->am_queues) withdrawn |= std::erase(queue->waiters, &r) != 0;
    return withdrawn;
}

void drop_received(Request &r) noexcept {
    delete static_cast<ReceivedMessage *>(r.taken);
}

constexpr Operation recv_operation{.result = received, .withdraw = withdraw_recv, .drop = drop_received};

ucs_status_t for_handler(AmQueue *queue, const void *header, size_t header_nbytes, void *data, size_t nbytes,
                         const ucp_am_recv_param_t *param) {
    const bool kept = param->recv_attr & (UCP_AM_RECV_ATTR_FLAG_DATA | UCP_AM_RECV_ATTR_FLAG_RNDV);
    auto message = std::make_unique<ActiveMessage>();
    message->id = queue->id;
    if (header_nbytes) message->header.assign(static_cast<const char *>(header), header_nbytes);
    message->nbytes = nbytes;
    message->rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    if (kept) message->descriptor = data, message->engine = queue->worker->own;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)
        message->reply = watch_reply(queue->worker->own.get(), param->reply_ep);
    queue->worker->arrivals.push_back(std::move(message));
    return kept ? UCS_INPROGRESS : UCS_OK;
}

ucs_status_t on_am(void *arg, const void *header, size_t header_nbytes, void *data, size_t nbytes,
                   const ucp_am_recv_param_t *param) {
    auto *queue = static_cast<AmQueue *>(arg);
    if (queue->for_handler) return for_handler(queue, header, header_nbytes, data, nbytes, param);
    auto *m = new ReceivedMessage;
    m->nbytes = nbytes;
    m->engine = queue->worker->own.get();
    m->queue = queue;
    if (header_nbytes) m->header.assign(static_cast<const char *>(header), header_nbytes);
    const bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    if (rendezvous) {
        m->descriptor = data;
    } else {
        m->here = true;
        m->block = Pool::allocate(nbytes);
        if (!m->block.data)
            m->status = UCS_ERR_NO_MEMORY;
        else if (nbytes)
            copy_bytes(m->block.data, data, nbytes);
    }
    queue->messages.push_back(m);
    match(*queue);
    return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

/// Make a queue; it enters the worker's table once UCX has accepted its callback.
AmQueue *open_queue(Worker *w, unsigned id, bool for_handler, const char *op) {
    std::shared_ptr<AmQueue> queue(new AmQueue{.worker = w, .id = id, .for_handler = for_handler});
    const uint32_t flags = for_handler ? UCP_AM_FLAG_PERSISTENT_DATA : 0;
    check(set_am_callback(w->own.get(), id, on_am, queue.get(), flags), op);
    return (w->am_queues[id] = std::move(queue)).get();
}

nb::object am_recv(WorkerSelf self, unsigned id) {
    Worker &w = *usable(self, "am_recv");
    check_id(id, "am_recv");
    auto found = w.am_queues.find(id);
    AmQueue *queue = found != w.am_queues.end() ? found->second.get() : open_queue(&w, id, false, "am_recv");
    if (queue->for_handler)
        raise("InvalidParamError",
              "am_recv: messages of id " + std::to_string(id) + " go to a handler (set_am_recv_handler)", "am_recv");
    Request *r;
    nb::object request = make_request(&w, w.self, "am_recv", 0, &r);
    r->operation = &recv_operation;
    r->hold();
    queue->waiters.push_back(r);
    match(*queue);
    w.drain();
    return request;
}

void set_am_recv_handler(WorkerSelf self, unsigned id, nb::object handler) {
    constexpr const char *op = "set_am_recv_handler";
    Worker *w = usable(self, op);
    check_id(id, op);
    auto found = w->am_queues.find(id);
    AmQueue *queue = found != w->am_queues.end() ? found->second.get() : nullptr;
    if (queue && !queue->for_handler)
        raise("InvalidParamError", std::string(op) + ": messages of id " + std::to_string(id) + " go to am_recv", op);
    if (handler.is_none()) {
        if (queue) check(set_am_callback(w->own.get(), id, nullptr, queue), op);
        w->am_queues.erase(id);
        w->am_handlers.erase(id);
        return;
    }
    if (!PyCallable_Check(handler.ptr())) throw nb::type_error("set_am_recv_handler: the handler is not callable");
    if (!queue) open_queue(w, id, true, op);
    w->am_handlers[id] = std::move(handler);
}

nb::object am_send(EndpointSelf self, unsigned id, nb::handle header, nb::handle data, bool reply) {
    Endpoint *e = usable(self, "am_send");
    check_id(id, "am_send");
    Request *r;
    nb::object request = make_request(e->worker, self.h.ptr(), "am_send", 0, &r);
    Buffer head;
    head.acquire(header, false, "am_send");
    if (head.nbytes() > e->worker->max_am_header)
        raise("InvalidParamError",
              "am_send: a header of " + std::to_string(head.nbytes()) + " B; UCX allows at most " +
                  std::to_string(e->worker->max_am_header),
              "am_send");
    ucp_request_param_t param;
    begin(param, r);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | (reply ? UCP_AM_SEND_FLAG_REPLY : 0);
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    param.datatype = ucp_dt_make_contig(1);
    const void *address = nullptr;
    size_t count = 0;
    if (nb::isinstance<nb::list>(data) || nb::isinstance<nb::tuple>(data)) {
        r->parts = std::make_unique<Parts>();
        r->parts->buffers.reserve(nb::len(data));
        for (nb::handle item : data) {
            Buffer &part = r->parts->buffers.emplace_back();
            part.acquire(item, false, "am_send", e->worker->memory_types);
            if (part.nbytes()) r->parts->iov.push_back({part.data(), part.nbytes()});
            r->nbytes += part.nbytes();
        }
        param.memory_type = r->parts->memory_type("am_send");
        const Gathered gathered(r->parts->iov.data(), r->parts->iov.size());
        param.datatype = gathered.datatype;
        address = gathered.buffer;
        count = gathered.count;
    } else if (!data.is_none()) {
        r->buffer.acquire(data, false, "am_send", e->worker->memory_types);
        param.memory_type = r->buffer.memory_type;
        address = r->buffer.data();
        count = r->nbytes = r->buffer.nbytes();
    }
    usable(self, "am_send");  // again: exporting the data may have run Python code
    posted(r, ucp.am_send_nbx(e->handle, id, head.data(), head.nbytes(), address, count, &param));
    return request;
}

// ---- a message for its handler -----------------------------------------------------------------------------------

void data_received(void *ucx_request, ucs_status_t status, size_t nbytes, void *request) {
    auto *r = static_cast<Request *>(request);
    r->word = nbytes;
    operation_ended(ucx_request, status, request);
}

// Before 1.22, ucp_am_recv_data_nbx takes the memory of an eager message of several fragments for a uct descriptor, and
// crashes when it releases it (PR 11468). Copying into host memory does not need UCX.
bool may_receive_eager(ucs_memory_type_t into) {
    if (into == UCS_MEMORY_TYPE_HOST) return false;
    unsigned major, minor, release;
    ucp.get_version(&major, &minor, &release);
    if (major == 1 && minor < 22)
        raise("UnsupportedError",
              "recv: an eager message into device memory needs UCX 1.22; receive it into host memory", "recv");
    return true;
}

void check_unused(const ActiveMessage &m) {
    if (!m.descriptor && m.nbytes) raise("InvalidParamError", "recv: the message has already been received", "recv");
    if (m.exports)
        raise("InvalidParamError", "recv: a memoryview of the message is still in use; release it first", "recv");
}

nb::object message_recv(nb::pointer_and_handle<ActiveMessage> self, nb::object buffer) {
    ActiveMessage *m = self.p;
    const WorkerSelf of_worker{nb::inst_ptr<Worker>(m->worker_object), m->worker_object};
    Worker *w = usable(of_worker, "recv");
    check_unused(*m);
    Request *r;
    nb::object request = make_request(w, m->worker_object.ptr(), "recv", m->nbytes, &r);
    const bool pooled = buffer.is_none();
    if (pooled) {
        Block block = Pool::allocate(m->nbytes);
        if (!block.data && m->nbytes)
            raise("NoMemoryError", "recv: cannot allocate " + std::to_string(m->nbytes) + " B", "recv");
        buffer = Pool::view(std::move(block));
    }
    ucp_request_param_t param;
    begin(param, r);
    take(of_worker, r, param, buffer, true, "recv");
    check_unused(*m);  // again: exporting the buffer may have run Python code
    if (r->buffer.nbytes() < m->nbytes)
        raise("TruncatedError",
              "recv: " + std::to_string(m->nbytes) + " B do not fit into " + std::to_string(r->buffer.nbytes()),
              "recv");
    if (pooled)
        r->value = buffer.release().ptr();
    else
        r->operation = &word_operation;
    r->word = r->nbytes = m->nbytes;
    if (!m->nbytes) {
        r->complete_now(UCS_OK);
        return request;
    }
    param.cb.recv_am = data_received;
    if (!m->rendezvous && !may_receive_eager(r->buffer.memory_type)) {
        copy_bytes(r->buffer.data(), m->descriptor, m->nbytes);
        ucp.am_data_release(w->own->handle, std::exchange(m->descriptor, nullptr));
        m->engine.reset();
        r->complete_now(UCS_OK);
        return request;
    }
    void *descriptor = std::exchange(m->descriptor, nullptr);
    m->engine.reset();
    posted(r, ucp.am_recv_data_nbx(w->own->handle, descriptor, r->buffer.data(), m->nbytes, &param));
    return request;
}

int message_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    auto *m = nb::inst_ptr<ActiveMessage>(self);
    static char nothing;
    if (m->rendezvous || (m->nbytes && !m->descriptor)) {
        PyErr_SetString(PyExc_BufferError, m->rendezvous ? "the data is still at its sender: receive it with recv()"
                                                         : "the data has already been received by recv()");
        view->obj = nullptr;
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, m->nbytes ? m->descriptor : &nothing, Py_ssize_t(m->nbytes), 1, flags) != 0)
        return -1;
    ++m->exports;
    return 0;
}

void message_releasebuffer(PyObject *self, Py_buffer *) {
    --nb::inst_ptr<ActiveMessage>(self)->exports;
}

constexpr auto *traverse_message = traverse<ActiveMessage, &ActiveMessage::worker_object>;
PyType_Slot message_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(message_getbuffer)},
                               {Py_bf_releasebuffer, reinterpret_cast<void *>(message_releasebuffer)},
                               {Py_tp_traverse, reinterpret_cast<void *>(traverse_message)},
                               {0, nullptr}};

constexpr const char *am_send_doc = R"(Send an active message.

Parameters
----------
id : int, 0 <= id < 63
header : bytes-like
    At most :attr:`Worker.max_am_header` bytes; copied at once.
data : contiguous buffer, DLPack tensor or CUDA array, or a list of them, optional
    Locked until the request completes. A list arrives as one block; all its buffers must be in one type of memory.
reply : bool
    Give the peer's handler an endpoint to reply with (:attr:`ActiveMessage.reply`).

Returns
-------
Request
    Done when the buffers may be changed again.

Raises
------
InvalidParamError
    The header is too long. Nothing was sent.
NotContiguousError, UnsupportedError
    As :meth:`tag_send`.

Cancelling ends the request; the transfer goes on. Source: ``ucp_am_send_nbx``.)";

constexpr const char *am_recv_doc = R"(Receive the next active message with this id.

Parameters
----------
id : int, 0 <= id < 63
    The id given to :meth:`Endpoint.am_send`. The first call for an id registers it; messages with an id that was
    never registered are dropped by UCX.

Returns
-------
Request
    Its result is ``(header, data)``: bytes, and a writable memoryview of pooled memory.

Cancelling withdraws the receive, never a message. Source: ``ucp_worker_set_am_recv_handler``.)";

constexpr const char *handler_doc = R"(Set the handler of active messages with this id.

Parameters
----------
id : int, 0 <= id < 63
handler : callable of one ActiveMessage, or None
    Called while the worker progresses: it may post operations, and must not wait for them. Exceptions go to
    ``sys.unraisablehook``. None removes the handler; UCX then drops messages with this id.

Raises
------
InvalidParamError
    :meth:`am_recv` receives the messages of this id.

Source: ``ucp_worker_set_am_recv_handler``.)";

constexpr const char *message_doc = R"(An active message, as passed to its handler.

``memoryview(message)`` is the data of an eager message, read-only, in UCX's own buffer: nothing is copied, and
it stays valid until the view and the message are dropped. The data of a rendezvous message is still at its sender;
:meth:`recv` fetches it. A message that is dropped before that is discarded; its sender sees success.)";

constexpr const char *message_recv_doc = R"(Receive the data.

Parameters
----------
buffer : writable contiguous buffer, any shape, optional
    At least :attr:`nbytes` long. Locked until the request completes. None: pooled memory.

Returns
-------
Request
    Its result is the number of bytes, or without `buffer` a writable memoryview.

Raises
------
TruncatedError
    `buffer` is too small. The message is still there.
InvalidParamError
    The message has already been received, or a memoryview of it is still in use.

Source: ``ucp_am_recv_data_nbx``.)";

}  // namespace

void define_active(nb::module_ &m, nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint) {
    nb::class_<ActiveMessage>(m, "ActiveMessage", nb::type_slots(message_slots), message_doc)
        .def_prop_ro(
            "header", [](const ActiveMessage &a) { return nb::bytes(a.header.data(), a.header.size()); },
            "A copy of the header that was sent with the message.")
        .def_ro("nbytes", &ActiveMessage::nbytes, "Length of the data in bytes, without the header.")
        .def_ro("rendezvous", &ActiveMessage::rendezvous,
                "Whether the data is still at the sender, until :meth:`recv` fetches it.")
        .def_prop_ro(
            "reply",
            [](const ActiveMessage &a) {
                return a.reply ? Endpoint::adopt(a.worker_object, a.reply) : nb::object(nb::none());
            },
            nb::for_getter(nb::sig("def reply(self) -> Endpoint | None")),
            "An endpoint to the sender, if the message was sent with ``reply=True``. It raises PeerLostError once UCX "
            "has "
            "noticed that the sender is gone; with the feature ``stream``, ClosedError once the handler has returned.")
        .def("recv", &message_recv, nb::arg("buffer") = nb::none(),
             nb::sig("def recv(self, buffer: weft.typing.BufferLike | None = None) -> weft.typing.Request[typing.Any]"),
             message_recv_doc);
    endpoint.def("am_send", &am_send, nb::arg("id"), nb::arg("header"), nb::arg("data") = nb::none(), nb::kw_only(),
                 nb::arg("reply") = false,
                 nb::sig("def am_send(self, id: int, header: typing_extensions.Buffer, data: weft.typing.BufferLike "
                         "| list[weft.typing.BufferLike] | tuple[weft.typing.BufferLike, ...] | None = None, *, "
                         "reply: bool = False) -> weft.typing.Request[None]"),
                 am_send_doc);
    worker
        .def("am_recv", &am_recv, nb::arg("id"),
             nb::sig("def am_recv(self, id: int) -> weft.typing.Request[tuple[bytes, memoryview]]"), am_recv_doc)
        .def("set_am_recv_handler", &set_am_recv_handler, nb::arg("id"), nb::arg("handler").none(),
             nb::sig("def set_am_recv_handler(self, id: int, handler: "
                     "collections.abc.Callable[[ActiveMessage], object] | None) -> None"),
             handler_doc);
}
