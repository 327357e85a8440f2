// SPDX-License-Identifier: BSD-3-Clause
// What weft.Peer stands on: the methods that every message goes through, without a Python frame between.
//
// The channel is a native one, or, over TLS, a Python object with the same methods.
#include "connection/channel.hpp"
#include "progress/fast_method.hpp"

namespace {

/// Owns the channel.
struct PeerObject {
    nb::object channel;
    ChannelObject *native;  // the same; null for one over TLS

    explicit PeerObject(nb::object c)
        : channel(std::move(c)),
          native(nb::isinstance<ChannelObject>(channel) ? nb::inst_ptr<ChannelObject>(channel) : nullptr) {}
};

PyType_Slot peer_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(traverse<PeerObject, &PeerObject::channel>)},
                            {0, nullptr}};

Channel &receiver(const ChannelObject &object, const char *op) {
    Channel &channel = usable(object, op);
    if (!channel.worker->deferred.empty()) [[unlikely]]
        channel.worker->drain();
    return channel;
}

/// The channel object of a call, if it is a native one: `self` is that, or a peer.
struct Target {
    PyObject *object;
    ChannelObject *native;
};

Target of_channel(PyObject *self) {
    return {self, nb::inst_ptr<ChannelObject>(self)};
}

// A subclass may have forgotten to call __init__: nanobind's method says so.
Target of_peer(PyObject *self) {
    if (!nb::inst_ready(self)) [[unlikely]]
        return {};
    const auto *peer = nb::inst_ptr<PeerObject>(self);
    return {peer->channel.ptr(), peer->native};
}

template <Target (*of)(PyObject *)>
PyObject *fast_send(const Arguments &a) {
    const Target to = of(a.self);
    if (!to.native || a.count != 1) return nullptr;
    return usable(*to.native, "send").send(to.object, a.values[0], nb::none(), false, false).release().ptr();
}

template <Target (*of)(PyObject *)>
PyObject *fast_lend(const Arguments &a) {
    const Target to = of(a.self);
    if (!to.native || a.count != 1) return nullptr;
    return usable(*to.native, "lend").lend(to.object, a.values[0]).release().ptr();
}

template <Target (*of)(PyObject *)>
PyObject *fast_recv(const Arguments &a) {
    const Target from = of(a.self);
    if (!from.native || a.count) return nullptr;
    return receiver(*from.native, "recv").recv(from.object).release().ptr();
}

template <Target (*of)(PyObject *)>
PyObject *fast_recv_into(const Arguments &a) {
    const Target from = of(a.self);
    if (!from.native || a.count != 1) return nullptr;
    return receiver(*from.native, "recv_into").recv_into(from.object, a.values[0]).release().ptr();
}

constexpr const char *send_doc = R"(Send one message.

Parameters
----------
buffer : contiguous buffer, DLPack tensor or CUDA array, any shape
    Locked until the request completes; then it may be changed. Device memory is sent from where it lies, once
    its producer's stream is done; the peer receives it in host memory. See :meth:`Endpoint.tag_send`.

Returns
-------
Request
    Done when `buffer` is yours again, which does not mean that the peer has the message. It stays
    pending while 4 MiB of small messages, or 8,000 large ones, lie unread at the peer.

Raises
------
NotContiguousError
    Nothing was sent.
InvalidParamError
    `buffer` holds Python objects: see :meth:`send_obj`. Nothing was sent.
UnsupportedError
    `buffer` lies in device memory that UCX cannot reach here. Nothing was sent.
ClosedError
    This side has closed the connection.
PeerLostError
    From the request: the peer is gone; PeerClosedError if it said goodbye.

Cancelling a message that still waits for its turn withdraws it; one under way is sent.)";

constexpr const char *lend_doc =
    R"(Send one message without copying it, if that can be done: the peer reads the pages that you wrote.

It can if the peer is another process on this host and `buffer` lies in weft's pool: memory that was
received, ``numpy`` arrays made under :func:`weft.arrays_in_pool`. What another process of this host lent to
this one is lent on, unless this process has written to it: the peer reads the first one's pages, also after
the end of this process. Else this is :meth:`send`.

Parameters
----------
buffer : contiguous buffer, DLPack tensor or CUDA array, any shape
    Must not be changed from here on, not even after the request is complete: the peer may see the change, or
    not, page by page. It may be dropped: its memory is not used again before the peer has let go of it.

Returns
-------
Request
    Done when the message is on its way. What the peer receives is writable, and what it writes is its own.

Raises
------
NotContiguousError, InvalidParamError, UnsupportedError, ClosedError, PeerLostError
    As :meth:`send`.)";

constexpr const char *recv_doc = R"(Receive the next message, in the order in which they were sent.

Returns
-------
Request
    Wait or await it for a writable memoryview, aligned to 64 B, which lives as long as anything refers to it. From
    4 KiB up it is memory of weft's pool.

Raises
------
ClosedError
    This side has closed the connection.
PeerLostError
    From the request, once everything that arrived has been received; PeerClosedError if the peer
    said goodbye.

