// SPDX-License-Identifier: BSD-3-Clause
// The readers of a connection's messages: recv, recv_into, recv_many. None loses a message: one that was taken but not
// delivered goes back, for the next receive.
//
// A rendezvous for a waiting recv_into lands directly in its buffer, if it is the next message at the time it is
// answered. The carrier then uses the buffer until it has landed, even if the waiter is gone; in that case, or if an
// older message has come back meanwhile, the message is copied out of the buffer.
#include <cstring>
#include <vector>

#include "connection/channel.hpp"
#include "ring/copy.hpp"

namespace {

/// A message of which only the memory was kept. The caller owns it.
Message *restored(uint64_t sequence, SmallBlock *small) {
    auto *m = new Message;
    m->sequence = sequence;
    m->nbytes = small->nbytes;
    m->small = small;
    m->ready = true;
    return m;
}

/// The messages that a recv_many has taken so far. Of small ones only the memory is kept: there may be thousands.
struct Collected {
    struct Each {
        uint64_t sequence;
        SmallBlock *small;
        Message *message;  // null if it is small
    };
    size_t count;
    std::vector<Each> messages;

    ~Collected() { clear(); }
    void add(Message *m) {
        messages.push_back({m->sequence, std::exchange(m->small, nullptr), m});
        if (!messages.back().small) return;
        delete std::exchange(messages.back().message, nullptr);
    }
    /// Undo `add`. The caller owns the message.
    static Message *restore(Each &each) {
        Message *m = each.message ? each.message : restored(each.sequence, each.small);
        each = {};
        return m;
    }
    void clear() {
        for (Each &each : messages) {
            SmallBlock::release(each.small);
            delete each.message;
        }
        messages.clear();
    }
};

Message *message_of(const Request &r) noexcept {
    return static_cast<Message *>(r.taken);
}

Collected *collected(const Request &r) noexcept {
    return static_cast<Collected *>(r.taken);
}

[[noreturn]] void raise_given_back(const Request &r) {
    raise("CanceledError",
          r.op + r.what() + ": the request was cancelled, and its messages went back to the connection", r.op);
}

// Return a message to the front of the connection, in the owner's next drain.
void return_later(Request &r, Message *message) noexcept {
    auto channel = r.channel->shared_from_this();
    r.worker->defer([channel, message] { channel->return_message(std::unique_ptr<Message>(message)); });
}

// ---- recv

PyObject *received(Request &r) {
    if (!r.taken) raise_given_back(r);
    return message_of(r)->view().release().ptr();
}

// Task.__wakeup reads the result before it resumes the coroutine: undo that, unless others have references to it.
void give_back(Request &r) noexcept {
    Message *message = message_of(r);
    if (!message || (r.value && !message->reclaim(r.value))) return;
    r.retrieved = true;
    r.taken = nullptr;
    return_later(r, message);
}

void drop(Request &r) noexcept {
    if (!r.retrieved) give_back(r);
    delete message_of(r);
}

constexpr Operation recv_operation{
    .result = received, .withdraw = withdraw_from_channel, .give_back = give_back, .drop = drop, .where = channel_name};

// ---- recv that waited for a small message: `taken` is its memory, `operand` its number

PyObject *received_small(Request &r) {
    if (!r.taken) raise_given_back(r);
    auto *small = static_cast<SmallBlock *>(std::exchange(r.taken, nullptr));
    PyObject *view = small->view().release().ptr();
    r.taken = small;
    return view;
}

void give_small_back(Request &r) noexcept {
    if (!r.taken) return;
    auto *small = static_cast<SmallBlock *>(r.taken);
    if (r.value && !(small = SmallBlock::reclaim(r.value))) return;
    r.retrieved = true;
    r.taken = nullptr;
    return_later(r, restored(r.operand, small));
}

void drop_small(Request &r) noexcept {
    if (!r.retrieved) give_small_back(r);
    if (!r.value) SmallBlock::release(static_cast<SmallBlock *>(r.taken));  // otherwise the view owns it
}

constexpr Operation recv_small_operation{
    .result = received_small, .give_back = give_small_back, .drop = drop_small, .where = channel_name};

// ---- recv_into

PyObject *received_nbytes(Request &r) {
    if (!r.taken) raise_given_back(r);
    return PyLong_FromSize_t(r.word);
}

// The result was delivered, so the request can no longer be cancelled: drop what would have to go back.
void told(Request &r) noexcept {
    Message *message = message_of(r);
    r.taken = nullptr;
    delete message;  // releasing the buffer may run Python code, which may use the request
}

void give_back_from_buffer(Request &r) noexcept {
    Message *message = message_of(r);
    if (!message) return;
    const std::unique_ptr<Buffer> kept = std::move(message->kept);  // released last, as in `told`
    if (kept && !message->copy(kept->data())) message->status = UCS_ERR_NO_MEMORY;
    Py_CLEAR(r.value);
    r.retrieved = true;
    r.taken = nullptr;
    return_later(r, message);
}

void drop_into(Request &r) noexcept {
    if (!r.retrieved) give_back_from_buffer(r);
    delete message_of(r);
}

// Its buffer stays until the message has landed in it.
bool withdraw_into(Request &r) noexcept {
    return r.channel->withdraw(&r) && !r.ucx;
}

constexpr Operation recv_into_operation{.result = received_nbytes,
                                        .withdraw = withdraw_into,
                                        .give_back = give_back_from_buffer,
                                        .drop = drop_into,
                                        .delivered = told,
                                        .where = channel_name};

// ---- recv_many

PyObject *received_all(Request &r) {
    if (collected(r)->messages.size() < collected(r)->count) raise_given_back(r);
    nb::object views = nb::steal(PyList_New(Py_ssize_t(collected(r)->count)));
    if (!views.is_valid()) throw nb::python_error();
    Py_ssize_t i = 0;
    for (auto &each : collected(r)->messages) {
        nb::object view = each.small ? std::exchange(each.small, nullptr)->view() : each.message->view();
        PyList_SET_ITEM(views.ptr(), i++, view.release().ptr());
    }
    return views.release().ptr();
}

// As for one message, except for those whose view has other references.
void give_all_back(Request &r) noexcept {
    auto &messages = collected(r)->messages;
    if (r.value && (Py_REFCNT(r.value) != 1 || size_t(PyList_GET_SIZE(r.value)) != messages.size())) return;
    Py_ssize_t i = 0;
    for (auto &each : messages) {
        if (r.value) {
            PyObject *view = take_item(r.value, i++);
            if (each.message ? !each.message->reclaim(view) : !(each.small = SmallBlock::reclaim(view))) {
                PyList_SET_ITEM(r.value, i - 1, view);  // for later: dropping it may run Python code
                continue;
            }
        }
        return_later(r, Collected::restore(each));
    }
    collected(r)->clear();
    r.retrieved = true;
    Py_CLEAR(r.value);
}

void drop_all(Request &r) noexcept {
    if (!r.retrieved) give_all_back(r);
    delete collected(r);
}

constexpr Operation recv_many_operation{.result = received_all,
                                        .withdraw = withdraw_from_channel,
                                        .give_back = give_all_back,
                                        .drop = drop_all,
                                        .where = channel_name};

size_t wanted_by(const Request &r) noexcept {
    return r.operation == &recv_many_operation ? collected(r)->count - collected(r)->messages.size() : 1;
}

}  // namespace

