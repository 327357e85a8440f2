// SPDX-License-Identifier: BSD-3-Clause
// Request for Python: asyncio's future protocol, and the slots that make it awaitable.
#include <algorithm>
#include <cmath>

#include "progress/fast_method.hpp"
#include "progress/request.hpp"

namespace {

// A slot is called from C: no exception may leave it.
PySendResult slot_send(PyObject *self, PyObject *, PyObject **out) {
    try {
        return nb::inst_ptr<Request>(self)->send(out);
    } catch (nb::python_error &e) {
        e.restore();
    } catch (const std::exception &e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
    }
    *out = nullptr;
    return PYGEN_ERROR;
}

PyObject *slot_next(PyObject *self) {
    PyObject *out;
    switch (slot_send(self, Py_None, &out)) {
        case PYGEN_NEXT: return out;
        case PYGEN_RETURN: {
            nb::object stop = nb::steal(PyObject_CallOneArg(PyExc_StopIteration, out));
            Py_DECREF(out);
            if (stop.is_valid()) PyErr_SetObject(PyExc_StopIteration, stop.ptr());
            return nullptr;
        }
        default: return nullptr;
    }
}

PyObject *slot_self(PyObject *self) {
    return Py_NewRef(self);
}

// A request that no operation made has no worker.
PyObject *refuse_new(PyTypeObject *, PyObject *, PyObject *) {
    PyErr_SetString(PyExc_TypeError, "requests are made by operations only");
    return nullptr;
}

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void *>(refuse_new)},
                       {Py_am_await, reinterpret_cast<void *>(slot_self)},
                       {Py_tp_iter, reinterpret_cast<void *>(slot_self)},
                       {Py_tp_iternext, reinterpret_cast<void *>(slot_next)},
                       {Py_am_send, reinterpret_cast<void *>(slot_send)},
                       {Py_tp_dealloc, reinterpret_cast<void *>(recycle_request)},
                       {0, nullptr}};

constexpr const char *request_doc =
    R"(An operation under way: wait for it with :meth:`wait`, or ``await`` it.

It follows asyncio's future protocol: ``gather``, ``wait``, ``wait_for`` and ``shield`` accept it
directly; ``create_task`` and ``TaskGroup`` need a coroutine that awaits it.

Cancelling ends the request at once. UCX withdraws the operation if it can. Otherwise the operation runs on: its
buffer stays locked until it ends, and its result is dropped. A message that nobody received goes back to its
connection.)";

constexpr const char *wait_doc = R"(Block until the operation is complete and return its result.

Parameters
----------
timeout : float, optional
    Seconds; a negative value counts as 0. None waits without limit.

Returns
-------
object
    The operation's result; None for sends.

Raises
------
TimedOutError
    The timeout expired. The request is still pending; you may wait for it again.
InvalidParamError
    `timeout` is NaN.
CanceledError
    The request was cancelled.
ThreadError
    The worker belongs to another thread.
Error
    The error that ended the operation.

Ctrl-C interrupts the wait within 100 ms; the request is then still pending.)";

/// Convert a timeout for Request::wait: there, a negative value means no limit, while in Python it counts as 0.
double read_timeout(nb::handle timeout, const char *op) {
    if (timeout.is_none()) return -1;
    const double seconds = PyFloat_AsDouble(timeout.ptr());
    if (seconds == -1 && PyErr_Occurred()) throw nb::python_error();
    if (std::isnan(seconds))
        raise("InvalidParamError",
              std::string(op) + ": the timeout is NaN; pass seconds, or None to wait without limit", op);
    return std::max(seconds, 0.0);
}

PyObject *fast_wait(const Arguments &a) {
    if (a.count) return nullptr;
    auto *r = nb::inst_ptr<Request>(a.self);
    r->wait(-1);
    return r->deliver(true);
}

}  // namespace

