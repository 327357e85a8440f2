# SPDX-License-Identifier: BSD-3-Clause
"""How two processes make a connection: over a TCP socket they exchange their workers' addresses.

Client            Server
hello         ->
              <-  hello           (its side of the connection exists)
"keep" or not ->                  (the client's side exists, too)

The socket becomes a lifeline of the wire if either side has none yet; otherwise it is closed.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from typing import NamedTuple

import weft
from weft.compat._core.connection import Connection
from weft.compat._core.worker import Worker

_MARK = b"weftucp1"
_HEAD = struct.Struct("<8sQQQ?I")
_MOST = 1 << 20


class Hello(NamedTuple):
    """One side's description of itself."""

    worker_id: int
    tag: int  # for messages to it
    key: int  # for active messages to it
    unwatched: bool  # it has no lifeline to the other side
    address: bytes

    def packed(self) -> bytes:
        *fields, address = self
        return _HEAD.pack(_MARK, *fields, len(address)) + address


class Joined(NamedTuple):
    """The outcome: the connection, and the tags for sending and receiving."""

    connection: Connection
    tag_send: int
    tag_recv: int


async def client(worker: Worker, sock: socket.socket, *, error_handling: bool) -> Joined:
    """Connect, and close `sock`. The wire may keep a duplicate."""
    loop = asyncio.get_running_loop()
    with sock:
        mine = Hello(worker.id, secrets.randbits(64), secrets.randbits(64), False, worker.native.address)
        await loop.sock_sendall(sock, mine.packed())
        theirs = await _read_hello(loop, sock)
        wire = worker.wire_to(theirs.worker_id, theirs.address)
        unwatched = not wire.watched
        connection = Connection(wire, mine.key, error_handling=error_handling)
        connection.peer_key = theirs.key
        try:
            keep = unwatched or theirs.unwatched
            if keep:
                wire.hold(sock)
            await loop.sock_sendall(sock, b"K" if keep else b"C")
        except BaseException:
            connection.close()
            raise
    return Joined(connection, theirs.tag, mine.tag)


async def server(worker: Worker, sock: socket.socket, *, error_handling: bool) -> Joined:
    """Accept, and close `sock`. The wire may keep a duplicate."""
    loop = asyncio.get_running_loop()
    with sock:
        theirs = await _read_hello(loop, sock)
        wire = worker.wire_to(theirs.worker_id, theirs.address)
        mine = Hello(worker.id, secrets.randbits(64), secrets.randbits(64), not wire.watched, worker.native.address)
        # The client may send as soon as it has received this side's hello.
        connection = Connection(wire, mine.key, error_handling=error_handling)
        connection.peer_key = theirs.key
        try:
            await loop.sock_sendall(sock, mine.packed())
            keep = await _exactly(loop, sock, 1) == b"K"
        except BaseException:
            connection.close()
            if not wire.watched and not wire.connections:
                wire.lose()
            raise
        if keep:
            wire.hold(sock)
    return Joined(connection, theirs.tag, mine.tag)


async def _read_hello(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> Hello:
    head = await _exactly(loop, sock, _HEAD.size)
    mark, worker_id, tag, key, unwatched, nbytes = _HEAD.unpack(head)
    if mark != _MARK or nbytes > _MOST:
        raise weft.HandshakeError(f"the other side does not speak weft's ucp; it began with {head[:8]!r}")
    return Hello(worker_id, tag, key, unwatched, await _exactly(loop, sock, nbytes))


async def _exactly(loop: asyncio.AbstractEventLoop, sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = await loop.sock_recv(sock, nbytes - len(data))
        if not piece:
            raise weft.HandshakeError("the other side closed the socket in the middle of the handshake")
        data += piece
    return data