nb::object Channel::recv(PyObject *owner) {
    SmallBlock::reuse(1);
    Request *r;
    nb::object request = make_request(worker, owner, "recv", 0, &r);
    begin(r, recv_operation);
    return receive(std::move(request), r);
}

nb::object Channel::recv_into(PyObject *owner, nb::handle buffer) {
    Request *r;
    nb::object request = make_request(worker, owner, "recv_into", 0, &r);
    r->buffer.acquire(buffer, true, "recv_into");
    r->nbytes = r->buffer.nbytes();
    begin(r, recv_into_operation);
    return receive(std::move(request), r);
}

nb::object Channel::recv_many(PyObject *owner, size_t count) {
    SmallBlock::reuse(count);
    Request *r;
    nb::object request = make_request(worker, owner, "recv_many", 0, &r);
    r->taken = new Collected{count, {}};
    begin(r, recv_many_operation);
    return receive(std::move(request), r);
}

nb::object Channel::receive(nb::object request, Request *r) {
    if (closed || closing)
        raise("ClosedError", std::string(r->op) + " from " + name + ": the connection was closed by this side", r->op);
    if (receives.empty() && serve(r)) {
        r->complete_now(UCS_OK);
        answer();
        acknowledge();
        return request;
    }
    r->hold_loosely();
    receives.push_back(r);
    answer();
    deliver();
    return request;
}

