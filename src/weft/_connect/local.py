# SPDX-License-Identifier: BSD-3-Clause
"""The local handshake, between two processes of one host that can use rings: one packet each way.

A listener without TLS has a Unix socket whose name follows from its address; a caller tries that name before TCP. Only
this host can reach it (abstract names belong to the network namespace, as ports do), and the kernel reports the user at
the other end: neither needs a proof. The name contains both versions, so different versions meet over TCP, which
reports that.

Caller                                            Listener
If it has a link to the listener's worker:
{worker, both channels, link}                  ->
                                               <- {worker}
Otherwise:
{worker, both channels, address} + memory      ->
                                               <- {worker, link, address} + memory
                                               or {worker, use: an existing link}; the caller starts again with it,
                                               or, if it does not have that link, offers one with {gone: that link}

Packets keep their boundaries (``SOCK_SEQPACKET``), and a new link's memory comes with the packet that has its address.
The listener's side makes the link, because it is the first to know both workers. Two workers that call each other would
make two links: the one with the higher id waits for its own call to end, which the lower one answers at once. It makes
the link of what its own call has offered, opens that call's channel on it, and tells so (`crossed`): the other can then
end the waiting call with {worker, use: the link}, and nobody starts again. A side may only send when the other side's
channel exists, so the caller opens its own before it names a link.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from typing import Any, NamedTuple

from weft import _native
from weft._connect import message, ring
from weft._connect.address import is_loopback, join
from weft._connect.admission import PREFIX, same_user
from weft._connect.channel_protocol import Channel
from weft._connect.handshake import Joined
from weft._connect.links import Call, ConnectionWorker, Link, OtherHandshake, Workers
from weft._connect.message import (
    address_of,
    channel_of,
    decode_packet,
    encode,
    field,
    new_channel_id,
    of_accept,
    worker_of,
)
from weft._connect.sockets import close_in_child
from weft.errors import Error, HandshakeError, PeerLostError, TimedOutError

_ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - a name is looked up, nothing is bound


class Packet(NamedTuple):
    """A step: send `data`, with a descriptor or without (-1)."""

    data: bytes
    descriptor: int = -1


class Reached(NamedTuple):
    """A socket connected to the listener at `host` and `port`, and the name of the listener's own socket."""

    sock: socket.socket
    listener: str
    host: str
    port: int


class Receive:
    """A step: receive a packet, with the descriptor that came along (-1: none), which the receiver then owns."""


LocalSteps = Generator[Packet | Receive | OtherHandshake, Any, Joined]


def name_of(host: str, port: int) -> str:
    """Return the Unix socket name for a listener's address."""
    return f"{PREFIX}{message.VERSION}.{ring.VERSION}-{join(host, port)}"


def listen(name: str) -> socket.socket | None:
    """Bind a listener's Unix socket; None if the name is taken."""
    sock = _socket()
    try:
        sock.bind(b"\0" + name.encode())
        sock.listen(1024)
    except OSError:
        sock.close()
        return None
    close_in_child(sock)
    return sock


