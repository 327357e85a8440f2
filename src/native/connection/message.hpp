// SPDX-License-Identifier: BSD-3-Clause
// One message of a connection on its way in: a rendezvous that waits for its answer, or data in blocks of the pool.
#pragma once

#include <vector>

#include "connection/carrier.hpp"
#include "shared/pool.hpp"
#include "shared/small_block.hpp"

/// Owns its memory and, until it is answered or refused, the carrier's descriptor.
struct Message {
    uint64_t sequence = 0;
    size_t nbytes = 0;
    size_t charge = 0;            // what it cost its sender in credit; 0 once that was returned
    SmallBlock *small = nullptr;  // all of it, in place of `segments`
    std::vector<size_t> sizes;    // of the segments; those not lent add up to nbytes. Empty: it has one
    std::vector<Block> segments;
    std::vector<bool> lent;    // segments that are here without being sent; empty: none
    std::vector<bool> staged;  // and of these, copies that were made to be lent
    bool bare = false;         // the first segment is of no interest
    bool skipped = false;      // stands where a placed message came; there is nothing to take
    uint64_t place = 0;        // of a placed message
    Carrier *carrier = nullptr;
    void *descriptor = nullptr;    // a rendezvous not yet answered
    std::vector<iovec> parts;      // where its data goes
    Landing landing;               // of a carrier over UCX
    Request *into = nullptr;       // its data goes into the buffer of this one, as long as it is on its way
    std::unique_ptr<Buffer> kept;  // it has landed there, and lies nowhere else; dropped where Python may run
    bool ready = false, on_its_way = false;
    bool timed = false;  // its channel counts the time until it has landed
    ucs_status_t status = UCS_OK;
    Channel *channel = nullptr;                       // null: nobody is left to take it
    void (*arrived)(Channel *, Message *) = nullptr;  // called in progress, no Python

    Message() = default;
    Message(const Message &) = delete;
    Message &operator=(const Message &) = delete;
    ~Message() {
        refuse();
        SmallBlock::release(small);
    }

    bool is_lent(size_t segment) const noexcept { return !lent.empty() && lent[segment]; }
    /// Allocate one block for each segment that was not lent; false when there is no memory.
    bool allocate() noexcept;
    /// Copy an eager message out of the carrier's buffer.
    bool copy(const void *data) noexcept;
    /// Answer the rendezvous. `arrived` follows, perhaps before this returns.
    void answer() noexcept;
    /// The same into the buffer of `request`, which has room for all of it.
    void answer_into(Request *request) noexcept;
    /// The rendezvous is over: `arrived` follows, or the message is deleted if nobody is left to take it.
    void end(ucs_status_t status) noexcept;
    /// Its sender sees success.
    void refuse() noexcept;
    /// One memoryview, or a tuple of them when there are more segments than one.
    nb::object view();
    /// Undo that; false if somebody else has some of it.
    bool reclaim(PyObject *&views) noexcept;
    /// Of all segments, lent ones too.
    size_t total_nbytes() const noexcept;
    /// Copy all segments to where they follow each other.
    void gather(uint8_t *to) const noexcept;
};