/// Give `r` the available messages. True: it is complete, or has failed.
bool Channel::serve(Request *r) noexcept {
    if (r->operation == &recv_many_operation && !wanted_by(*r)) return true;
    while (Message *m = next()) {
        if (r->operation == &recv_into_operation) {
            r->word = m->total_nbytes();
            if (r->word > r->nbytes) {
                r->fault = make_fault("TruncatedError", "the message has " + std::to_string(r->word) +
                                                            " B; it stays for the next receive");
                return true;
            }
            if (!m->kept) m->gather(static_cast<uint8_t *>(r->buffer.data()));
        }
        take(m);
        if (r->operation != &recv_many_operation) {
            r->taken = m;
            return true;
        }
        collected(*r)->add(m);
        if (!wanted_by(*r)) return true;
    }
    return false;
}

// A small message that is next, and that a reader waits for, goes to the reader directly, without a Message.
bool Channel::hand_over(const Wire &wire, const void *data, size_t nbytes) noexcept {
    note_credit(wire);
    if (receives.empty() || wire.number != head || !arrived.empty() || !returned.empty()) return false;
    if (closed || lost || closing || fault) return false;
    Request *r = receives.front();
    const bool one = r->operation == &recv_operation;
    if (!one && r->operation != &recv_many_operation) return false;
    const size_t charge = charge_of(nbytes);
    if (unread_charge + charge > window) return false;
    SmallBlock *small = SmallBlock::allocate(nbytes);
    if (!small) return false;
    if (nbytes) copy_bytes(small->data(), data, nbytes);
    if (one) {
        r->operation = &recv_small_operation;
        r->taken = small;
        r->operand = wire.number;
    } else {
        collected(*r)->messages.push_back({wire.number, small, nullptr});
    }
    ++head;
    ++received;
    unread_charge += charge;
    consume(charge, nbytes);
    if (one || !wanted_by(*r)) {
        receives.pop_front();
        r->end(UCS_OK);
    }
    if (!unanswered.empty()) answer();
    return true;
}

/// The next message, if it has arrived.
Message *Channel::next() noexcept {
    if (!returned.empty()) return returned.front();
    while (!arrived.empty() && arrived.front() && arrived.front()->skipped) {
        delete arrived.front();
        arrived.pop_front();
        ++head;
    }
    if (arrived.empty()) return nullptr;
    Message *m = arrived.front();
    return m && m->ready && m->status == UCS_OK ? m : nullptr;
}

void Channel::take(Message *next) noexcept {
    if (!returned.empty()) return returned.pop_front();
    arrived.pop_front();
    ++head;
    unread_nbytes -= next->nbytes;
    consume(next->charge, next->nbytes);
}

void Channel::deliver() noexcept {
    while (!receives.empty()) {
        Request *r = receives.front();
        if (r->ucx || !serve(r)) break;  // a message is landing in its buffer, or there are too few
        receives.pop_front();
        r->end(UCS_OK);
    }
    answer();
    end_receives();
}