def reach(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> Reached | None:
    """Connect to the Unix socket of the listener at an address, if there is one on this host."""
    host, port = sockaddr[:2]
    for bound in (host, _ANY.get(family)):
        if bound is None or (len(sockaddr) > 2 and sockaddr[3]):  # a link-local address
            continue
        name = name_of(bound, port)
        sock = _socket()
        with contextlib.suppress(OSError):  # no such name, or a full queue: the caller can wait over TCP
            sock.connect(b"\0" + name.encode())
            if same_user(sock) and (bound == host or _is_own(family, sockaddr)):
                return Reached(sock, name, host, port)
        sock.close()
    return None


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock


def _is_own(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> bool:
    """Tell whether an address is this host's: the kernel then uses it as source address."""
    if is_loopback(sockaddr[0]):
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(sockaddr)  # sends nothing
        return bool(probe.getsockname()[0] == sockaddr[0])


def client(workers: Workers, name: str, to: Reached, info: dict[str, Any]) -> LocalSteps:
    """Connect to a listener found by :func:`reach`."""
    what, listener = f"connect to {name}", to.listener
    worker = workers.ring_worker()
    while (link := worker.link_to(listener)) is None and (other := _call_to(workers, listener)) is not None:
        yield other
    mine, theirs = new_channel_id(), new_channel_id()
    ids = {"worker": worker.id, "channel": f"{mine:x}", "accepted_channel": f"{theirs:x}"}
    hello: dict[str, Any] = {"info": info, "host": to.host, **ids}
    channel: Channel | None = None
    reply: dict[str, Any] | None = None
    try:
        if link is None and listener in workers.listens:
            link = worker.link_to_itself(to.sock, name)
        if link is None:
            prepared = _native.prepare_link(worker.native, True, name)
            call = workers.calls[listener] = Call(prepared, to.sock, name, mine, theirs, frozenset(workers.listens))
            try:
                link, reply = yield from _offer(workers, worker, to, call, hello)
                channel, call.channel = call.channel, None
            finally:
                _end(workers, listener, call)
        if channel is None:  # on an existing link, the other side's first message may arrive before its answer
            channel = link.native.open(mine, theirs, name)
        if reply is None:
            yield Packet(encode(**hello, link=link.id))
            reply, unasked = yield from _receive(what)
            _close(unasked)
        remote = field(reply, "info", dict, what)
        new = link.settle()
    except BaseException:
        worker.forget(listener)
        if channel is not None:
            channel.abort()
        if link is not None:
            link.abandon()
        raise
    return _joined(workers, remote, link, channel, new=new, ends=(join(to.host, 0), join(to.host, to.port)))


def _call_to(workers: Workers, listener: str) -> Call | None:
    """Return this side's call to a listener that is in progress; None if there is none."""
    call = workers.calls.get(listener)
    if call is not None and call.over:
        _end(workers, listener, call)
        return None
    return call


def _end(workers: Workers, listener: str, call: Call) -> None:
    call.drop()
    if workers.calls.get(listener) is call:
        del workers.calls[listener]
    call.end()


def _offer(
    workers: Workers, worker: ConnectionWorker, to: Reached, call: Call, hello: dict[str, Any]
) -> Generator[Packet | Receive, Any, tuple[Link, dict[str, Any] | None]]:
    """Offer a link. Return it with the answer; or return a link that already exists, and None."""
    what, prepared = f"connect to {call.name}", call.prepared
    assert prepared is not None, "a new call"
    link: Link | None = None
    memory = -1
    try:
        offer = {**hello, "address": prepared.address.hex(), "listens": sorted(call.listens)}
        yield Packet(encode(**offer), prepared.memory)
        reply, memory = yield from _receive(what)
        remote_id = worker_of(reply, worker, what)
        if "use" in reply and call.prepared is not None and _is_gone(workers, worker, remote_id, reply["use"], call):
            _close(memory)
            memory = -1
            yield Packet(encode(**offer, gone=reply["use"]), prepared.memory)
            reply, memory = yield from _receive(what)
            remote_id = worker_of(reply, worker, what)
        worker.remember(to.listener, remote_id)
        if "use" in reply:
            link = worker.link_to(to.listener)
            if link is None or link.id != reply["use"] or (call.link is not None and call.link is not link):
                raise _gone(what)
            return link, reply if call.channel is not None and "info" in reply else None
        if call.prepared is None:  # a link was made of it, and the other side does not know
            raise _gone(what)
        link = worker.follow(remote_id, field(reply, "link", dict, what), to.sock, what, prepared)
        if link.is_made_of(prepared):
            call.prepared = None
        link.join(address_of(reply, what), to.sock, call.name, memory)
        link.crossed = str(reply.get("crossed", ""))
        return link, reply
    except BaseException:
        if link is not None:
            link.abandon()
        raise
    finally:
        _close(memory)


def _is_gone(workers: Workers, worker: ConnectionWorker, remote_id: str, link_id: object, call: Call) -> bool:
    """Tell whether this side has dropped a link that the other side has, as an interrupted handshake does.

    While other calls are in progress it is not known: the answer to one of them may be about this link.
    """
    others = [_call_to(workers, listener) for listener in list(workers.calls)]
    link = worker.link_with(remote_id)
    return all(other in (call, None) for other in others) and (link is None or link.id != link_id)


def _gone(what: str) -> PeerLostError:
    return PeerLostError(f"{what}: the other side named a link that this thread does not have; connect again")


def server(workers: Workers, name: str, sock: socket.socket, info: dict[str, Any], port: int) -> LocalSteps:
    """Accept a connection over `sock`, to a listener at `port`; see :func:`client`."""
    what = f"accept from {name}"
    link: Link | None = None
    channel: Channel | None = None
    memory = -1
    listens: list[str] = []
    answered = False
    try:
        hello, memory = yield from _receive(what)
        worker = workers.ring_worker()
        reply: dict[str, Any] = {"info": info, "worker": worker.id}
        remote_id = worker_of(hello, worker, what)
        while "link" not in hello:
            listens = [name for name in field(hello, "listens", list, what) if isinstance(name, str)]
            there = yield from _link_there(workers, worker, remote_id, listens, what)
            if there is None:
                break
            _close(memory)
            memory = -1
            if there.crossed and there.crossed == hello.get("channel"):
                hello["link"] = reply["use"] = there.id
            else:
                yield Packet(encode(worker=worker.id, use=there.id))
                hello, memory = yield from _receive(what)
                if hello.get("gone") == there.id:
                    there.drop()
        host, remote = _host_of(hello, what), field(hello, "info", dict, what)
        theirs, mine = channel_of(hello, what), channel_of(hello, what, "accepted_channel")
        if "link" in hello:
            link = yield from _named(workers, worker, remote_id, hello["link"], what)
        else:
            for listener in listens:
                worker.remember(listener, remote_id)
            crossing = _crossing(workers, worker, remote_id, listens, sock)
            prepared = _native.prepare_link(worker.native, True, name) if crossing is None else crossing.take()
            link = worker.add(remote_id, os.urandom(8).hex(), sock, prepared)
            reply["address"] = link.join(address_of(hello, what), sock, name, memory)
            reply["link"] = {"id": link.id, "new": True}
            if crossing is not None:
                crossing.cross(link)
                reply["crossed"] = f"{crossing.mine:x}"
        channel = link.native.open(mine, theirs, name)
        answer = Packet(encode(**reply), link.native.memory if "address" in reply else -1)
        answered = True  # at most one answer: the caller reads what comes after it as the link's
        yield answer
        new = link.settle()
    except BaseException as e:
        try:
            if isinstance(e, Error) and not isinstance(e, TimedOutError) and not answered:
                with contextlib.suppress(Error):  # the caller has gone, so nobody is to be told
                    yield Packet(encode(error=of_accept(e, name), gone=isinstance(e, PeerLostError)))
        finally:  # after the packet: these write to the socket of a new link, and close it
            if channel is not None:
                channel.abort()
            if link is not None:
                link.abandon()
        raise
    finally:
        _close(memory)
    return _joined(workers, remote, link, channel, new=new, ends=(join(host, port), join(host, 0)))


def _named(
    workers: Workers, worker: ConnectionWorker, remote_id: str, link_id: object, what: str
) -> Generator[OtherHandshake, None, Link]:
    """Return the link that the other side names. The answer that tells this side of it may still be on its way."""
    for call in (*workers.calls.values(), None):
        link = worker.links.get(remote_id)
        if link is not None and not link.lost and link.id == link_id:
            return link
        if call is not None and not call.over and call in workers.calls.values():
            yield call
    raise _gone(what)


def _crossing(
    workers: Workers, worker: ConnectionWorker, remote_id: str, listens: list[str], sock: socket.socket
) -> Call | None:
    """Return this side's own call to a worker that calls at the same time, if one link can serve both.

    The other side has not answered that call, and will wait with it: had it made a link, it would know from the call
    that this listener's worker is at the other end, and use the link instead of offering one.
    """
    if worker.id > remote_id:
        return None
    here = sock.getsockname()
    calls = (_call_to(workers, listener) for listener in listens)
    told = (call for call in calls if call is not None and any(here == b"\0" + own.encode() for own in call.listens))
    return next((call for call in told if call.prepared is not None), None)


def _link_there(
    workers: Workers, worker: ConnectionWorker, remote_id: str, listens: list[str], what: str
) -> Generator[OtherHandshake, None, Link | None]:
    """Return the link to a worker that has not learned of it yet; None if this handshake must make it."""
    if remote_id == worker.id:
        raise HandshakeError(f"{what}: the other side claims to be this process, and does not know its link to itself")
    while True:
        link = worker.link_with(remote_id)
        if link is not None and link.settled:
            return link
        making: OtherHandshake | None = None
        if worker.id > remote_id:
            making = next((call for own in listens if (call := _call_to(workers, own)) is not None), None)
        if making is None and link is not None:
            making = link.making()
        if making is None:
            return None
        yield making


def _receive(what: str) -> Generator[Receive, Any, tuple[dict[str, Any], int]]:
    packet, memory = yield Receive()
    try:
        return decode_packet(packet, what), memory
    except BaseException:
        _close(memory)
        raise


def _joined(
    workers: Workers, remote: dict[str, Any], link: Link, channel: Channel, *, new: bool, ends: tuple[str, str]
) -> Joined:
    return Joined(
        workers, same_host=True, remote=remote, why_ucx=None, link=link, new_link=new, channel=channel, ends=ends
    )


def _host_of(hello: dict[str, Any], what: str) -> str:
    """Return the address by which the caller reached this host."""
    host: str = field(hello, "host", str, what)
    try:
        is_loopback(host)
    except ValueError:
        raise HandshakeError(f"{what}: the other side's message has no valid 'host'") from None
    return host


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
