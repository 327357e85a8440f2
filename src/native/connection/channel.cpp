// SPDX-License-Identifier: BSD-3-Clause
// How a connection sends and how it ends; how it receives is in inbox.cpp.
#include "connection/channel.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <cstring>

#include "connection/wire.hpp"
#include "progress/worker.hpp"
#include "ucp/forks.hpp"

namespace {

void sent(void *request, ucs_status_t status, void *user_data) {
    auto *r = static_cast<Request *>(user_data);
    r->ucx = nullptr;
    ucp.request_free(request);
    r->end(status);
}

// Control messages have neither buffer nor waiter; one that fails fails with its link.
void told(void *request, ucs_status_t, void *) {
    ucp.request_free(request);
}

}  // namespace

// ---- link -------------------------------------------------------------------------------------------------

void Link::lose(const std::string &reason) noexcept {
    if (lost) return;
    lost = true;
    auto why = make_fault("PeerLostError", name + ": " + reason);
    for (Channel *channel : std::unordered_set<Channel *>(channels)) channel->lose(why);
    release();
}

bool Link::hear() noexcept {
    bool there = side->read();
    if (side->answered())
        for (Channel *channel : std::unordered_set<Channel *>(channels)) channel->post_queue();
    return there;
}

void Link::release() noexcept {
    if (fd >= 0) {
        epoll_ctl(worker->epoll_fd, EPOLL_CTL_DEL, fd, nullptr);
        if (side) {
            side->retire();
            side.reset();
        } else {
            keep_in_child(fd);
            ::close(fd);
        }
        fd = -1;
    }
    if (!engine) return;
    if (endpoint) engine->force_close(endpoint);
    endpoint = nullptr;
    // What the dead peer left under way ends within some turns, or never: then it ends with the engine.
    if (engine != worker->own) engine->finish(now_ns() + 20'000'000);
    engine.reset();
}

// ---- sending ----------------------------------------------------------------------------------------------

static size_t charge_of(const Request *r) noexcept {
    const Parts *parts = r->parts.get();
    return parts ? charge_of(r->nbytes, parts->lent_nbytes, parts->staged_nbytes) : charge_of(r->nbytes);
}

bool Channel::may_send(const Request *r) const noexcept {
    const size_t charge = charge_of(r), unread = sent_charge - credited;
    // Of what was read, less than a quarter of the window may be unreported for as long as the peer has nothing to
    // send: a message that does not fit beside that would wait for ever.
    return unread < window / 4 || unread + charge <= window;
}

nb::object Channel::send(PyObject *owner, nb::handle first, nb::handle rest, bool lend, bool stage) {
    Request *r;
    nb::object request = make_request(worker, owner, "send", 0, &r);
    size_t large = rest.is_none() ? 0 : nb::len(rest);
    r->buffer.acquire(first, false, "send", large ? Buffer::host_only : worker->memory_types);
    r->nbytes = r->buffer.nbytes();
    if (large > max_segments)
        raise("InvalidParamError", "send: more than " + std::to_string(max_segments) + " large segments", "send");
    if (large) {
        r->parts = std::make_unique<Parts>();
        r->parts->buffers.reserve(large);
        for (nb::handle item : rest) {
            Buffer part;
            part.acquire(item, false, "send");
            r->nbytes += part.nbytes();
            r->parts->buffers.push_back(std::move(part));
        }
    }
    // Only now: Python code may have run for a buffer.
    r->channel = this;
    r->engine = link->engine.get();
    if (closed || closing) raise("ClosedError", "send to " + name + ": the connection was closed by this side", "send");
    if (large && (lend || stage)) find_lendable(r, lend, stage);
    return queue_or_post(std::move(request), r);
}

nb::object Channel::queue_or_post(nb::object request, Request *r) {
    if (fault) {
        r->fault = fault;
        r->complete_now(UCS_OK);
        return request;
    }
    if (queue.empty() && may_lend(r) && may_send(r)) {
        post(r);
    } else {
        r->hold();
        queue.push_back(r);
    }
    return request;
}

void Channel::post(Request *r) noexcept {
    Parts *parts = r->parts.get();
    const size_t large = parts ? parts->buffers.size() : 0;
    uint64_t header[max_header_nbytes / 8];
    Wire wire{Wire::magic_value, data_kind, uint16_t(large), remote, next_sequence++, consumed};
    if (parts && parts->bare) wire.kind = bare_kind;
    if (parts && parts->placed) wire.kind = placed_kind;
    std::memcpy(header, &wire, sizeof wire);
    uint64_t *end = header + sizeof(Wire) / 8 + large;
    if (wire.kind == placed_kind) *end++ = r->operand;
    const size_t charge = charge_of(r);
    if (large && r->buffer.nbytes()) parts->iov.push_back({r->buffer.data(), r->buffer.nbytes()});
    for (size_t i = 0; i < large; ++i) {
        Buffer &buffer = parts->buffers[i];
        uint64_t &size = header[sizeof(Wire) / 8 + i];
        size = buffer.nbytes();
        if (!parts->pins.empty() && parts->pins[i]) {
            const bool staged = parts->is_staged(i);
            size |= lent_bit | (staged ? staged_bit : 0);
            Lent lent = link->side->lend(std::move(parts->pins[i]));
            std::memcpy(end, &lent, sizeof lent);
            end += sizeof lent / 8;
            if (staged) continue;
            lent_sent_nbytes += buffer.nbytes();
            Pool::lent_total += buffer.nbytes();
        } else if (size) {
            parts->iov.push_back({buffer.data(), buffer.nbytes()});
        }
    }
    reported = consumed;
    sent_charge += charge;
    worker->heat(link->engine.get());

    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                         UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.flags = UCP_AM_SEND_FLAG_COPY_HEADER;
    if (r->nbytes >= rendezvous_nbytes || (parts && parts->placed)) param.flags |= UCP_AM_SEND_FLAG_RNDV;
    param.cb.send = sent;
    param.user_data = r;
    // Device memory comes alone: as the first buffer, placed or not, or lent.
    param.memory_type = parts && parts->bare ? parts->buffers[0].memory_type : r->buffer.memory_type;
    param.datatype = ucp_dt_make_contig(1);
    if (large) param.datatype = UCP_DATATYPE_IOV;
    const void *buffer = large ? static_cast<void *>(parts->iov.data()) : r->buffer.data();
    size_t count = large ? parts->iov.size() : r->buffer.nbytes();
    if (large && parts->iov.size() == 1) {
        buffer = parts->iov[0].buffer;
        count = parts->iov[0].length;
        param.datatype = ucp_dt_make_contig(1);
    } else if (large && parts->iov.empty()) {
        param.datatype = ucp_dt_make_contig(1);
    }
    void *request =
        ucp.am_send_nbx(link->endpoint, channel_am_id, header, size_t(end - header) * 8, buffer, count, &param);
    if (UCS_PTR_IS_PTR(request)) {
        r->ucx = request;
        r->hold();
    } else if (r->held) {
        r->end(UCS_PTR_STATUS(request));
    } else {
        r->complete_now(UCS_PTR_STATUS(request));
    }
}

