// SPDX-License-Identifier: BSD-3-Clause
#include "progress/request.hpp"

#include <iterator>
#include <utility>

#include "progress/worker.hpp"
#include "ucp/forks.hpp"

namespace {

PyObject *asyncio_attr(const char *name) {
    // Looked up once, and kept for the lifetime of the process.
    static PyObject *module = nb::module_::import_("asyncio").release().ptr();
    return PyObject_GetAttrString(module, name);
}

}  // namespace

nb::object asyncio_running_loop() {
    static PyObject *get = asyncio_attr("get_running_loop");
    nb::object loop = nb::steal(PyObject_CallNoArgs(get));
    if (!loop.is_valid()) throw nb::python_error();
    return loop;
}

static nb::object new_request() {
    // nb::type<> is a hash lookup, and this is the hottest path.
    static const nb::handle type = nb::type<Request>();
    nb::object object = nb::inst_alloc(type);
    auto *r = new (nb::inst_ptr<Request>(object)) Request();
    nb::inst_mark_ready(object);
    r->self = object.ptr();
    return object;
}

nb::object make_request(Worker *worker, PyObject *owner, const char *op, size_t nbytes, Request **request) {
    nb::object object = worker->spare_count ? nb::steal(worker->spares[--worker->spare_count]) : new_request();
    auto *r = nb::inst_ptr<Request>(object);
    r->worker = worker;
    r->owner = Py_NewRef(owner);
    r->op = op;
    r->engine = worker->own.get();
    r->nbytes = nbytes;
    *request = r;
    return object;
}

// Destroying a request takes 30 ns, and Python drops an answer's request just before it makes the next send, so the
// peer would wait for it. So a request that owns nothing any more is kept for the next operation.
static destructor destroy;

void recycle_request(PyObject *self) {
    auto *r = nb::inst_ptr<Request>(self);
    if (r->listed && r->outlive()) return;
    Worker *w = r->worker;
    if (r->operation->drop && r->owner && !in_forked_child) {
        r->operation->drop(*r);
        r->taken = nullptr;
        r->operation = &plain_operation;
    }
    if (!r->owner || in_forked_child || !r->plain() || w->spare_count == std::size(w->spares)) return destroy(self);
    clear_weak_references(self);
    Py_CLEAR(r->loop);
    Py_CLEAR(r->value);
    Py_CLEAR(r->cancel_message);
    r->status = UCS_INPROGRESS;
    r->state = Request::State::pending;
    r->operation = &plain_operation;
    r->ended = r->loose = r->blocking = r->yielded = r->retrieved = false;
    r->channel = nullptr;
    Py_SET_REFCNT(self, 1);
    w->spares[w->spare_count++] = self;
    Py_DECREF(std::exchange(r->owner, nullptr));  // may be the worker itself, and with it the spares
}

void destroy_requests_as(nb::handle type) {
    destroy = reinterpret_cast<destructor>(PyType_GetSlot(reinterpret_cast<PyTypeObject *>(type.ptr()), Py_tp_dealloc));
}

bool Request::plain() const noexcept {
    return ended && !taken && !held && !queued && !ucx && !callbacks && !parts && !fault && !buffer.held();
}

Request::~Request() {
    if (operation->drop && !in_forked_child) operation->drop(*this);
    buffer.release();
    Py_XDECREF(callbacks);
    Py_XDECREF(loop);
    Py_XDECREF(value);
    Py_XDECREF(cancel_message);
    Py_XDECREF(owner);
}

std::string Request::what() const {
    std::string text = nbytes ? " of " + std::to_string(nbytes) + " B" : "";
    return operation->where ? text + operation->where(*this) : text;
}

bool Parts::acquire(nb::handle sequence, bool writable, const char *op, uint64_t memory_types) {
    // Exporting the buffers may run code that changes a list.
    nb::object kept = nb::steal(PyList_CheckExact(sequence.ptr())
                                    ? PyList_AsTuple(sequence.ptr())
                                    : PySequence_Fast(sequence.ptr(), "expected a sequence of buffers"));
    if (!kept.is_valid()) throw nb::python_error();
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(kept.ptr());
    buffers.reserve(size_t(count));
    bool ran = false;
    for (Py_ssize_t i = 0; i < count; ++i)
        ran |= buffers.emplace_back().acquire(PySequence_Fast_GET_ITEM(kept.ptr(), i), writable, op, memory_types);
    return ran;
}

