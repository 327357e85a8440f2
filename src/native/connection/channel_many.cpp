// SPDX-License-Identifier: BSD-3-Clause
// Many messages sent with one request. Each is a message like any other, with its own number and charge.
//
// The carrier gets a few of them at a time: it keeps a record of each one without room at the other side, which costs
// more than a small message. Those that fit into a ring are written at once, and shown to the reader in groups.
#include <deque>
#include <vector>

#include "connection/channel.hpp"

namespace {

constexpr size_t most_under_way = 64;

}  // namespace

/// Owns the requests that stand for each message while the carrier uses them.
struct Sending {
    Request *request;
    std::deque<Request> items;    // no Python objects: they belong to `request`
    std::vector<Request *> idle;  // unused ones of `items`
    size_t posted = 0, under_way = 0;
    bool posting = false;
    ucs_status_t status = UCS_OK;  // of the first failure
};

namespace {

Sending *sending_of(const Request &r) noexcept {
    return static_cast<Sending *>(r.taken);
}

void item_ended(Request &item, ucs_status_t status) noexcept {
    Sending *many = sending_of(item);
    if (many->status == UCS_OK) many->status = status;
    item.ended = true;
    many->idle.push_back(&item);
    --many->under_way;
    if (!many->posting) item.channel->sent_one(many->request);
}

constexpr Operation item_operation{.ended = item_ended};

void drop_sending(Request &r) noexcept {
    delete sending_of(r);
}

// Messages in flight continue; the rest is never sent.
bool withdraw_unsent(Request &r) noexcept {
    return r.channel->withdraw(&r) && !r.ucx;
}

Request *new_item(Sending &many) noexcept {
    const Request &r = *many.request;
    Request &item = many.items.emplace_back();
    item.self = r.self;
    item.worker = r.worker;
    item.engine = r.engine;
    item.channel = r.channel;
    item.op = r.op;
    item.operation = &item_operation;
    item.taken = &many;
    item.held = true;  // by `many`: its end is reported to item_ended, and nothing is counted without the GIL
    return &item;
}

}  // namespace

constexpr Operation send_many_operation{.withdraw = withdraw_unsent, .drop = drop_sending, .where = channel_name};

nb::object Channel::send_many(PyObject *owner, nb::handle buffers) {
    Request *r;
    nb::object request = make_request(worker, owner, "send_many", 0, &r);
    r->parts = std::make_unique<Parts>();
    r->parts->acquire(buffers, false, "send_many", link->carrier->memory_types);
    for (const Buffer &each : r->parts->buffers) r->nbytes += each.nbytes();
    r->taken = new Sending{r};
    // Only now: exporting a buffer may have run Python code.
    begin(r, send_many_operation);
    if (closed || closing)
        raise("ClosedError", "send_many to " + name + ": the connection was closed by this side", "send_many");
    return queue_or_post(std::move(request), r);
}

// Post as many as permitted now. True: all are posted.
bool Channel::post_many(Request *r) noexcept {
    Sending &many = *sending_of(*r);
    const std::vector<Buffer> &buffers = r->parts->buffers;
    many.posting = true;
    Carrier &carrier = *link->carrier;
    // Each message without room costs the carrier a record: allow only one of these.
    while (many.posted < buffers.size() && many.under_way < most_under_way && many.status == UCS_OK &&
           !(many.under_way && carrier.is_full())) {
        const Buffer &buffer = buffers[many.posted];
        const size_t nbytes = buffer.nbytes(), charge = charge_of(nbytes);
        if (!may_send(charge)) break;
        const Wire wire{Wire::magic_value, data_kind, 0, remote, next_sequence++, consumed};
        reported = consumed;
        sent_charge += charge;
        if (carrier.write(&wire, sizeof wire, buffer.data(), nbytes, true)) {
            ++many.posted;
            continue;
        }
        Request *item = many.idle.empty() ? new_item(many) : many.idle.back();
        if (!many.idle.empty()) many.idle.pop_back();
        item->ended = false;
        item->nbytes = nbytes;
        ++many.posted;
        ++many.under_way;
        const iovec part{buffer.data(), nbytes};
        carrier.post(item, &wire, sizeof wire, &part, 1, buffer.memory_type, nbytes >= rendezvous_nbytes);
    }
    carrier.show();
    many.posting = false;
    r->ucx = many.under_way ? &many : nullptr;
    if (many.posted < buffers.size() && many.status == UCS_OK) return false;
    if (many.under_way)
        r->hold();
    else if (r->held)
        r->end(many.status);
    else
        r->complete_now(many.status);
    return true;
}

void Channel::sent_one(Request *r) noexcept {
    const Sending &many = *sending_of(*r);
    const bool left_over = many.posted < r->parts->buffers.size() && many.status == UCS_OK;
    const bool goes_on = left_over && !r->fault && r->state != Request::State::canceled;
    if (!many.under_way) r->ucx = nullptr;
    if (goes_on) return resume();
    if (!many.under_way) r->end(many.status);
}