void Channel::post_queue() noexcept {
    while (!queue.empty() && may_lend(queue.front()) && may_send(queue.front())) {
        Request *r = queue.front();
        queue.pop_front();
        post(r);
    }
    if (closing && queue.empty() && !goodbye_sent && !closed) {
        goodbye_sent = true;
        tell(goodbye_kind, next_sequence);
    }
}

void Channel::tell(uint16_t kind, uint64_t number) noexcept {
    if (link->lost || !link->endpoint) return;
    worker->heat(link->engine.get());
    Wire wire{Wire::magic_value, kind, 0, remote, number, consumed};
    reported = consumed;
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | UCP_AM_SEND_FLAG_EAGER;
    param.cb.send = told;
    ucp.am_send_nbx(link->endpoint, channel_am_id, &wire, sizeof wire, nullptr, 0, &param);
}

// ---- ending -----------------------------------------------------------------------------------------------

void Channel::acknowledge() noexcept {
    if (!ended || acknowledged || !(closing || received >= remote_count)) return;
    acknowledged = true;
    tell(acknowledge_kind, 0);
}

nb::object Channel::close(PyObject *owner) {
    Request *r;
    nb::object request = make_request(worker, owner, "close", 0, &r);
    r->channel = this;
    r->engine = link->engine.get();
    if (closed || close_request) {
        if (close_request) raise("ClosedError", "close of " + name + ": already being closed", "close");
        r->complete_now(UCS_OK);
        return request;
    }
    closing = true;
    auto why = make_fault("ClosedError", name + ": the connection was closed by this side");
    for (Request *waiter : waiters) waiter->fail(why), waiter->end(UCS_OK);
    waiters.clear();
    end_destinations(why);
    if (lost || ended) {
        if (lost) r->fault = fault;
        acknowledge();
        finish_close(nullptr);
        r->complete_now(UCS_OK);
        return request;
    }
    close_request = r;
    r->hold();
    post_queue();
    return request;
}

// The last word of a close: `why` if the peer was lost before it acknowledged.
void Channel::finish_close(const std::shared_ptr<const Fault> &why) noexcept {
    Request *r = close_request;
    close_request = nullptr;
    auto self = shared_from_this();
    closed = true;
    if (!fault || ended) fault = make_fault("ClosedError", name + ": the connection was closed by this side");
    clear();
    unregister();
    if (r) {
        if (why) r->fail(why);
        r->end(UCS_OK);
    }
}

void Channel::abort(const char *error, const std::string &reason, bool tell_peer) noexcept {
    if (closed) return;
    if (tell_peer && !lost && !ended) tell(abort_kind, 0);
    fault = make_fault(error, name + ": " + reason);
    closed = closing = true;
    worker->fail_channel(this, fault);
    auto self = shared_from_this();
    clear();
    unregister();
    Request *r = close_request;
    close_request = nullptr;
    if (r) r->fail(fault), r->end(UCS_OK);
}

void Channel::lose(const std::shared_ptr<const Fault> &why) noexcept {
    if (lost || closed) return;
    lost = true;
    if (!fault) fault = why;
    for (Message *m : held) m->drop();
    held.clear();
    placed.clear();
    for (Request *r : queue) r->fail(why), r->end(UCS_OK);
    queue.clear();
    worker->fail_channel(this, fault);
    end_waiters();
    if (closing) finish_close(why);
}

void Channel::clear() noexcept {
    for (auto *list : {&waiters, &queue}) {
        for (Request *r : *list) r->fail(fault), r->end(UCS_OK);
        list->clear();
    }
    end_destinations(fault);
    placed.clear();
    held.clear();
    for (Message *m : inbox) {
        if (!m) continue;
        if (m->landing)
            m->arrived = nullptr;  // deleted when UCX lets go of its blocks
        else
            delete m;
    }
    inbox.clear();
    for (Message *m : returned) delete m;
    returned.clear();
}

void Channel::unregister() noexcept {
    link->channels.erase(this);
    worker->channels.erase(local);
}

Channel::~Channel() {
    clear();
}

ChannelObject::~ChannelObject() {
    if (!channel || in_forked_child) return;
    auto *w = nb::inst_ptr<Worker>(worker);
    w->bury([core = std::move(channel)] {
        core->abort("ClosedError", "the connection was dropped without a close", true);
    });
}