ucs_memory_type_t Parts::memory_type(const char *op) const {
    const Buffer *first = nullptr;
    for (const Buffer &buffer : buffers) {
        if (!buffer.nbytes()) continue;
        if (!first) first = &buffer;
        if (buffer.memory_type != first->memory_type)
            raise("UnsupportedError",
                  std::string(op) + ": the buffers are in " + memory_type_name(first->memory_type) + " and in " +
                      memory_type_name(buffer.memory_type) + " memory; send each kind in a message of its own",
                  op);
    }
    return first ? first->memory_type : UCS_MEMORY_TYPE_HOST;
}

// ---- the operation ----------------------------------------------------------------------------------------

void Request::complete_now(ucs_status_t s) noexcept {
    status = s;
    ended = true;
    state = State::done;
    buffer.release();
    parts.reset();
}

void Request::hold() noexcept {
    if (held) return;
    held = true;
    Py_INCREF(self);
    enlist();
}

void Request::hold_loosely() noexcept {
    loose = true;
    enlist();
}

void Request::enlist() noexcept {
    if (listed) return;
    listed = true;
    in_flight_next = worker->in_flight;
    in_flight_prev = &worker->in_flight;
    if (in_flight_next) in_flight_next->in_flight_prev = &in_flight_next;
    worker->in_flight = this;
}

void Request::end(ucs_status_t s) noexcept {
    if (operation->ended) return operation->ended(*this, s);
    if (status == UCS_INPROGRESS) status = s;
    ended = true;
    worker->push(this);
}

void Request::fail(const std::shared_ptr<const Fault> &why) noexcept {
    if (state != State::pending || fault || ended) return;
    fault = why;
    worker->push(this);
}

void Request::abandon() noexcept {
    if (status == UCS_INPROGRESS) status = UCS_ERR_CANCELED;
    worker->push(this);
}

void Request::settle() {
    if (state == State::pending) state = State::done;
    if (!ended || !listed) return wake();
    listed = false;
    *in_flight_prev = in_flight_next;
    if (in_flight_next) in_flight_next->in_flight_prev = in_flight_prev;
    if (!held && !buffer.held() && !parts) [[likely]]
        return wake();
    if (!std::exchange(held, false)) Py_INCREF(self);  // releasing a buffer may run Python code, which may drop this
    nb::object kept = nb::steal(self);
    buffer.release();
    parts.reset();
    wake();
}

// Called with the GIL, by any thread, wherever Python objects are made or dropped: a collection of garbage may come
// then. No channel does either while it changes its queues, so its owner may withdraw from them at once.
bool Request::outlive() noexcept {
    Py_SET_REFCNT(self, 1);
    held = true;
    if (in_forked_child || worker->closed()) return true;  // there is no connection to be withdrawn from
    if (worker->owner == __builtin_thread_pointer())
        give_up();
    else
        worker->defer([kept = nb::borrow(self)] { nb::inst_ptr<Request>(kept)->give_up(); });
    return true;
}

// ---- the waiter -------------------------------------------------------------------------------------------

nb::object Request::error() const {
    if (fault) fault->raised = true;
    if (fault) return make_error(fault->error, std::string(op) + what() + ": " + fault->text, op);
    if (status == UCS_OK) return {};
    const bool refused = operation->refused && status != UCS_ERR_CANCELED;
    return make_status_error(status, op, refused ? operation->refused : what());
}

void Request::raise_failure() const {
    nb::object exception = error();
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception.ptr())), exception.ptr());
    throw nb::python_error();
}

nb::object Request::canceled_error() const {
    static PyObject *cls = asyncio_attr("CancelledError");
    nb::object error = nb::steal(PyObject_CallFunctionObjArgs(cls, cancel_message, nullptr));
    if (!error.is_valid()) throw nb::python_error();
    return error;
}

PyObject *Request::result(bool from_wait) {
    if (state == State::pending) {
        PyErr_SetString(asyncio_attr("InvalidStateError"), "the request is not complete");
        throw nb::python_error();
    }
    if (state == State::canceled) {
        if (from_wait) raise("CanceledError", std::string(op) + what() + ": the request was cancelled", op);
        nb::object error = canceled_error();
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
        throw nb::python_error();
    }
    if (failed()) [[unlikely]]
        raise_failure();
    retrieved = true;
    if (value) return Py_NewRef(value);
    if (!operation->result) return Py_NewRef(Py_None);
    value = operation->result(*this);
    if (status != UCS_OK) [[unlikely]] {
        Py_CLEAR(value);
        raise_failure();
    }
    return Py_NewRef(value);
}

