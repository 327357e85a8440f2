# SPDX-License-Identifier: BSD-3-Clause
"""What two sides say to each other before a connection exists. No sockets here.

Each side is a generator: it yields bytes to send, or the number of bytes that it wants next, or a `Wait` for
something in this process. ``connect`` drives it, blocking or in a loop, so the protocol is written once. ``tls`` puts
TLS around it.

Client                                     Server
magic, version, hello {payload, queue} ->
                                       <-  magic, version, hello {unix socket, nonce, payload}
(connects to the unix socket, writes the nonce: same host, same user)
route {same host or network}           ->
                                       <-  worker {id}
worker {id}, channel, link?            ->
                                       <-  channel, link?, address?
(joins the link, opens the channel)
address?                               ->  (joins the link, opens the channel)
                                       <-  ready

One link joins two workers; the addresses are told when it is new. The worker with the lower id decides whether a
handshake makes the link or uses the one that is there, and it decides for one handshake at a time.

With TLS, both sides know after the route whether messages would leave the host unencrypted, and by what both said of
their payload, what then: an error on both, or the server is ready at once and messages go over the TLS socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Generator
from typing import Any, NamedTuple, cast

from weft import _native
from weft._connect import namespaces as spaces
from weft._connect import same_host as side_door
from weft._connect.links import Lan, Link, Local, LocalWorker, Wait
from weft._tls.policy import Payload, over_tls
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

MAGIC = b"WEFT"
VERSION = 4
_HEAD = struct.Struct("<4sHI")  # magic, version, length of the message
_MAX_NBYTES = 1 << 16
_ADDRESS_MIN_NBYTES = 8  # the worker's uuid, which every address begins with


class UpTo(NamedTuple):
    """A step: whatever comes next, up to so many bytes; nothing at the end."""

    nbytes: int


Step = bytes | int | UpTo | Wait
Steps = Generator[Step, Any, "Joined"]
_Message = dict[str, Any]

_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # how an alert begins, and a TLS handshake
#: RFC 8446, 6: an alert, fatal, protocol_version.
_NO_TLS_HERE = b"\x15\x03\x03\x00\x02\x02\x46"


class Joined:
    """The outcome: a channel on a link, or none if messages go over the TLS socket; and who the other side is."""

    session: Any = None  # the TLS session that it was made over

    def __init__(
        self, local: Local, link: Link | None, channel: _native.Channel | None, *, same_host: bool, remote: _Message
    ) -> None:
        self.local = local
        self.link = link
        self.channel = channel
        self.same_host = same_host
        self.remote = remote


def _say(**message: object) -> bytes:
    body = json.dumps(message).encode()
    if len(body) > _MAX_NBYTES:
        raise InvalidParamError(f"info: a handshake message has at most {_MAX_NBYTES} B, with it this has {len(body)}")
    return _HEAD.pack(MAGIC, VERSION, len(body)) + body


def _hear(what: str, farewell: bytes = b"") -> Generator[Step, Any, dict[str, Any]]:
    """Take a message. Who speaks another version gets the `farewell`, which one side alone may have: it then waits."""
    head = yield _HEAD.size
    magic, version, nbytes = _HEAD.unpack(head)
    if head.startswith(_TLS_RECORDS):
        yield from turn_away(_NO_TLS_HERE)
        raise TlsError(f"{what}: the other side speaks TLS, and this one was given no `ssl` (in Dask: `security`)")
    if magic != MAGIC:
        raise ProtocolError(f"{what}: the other side does not speak weft; it began with {bytes(head)!r}")
    if version != VERSION:
        if farewell:
            yield from turn_away(farewell)
        raise ProtocolError(f"{what}: the other side speaks version {version} of the handshake, this one {VERSION}")
    if nbytes > _MAX_NBYTES:
        raise HandshakeError(
            f"{what}: the other side announced {nbytes} B; a handshake message has at most {_MAX_NBYTES}"
        )
    try:
        message: Any = json.loads((yield nbytes))
    except (ValueError, RecursionError) as e:  # 64 KiB of "[" is deeper than the interpreter's stack
        raise HandshakeError(f"{what}: the other side sent no JSON: {e}") from None
    if not isinstance(message, dict):
        raise HandshakeError(f"{what}: the other side sent {type(cast('object', message)).__name__}, not an object")
    said = cast("dict[str, Any]", message)
    if "error" in said:
        if said.get("tls") is True:
            raise TlsError(f"{what}: the other side wants TLS, and this one was given no `ssl` (in Dask: `security`)")
        raise UnreachableError(f"{what}: the other side refused: {str(said['error'])[:1000]}")
    return said


def _field(message: dict[str, Any], name: str, kind: type, what: str) -> Any:
    value = message.get(name)
    if not isinstance(value, kind):
        raise HandshakeError(f"{what}: the other side's message has no proper {name!r}")
    return value


def _worker_of(message: dict[str, Any], worker: LocalWorker, what: str) -> str:
    """Who names this worker as its own is this process, or lies: a link to oneself has no socket to tell of an end."""
    worker_id: str = _field(message, "worker", str, what)
    if worker_id == worker.id and not worker.same_host:
        raise HandshakeError(f"{what}: the other side claims to be this process, but came over the network")
    return worker_id


def _address_of(message: dict[str, Any], what: str) -> bytes | None:
    address = message.get("address")
    try:
        unpacked = None if address is None else bytes.fromhex(address)
    except (TypeError, ValueError):
        raise HandshakeError(f"{what}: the other side's worker address is not hexadecimal") from None
    # UCX believes the rest of it: whoever may connect is trusted not to craft one.
    if unpacked is not None and len(unpacked) < _ADDRESS_MIN_NBYTES:
        raise HandshakeError(f"{what}: the other side's worker address has {len(unpacked)} B, fewer than any has")
    return unpacked


def _channel_of(message: dict[str, Any], what: str) -> int:
    channel = _field(message, "channel", str, what)
    try:
        return int(channel, 16) & 0xFFFF_FFFF_FFFF_FFFF
    except ValueError:
        raise HandshakeError(f"{what}: the other side's channel id is not hexadecimal") from None


def new_channel_id() -> int:
    """Return an id that a stranger cannot guess; it is the key to the connection."""
    return int.from_bytes(os.urandom(8), "little") or 1


def want_tls() -> bytes:
    """Return the words for a caller that does not speak TLS where it must."""
    return _say(error="TLS is spoken here", tls=True)


def turn_away(words: bytes) -> Generator[Step, Any, None]:
    """Say why, and hear the caller out: a socket that is closed with bytes unread may take the last words along."""
    with contextlib.suppress(Error):  # it has gone, or stays too long; why it must go is what counts
        yield words
        for _ in range(16):
            if not (yield UpTo(1 << 16)):
                return


def client(
    local: Local, lan: Lan, name: str, sock: socket.socket, info: dict[str, Any], payload: Payload | None = None
) -> Steps:
    """Connect. `sock` is the TCP socket that the steps go over; `info` is told to the other side.

    `payload` is None without TLS.
    """
    what = f"connect to {name}"
    yield _say(info=info, payload=payload, memory_only=lan.memory_only, queue=lan.queue)
    hello = yield from _hear(what)
    remote = _field(hello, "info", dict, what)
    unix = _prove_same_host(hello, what)
    same_host = unix is not None
    link: Link | None = None
    try:
        yield _say(route="host" if same_host else "network")
        try:
            tls = over_tls(payload, hello, same_host and lan.memory_only, what)
            worker = None if tls else local.worker(lan, same_host=same_host)
        except UnreachableError:
            # For want of a way; but the Unix socket may have been gone because the listener closes, which it says now.
            with contextlib.suppress(HandshakeError, TimedOutError):
                yield from _hear(what)
            raise
        if worker is None:
            yield from _hear(what)
            return Joined(local, None, None, same_host=same_host, remote=remote)
        remote_id = _worker_of((yield from _hear(what)), worker, what)
        decision = None
        if worker.id <= remote_id:
            link, decision = yield from worker.decide(remote_id)
        channel_id = new_channel_id()
        yield _say(worker=worker.id, channel=f"{channel_id:x}", link=decision)
        reply = yield from _hear(what)
        if link is None:
            link = worker.obey(remote_id, _field(reply, "link", dict, what), what)
        address = link.join(_address_of(reply, what), unix or sock, name)
        channel = link.native.open(channel_id, _channel_of(reply, what), name)
        try:
            yield _say(address=address)
            yield from _hear(what)
        except BaseException:
            channel.abort()
            raise
        link.settle()
    except BaseException:
        if link is not None:
            link.abandon()
        raise
    finally:
        if unix is not None:
            unix.close()
    return Joined(local, link, channel, same_host=same_host, remote=remote)


def server(
    local: Local,
    lan: Lan,
    name: str,
    sock: socket.socket,
    info: dict[str, Any],
    side: side_door.SideDoor,
    payload: Payload | None = None,
) -> Steps:
    """Accept. `side` is the listener's Unix socket; `payload` is None without TLS."""
    what = f"accept from {name}"
    hello = yield from _hear(what, _say(error="another version is spoken here"))  # its head tells which
    remote = _field(hello, "info", dict, what)
    nonce = os.urandom(side_door.NONCE_NBYTES)
    door = {"unix": side.name, "nonce": nonce.hex(), "spaces": spaces.own()}
    yield _say(info=info, **door, payload=payload, memory_only=lan.memory_only)
    route = _field((yield from _hear(what)), "route", str, what)
    closed = side.closed  # then a caller of this host could not show that it is one
    unix = side.take(nonce) if route == "host" and not closed else None
    same_host = unix is not None
    link: Link | None = None
    try:
        if closed:
            raise ClosedError(f"{what}: the listener was closed")
        if route == "host" and not same_host:
            raise HandshakeError(f"{what}: it claims to be on this host, but did not show up at the unix socket")
        if over_tls(payload, hello, same_host and lan.memory_only, what):
            yield _say(ready=True)
            return Joined(local, None, None, same_host=same_host, remote=remote)
        if same_host:
            _compare_queues(lan.queue, hello, what)
        worker = local.worker(lan, same_host=same_host)
        yield _say(worker=worker.id)
        message = yield from _hear(what)
        remote_id = _worker_of(message, worker, what)
        decision = None
        if worker.id < remote_id:
            link, decision = yield from worker.decide(remote_id)
        else:
            link = worker.obey(remote_id, _field(message, "link", dict, what), what)
        address = link.prepare(name)
        channel_id = new_channel_id()
        yield _say(channel=f"{channel_id:x}", link=decision, address=address)
        link.join(_address_of((yield from _hear(what)), what), unix or sock, name)
        channel = link.native.open(channel_id, _channel_of(message, what), name)
        yield _say(ready=True)
        link.settle()
    except BaseException as e:
        if link is not None:
            link.abandon()
        # Who is refused for want of encryption knows it from the same facts.
        if isinstance(e, Error) and not isinstance(e, TimedOutError | EncryptionError):
            yield _say(error=str(e))
        raise
    finally:
        if unix is not None:
            unix.close()
    return Joined(local, link, channel, same_host=same_host, remote=remote)


