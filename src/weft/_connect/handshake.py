# SPDX-License-Identifier: BSD-3-Clause
"""The messages that two sides exchange before a connection exists. No sockets here.

Each side is a generator: it yields bytes to send, the number of bytes that it needs next, or another handshake of this
process to wait for. ``handshake_io`` runs the steps over a socket, blocking or in a loop, so the protocol is written
only once. ``weft._tls.session`` wraps the steps in TLS.

Client                                     Server
magic, version, hello {payload, ring, queue} ->
                                       <-  magic, version, hello {unix socket, nonce, payload, ring, worker?, network?}
(connects to the unix socket, writes the nonce: proves same host and user)

With rings, if the local handshake (``local``) was not available (TLS, a forwarded port):
route, worker {id}, both channels, link?, address? ->
(opens its channel)                        (opens its channel; joins the link)
                                       <-  link?, address?
(joins the link; if the other side decides, it opens its channel only now, and says so)
address?                               ->  (joins the link)

With UCX:
route {same host or network}           ->
                                       <-  worker {id}
worker {id}, channel, link?, segments,
address across the network             ->
                                       <-  channel, link?, address?
(joins the link, opens the channel; across the network, waits until UCX reaches the server)
address?                               ->  (joins the link, opens the channel)
                                       <-  ready

If the server's hello names its worker for the network, a caller from there sends its first two messages as one.

One link joins two workers; the addresses are sent if it is new. On one host, rings carry it if both hellos offer them
(``_connect.ring``), otherwise UCX; a ring's memory is sent over the unix socket, before its address. The worker with
the lower id decides whether a handshake makes the link or uses the existing one, for one handshake at a time; with
rings it sends its address at once. What arrives over a ring before its link is joined waits there, so neither side
waits for the other's last message.

With TLS, both sides know after the route whether messages would leave the host unencrypted. Then both policies
(``payload``) decide: either both sides raise, or the server is ready at once and messages go over the TLS socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from weft._connect import ring
from weft._connect.admission import NONCE_NBYTES, PREFIX, SameHostListener, own_namespaces, same_user, shares_memory
from weft._connect.channel_protocol import Channel
from weft._connect.encryption import EncryptionPolicy, over_tls
from weft._connect.links import ConnectionWorker, Link, OtherHandshake, Workers
from weft._connect.message import (
    HEAD,
    MAGIC,
    address_of,
    body_nbytes,
    channel_of,
    decode,
    encode,
    field,
    new_channel_id,
    of_accept,
    worker_of,
)
from weft._connect.route import NoRouteError, Route
from weft.errors import (
    ClosedError,
    EncryptionError,
    Error,
    HandshakeError,
    InvalidParamError,
    ProtocolError,
    TimedOutError,
    TlsError,
    UnreachableError,
)

if TYPE_CHECKING:
    from weft._native import Worker
    from weft.typing import Request


class UpTo(NamedTuple):
    """A step: receive the next bytes, up to `nbytes`; nothing at the end of file."""

    nbytes: int


class Attend(NamedTuple):
    """A step: progress `worker`, here and while the next bytes are awaited; wait for `request`, but only shortly.

    UCX connects the listener to its caller unless the caller's own connection has arrived by then. A firewall or NAT in
    front of the caller would prevent that. So the caller first waits until its connection is there.
    """

    worker: Worker
    request: Request[None] | None = None


Step = bytes | int | UpTo | OtherHandshake | Attend
Steps = Generator[Step, Any, "Joined"]

_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # the first bytes of an alert, and of a TLS handshake
#: RFC 8446, 6: an alert, fatal, protocol_version.
_NO_TLS_HERE = b"\x15\x03\x03\x00\x02\x02\x46"


class Joined:
    """The outcome: a channel on a link; no channel if messages go over the TLS socket.

    Attributes
    ----------
    new_link : bool
        Whether this handshake made the link.
    why_ucx : str or None
        None if rings carry the messages; otherwise the reason, empty if the other side is not on this host.
    ends : tuple of str, or None
        Both addresses, this side's first, if they cannot be read from the handshake's socket.
    session : Session or None
        The TLS session that carried the handshake, which sets this.
    """

    session: Any = None

    def __init__(
        self,
        workers: Workers,
        *,
        same_host: bool,
        remote: dict[str, Any],
        why_ucx: str | None = "",
        link: Link | None = None,
        new_link: bool = False,
        channel: Channel | None = None,
        ends: tuple[str, str] | None = None,
    ) -> None:
        self.workers = workers
        self.link, self.new_link = link, new_link
        self.channel = channel
        self.same_host, self.why_ucx = same_host, why_ucx
        self.remote, self.ends = remote, ends


def _receive(what: str, farewell: bytes = b"") -> Generator[Step, Any, dict[str, Any]]:
    """Receive a message. A peer of another version gets `farewell`; only one side may pass it, as it then waits."""
    head = yield HEAD.size
    if head.startswith(_TLS_RECORDS):
        yield from reject(_NO_TLS_HERE)
        raise TlsError(f"{what}: the other side uses TLS, and this side has no `ssl` (in Dask: `security`)")
    try:
        nbytes = body_nbytes(head, what)
    except ProtocolError:
        if farewell and head.startswith(MAGIC):
            yield from reject(farewell)
        raise
    return decode((yield nbytes), what)


def tls_required() -> bytes:
    """Return the message for a caller that does not use TLS where it is required."""
    return encode(error="TLS is required", tls=True)


def reject(message: bytes) -> Generator[Step, Any, None]:
    """Send `message` and read until the caller hangs up: closing a socket with unread bytes may drop the message."""
    with contextlib.suppress(Error):  # the caller has gone, or stays too long; only the reason to reject it matters
        yield message
        for _ in range(16):
            if not (yield UpTo(1 << 16)):
                return


def client(
    workers: Workers,
    route: Route,
    name: str,
    sock: socket.socket,
    info: dict[str, Any],
    policy: EncryptionPolicy | None = None,
) -> Steps:
    """Connect. `sock` is the TCP socket that carries the steps; `info` is sent to the other side.

    `policy` is None without TLS.
    """
    what = f"connect to {name}"
    rings = ring.offer(dict(route.ucx))
    yield encode(info=info, payload=policy, memory_only=route.memory_only, ring=rings, queue=route.queue)
    hello = yield from _receive(what)
    remote = field(hello, "info", dict, what)
    why_ucx = ring.why_ucx(rings, hello.get("ring"))
    unix = _prove_same_host(hello, why_ucx is None)
    same_host = unix is not None
    if not same_host:
        why_ucx = ""
    worker: ConnectionWorker | None = None
    link: Link | None = None
    try:
        if unix is not None and why_ucx is None:
            return (yield from _connect_ring(workers, name, sock, unix, hello))
        named = None if same_host or policy is not None else hello.get("network")
        whence = {"route": "host" if same_host else "network"}
        if named is None:
            yield encode(**whence)
        try:
            tls = over_tls(policy, hello, same_host and route.memory_only, what)
            worker = None if tls else workers.worker(route, same_host=same_host)
        except UnreachableError:
            # No transport reaches it; or the listener is closing its Unix socket, which its next message reports.
            if named is None:
                with contextlib.suppress(HandshakeError, TimedOutError):
                    yield from _receive(what)
            raise
        if worker is None:
            yield from _receive(what)
            return Joined(workers, same_host=same_host, remote=remote)
        worker.handshakes += 1
        remote_id = worker_of({"worker": named} if named is not None else (yield from _receive(what)), worker, what)
        decision = None
        if worker.id <= remote_id:
            link, decision = yield from worker.decide(remote_id, sock)
        channel_id = new_channel_id()
        segments = route.segments(same_host=same_host)
        way_back = None if same_host else worker.native.address.hex()
        ids = {"worker": worker.id, "channel": f"{channel_id:x}"}
        yield encode(**whence, **ids, link=decision, segments=segments, address=way_back)
        reply = yield from _receive(what)
        if link is None:
            link = worker.follow(remote_id, field(reply, "link", dict, what), sock, what)
        address = link.join(address_of(reply, what), unix or sock, name)
        channel = link.native.open(channel_id, channel_of(reply, what), name)
        try:
            if address is not None and not same_host:
                yield Attend(worker.native, worker.native.flush())
                link.check(name)
            yield encode(address=address)
            yield from _receive(what)
        except BaseException:
            channel.abort()
            raise
        new = link.settle()
    except BaseException as e:
        if link is not None:
            link.abandon()
        if worker is not None and isinstance(e, UnreachableError):
            worker.outdated = not same_host
        raise
    finally:
        if worker is not None:
            worker.handshakes -= 1
        if unix is not None:
            unix.close()
    return Joined(
        workers, same_host=same_host, remote=remote, why_ucx=why_ucx, link=link, new_link=new, channel=channel
    )


def server(
    workers: Workers,
    route: Route,
    name: str,
    sock: socket.socket,
    info: dict[str, Any],
    same_host_listener: SameHostListener,
    policy: EncryptionPolicy | None = None,
) -> Steps:
    """Accept a connection; see :func:`client`."""
    what = f"accept from {name}"
    hello = yield from _receive(what, encode(error="the handshake versions differ"))  # the head says which
    remote = field(hello, "info", dict, what)
    nonce = os.urandom(NONCE_NBYTES)
    worker: ConnectionWorker | None = None
    link: Link | None = None
    unix: socket.socket | None = None
    same_host = False
    try:
        rings = ring.offer(dict(route.ucx))
        why_ucx = ring.why_ucx(rings, hello.get("ring"))
        spaces = None if why_ucx is None else own_namespaces()  # not needed for rings
        proof = {"unix": same_host_listener.name, "nonce": nonce.hex(), "spaces": spaces}
        ring_worker = workers.ring_worker() if why_ucx is None else None
        worker_id = ring_worker.id if ring_worker is not None else None
        worker = workers.known_worker(route) if policy is None else None
        if worker is not None:
            worker.handshakes += 1  # so that it stays the one that is named
        ids = {"worker": worker_id, "network": worker.id if worker is not None else None}
        yield encode(info=info, **proof, payload=policy, memory_only=route.memory_only, ring=rings, **ids)
        message = yield from _receive(what)
        if worker is not None and not (message.get("route") == "network" and "channel" in message):
            worker.handshakes -= 1
            worker = None
        claimed = field(message, "route", str, what)
        closed = same_host_listener.closed  # a caller on this host could then not prove it
        unix = same_host_listener.accept(nonce) if claimed == "host" and not closed else None
        same_host = unix is not None
        if not same_host:
            why_ucx = ""
        if closed:
            raise ClosedError(f"{what}: the listener was closed")
        if claimed == "host" and not same_host:
            raise HandshakeError(f"{what}: it claims to be on this host, but did not connect to the Unix socket")
        if over_tls(policy, hello, same_host and route.memory_only, what):
            yield encode(ready=True)
            return Joined(workers, same_host=same_host, remote=remote)
        if unix is not None and ring_worker is not None:
            return (yield from _accept_ring(workers, ring_worker, name, sock, unix, message, remote))
        if same_host:
            _compare("POSIX_", route.queue, field(hello, "queue", dict, what), what)
        if worker is None:
            worker = workers.worker(route, same_host=same_host)
            worker.handshakes += 1
            yield encode(worker=worker.id)
            message = yield from _receive(what)
        remote_id = worker_of(message, worker, what)
        decision = None
        if worker.id < remote_id:
            link, decision = yield from worker.decide(remote_id, sock)
        else:
            link = worker.follow(remote_id, field(message, "link", dict, what), sock, what)
        mine, theirs = route.segments(same_host=same_host), field(message, "segments", dict, what)
        if mine and not theirs:
            raise InvalidParamError(
                f"{what}: UCX_TLS excludes tcp there, but not here; set the same UCX_TLS on both sides"
            )
        _compare("", mine, theirs, what)
        address = link.prepare(unix or sock, name)
        if address is not None and not same_host:
            worker.check_way_back(address_of(message, what), what)
        channel_id = new_channel_id()
        yield encode(channel=f"{channel_id:x}", link=decision, address=address)
        if address is not None and not same_host:
            yield Attend(worker.native)
        link.join(address_of((yield from _receive(what)), what), unix or sock, name)
        channel = link.native.open(channel_id, channel_of(message, what), name)
        yield encode(ready=True)
        new = link.settle()
    except BaseException as e:
        if link is not None:
            link.abandon()
        if worker is not None and isinstance(e, UnreachableError):
            worker.outdated = not same_host
        # A caller refused for lack of encryption reaches the same conclusion from the same facts.
        if isinstance(e, Error) and not isinstance(e, TimedOutError | EncryptionError):
            yield encode(error=of_accept(e, name), permanent=isinstance(e, NoRouteError))
        raise
    finally:
        if worker is not None:
            worker.handshakes -= 1
        if unix is not None:
            unix.close()
    return Joined(
        workers, same_host=same_host, remote=remote, why_ucx=why_ucx, link=link, new_link=new, channel=channel
    )


def _connect_ring(
    workers: Workers, name: str, sock: socket.socket, unix: socket.socket, hello: dict[str, Any]
) -> Steps:
    """Continue :func:`client` after both sides are known to be on one host and to have rings."""
    what = f"connect to {name}"
    worker = workers.ring_worker()
    remote_id = worker_of(hello, worker, what)
    link: Link | None = None
    channel: Channel | None = None
    decision = address = None
    mine, theirs = new_channel_id(), new_channel_id()
    try:
        if worker.id <= remote_id:
            link, decision = yield from worker.decide(remote_id, sock)
            address = link.prepare(unix, name)
            channel = link.native.open(mine, theirs, name)
        ids = {"worker": worker.id, "channel": f"{mine:x}", "accepted_channel": f"{theirs:x}"}
        yield encode(route="host", **ids, link=decision, address=address)
        reply = yield from _receive(what)
        if link is None:
            link = worker.follow(remote_id, field(reply, "link", dict, what), sock, what)
            address = link.join(address_of(reply, what), unix, name)
            channel = link.native.open(mine, theirs, name)
            yield encode(address=address)
        else:
            link.join(address_of(reply, what), unix, name)
        new = link.settle()
    except BaseException:
        if link is not None:
            link.abandon()
        raise
    remote = field(hello, "info", dict, what)
    return Joined(workers, same_host=True, remote=remote, why_ucx=None, link=link, new_link=new, channel=channel)


def _accept_ring(
    workers: Workers,
    worker: ConnectionWorker,
    name: str,
    sock: socket.socket,
    unix: socket.socket,
    message: dict[str, Any],
    remote: dict[str, Any],
) -> Steps:
    """Continue :func:`server` after both sides are known to be on one host and to have rings."""
    what = f"accept from {name}"
    remote_id = worker_of(message, worker, what)
    theirs, mine = channel_of(message, what), channel_of(message, what, "accepted_channel")
    link: Link | None = None
    decision = None
    try:
        if worker.id < remote_id:
            link, decision = yield from worker.decide(remote_id, sock)
        else:
            link = worker.follow(remote_id, field(message, "link", dict, what), sock, what)
        address = link.prepare(unix, name)
        channel = link.native.open(mine, theirs, name)
        if decision is None:
            link.join(address_of(message, what), unix, name)
        yield encode(link=decision, address=address)
        if decision is not None:
            link.join(address_of((yield from _receive(what)), what), unix, name)
        new = link.settle()
    except BaseException:
        if link is not None:
            link.abandon()
        raise
    return Joined(workers, same_host=True, remote=remote, why_ucx=None, link=link, new_link=new, channel=channel)


def _compare(prefix: str, mine: dict[str, str], theirs: dict[str, Any], what: str) -> None:
    """Refuse a caller with other buffers: each side writes as much as its own settings say."""
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise InvalidParamError(
                f"{what}: UCX_{prefix}{name} is {value} here and {str(theirs.get(name))[:20]} there; both sides need"
                " the same value, because each fills the other's buffers by its own setting"
            )


def _prove_same_host(hello: dict[str, Any], rings: bool) -> socket.socket | None:
    """Connect to the listener's Unix socket and send the nonce; None if it is not reachable, or another user's.

    That suffices for `rings`; UCX also opens the other process's files, so namespaces must match.
    """
    name, nonce = hello.get("unix"), hello.get("nonce")
    if not isinstance(name, str) or not isinstance(nonce, str):
        return None
    if not rings and not shares_memory(hello.get("spaces")):
        return None
    # A listener must not be able to make this process send arbitrary bytes to any socket of this host.
    if not name.startswith(PREFIX) or len(nonce) != 2 * NONCE_NBYTES:
        return None
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.setblocking(False)
    try:
        unix.connect(b"\0" + name.encode())
        if not same_user(unix):
            raise PermissionError
        unix.send(bytes.fromhex(nonce))
    except (OSError, ValueError):  # another host, another namespace, another user: use the network
        unix.close()
        return None
    return unix