PyObject *Request::deliver(bool from_wait) {
    PyObject *given = result(from_wait);
    if (operation->delivered) operation->delivered(*this);
    return given;
}

bool Request::cancel(nb::handle message) {
    if (state != State::pending) return false;
    worker->check_owner("cancel");
    if (ended) {  // it has its result; only the turn that says so is still to come
        state = State::done;
        wake();
        return false;
    }
    if (!message.is_none()) cancel_message = Py_NewRef(message.ptr());
    give_up();
    return true;
}

// End the waiter, and withdraw the operation if possible.
void Request::give_up() {
    if (state == State::pending) state = State::canceled;
    if (!ended && listed && operation->withdraw && operation->withdraw(*this)) {
        ended = true;
        if (!queued) return settle();
    }
    wake();
}

bool Request::wait(double timeout_s) {
    if (state == State::pending) {
        worker->check_owner(op);
        return worker->wait(this, timeout_s);
    }
    return true;
}

// One step of `await`: return the result, or this request for the task to wait on.
PySendResult Request::send(PyObject **out) {
    int64_t now = now_ns();
    if (state == State::pending) {
        worker->check_owner(op);
        nb::handle running = worker->running_loop();
        if (!worker->spin(this, now)) {
            if (!loop) loop = Py_NewRef(running.ptr());
            blocking = true;
            *out = Py_NewRef(self);
            return PYGEN_NEXT;
        }
    }
    if (!yielded && !worker->closed() && worker->must_yield(now)) {
        yielded = true;
        *out = Py_NewRef(Py_None);
        return PYGEN_NEXT;
    }
    *out = deliver(false);
    return PYGEN_RETURN;
}

nb::object Request::get_loop() {
    if (!loop) loop = asyncio_running_loop().release().ptr();
    return nb::borrow(loop);
}

void Request::add_done_callback(nb::object callback, nb::object context) {
    if (context.is_none()) context = copy_context();
    if (!done() && !worker->closed()) worker->check_owner(op);
    get_loop();
    if (done()) {
        nb::handle(loop).attr("call_soon")(callback, nb::handle(self), nb::arg("context") = context);
        return;
    }
    if (!worker->closed()) {
        worker->attach(loop);
        worker->schedule_turn();
    }
    if (!callbacks) callbacks = PyList_New(0);
    nb::object entry = nb::make_tuple(callback, context);
    PyList_Append(callbacks, entry.ptr());
    if (listed) hold();
}

size_t Request::remove_done_callback(nb::handle callback) {
    if (!callbacks) return 0;
    size_t removed = 0;
    for (Py_ssize_t i = PyList_GET_SIZE(callbacks); i-- > 0;) {
        int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(PyList_GET_ITEM(callbacks, i), 0), callback.ptr(), Py_EQ);
        if (same < 0) throw nb::python_error();
        if (same && ++removed) PySequence_DelItem(callbacks, i);
    }
    if (PyList_GET_SIZE(callbacks)) return removed;
    Py_CLEAR(callbacks);
    if (loose && listed && std::exchange(held, false)) Py_DECREF(self);
    return removed;
}

// A signal handler may raise in `call_soon`: whoever may not have been told is told by the worker's next turn.
void Request::wake() {
    if (!callbacks) [[likely]]
        return;
    nb::object kept = nb::borrow(self), entry;
    try {
        while (callbacks && PyList_GET_SIZE(callbacks)) {
            entry = nb::borrow(PyList_GET_ITEM(callbacks, 0));
            PySequence_DelItem(callbacks, 0);
            nb::handle(loop).attr("call_soon")(entry[0], kept, nb::arg("context") = entry[1]);
        }
    } catch (nb::python_error &e) {
        if (!Worker::says_closed(loop, e)) {
            if (!callbacks) callbacks = PyList_New(0);
            PyList_Insert(callbacks, 0, entry.ptr());
            worker->defer([kept] { nb::inst_ptr<Request>(kept)->wake(); });
            throw;
        }  // there is nothing left to notify
    }
    Py_CLEAR(callbacks);
}