def _compare_queues(mine: dict[str, str], hello: dict[str, Any], what: str) -> None:
    """Refuse who would write past the end of this side's queue, or believe it longer than it is."""
    theirs = _field(hello, "queue", dict, what)
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise InvalidParamError(
                f"{what}: UCX_POSIX_{name} is {value} here and {str(theirs.get(name))[:20]} there; processes of one"
                " host need the same, since each writes to the other's memory"
            )


def _prove_same_host(hello: dict[str, Any], what: str) -> socket.socket | None:
    """Reach the listener's Unix socket and show the nonce; None if it cannot be reached, or is somebody else's."""
    name, nonce = hello.get("unix"), hello.get("nonce")
    if not isinstance(name, str) or not isinstance(nonce, str) or not spaces.shared(hello.get("spaces")):
        return None
    # Whoever listens at that address must not have this process say what it likes to any socket of this host.
    if not name.startswith(side_door.PREFIX) or len(nonce) != 2 * side_door.NONCE_NBYTES:
        return None
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.setblocking(False)
    try:
        unix.connect(b"\0" + name.encode())
        if not spaces.same_user(unix):
            raise PermissionError
        unix.send(bytes.fromhex(nonce))
    except (OSError, ValueError):  # another host, another namespace, another user: the network it is
        unix.close()
        return None
    return unix
