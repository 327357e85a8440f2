# SPDX-License-Identifier: BSD-3-Clause
"""The process's only worker, its wires to other workers, and the routing of active messages to connections.

UCX pairs endpoints made from worker addresses in the order of their creation, and reports to one of a pair when the
other is closed. With one endpoint per connection, closing one would break another. So two workers share one wire,
whatever connections exist between them. The wire lasts until one of the workers is gone; its lifelines show that:
sockets that carry no data, and end with the worker.

Everything except tagged messages is an active message with the same id, so that a goodbye cannot overtake data: the
data of ``am_send``, and the two ways to end a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet, WeakValueDictionary

import weft
from weft._connect.sockets import OwnedSocket, close_in_child, keep_alive
from weft.compat._core.address import UCXAddress, door_name

log = logging.getLogger("ucx")

AM_ID = 0
HEAD = struct.Struct("<QBQ")  # the receiver's key, the kind, the number of messages sent before
DATA, GOODBYE, RESET, UNASKED = range(4)
_MOST_EARLY = 1024  # active messages kept for endpoints that this side has not made yet


class Receiver(Protocol):
    """An object with a key: a `weft.compat._core.connection.Connection`."""

    def take(self, kind: int, count: int, data: memoryview) -> None:
        """Handle an active message with this key."""

    def lose(self) -> None:
        """Handle the loss of the other worker."""

    def close(self) -> None:
        """End the connection."""


class Worker:
    """The state shared by all endpoints of this process. Belongs to the thread that made it."""

    def __init__(self, context: weft.Context, allocator: Callable[[int], Any]) -> None:
        self.native = weft.Worker(context)
        self.id = secrets.randbits(64)
        self.wires: dict[int, Wire] = {}
        self.connections: WeakValueDictionary[int, Receiver] = WeakValueDictionary()
        self.reading: set[Receiver] = set()  # those with a waiting task: nothing else may keep both alive
        self.handshakes: set[asyncio.Task[None]] = set()
        self.allocators: dict[str, Callable[[int], Any]] = {"host": allocator}
        self.early: dict[int, deque[memoryview]] = {}
        self._door: OwnedSocket | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._incoming = self.native.am_recv(AM_ID)
        self._told = False

    def address(self) -> UCXAddress:
        """Return this worker's address, and open its door."""
        if self._door is None:
            door = OwnedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
            door.bind(door_name(self.id))
            door.listen(4096)  # connections are never accepted: a peer in the queue sees the door close
            close_in_child(door)
            self._door = door
        return UCXAddress.of(self.native.address, self.id)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Progress in this loop, and receive active messages there."""
        if loop is not self.loop:
            self.native.attach(loop)
            for wire in self.wires.values():
                wire.watch(loop, self.loop)
            self.loop = loop
            # A request is bound to the first loop that it was given.
            if self._told and self._incoming.cancel():
                self._incoming = self.native.am_recv(AM_ID)
            self._told = False
            self.take()  # a request that is done stays with the ended loop
        self._listen()

    def _listen(self) -> None:
        if not self._told and self.loop is not None and _running() is self.loop:
            self._incoming.add_done_callback(self._arrived)
            self._told = True

    def _arrived(self, _request: object) -> None:
        if not self.native.closed:
            self.take()

    def take(self) -> None:
        """Route the active messages that have arrived."""
        while self._incoming.done():
            try:
                header, data = self._incoming.result()
            except weft.Error as e:
                log.warning("an active message was lost: %s", e)
                header, data = b"", memoryview(b"")
            self._incoming = self.native.am_recv(AM_ID)
            self._told = False
            if len(header) == HEAD.size:
                self._route(HEAD.unpack(header), data)
        self._listen()

    def _route(self, head: tuple[int, int, int], data: memoryview) -> None:
        key, kind, count = head
        connection = self.connections.get(key)
        if connection is not None:
            connection.take(kind, count, data)
        elif kind == UNASKED and len(early := self.early.setdefault(key, deque())) < _MOST_EARLY:
            early.append(data)

    def progress(self) -> None:
        """Progress until nothing is left to do, within limits."""
        for _ in range(1000):
            if not self.native.progress():
                break
        self.take()

    def wire_to(self, worker_id: int, address: bytes) -> Wire:
        """Return the wire to another worker; make it if needed.

        Raises
        ------
        weft.UnreachableError
            No transport reaches it.
        """
        wire = self.wires.get(worker_id)
        if wire is None:
            wire = self.wires[worker_id] = Wire(self, worker_id, self.native.connect(address))
        return wire

    def close(self) -> None:
        """Close all connections and the worker."""
        self.native.progress()  # in another thread this raises before anything is closed
        for connection in list(self.connections.values()):
            connection.close()
        for task in self.handshakes:
            if not task.get_loop().is_closed():
                task.cancel()
        for wire in list(self.wires.values()):
            wire.cut(self.loop)
        self.wires.clear()
        if self._door is not None:
            self._door.close()
        self.native.close()


class Wire:
    """The only UCX endpoint to another worker, and the sockets that show its end."""

    def __init__(self, worker: Worker, peer_id: int, endpoint: weft.Endpoint) -> None:
        self.worker = worker
        self.peer_id = peer_id
        self.endpoint = endpoint
        self.connections: WeakSet[Receiver] = WeakSet()
        self.lost = False
        self._lifelines: list[OwnedSocket] = []
        self._poll = select.poll()

    @property
    def watched(self) -> bool:
        """Whether a lifeline would show its end; a wire to this worker itself needs none."""
        return bool(self._lifelines) or self.peer_id == self.worker.id

    def hold(self, sock: socket.socket) -> None:
        """Add a duplicate of `sock` as a lifeline."""
        own = OwnedSocket.duplicate(sock)
        own.setblocking(False)
        if own.family != socket.AF_UNIX:
            keep_alive(own)
        self._lifelines.append(own)
        self._poll.register(own, select.POLLIN | select.POLLRDHUP)
        if (loop := _running()) is not None:
            loop.add_reader(own, self.look)

    def reach_door(self) -> None:
        """Connect to the door of a worker on this host, as the lifeline.

        Raises
        ------
        weft.UnreachableError
            The worker is gone.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            try:
                sock.connect(door_name(self.peer_id))
            except BlockingIOError:  # the door's queue is full
                return
            except OSError as e:
                self.lose()
                raise weft.UnreachableError(f"the worker with this address is gone: {e.strerror}") from None
            self.hold(sock)

    def watch(self, loop: asyncio.AbstractEventLoop, before: asyncio.AbstractEventLoop | None) -> None:
        """Watch the lifelines in another loop."""
        for sock in self._lifelines:
            if before is not None and not before.is_closed():
                before.remove_reader(sock)
            loop.add_reader(sock, self.look)

    def look(self) -> None:
        """Check whether the other worker is gone."""
        if self._lifelines and self._poll.poll(0):
            self.lose()

    def lose(self) -> None:
        """Handle the end of the other worker: everything that it sent has arrived."""
        if self.lost:
            return
        self.worker.progress()
        self.lost = True
        self.worker.wires.pop(self.peer_id, None)
        self.cut(self.worker.loop)
        self.endpoint.close(force=True)
        for connection in list(self.connections):
            connection.lose()

    def cut(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Close the lifelines, so that the other side sees this one go."""
        for sock in self._lifelines:
            if loop is not None and not loop.is_closed():
                loop.remove_reader(sock)
            with contextlib.suppress(KeyError):
                self._poll.unregister(sock)
            sock.close()
        self._lifelines.clear()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
