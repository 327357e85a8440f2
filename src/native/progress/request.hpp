// SPDX-License-Identifier: BSD-3-Clause
// One operation under way and its waiter: two states in one object. What each kind of operation does in
// its own way is in the file of that operation.
//
// The operation ends when UCX says so, and until then its buffers stay exported, whatever the waiter does. The
// waiter ends when the operation does, or earlier by cancel() or by the loss of the peer.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <string>
#include <vector>

#include "buffer/buffer.hpp"
#include "shared/pool.hpp"

struct Worker;
struct Engine;
struct Channel;
struct Request;

/// Why an operation failed, where UCX has no status for it.
struct Fault {
    const char *error;  // the class in weft.errors
    std::string text;
    mutable bool raised = false;  // somebody was told
};

/// The parts of a scatter-gather send. Owns the exports, and keeps what will be lent from being used again.
struct Parts {
    std::vector<Buffer> buffers;
    std::vector<Pin> pins;     // one for each buffer, empty where it travels through UCX; or none at all
    std::vector<bool> staged;  // one for each buffer, whether what is lent is a copy of it; or none at all
    std::vector<iovec> iov;
    size_t lent_nbytes = 0, staged_nbytes = 0;
    bool bare = false;    // the buffers are the message, without the first segment
    bool placed = false;  // the receiver has memory of its own for it; `operand` is the place

    bool is_staged(size_t i) const noexcept { return i < staged.size() && staged[i]; }
    /// Export each of a sequence of buffers. True: Python code may have run for it, as for Buffer::acquire.
    bool acquire(nb::handle sequence, bool writable, const char *op, uint64_t memory_types);
    /// The one memory type of all of them; UCX gathers from no more than one.
    ucs_memory_type_t memory_type(const char *op) const;
};

/// What an operation does in its own way. There is one of each kind, in the file of the operation.
struct Operation {
    /// The result of a request that ended well: a new reference. Null: it is None.
    PyObject *(*result)(Request &) = nullptr;
    /// The waiter has gone. True: the operation was withdrawn, and nothing else will end it.
    bool (*withdraw)(Request &) noexcept = nullptr;
    /// What was taken for a waiter did not reach it: put it back to where the next one finds it.
    void (*give_back)(Request &) noexcept = nullptr;
    /// The request goes, and with it what is `taken`.
    void (*drop)(Request &) noexcept = nullptr;
    /// The waiter has the result: what was kept in case it did not reach anybody may go.
    void (*delivered)(Request &) noexcept = nullptr;
    /// Set: it takes the end itself, in progress and without Python; the request never comes to drain.
    void (*ended)(Request &, ucs_status_t) noexcept = nullptr;
    /// What the operation was about, for error messages.
    std::string (*where)(const Request &) = nullptr;
    /// Set: to make the result may fail, and means this.
    const char *refused = nullptr;
    bool must_end = false;  // UCX ends the process when it is destroyed before
};

/// Without a result, and not to be withdrawn.
inline constexpr Operation plain_operation{};

/// Owns the buffer exports until the operation has ended, and a reference to its owner (and so to the worker).
struct Request {
    enum class State : uint8_t { pending, done, canceled };

    PyObject *self = nullptr;  // borrowed: the Python object around this
    Worker *worker = nullptr;
    PyObject *owner = nullptr;   // Worker, Endpoint or Channel, whose life implies the worker's
    Engine *engine = nullptr;    // what must be progressed for it
    Channel *channel = nullptr;  // whose loss ends this request
    const char *op = "";
    const Operation *operation = &plain_operation;
    void *ucx = nullptr;
    Request *next = nullptr;  // in the worker's completed list
    Request *in_flight_next = nullptr, **in_flight_prev = nullptr;
    size_t nbytes = 0;
    uint64_t word = 0;  // the result: how many bytes came, or what lay there before
    uint64_t operand = 0;
    ucp_tag_recv_info_t info{};
    Buffer buffer;
    std::unique_ptr<Parts> parts;
    void *taken = nullptr;  // what the operation keeps or took for the waiter: its `drop` destroys it
    std::shared_ptr<const Fault> fault;
    PyObject *callbacks = nullptr;  // list of (callback, context)
    PyObject *loop = nullptr;
    PyObject *value = nullptr;  // the result, once it was asked for
    ucs_status_t status = UCS_INPROGRESS;
    State state = State::pending;
    bool ended = false;      // the operation is over
    bool held = false;       // in flight: the worker holds a reference
    bool queued = false;     // in the completed list
    bool blocking = false;   // asyncio's handshake between a future and a task
    bool yielded = false;    // gave the loop its turn although complete
    bool retrieved = false;  // somebody took the result

    Request() = default;
    ~Request();

    bool done() const noexcept { return state != State::pending; }
    bool failed() const noexcept { return fault || status != UCS_OK; }
    /// It has ended, and owns nothing but what it gives as its result.
    bool plain() const noexcept;

    std::string what() const;

    /// The operation ended at once: no callback, nothing to hold.
    void complete_now(ucs_status_t status) noexcept;
    /// The operation goes on; the worker holds a reference from here to its end.
    void hold() noexcept;
    /// From UCX: the operation ended. No Python.
    void end(ucs_status_t status) noexcept;
    /// The waiter ends with `fault` although the operation may go on. No Python.
    void fail(const std::shared_ptr<const Fault> &fault) noexcept;
    /// The engine is left: the waiter ends, the operation when UCX lets go of it. No Python.
    void abandon() noexcept;
    /// From drain: tell the waiter, and let go of what the operation held.
    void settle();

    /// The result (a new reference), or its exception raised.
    PyObject *result(bool from_wait);
    /// The same, to the waiter itself.
    PyObject *deliver(bool from_wait);
    bool cancel();
    bool wait(double timeout_s);
    PySendResult send(PyObject **result);
    void add_done_callback(nb::object callback, nb::object context);
    size_t remove_done_callback(nb::handle callback);
    nb::object get_loop();

  private:
    nb::object error() const;
    [[noreturn]] void raise_failure() const;
    void wake();
};

/// asyncio's answer, which may be slow: see Worker::running_loop.
nb::object asyncio_running_loop();
/// A new, pending request on `worker`; `owner` is kept alive by it.
nb::object make_request(Worker *worker, PyObject *owner, const char *op, size_t nbytes, Request **request);
/// What deallocates a request: uses it again instead of destroying it, which is left to what deallocates `type`.
void recycle_request(PyObject *self);
void destroy_requests_as(nb::handle type);
void define_request(nb::module_ &m);
