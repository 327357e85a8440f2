// SPDX-License-Identifier: BSD-3-Clause
// A connection: an ordered, bounded, two-way sequence of messages over the link between two workers.
//
// All connections between two workers share one link; an unguessable id in each message's header tells them apart.
//
// Order: messages are numbered, and taken in that order however they arrive. Bounds: a sender may have `window` of
// charge unread at the other side; an eager message is charged its size, a rendezvous only its descriptor, because it
// is answered when a reader waits for it or while less than `landing_limit` is unread.
// Placed messages are numbered and bounded like the others, but `recv` skips them: each is always a rendezvous, and
// waits until a receiver asks for its place, with memory for it. This is how device memory is received
// (channel_placed.cpp). Closing: a goodbye carries the number of messages; the other side acknowledges when it has all
// of them. On one host it need not: the carrier sees what is read, so that a program may stop calling weft once it has
// what it wants.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "connection/link.hpp"
#include "connection/message.hpp"
#include "connection/wire_format.hpp"

struct Channel : LinkUser, std::enable_shared_from_this<Channel> {
    static constexpr size_t window = 4 << 20;
    static constexpr size_t stage_nbytes = 1 << 20;   // from here on, a lent copy is faster than UCX's two copies
    static constexpr size_t stage_limit = 256 << 20;  // the copy blocks the caller's loop
    static constexpr size_t landing_limit = 16 << 20;
    static constexpr size_t max_segments = 512;
    static constexpr size_t max_header_nbytes = 8000;  // UCX's own limit is 8100 B on posix

    Worker *worker;
    std::shared_ptr<Link> link;
    uint64_t local, remote;
    std::string name;

    bool closing = false;  // close was called: no more sends
    bool closed = false;   // nothing is sent or received any more
    bool ended = false;    // the other side said goodbye
    bool lost = false;
    bool goodbye_sent = false, acknowledged = false;
    std::shared_ptr<const Fault> fault;
    Request *close_request = nullptr;

    // Outgoing.
    uint64_t next_sequence = 0, next_place = 0, sent_charge = 0, credited = 0;
    uint64_t last_posted = UINT64_MAX;  // the carrier's end of it, once everything before the goodbye is posted
    std::deque<Request *> sends;        // waiting for credit
    // Incoming.
    std::deque<Message *> arrived;     // by sequence, starting at `head`; null where nothing has arrived yet
    std::deque<Message *> unanswered;  // the rendezvous among these, by sequence
    std::deque<Message *> returned;    // taken by a request that never delivered it
    std::deque<Request *> receives;    // waiting for the next message, or for many
    std::map<uint64_t, std::unique_ptr<Message>> placed_messages;  // not yet requested, by place
    std::map<uint64_t, Request *> placed_receives;                 // not yet arrived
    uint64_t head = 0, received = 0, remote_count = UINT64_MAX, consumed = 0, reported = 0;
    size_t unread_nbytes = 0;
    size_t unread_charge = 0;  // without lent bytes, never more than the window, or the sender violates the protocol
    uint64_t lent_sent_nbytes = 0, lent_received_nbytes = 0;
    std::shared_ptr<Inflow> inflow;  // the worker's; null within a host, where links share nothing
    Landed landed_here;

    Channel(Worker *worker, std::shared_ptr<Link> link, uint64_t local, uint64_t remote, std::string name);
    ~Channel() override;
    /// `lend`: lend buffers of `rest` that are in shared memory; `stage`: copy large ones there, and lend the copies.
    nb::object send(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage);
    nb::object lend(PyObject *owner, nb::handle buffer);
    nb::object recv(PyObject *owner);
    nb::object recv_into(PyObject *owner, nb::handle buffer);
    nb::object recv_many(PyObject *owner, size_t count);
    /// Send each of `buffers` as a message, with one request for all.
    nb::object send_many(PyObject *owner, nb::handle buffers);
    /// As `send`, and then each of `placed`; the place is the number of placed buffers sent before. Returns a list of
    /// requests, the message's first. None of them may be cancelled.
    nb::object send_placed(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage,
                           nb::handle placed);
    /// Receive the buffer that was sent to `place` into `buffer`, which must have its exact size.
    nb::object recv_placed(PyObject *owner, uint64_t place, nb::handle buffer);
    nb::object close(PyObject *owner);
    void abort(const char *error, const std::string &reason, bool tell_peer) noexcept override;
    void lose(const std::shared_ptr<const Fault> &why) noexcept override;
    /// Send what may be sent now.
    void resume() noexcept override;
    bool withdraw(Request *request) noexcept;
    void return_message(std::unique_ptr<Message> message) noexcept;
    /// From a carrier: one of the messages of a send_many has left.
    void sent_one(Request *request) noexcept;