Cancelling withdraws the waiter, never a message: the next ``recv`` gets it.)";

constexpr const char *recv_into_doc = R"(Receive the next message into `buffer`.

Parameters
----------
buffer : writable contiguous buffer of the host, any shape
    Filled from its beginning, in the order of its memory; ``buffer.nbytes`` bytes is the most that can arrive. Locked
    until the request has given its result, or was cancelled and the peer has done with it.

Returns
-------
Request
    Wait or await it for the number of bytes that arrived. What was sent as several buffers arrives as one.

Raises
------
ReadOnlyError, NotContiguousError
    `buffer` cannot be filled as it is. No message was taken.
TruncatedError
    From the request: the next message is longer than `buffer`. It stays, and the next receive gets it.
ClosedError, PeerLostError
    As :meth:`recv`.

A message of 256 KiB and more that is not lent lands in `buffer` without a copy where this is called before it arrives.
Cancelling withdraws the waiter, never a message: the next receive gets it. `buffer` may have been written to.)";

constexpr const char *send_many_doc = R"(Send each of `buffers` as a message, in order, with one request for all.

Parameters
----------
buffers : sequence of contiguous buffers
    Each is what :meth:`send` takes. Locked until the request completes.

Returns
-------
Request
    Done when all buffers are yours again. As many are under way at a time as :meth:`send` could have sent: it stays
    pending while too much lies unread at the peer.

Raises
------
NotContiguousError, InvalidParamError, UnsupportedError, ClosedError
    As :meth:`send`. Nothing was sent.
PeerLostError
    From the request: the peer is gone, and may have received a part of them.

Cancelling withdraws those that still wait for their turn; the others are sent.)";

constexpr const char *recv_many_doc = R"(Receive the next `count` messages, with one request for all.

Parameters
----------
count : int, 0 <= count

Returns
-------
Request
    Wait or await it for a list of what :meth:`recv` gives, in the order in which they were sent.

Raises
------
ClosedError
    This side has closed the connection.
PeerLostError
    From the request: the connection ended before there were `count` of them; PeerClosedError if the peer said
    goodbye. Those that arrived are there for the next receive.

Cancelling loses no message: the next receive gets the first of them.)";

}  // namespace

void define_peer(nb::module_ &m) {
    nb::handle channel = nb::type<ChannelObject>();
    Fast<fast_send<of_channel>>::install(channel, "send", "($self, first, rest=None, lend=False, stage=False)", "");
    Fast<fast_lend<of_channel>>::install(channel, "lend", "($self, buffer)", "");
    Fast<fast_recv<of_channel>>::install(channel, "recv", "($self)", "");
    Fast<fast_recv_into<of_channel>>::install(channel, "recv_into", "($self, buffer)", "");

    nb::class_<PeerObject> peer(m, "Peer", nb::type_slots(peer_slots),
                                "The messages of :class:`weft.Peer`, over the channel of its connection.");
    peer.def(nb::init<nb::object>(), nb::arg("channel"))
        .def_prop_ro(
            "_channel", [](PeerObject &p) { return p.channel; }, nb::sig("def _channel(self) -> typing.Any"))
        .def(
            "send", [](PeerObject &p, nb::handle buffer) { return p.channel.attr("send")(buffer); }, nb::arg("buffer"),
            nb::sig("def send(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]"), send_doc)
        .def(
            "lend", [](PeerObject &p, nb::handle buffer) { return p.channel.attr("lend")(buffer); }, nb::arg("buffer"),
            nb::sig("def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]"), lend_doc)
        .def(
            "recv", [](PeerObject &p) { return p.channel.attr("recv")(); },
            nb::sig("def recv(self) -> weft.typing.Request[memoryview]"), recv_doc)
        .def(
            "recv_into", [](PeerObject &p, nb::handle buffer) { return p.channel.attr("recv_into")(buffer); },
            nb::arg("buffer"),
            nb::sig("def recv_into(self, buffer: typing_extensions.Buffer) -> weft.typing.Request[int]"), recv_into_doc)
        .def(
            "send_many", [](PeerObject &p, nb::handle buffers) { return p.channel.attr("send_many")(buffers); },
            nb::arg("buffers"),
            nb::sig("def send_many(self, buffers: collections.abc.Sequence[weft.typing.BufferLike]) -> "
                    "weft.typing.Request[None]"),
            send_many_doc)
        .def(
            "recv_many", [](PeerObject &p, size_t count) { return p.channel.attr("recv_many")(count); },
            nb::arg("count"), nb::sig("def recv_many(self, count: int) -> weft.typing.Request[list[memoryview]]"),
            recv_many_doc);
    Fast<fast_send<of_peer>>::install(peer, "send", "($self, buffer)", send_doc);
    Fast<fast_lend<of_peer>>::install(peer, "lend", "($self, buffer)", lend_doc);
    Fast<fast_recv<of_peer>>::install(peer, "recv", "($self)", recv_doc);
    Fast<fast_recv_into<of_peer>>::install(peer, "recv_into", "($self, buffer)", recv_into_doc);
}
