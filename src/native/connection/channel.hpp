// SPDX-License-Identifier: BSD-3-Clause
// A connection: an ordered, bounded, two-way sequence of messages over the link between two workers.
//
// UCX pairs endpoints that are made from worker addresses by the order in which they are made, so connections
// with an endpoint each could be paired crosswise, and closing one would break another. Hence one endpoint pair
// for each pair of workers (a Link), and connections told apart by an unguessable id in every message's header.
//
// Order: messages are numbered, and taken in that order however they arrive. Bounds: a sender may have
// `window` of charge unread at the other side; an eager message is charged its size, a rendezvous only its
// descriptor, because it is answered when a reader waits for it or when less than `landing_limit` is unread.
// Placed messages are numbered and bounded like the others, but `recv` passes them by: each is always a rendezvous, and
// waits for whoever asks for its place with memory to receive it into. So device memory is received (placement.cpp).
// Closing: goodbye carries the count of messages; the other side acknowledges when it has them all.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>

#include "progress/request.hpp"

struct Worker;
struct Channel;
struct Wire;
class FdSocket;

/// Owns the endpoint to one remote worker and the socket whose end-of-file tells of that worker's end.
struct Link {
    Worker *worker;
    std::shared_ptr<Engine> engine;  // its own on this host, the worker's across a network
    ucp_ep_h endpoint = nullptr;
    int fd = -1;                     // of the socket; `side` owns it if there is one
    std::shared_ptr<FdSocket> side;  // to a process on this host
    bool lost = false;
    ucs_status_t status = UCS_OK;  // what UCX's error handler said
    std::string name;              // of the peer, for people
    std::unordered_set<Channel *> channels;

    /// Take what came over the side channel. False: the other side is gone.
    bool hear() noexcept;
    /// The other side is gone: end every channel, force the endpoint closed, close the socket.
    void lose(const std::string &reason) noexcept;
    void release() noexcept;
};

struct Channel : std::enable_shared_from_this<Channel> {
    static constexpr size_t window = 4 << 20;
    static constexpr size_t rendezvous_nbytes = 256 << 10;  // from here weft asks for rendezvous
    static constexpr size_t message_charge = 512;           // what any message costs beside its eager bytes
    static constexpr size_t stage_nbytes = 1 << 20;         // from here a copy that is lent beats UCX's two
    static constexpr size_t stage_limit = 256 << 20;        // the copy holds up the caller's loop
    static constexpr size_t landing_limit = 16 << 20;
    static constexpr size_t max_segments = 512;
    static constexpr size_t max_header_nbytes = 8000;  // UCX's own limit is 8100 B on posix

    Worker *worker;
    std::shared_ptr<Link> link;
    uint64_t local, remote;
    std::string name;

    bool closing = false;  // close was called: no more sends
    bool closed = false;   // nothing will come or go any more
    bool ended = false;    // the other side said goodbye
    bool lost = false;
    bool goodbye_sent = false, acknowledged = false;
    std::shared_ptr<const Fault> fault;
    Request *close_request = nullptr;

    // Outgoing.
    uint64_t next_sequence = 0, next_place = 0, sent_charge = 0, credited = 0;
    std::deque<Request *> queue;  // wait for credit
    // Incoming.
    std::deque<Message *> inbox;     // by sequence from `head` on; null where nothing has arrived yet
    std::deque<Message *> held;      // rendezvous not yet answered, by sequence
    std::deque<Message *> returned;  // taken by a request that never delivered it
    std::deque<Request *> waiters;
    std::map<uint64_t, std::unique_ptr<Message>> placed;  // not yet asked for, by place
    std::map<uint64_t, Request *> destinations;           // asked for, and not yet here
    uint64_t head = 0, received = 0, remote_count = UINT64_MAX, consumed = 0, reported = 0;
    size_t unread_nbytes = 0;
    uint64_t lent_sent_nbytes = 0, lent_received_nbytes = 0;

    ~Channel();
    /// `lend`: of `rest`, what lies in shared memory; `stage`: copy there what is large, and lend that.
    nb::object send(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage);
    nb::object lend(PyObject *owner, nb::handle buffer);
    nb::object recv(PyObject *owner);
    /// As `send`, and after it each of `placed`, whose place is the count of those that were sent before: a list of
    /// requests, the message's first. None of them may be cancelled.
    nb::object send_placed(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage,
                           nb::handle placed);
    /// Receive what was sent to `place` into `buffer`, which has just its size.
    nb::object recv_placed(PyObject *owner, uint64_t place, nb::handle buffer);
    nb::object close(PyObject *owner);
    void abort(const char *error, const std::string &reason, bool tell) noexcept;
    void lose(const std::shared_ptr<const Fault> &why) noexcept;
    /// Send what may be sent by now.
    void post_queue() noexcept;
    bool withdraw(Request *request) noexcept;
    void return_message(std::unique_ptr<Message> message) noexcept;

    /// From UCX: one message for this channel. No Python. The status is the active-message callback's.
    ucs_status_t on_message(const Wire &wire, std::unique_ptr<Message> message, void *data, bool rendezvous) noexcept;
    /// From UCX: a placed message is where it was asked to.
    void landed(Request *request, ucs_status_t status) noexcept;

  private:
    bool may_send(const Request *request) const noexcept;
    bool may_lend(Request *request) noexcept;
    void find_lendable(Request *request, bool lend, bool stage) noexcept;
    nb::object queue_or_post(nb::object object, Request *request);
    void post(Request *request) noexcept;
    void tell(uint16_t kind, uint64_t number) noexcept;
    void accept(Message *message) noexcept;
    void accept_placed(const Wire &wire, std::unique_ptr<Message> message, bool rendezvous) noexcept;
    void land(Request *request, std::unique_ptr<Message> message) noexcept;
    void consume(size_t charge) noexcept;
    void answer() noexcept;
    void deliver() noexcept;
    Message *take() noexcept;
    void acknowledge() noexcept;
    void end_waiters() noexcept;
    void end_destinations(const std::shared_ptr<const Fault> &why) noexcept;
    void finish_close(const std::shared_ptr<const Fault> &why) noexcept;
    void unregister() noexcept;
    void clear() noexcept;
};

/// What Python holds: dropping it without a close aborts the channel at the worker's next drain.
struct ChannelObject {
    nb::object worker;
    std::shared_ptr<Channel> channel;
    ChannelObject(nb::object worker, std::shared_ptr<Channel> channel)
        : worker(std::move(worker)), channel(std::move(channel)) {}
    ChannelObject(ChannelObject &&) noexcept = default;
    ~ChannelObject();
};

constexpr unsigned channel_am_id = 63;
ucs_status_t on_channel_message(void *engine, const void *header, size_t header_nbytes, void *data, size_t nbytes,
                                const ucp_am_recv_param_t *param) noexcept;
void define_channel(nb::module_ &m);
