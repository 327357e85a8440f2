# SPDX-License-Identifier: BSD-3-Clause
"""The messages of a handshake, and the validation of received ones. No sockets here, and no order of messages."""

from __future__ import annotations

import json
import math
import os
import struct
from typing import Any, cast

from weft._connect.links import ConnectionWorker
from weft._connect.route import NoRouteError
from weft.errors import HandshakeError, InvalidParamError, PeerLostError, ProtocolError, TlsError, UnreachableError

MAGIC = b"WEFT"
VERSION = 7
HEAD = struct.Struct("<4sHI")  # magic, version, length of the message
_MAX_NBYTES = 1 << 16
#: What distributed's tcp sends after two bytes: less than 64 KiB follows, in one frame.
_DASK_FRAMES = b"\0\0\0\0\0\0\1\0"
#: For what a message has beside the user's `info`.
_BESIDE_NBYTES = 16 << 10
_ADDRESS_MIN_NBYTES = 8  # the worker's uuid, with which every address begins


def encode(**message: object) -> bytes:
    """Encode a message, including its head."""
    body = json.dumps(message).encode()
    if len(body) > _MAX_NBYTES:
        raise InvalidParamError(f"info: it makes a handshake message of {len(body)} B, and the limit is {_MAX_NBYTES}")
    return HEAD.pack(MAGIC, VERSION, len(body)) + body


def seconds(op: str, timeout: float) -> float:
    """Return `timeout`, or raise if it is no number of seconds."""
    if not hasattr(timeout, "__float__") or math.isnan(timeout):
        raise InvalidParamError(f"{op}: timeout={timeout!r} is not a number of seconds")
    return timeout


def checked(op: str, info: dict[str, Any] | None) -> dict[str, Any]:
    """Return `info`, or raise now what would fail in every handshake."""
    if not isinstance(info, dict | None):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidParamError(f"{op}: info={info!r} is not a dict")
    try:
        nbytes = len(json.dumps(info or {}, allow_nan=False))
    except (TypeError, ValueError) as e:  # ValueError: NaN, or a dict within itself
        raise InvalidParamError(f"{op}: info must be JSON-able: {e}") from None
    if nbytes > _MAX_NBYTES - _BESIDE_NBYTES:
        most = _MAX_NBYTES - _BESIDE_NBYTES
        raise InvalidParamError(f"{op}: info has {nbytes} B as JSON, and the limit is {most}; send it as a message")
    return info or {}


def body_nbytes(head: bytes, what: str) -> int:
    """Return the length of the body after `head`; raise if the sender uses another protocol or version."""
    magic, version, nbytes = HEAD.unpack(head)
    if magic != MAGIC:
        other = ", as Dask's tcp:// does; use one protocol on both sides" if head[2:] == _DASK_FRAMES else ""
        other = ", as weft doctor --listen does; use weft doctor --pair" if head == b'{"weft": "' else other
        raise ProtocolError(f"{what}: the other side does not speak weft; it began with {bytes(head)!r}{other}")
    if version != VERSION:
        raise ProtocolError(f"{what}: the other side speaks version {version} of the handshake, this one {VERSION}")
    if nbytes > _MAX_NBYTES:
        raise HandshakeError(
            f"{what}: the other side announced {nbytes} B; a handshake message has at most {_MAX_NBYTES}"
        )
    return int(nbytes)


def decode(body: bytes, what: str) -> dict[str, Any]:
    """Return the message in `body`; raise if the other side reports an error."""
    try:
        message: Any = json.loads(body)
    except (ValueError, RecursionError) as e:  # 64 KiB of "[" exceeds the interpreter's recursion limit
        raise HandshakeError(f"{what}: the other side sent no JSON: {e}") from None
    if not isinstance(message, dict):
        raise HandshakeError(f"{what}: the other side sent {type(cast('object', message)).__name__}, not an object")
    said = cast("dict[str, Any]", message)
    if "error" in said:
        if said.get("tls") is True:
            raise TlsError(f"{what}: the other side requires TLS, and this side has no `ssl` (in Dask: `security`)")
        refused = PeerLostError if said.get("gone") is True else UnreachableError
        if said.get("permanent") is True:
            refused = NoRouteError
        raise refused(f"{what}: the other side refused: {str(said['error'])[:1000]}")
    return said


def of_accept(error: Exception, name: str) -> str:
    """Return the text of an error of accepting `name`; the core says connect, whichever side it is on."""
    what, text = f"accept from {name}: ", str(error)
    return text if text.startswith(what) else what + text.removeprefix("connect: ").removeprefix(f"connect to {name}: ")


def decode_packet(packet: bytes, what: str) -> dict[str, Any]:
    """Return the message in `packet`, which includes the head."""
    if len(packet) < HEAD.size:
        raise HandshakeError(f"{what}: the other side sent {len(packet)} B, less than a message's head")
    nbytes = body_nbytes(packet[: HEAD.size], what)
    if len(packet) != HEAD.size + nbytes:
        raise HandshakeError(f"{what}: the other side announced {nbytes} B and sent {len(packet) - HEAD.size}")
    return decode(packet[HEAD.size :], what)


def field(message: dict[str, Any], name: str, kind: type, what: str) -> Any:
    """Return a field of a message; raise unless it is of this type."""
    value = message.get(name)
    if not isinstance(value, kind):
        raise HandshakeError(f"{what}: the other side's message has no valid {name!r}")
    return value


def worker_of(message: dict[str, Any], worker: ConnectionWorker, what: str) -> str:
    """Return the other worker's id. It is this worker's own only for a connection within this process."""
    worker_id: str = field(message, "worker", str, what)
    if worker_id == worker.id and not worker.same_host:
        raise HandshakeError(f"{what}: the other side claims to be this process, but came over the network")
    return worker_id


def address_of(message: dict[str, Any], what: str) -> bytes | None:
    """Return the address of a link's other side; None if the message has none."""
    address = message.get("address")
    try:
        unpacked = None if address is None else bytes.fromhex(address)
    except (TypeError, ValueError):
        raise HandshakeError(f"{what}: the other side's worker address is not hexadecimal") from None
    # UCX does not validate the rest: a process that may connect is trusted not to forge one.
    if unpacked is not None and len(unpacked) < _ADDRESS_MIN_NBYTES:
        raise HandshakeError(f"{what}: the other side's worker address has {len(unpacked)} B, which is too short")
    return unpacked


def channel_of(message: dict[str, Any], what: str, name: str = "channel") -> int:
    """Return a channel's id."""
    channel = field(message, name, str, what)
    try:
        return int(channel, 16) & 0xFFFF_FFFF_FFFF_FFFF
    except ValueError:
        raise HandshakeError(f"{what}: the other side's channel id is not hexadecimal") from None


def new_channel_id() -> int:
    """Return an unguessable id; it is the key to the connection."""
    return int.from_bytes(os.urandom(8), "little") or 1
