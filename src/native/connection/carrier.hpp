// SPDX-License-Identifier: BSD-3-Clause
// What carries the messages of a link: the part of a connection that can be exchanged. A link has one, its channels
// post through it, and it calls `receive_message` (channel.hpp) with what arrives. Nothing above it knows UCX.
#pragma once

#include <sys/uio.h>

#include "progress/worker.hpp"

struct Message;

/// How a message comes: all at once; in pieces that are on their way already, so that room for them is needed now; or
/// announced, for the receiver to answer.
enum class Way : uint8_t { whole, streamed, rendezvous };

struct Carrier {
    std::shared_ptr<Engine> engine;  // what must be progressed for it; null once it is closed
    uint64_t memory_types;           // bit map of ucs_memory_type_t: what can be posted and received into

    explicit Carrier(uint64_t types) noexcept : memory_types(types) {}
    Carrier(const Carrier &) = delete;
    virtual ~Carrier() = default;

    // ---- making the link ----
    /// For the other side's `join`.
    virtual std::string address() const = 0;
    /// Send over `socket` what goes with the address, if anything does; before the other side is told the address.
    virtual void offer(int socket) = 0;
    /// What is offered: a descriptor of the carrier's, or -1.
    virtual int memory() const noexcept = 0;
    /// `memory` is what the other side offered, the caller's; -1: it comes over `socket`.
    virtual void join(nb::bytes address, int socket, int memory) = 0;

    // ---- messages; no Python ----
    /// Post a message for `request`, which ends with it: the header is copied at once, `parts` stay until then. A
    /// rendezvous is announced, and its data goes when the other side answers.
    virtual void post(Request *request, const void *header, size_t header_nbytes, const iovec *parts, size_t count,
                      ucs_memory_type_t memory_type, bool rendezvous) noexcept = 0;
    /// Send a small message of host memory at once, without a request for it. False: `post` it. With `more`, another
    /// one follows at once, or `show`: until then the other side may not see this one.
    virtual bool write(const void * /*header*/, size_t /*header_nbytes*/, const void * /*data*/, size_t /*nbytes*/,
                       bool /*more*/) noexcept {
        return false;
    }
    virtual void show() noexcept {}
    /// What was posted waits for room.
    virtual bool is_full() const noexcept { return false; }
    /// Post a header alone. What happens to it happens to the link.
    virtual void post_header(const void *header, size_t nbytes) noexcept = 0;
    /// Answer a rendezvous: bring its data into `message->parts`. `message->end` follows, perhaps before this returns.
    virtual void answer(Message *message) noexcept = 0;
    /// The same into the buffer of `request`; `request->channel->landed` follows.
    virtual void answer_into(Request *request, void *descriptor) noexcept = 0;
    /// Drop a rendezvous; its sender sees success.
    virtual void refuse(void *descriptor) noexcept = 0;

    /// The socket has told of something: look at what came.
    virtual void attend() noexcept = 0;

    // ---- ending ----
    /// Some posted headers still wait for room at the other side.
    virtual bool has_headers_left() const noexcept = 0;
    /// Until `deadline_ns`, see to it that what was posted leaves.
    virtual void flush(int64_t deadline_ns) noexcept = 0;
    /// By force: what is under way is ended or abandoned.
    virtual void close() noexcept = 0;

    // ---- explaining ----
    virtual nb::list transports() const = 0;
    virtual std::string print_info() const = 0;
    virtual nb::object evaluate_perf(size_t nbytes) const = 0;
    /// UCX's endpoint, if there is one.
    virtual uintptr_t handle() const noexcept = 0;
};
