// SPDX-License-Identifier: BSD-3-Clause
// One incoming message of a connection: an unanswered rendezvous, or data in blocks of the pool.
#pragma once

#include <vector>

#include "connection/carrier.hpp"
#include "shared/pool.hpp"
#include "shared/small_block.hpp"

/// Owns its memory and, until it is answered or refused, the carrier's descriptor.
struct Message {
    uint64_t sequence = 0;
    size_t nbytes = 0;
    size_t charge = 0;            // what it cost its sender in credit; 0 once returned
    SmallBlock *small = nullptr;  // the whole message, instead of `segments`
    std::vector<size_t> sizes;    // of the segments; those not lent add up to nbytes. Empty: one segment
    std::vector<Block> segments;
    std::vector<bool> lent;    // segments that were lent instead of sent; empty: none
    std::vector<bool> staged;  // of the lent ones, those that are copies
    bool bare = false;         // the first segment is to be ignored
    bool skipped = false;      // stands for a placed message in the order; there is nothing to take
    uint64_t place = 0;        // of a placed message
    Carrier *carrier = nullptr;
    void *descriptor = nullptr;    // a rendezvous not yet answered
    std::vector<iovec> parts;      // destination of the data
    Landing landing;               // of a carrier over UCX
    Request *into = nullptr;       // while in flight: the request whose buffer receives the data
    std::unique_ptr<Buffer> kept;  // the buffer that it landed in, if nowhere else; dropped where Python may run
    bool ready = false, on_its_way = false;
    bool timed = false;  // its channel measures the time until it has landed
    ucs_status_t status = UCS_OK;
    Channel *channel = nullptr;                       // null: no channel is left to take it
    void (*arrived)(Channel *, Message *) = nullptr;  // called in progress, no Python

    Message() = default;
    Message(const Message &) = delete;
    Message &operator=(const Message &) = delete;
    ~Message() {
        refuse();
        SmallBlock::release(small);
    }

    bool is_lent(size_t segment) const noexcept { return !lent.empty() && lent[segment]; }
    /// Allocate a block for each segment that was not lent; false if out of memory.
    bool allocate() noexcept;
    /// Copy an eager message out of the carrier's buffer.
    bool copy(const void *data) noexcept;
    /// Answer the rendezvous. `arrived` follows, perhaps before this returns.
    void answer() noexcept;
    /// The same, into the buffer of `request`, which must be large enough.
    void answer_into(Request *request) noexcept;
    /// The rendezvous has ended: `arrived` follows, or the message is deleted if no channel is left to take it.
    void end(ucs_status_t status) noexcept;
    /// Drop it; its sender sees success.
    void refuse() noexcept;
    /// Return a memoryview, or a tuple of them if there are several segments.
    nb::object view();
    /// Undo `view`; false, with nothing changed, if anything else shows a part of the result.
    bool reclaim(PyObject *&views) noexcept;
    /// The size of all segments, including lent ones.
    size_t total_nbytes() const noexcept;
    /// Copy all segments to contiguous memory.
    void gather(uint8_t *to) const noexcept;
};
