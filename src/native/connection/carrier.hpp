// SPDX-License-Identifier: BSD-3-Clause
// The carrier of a link's messages: the exchangeable part of a connection. A link has one, its channels post through
// it, and it calls `receive_message` (channel.hpp) for what arrives. Nothing above it knows UCX.
#pragma once

#include <sys/uio.h>

#include "progress/worker.hpp"

struct Message;

/// How a message arrives: complete; in pieces that are already in flight, so that it needs memory now; or announced,
/// until the receiver answers.
enum class Way : uint8_t { whole, streamed, rendezvous };

struct Carrier {
    std::shared_ptr<Engine> engine;  // what must be progressed for it; null once closed
    uint64_t memory_types;           // bit map of ucs_memory_type_t that can be sent from and received into

    explicit Carrier(uint64_t types) noexcept : memory_types(types) {}
    Carrier(const Carrier &) = delete;
    virtual ~Carrier() = default;

    // ---- making the link ----
    /// Passed to the other side's `join`.
    virtual std::string address() const = 0;
    /// Send over `socket` the descriptor that belongs to the address, if any; before the other side gets the address.
    virtual void offer(int socket) = 0;
    /// The descriptor that is offered, owned by the carrier; or -1.
    virtual int memory() const noexcept = 0;
    /// `memory` is the other side's offer, owned by the caller; -1: it arrives over `socket`.
    virtual void join(nb::bytes address, int socket, int memory) = 0;

    // ---- messages; no Python ----
    /// Post a message for `request`, which completes with it. The header is copied at once; `parts` must stay valid
    /// until then. A rendezvous is announced, and its data is sent when the other side answers.
    virtual void post(Request *request, const void *header, size_t header_nbytes, const iovec *parts, size_t count,
                      ucs_memory_type_t memory_type, bool rendezvous) noexcept = 0;
    /// Send a small message of host memory at once, without a request. False: use `post`. With `more`, another message
    /// or `show` follows at once; until then the other side may not see this one.
    virtual bool write(const void * /*header*/, size_t /*header_nbytes*/, const void * /*data*/, size_t /*nbytes*/,
                       bool /*more*/) noexcept {
        return false;
    }
    virtual void show() noexcept {}
    /// Posted messages are waiting for room.
    virtual bool is_full() const noexcept { return false; }
    /// Post a header alone. If it fails, the link fails.
    virtual void post_header(const void *header, size_t nbytes) noexcept = 0;
    /// Answer a rendezvous: its data goes to `message->parts`. `message->end` follows, perhaps before this returns.
    virtual void answer(Message *message) noexcept = 0;
    /// The same into the buffer of `request`; `request->channel->landed` follows.
    virtual void answer_into(Request *request, void *descriptor) noexcept = 0;
    /// Drop a rendezvous; its sender sees success.
    virtual void refuse(void *descriptor) noexcept = 0;

    /// The end of what was posted so far, apart from what waits for room or for an answer.
    virtual uint64_t posted() const noexcept { return 0; }
    /// Whether everything before `end` is in the other side's memory, and nothing posted waits for room. Where only the
    /// other side's answer can tell, it never is. False: the link's users are resumed once it may be.
    virtual bool has_read(uint64_t /*end*/) noexcept { return false; }

    /// The socket became readable: look for new messages.
    virtual void attend() noexcept = 0;

    // ---- ending ----
    /// Whether posted headers still wait for room at the other side.
    virtual bool has_headers_left() const noexcept = 0;
    /// Try until `deadline_ns` to send everything posted.
    virtual void flush(int64_t deadline_ns) noexcept = 0;
    /// Close at once; operations in flight end or are abandoned.
    virtual void close() noexcept = 0;

    // ---- explaining ----
    virtual nb::list transports() const = 0;
    virtual std::string print_info() const = 0;
    virtual nb::object evaluate_perf(size_t nbytes) const = 0;
    /// UCX's endpoint, if any.
    virtual uintptr_t handle() const noexcept = 0;
};
