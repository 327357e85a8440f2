// SPDX-License-Identifier: BSD-3-Clause
// The base of weft.Peer: the methods that every message goes through, without a Python frame in between.
//
// The channel is a native one, or, over TLS, a Python object with the same methods.
#include "connection/channel.hpp"
#include "progress/fast_method.hpp"

namespace {

/// Owns the channel.
struct PeerObject {
    nb::object channel;
    ChannelObject *native;  // the same object; null over TLS

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

/// The native channel of a call, if there is one; `self` is the channel, or a peer.
struct Target {
    PyObject *object;
    ChannelObject *native;
};

Target of_channel(PyObject *self) {
    return {self, nb::inst_ptr<ChannelObject>(self)};
}

// A subclass may have forgotten to call __init__: nanobind's own method reports that.
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
    Locked until the request completes; then you may change it. Device memory is sent directly, after its stream
    has finished; the peer receives it in host memory. See :meth:`Endpoint.tag_send`.

Returns
-------
Request
    Done when you may change `buffer` again. That does not mean that the peer has the message. It stays pending
    while the peer has 4 MiB of small messages, or 8,000 large ones, unread.

Raises
------
NotContiguousError
    `buffer` is not contiguous. Nothing was sent.
InvalidParamError
    `buffer` holds Python objects: see :meth:`send_obj`. Nothing was sent.
UnsupportedError
    `buffer` is in device memory that UCX cannot reach here. Nothing was sent.
ClosedError
    This side has closed the connection.
PeerLostError
    From the request: the peer is gone; PeerClosedError if it closed the connection.

Cancelling withdraws a message that is still queued; one under way is sent.)";

constexpr const char *lend_doc =
    R"(Send one message without copying it where possible: the peer maps the pages that you wrote.

It is possible if the peer is another process on this host and `buffer` is in weft's pool: memory of a received
message, or ``numpy`` arrays made under :func:`weft.arrays_in_pool`. Memory that another process of this host
lent to this one is lent on, unless this process has written to it: the peer maps the first owner's pages and
keeps them after this process has ended. Otherwise this is :meth:`send`.

Parameters
----------
buffer : contiguous buffer, DLPack tensor or CUDA array, any shape
    Do not change it from here on, not even after the request has completed: the peer may see the change on some
    pages. You may drop it: its memory is not reused before the peer has released it.

Returns
-------
Request
    Done when the message is on its way. The peer's memory is writable; its changes are not visible to you.

Raises
------
NotContiguousError, InvalidParamError, UnsupportedError, ClosedError, PeerLostError
    As :meth:`send`.)";

constexpr const char *recv_doc = R"(Receive the next message, in the order of sending.

Returns
-------
Request
    Its result is a writable memoryview, aligned to 64 B. The memory lives as long as anything refers to it; from
    64 KiB up it belongs to weft's pool, so it can be lent on. Receive what :meth:`send_frames` and :meth:`send_obj`
    sent with :meth:`recv_frames` and :meth:`recv_obj`: here it comes as it was packed, as a tuple of memoryviews if
    it has large buffers.

Raises
------
ClosedError
    This side has closed the connection.
PeerLostError
    From the request, after all messages that arrived have been received; PeerClosedError if the peer closed the
    connection.

Cancelling loses no message: the next ``recv`` gets it.)";

constexpr const char *recv_into_doc = R"(Receive the next message into `buffer`.

Parameters
----------
buffer : writable contiguous buffer of the host, any shape
    Filled from its beginning, in memory order. A message has at most ``buffer.nbytes`` bytes. Locked until the
    request has its result or, after cancelling, until the peer no longer writes to it.

Returns
-------
Request
    Its result is the number of bytes. Several buffers sent as one message arrive as one.

Raises
------
ReadOnlyError, NotContiguousError
    weft cannot write to `buffer` in place. No message was received.
TruncatedError
    From the request: the next message is longer than `buffer`. It stays queued for the next receive.
ClosedError, PeerLostError
    As for :meth:`recv`.

A message of 256 KiB or more that is not lent arrives in `buffer` without a copy if you call this before it arrives.
Cancelling loses no message: the next receive gets it. `buffer` may have been written to.)";

constexpr const char *send_many_doc = R"(Send each of `buffers` as a message, in order, with one request for all.

Parameters
----------
buffers : sequence of contiguous buffers
    Each as for :meth:`send`. Locked until the request completes.

Returns
-------
Request
    Done when you may change all buffers again. It stays pending while the peer has too much unread, as for
    :meth:`send`.

Raises
------
NotContiguousError, InvalidParamError, UnsupportedError, ClosedError
    As for :meth:`send`. Nothing was sent.
PeerLostError
    From the request: the peer is gone; it may have received some of the messages.

Cancelling withdraws the messages that are still queued; the others are sent.)";

constexpr const char *recv_many_doc = R"(Receive the next `count` messages, with one request for all.

Parameters
----------
count : int, 0 <= count
    Number of messages.

Returns
-------
Request
    Its result is a list of memoryviews as from :meth:`recv`, in the order of sending.

Raises
------
ClosedError
    This side has closed the connection.
PeerLostError
    From the request: the connection ended before `count` messages arrived; PeerClosedError if the peer closed it.
    The messages that arrived stay for the next receive.

Cancelling loses no message: the next receive gets the first one.)";

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