    /// From the carrier: a small message without segments. False: pass it to `on_message`.
    bool hand_over(const Wire &wire, const void *data, size_t nbytes) noexcept;
    /// From the carrier: one message for this channel. No Python. True: the channel has taken the descriptor `data`.
    bool on_message(const Wire &wire, std::unique_ptr<Message> message, void *data, Way way) noexcept;
    /// From the carrier: a placed message has landed.
    void landed(Request *request, ucs_status_t status) noexcept;

  private:
    /// Start an operation of this channel.
    void begin(Request *request, const Operation &operation) noexcept;
    bool is_under_way() const noexcept;
    void fail_under_way(const std::shared_ptr<const Fault> &why) noexcept;
    bool may_send(size_t charge) const noexcept;
    bool may_lend(Request *request) noexcept;
    void find_lendable(Request *request, bool lend, bool stage) noexcept;
    nb::object queue_or_post(nb::object object, Request *request);
    void post(Request *request) noexcept;
    void post_whole(Request *request) noexcept;
    void note_credit(const Wire &wire) noexcept;
    bool advance(Request *request) noexcept;
    bool post_many(Request *request) noexcept;
    void tell(uint16_t kind, uint64_t number) noexcept;
    void complete(Message *message) noexcept;
    void accept_placed(const Wire &wire, std::unique_ptr<Message> message, bool rendezvous) noexcept;
    void answer_placed(Request *request, std::unique_ptr<Message> message) noexcept;
    /// Count a read message; `charge` is what it cost its sender.
    void consume(size_t charge, size_t nbytes) noexcept;
    nb::object receive(nb::object object, Request *request);
    void answer() noexcept;
    void bring(Message *message) noexcept;
    void leave_buffer(Message *message) noexcept;
    void deliver() noexcept;
    bool serve(Request *request) noexcept;
    Message *next() noexcept;
    void take(Message *message) noexcept;
    void queue_again(Message *message) noexcept;
    bool put_back(Request *request) noexcept;
    void acknowledge() noexcept;
    void end_receives() noexcept;
    void end_placed_receives(const std::shared_ptr<const Fault> &why) noexcept;
    void finish_close(const std::shared_ptr<const Fault> &why) noexcept;
    void unregister() noexcept;
    void clear() noexcept;
};

/// Python's handle: dropping it without a close aborts the channel at the worker's next drain.
struct ChannelObject {
    nb::object worker;
    std::shared_ptr<Channel> channel;
    ChannelObject(nb::object worker, std::shared_ptr<Channel> channel)
        : worker(std::move(worker)), channel(std::move(channel)) {}
    ChannelObject(ChannelObject &&) noexcept = default;
    ~ChannelObject();
};

/// The channel, if this thread may use it.
inline Channel &usable(const ChannelObject &object, const char *op) {
    Channel &channel = *object.channel;
    if (channel.worker->closed()) [[unlikely]]
        raise("ClosedError", std::string(op) + " (" + channel.name + "): the worker is closed", op);
    channel.worker->check_owner(op);
    return channel;
}

/// End a request of a connection that has ended; if the carrier still uses its memory, end only the wait for it.
inline void stop(Request *request, const std::shared_ptr<const Fault> &why) noexcept {
    request->fail(why);
    if (!request->ucx) request->end(UCS_OK);
}

/// Many messages sent with one request: the buffers are its parts, and `taken` points to this.
struct Sending;
extern const Operation send_many_operation;

/// An operation whose result is None, and which is withdrawn while it waits.
extern const Operation channel_operation;
std::string channel_name(const Request &request);
bool withdraw_from_channel(Request &request) noexcept;

/// From a carrier: a message for one of the worker's channels. `socket` is the link's, if it is within one host. True:
/// `data`, a descriptor unless the message is whole, was kept.
bool receive_message(Worker &worker, FdSocket *socket, const void *header, size_t header_nbytes, void *data,
                     size_t nbytes, Way way) noexcept;
/// The same for a message that is complete in the carrier's memory, whose header is just `wire`.
void receive_whole(Worker &worker, FdSocket *socket, const Wire &wire, void *data, size_t nbytes) noexcept;
void define_channel(nb::module_ &m);
void define_peer(nb::module_ &m);