// Answer the rendezvous that readers wait for, and as many more as may be unread here.
void Channel::answer() noexcept {
    while (!unanswered.empty()) {
        Message *m = unanswered.front();
        uint64_t position = m->sequence - head + returned.size(), wanted = 0;
        for (Request *r : receives) wanted += wanted_by(*r);
        if (position >= wanted && unread_nbytes + m->nbytes > landing_limit) return;
        unanswered.pop_front();
        unread_nbytes += m->nbytes;
        bring(m);
    }
}

// Let the carrier bring the data of a message: into the buffer of the recv_into that will get it, or into blocks.
void Channel::bring(Message *m) noexcept {
    m->timed = true;
    if (!inflow && !link->socket) inflow = worker->links->inflow;
    landed_here.begin(inflow.get(), now_ns());
    Request *first = receives.empty() || !returned.empty() || m->sequence != head ? nullptr : receives.front();
    if (first && first->operation == &recv_into_operation && m->lent.empty() && m->nbytes <= first->nbytes)
        m->answer_into(first);
    else
        m->answer();
}

// The carrier no longer uses the buffer of a recv_into.
void Channel::leave_buffer(Message *m) noexcept {
    Request *r = std::exchange(m->into, nullptr);
    r->ucx = nullptr;
    const bool waits = !receives.empty() && receives.front() == r;  // later ones are never served before it
    if (waits && next() == m) {
        m->kept = std::make_unique<Buffer>(std::move(r->buffer));
        return;
    }
    if (m->status == UCS_OK && !m->copy(r->buffer.data())) m->status = UCS_ERR_NO_MEMORY;
    if (!waits) r->end(UCS_OK);
}

void Channel::return_message(std::unique_ptr<Message> message) noexcept {
    if (closed) return;
    if (message->status != UCS_OK) {
        tell(abort_kind, 0);
        return lose(make_fault("NoMemoryError", "out of memory while returning a message to the connection"));
    }
    queue_again(message.release());
    deliver();
}

void Channel::queue_again(Message *message) noexcept {
    auto at = returned.end();
    while (at != returned.begin() && (*std::prev(at))->sequence > message->sequence) --at;
    returned.insert(at, message);
}

// Return the messages of a recv_many that cannot complete. True: other readers may now take them.
bool Channel::put_back(Request *r) noexcept {
    if (r->operation != &recv_many_operation || collected(*r)->messages.empty()) return false;
    auto &messages = collected(*r)->messages;
    for (auto &each : messages) queue_again(Collected::restore(each));
    messages.clear();
    return true;
}

// Receives that cannot be satisfied any more end with the connection's fault.
void Channel::end_receives() noexcept {
    if (fault && (lost || (ended && received >= remote_count))) end_placed_receives(fault);
    while (fault && !receives.empty()) {
        const bool more =
            !returned.empty() || (ended && !lost && head < remote_count) ||
            (!arrived.empty() && arrived.front() && arrived.front()->ready && arrived.front()->status == UCS_OK);
        if (more) return;
        Request *r = receives.front();
        receives.pop_front();
        const bool others_may = put_back(r);
        stop(r, fault);
        if (others_may) return deliver();
    }
}

bool Channel::withdraw(Request *request) noexcept {
    if (std::erase_if(placed_receives, [&](auto &entry) { return entry.second == request; })) return true;
    if (std::erase(receives, request)) {
        // A reader that this ended would look pending until the next turn, and might be cancelled meanwhile.
        if (put_back(request))
            worker->defer([channel = shared_from_this()] {
                if (!channel->closed) channel->deliver();
            });
    } else {
        if (!std::erase(sends, request)) return false;
        resume();  // it may have been blocking a smaller one, or the goodbye
    }
    if (worker->completed) worker->defer([] {});  // this may not be a turn
    return true;
}
