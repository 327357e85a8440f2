// SPDX-License-Identifier: BSD-3-Clause
// Which parts of a message are lent instead of sent: those in shared memory, and those copied there.
//
// UCX's posix moves a large part through fragments, each copied twice, and needs both processes on a core all the time.
// One copy into a block of the pool that is then lent took a tenth of the time on a loaded machine, and about as long
// on an idle one. Such a part is staged: it is copied when it is its turn to be sent, so that copies in memory are
// limited by the window.
#include "connection/channel.hpp"

nb::object Channel::lend(PyObject *owner, nb::handle buffer) {
    Request *r;
    nb::object request = make_request(worker, owner, "lend", 0, &r);
    Buffer part;
    part.acquire(buffer, false, "lend", link->carrier->memory_types);
    r->nbytes = part.nbytes();
    r->parts = std::make_unique<Parts>();
    r->parts->bare = true;
    r->parts->buffers.push_back(std::move(part));
    begin(r, channel_operation);
    if (closed || closing) raise("ClosedError", "lend to " + name + ": the connection was closed by this side", "lend");
    find_lendable(r, true, false);
    return queue_or_post(std::move(request), r);
}

// With `lend`, pin buffers in the pool, or borrowed ones, that can be handed over; with `stage`, mark other large ones.
// The owner of a bare loan has promised not to change it; of the others, the receiver gets the present contents.
// All other buffers are sent by UCX.
void Channel::find_lendable(Request *r, bool lend, bool stage) noexcept {
    if (!link->socket || fault) return;
    FdSocket::sweep();
    if (link->socket->wants_reading() && !link->read_socket())
        worker->defer([w = worker, gone = link->shared_from_this()] { w->end_after_arrivals(*gone); });
    Parts &parts = *r->parts;
    size_t header_nbytes = sizeof(Wire) + 8 * parts.buffers.size();
    for (size_t i = 0; i < parts.buffers.size(); ++i) {
        const size_t nbytes = parts.buffers[i].nbytes();
        if (nbytes < Pool::page_threshold) continue;
        if (header_nbytes + sizeof(Lent) > max_header_nbytes) return;
        Pin pin;
        if (lend) pin = Pool::pin(parts.buffers[i].data(), nbytes, !parts.bare);
        if (lend && !pin) pin = Loan::pin(parts.buffers[i].data(), nbytes);
        const bool stages = !pin && stage && nbytes >= stage_nbytes && nbytes <= stage_limit;
        if (!pin && !stages) continue;
        if (pin) {
            auto handed = link->socket->hand_over(pin);
            if (handed != FdSocket::Handed::sent && handed != FdSocket::Handed::taken) continue;
        }
        parts.pins.resize(parts.buffers.size());
        parts.pins[i] = std::move(pin);
        header_nbytes += sizeof(Lent);
        r->nbytes -= nbytes;
        if (stages) {
            parts.staged.resize(parts.buffers.size());
            parts.staged[i] = true;
            parts.staged_nbytes += nbytes;
        } else {
            parts.lent_nbytes += nbytes;
        }
    }
}

// Whether the other side has every segment that `r` would lend from. Segments that it refused are sent by UCX, as are
// parts for which there is no memory to stage them.
bool Channel::may_lend(Request *r) noexcept {
    if (!r->parts) return true;
    Parts &parts = *r->parts;
    for (size_t i = 0; i < parts.pins.size(); ++i) {
        const bool staged = parts.is_staged(i);
        if (staged && !parts.pins[i]) {
            if (!may_send(charge_of(*r))) return false;
            parts.pins[i] = Pool::copy(parts.buffers[i].data(), parts.buffers[i].nbytes());
        }
        if (!staged && !parts.pins[i]) continue;
        auto handed = parts.pins[i] ? link->socket->hand_over(parts.pins[i]) : FdSocket::Handed::no;
        if (handed == FdSocket::Handed::sent) return false;
        if (handed == FdSocket::Handed::taken) continue;
        parts.pins[i] = Pin();
        const size_t nbytes = parts.buffers[i].nbytes();
        (staged ? parts.staged_nbytes : parts.lent_nbytes) -= nbytes;
        if (staged) parts.staged[i] = false;
        r->nbytes += nbytes;
    }
    return true;
}
