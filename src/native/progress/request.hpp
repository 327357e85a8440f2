// SPDX-License-Identifier: BSD-3-Clause
// One operation and its waiter: two states in one object. What is specific to each kind of operation is in the file of
// that operation.
//
// The operation ends when UCX says so; until then its buffers stay exported, whatever the waiter does. The waiter ends
// when the operation does, or earlier by cancel() or by the loss of the peer.
//
// The worker lists each request whose operation is in flight, and holds a reference to it, so that a send goes on if
// its request is dropped. A receive of a connection is loose: it is of use only to its waiter, so the worker holds it
// only while it has callbacks, which are all that leads from the loop to an awaiting task. When the last reference to a
// loose request goes, it lives on until the owner of the worker has withdrawn the operation: another thread may not do
// that, because the owner may be progressing without the GIL. So no request is destroyed while it is listed.
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

/// Why an operation failed, if UCX has no status for it.
struct Fault {
    const char *error;  // the class in weft.errors
    std::string text;
    mutable bool raised = false;  // an exception has reported it
};

/// The parts of a scatter-gather send. Owns the exports, and pins the parts that will be lent.
struct Parts {
    std::vector<Buffer> buffers;
    std::vector<Pin> pins;     // one for each buffer, empty for those that UCX sends; or none at all
    std::vector<bool> staged;  // one for each buffer: whether a copy of it is lent; or none at all
    std::vector<iovec> iov;
    size_t lent_nbytes = 0, staged_nbytes = 0;
    bool bare = false;    // the buffers are the whole message; there is no first segment
    bool placed = false;  // the receiver provides its memory; `operand` is the place

    bool is_staged(size_t i) const noexcept { return i < staged.size() && staged[i]; }
    /// Export each of a sequence of buffers. True: Python code may have run, as for Buffer::acquire.
    bool acquire(nb::handle sequence, bool writable, const char *op, uint64_t memory_types);
    /// The memory type that all of them share; UCX gathers from only one.
    ucs_memory_type_t memory_type(const char *op) const;
};

/// The behaviour specific to a kind of operation. There is one object for each kind, in the operation's file.
struct Operation {
    /// Return the result of a successful request, a new reference. Null: it is None.
    PyObject *(*result)(Request &) = nullptr;
    /// The waiter has gone. Return true if the operation was withdrawn, so that nothing else will end it.
    bool (*withdraw)(Request &) noexcept = nullptr;
    /// The result did not reach its waiter: put it back for the next one.
    void (*give_back)(Request &) noexcept = nullptr;
    /// The request is destroyed: destroy `taken`.
    void (*drop)(Request &) noexcept = nullptr;
    /// The waiter has the result: drop what was kept in case it had to go back.
    void (*delivered)(Request &) noexcept = nullptr;
    /// If set, it handles the end itself, in progress and without Python; the request never reaches drain.
    void (*ended)(Request &, ucs_status_t) noexcept = nullptr;
    /// Describe the operation, for error messages.
    std::string (*where)(const Request &) = nullptr;
    /// If set, making the result may fail; this explains the failure.
    const char *refused = nullptr;
    bool must_end = false;  // UCX aborts the process if the worker is destroyed before it ends
};

/// Without a result; cannot be withdrawn.
inline constexpr Operation plain_operation{};

/// Owns the buffer exports until the operation has ended, and a reference to its owner (and thus to the worker).
struct Request {
    enum class State : uint8_t { pending, done, canceled };

    PyObject *self = nullptr;  // borrowed: the Python object around this
    Worker *worker = nullptr;
    PyObject *owner = nullptr;   // Worker, Endpoint or Channel, which keeps the worker alive
    Engine *engine = nullptr;    // what must be progressed for it
    Channel *channel = nullptr;  // its loss ends this request
    const char *op = "";
    const Operation *operation = &plain_operation;
    void *ucx = nullptr;
    Request *next = nullptr;  // in the worker's completed list
    Request *in_flight_next = nullptr, **in_flight_prev = nullptr;
    size_t nbytes = 0;
    uint64_t word = 0;  // the result: bytes received, or the former value
    uint64_t operand = 0;
    ucp_tag_recv_info_t info{};
    Buffer buffer;
    std::unique_ptr<Parts> parts;
    void *taken = nullptr;  // what the operation took or keeps for the waiter; destroyed by `drop`
    std::shared_ptr<const Fault> fault;
    PyObject *callbacks = nullptr;  // list of (callback, context)
    PyObject *loop = nullptr;
    PyObject *value = nullptr;  // the result, once it was read
    PyObject *cancel_message = nullptr;
    ucs_status_t status = UCS_INPROGRESS;
    State state = State::pending;
    bool ended = false;      // the operation has ended
    bool listed = false;     // in flight: in the worker's list. Changes only under the GIL, as do the next two
    bool held = false;       // the worker holds a reference
    bool loose = false;      // in flight, the worker holds it only while it has callbacks
    bool queued = false;     // in the completed list
    bool blocking = false;   // asyncio's handshake between a future and a task
    bool yielded = false;    // yielded to the loop although complete
    bool retrieved = false;  // the result was taken

    Request() = default;
    ~Request();

    bool done() const noexcept { return state != State::pending; }
    bool failed() const noexcept { return fault || status != UCS_OK; }
    /// It has ended, and owns nothing except its result.
    bool plain() const noexcept;

    std::string what() const;

    /// The operation has ended at once: no callback, nothing to hold.
    void complete_now(ucs_status_t status) noexcept;
    /// The operation continues; the worker holds a reference from now until its end.
    void hold() noexcept;
    /// The same, but the worker holds a reference only while there are callbacks.
    void hold_loosely() noexcept;
    /// The last reference has gone. True: the operation is in flight, so the request lives on until it has ended.
    bool outlive() noexcept;
    /// Called by UCX: the operation has ended. No Python.
    void end(ucs_status_t status) noexcept;
    /// End the waiter with `fault`; the operation may continue. No Python.
    void fail(const std::shared_ptr<const Fault> &fault) noexcept;
    /// The engine was left: end the waiter now, and the operation when UCX releases it. No Python.
    void abandon() noexcept;
    /// Called by drain: notify the waiter, and release what the operation held.
    void settle();

    /// Return the result (a new reference), or raise.
    PyObject *result(bool from_wait);
    /// The same, for the waiter itself.
    PyObject *deliver(bool from_wait);
    bool cancel(nb::handle message);
    /// Make asyncio's error for the canceled waiter.
    nb::object canceled_error() const;
    bool wait(double timeout_s);
    PySendResult send(PyObject **result);
    void add_done_callback(nb::object callback, nb::object context);
    size_t remove_done_callback(nb::handle callback);
    nb::object get_loop();

  private:
    void enlist() noexcept;
    void give_up();
    nb::object error() const;
    [[noreturn]] void raise_failure() const;
    void wake();
};

/// asyncio's own answer, which may be slow: see Worker::running_loop.
nb::object asyncio_running_loop();
/// Make a pending request on `worker`; it keeps `owner` alive.
nb::object make_request(Worker *worker, PyObject *owner, const char *op, size_t nbytes, Request **request);
/// The deallocator of requests: keeps a request for reuse; to destroy one, it calls the deallocator of `type`.
void recycle_request(PyObject *self);
void destroy_requests_as(nb::handle type);
void define_request(nb::module_ &m);
