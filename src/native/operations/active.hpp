// SPDX-License-Identifier: BSD-3-Clause
// Active messages: sent with a header, received in turn (am_recv) or handed to a handler.
#pragma once

#include "operations/endpoint.hpp"
#include "operations/reply.hpp"

/// A message for a handler. Owns UCX's descriptor, which holds the data (eager) or stands for it (rendezvous), and
/// with it the engine that the descriptor belongs to: lent data outlives the worker's close.
struct ActiveMessage {
    nb::object worker_object;  // set when Python sees it
    std::shared_ptr<Engine> engine;
    unsigned id = 0;
    std::string header;
    size_t nbytes = 0;
    bool rendezvous = false;
    void *descriptor = nullptr;    // null once it was received, and where there is no data
    std::shared_ptr<Reply> reply;  // null unless the sender asked for one
    bool ends_reply = false;       // no message: it tells that `reply` has ended
    size_t exports = 0;

    ActiveMessage() = default;
    ActiveMessage(const ActiveMessage &) = delete;
    ~ActiveMessage();
};

/// Incoming active messages of one id: for a handler, or for who waits for them.
struct AmQueue {
    Worker *worker;
    unsigned id;
    nb::object handler;
    std::deque<Message *> messages;
    std::deque<Request *> waiters;
    ~AmQueue();
};

/// Call the handler of the message that arrived first.
void call_handler(Worker *worker);
void define_active(nb::module_ &m, nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint);