void define_request(nb::module_ &m) {
    nb::class_<Request> cls(m, "Request", nb::type_slots(slots), nb::pooled(256), nb::is_weak_referenceable(),
                            request_doc);
    destroy_requests_as(nb::type<Block>());  // nanobind's own deallocator
    cls.def(
           "wait",
           [](Request &r, nb::handle timeout) {
               if (!r.wait(read_timeout(timeout, r.op)))
                   raise("TimedOutError",
                         std::string(r.op) + r.what() + ": not complete after " +
                             nb::cast<std::string>(nb::str(timeout)) + " s",
                         r.op);
               return nb::steal(r.deliver(true));
           },
           nb::arg("timeout") = nb::none(), nb::sig("def wait(self, timeout: float | None = None) -> typing.Any"),
           wait_doc)
        .def("done", &Request::done, "True once the request has completed, failed or been cancelled.")
        .def(
            "cancelled", [](Request &r) { return r.state == Request::State::canceled; }, "True if it was cancelled.")
        .def(
            "result", [](Request &r) { return nb::steal(r.result(false)); }, nb::sig("def result(self) -> typing.Any"),
            "Return the result, or raise the error that ended the operation.\n\n"
            "As asyncio's futures: InvalidStateError while it is pending, asyncio.CancelledError if it was cancelled.")
        .def(
            "exception",
            [](Request &r) -> nb::object {
                const bool open = r.operation->refused && !r.value;
                if (r.state == Request::State::done && !r.failed() && !open) return nb::none();
                try {
                    nb::steal(r.result(false));
                } catch (nb::python_error &e) {
                    if (r.state != Request::State::done || !r.failed()) throw;
                    return nb::borrow(e.value());
                }
                return nb::none();
            },
            nb::sig("def exception(self) -> BaseException | None"),
            "Return the error that ended the operation, or None; raise in the same cases as :meth:`result`.")
        .def("cancel", &Request::cancel, nb::arg("msg") = nb::none(),
             nb::sig("def cancel(self, msg: typing.Any = None) -> bool"),
             "Cancel the request; False if it is done already. ThreadError if the worker belongs to another thread.")
        .def("add_done_callback", &Request::add_done_callback, nb::arg("fn"), nb::kw_only(),
             nb::arg("context") = nb::none(),
             nb::sig("def add_done_callback(self, fn: typing.Callable[[Request], object], *, context: "
                     "contextvars.Context | None = None) -> None"),
             "Call `fn` with this request, from the running loop, once it is done.")
        .def("remove_done_callback", &Request::remove_done_callback, nb::arg("fn"),
             nb::sig("def remove_done_callback(self, fn: typing.Callable[[Request], object]) -> int"),
             "Remove `fn`; return how often it had been added.")
        .def("get_loop", &Request::get_loop, nb::sig("def get_loop(self) -> asyncio.AbstractEventLoop"),
             "Return the event loop that this request is awaited in.")
        .def(
            "throw",
            [](Request &r, nb::object type, nb::object value, nb::object) {
                if (r.state == Request::State::done && r.operation->give_back) r.operation->give_back(r);
                if (value.is_none()) value = PyExceptionInstance_Check(type.ptr()) ? type : type();
                PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(value.ptr())), value.ptr());
                throw nb::python_error();
            },
            nb::arg("type"), nb::arg("value") = nb::none(), nb::arg("traceback") = nb::none(),
            nb::sig("def throw(self, type: typing.Any, value: typing.Any = None, traceback: typing.Any = None) -> "
                    "typing.NoReturn"),
            "Part of the awaiting protocol.")
        .def_prop_rw(
            "_asyncio_future_blocking", [](Request &r) { return r.blocking; },
            [](Request &r, bool blocking) { r.blocking = blocking; })
        // asyncio.gather calls these on a cancelled future
        .def("_make_cancelled_error", &Request::canceled_error)
        .def_prop_ro("_cancel_message",
                     [](Request &r) { return r.cancel_message ? nb::borrow(r.cancel_message) : nb::none(); })
        .def_prop_ro(
            "op", [](Request &r) { return r.op; }, "The operation's name.")
        .def("__repr__", [](Request &r) {
            const char *state = r.state == Request::State::pending    ? "pending"
                                : r.state == Request::State::canceled ? "cancelled"
                                : r.failed()                          ? "failed"
                                                                      : "done";
            return std::string("<weft.Request ") + r.op + r.what() + " " + state + ">";
        });
    Fast<fast_wait>::install(cls, "wait", "($self, timeout=None)", wait_doc);
}
