# SPDX-License-Identifier: BSD-3-Clause
"""One connection on a wire: its pending operations, its received messages, and how it ended. Also ``ep._ep``."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import secrets
import struct
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import weft
from weft.compat._core.exceptions import (
    UCXCanceledError,
    UCXCloseError,
    UCXConnectionResetError,
    UCXEndpointTimeoutError,
    UCXError,
)
from weft.compat._core.worker import AM_ID, DATA, GOODBYE, HEAD, RESET, UNASKED, Wire

log = logging.getLogger("ucx")

_FORCED = struct.Struct("<Q")


class Goodbye(NamedTuple):
    """The numbers of messages that the peer sent before its goodbye, without and with a forced tag."""

    sent: int
    forced: int


class Pending(enum.IntEnum):
    """The kinds of pending operations, in the order in which the end of a connection reaches them."""

    SEND = 0
    RECV = 1
    FORCED_RECV = 2


class Connection:
    """The state of an endpoint.

    Parameters
    ----------
    wire : Wire
        The wire to the other worker.
    key : int
        Active messages with this key belong to this connection.
    error_handling : bool
        False: it never reports its loss, like UCX endpoints without error handling.
    """

    def __init__(self, wire: Wire, key: int, *, error_handling: bool) -> None:
        self.wire = wire
        self.worker = wire.worker
        self.key = key
        self.handle = secrets.randbits(48)  # a substitute for the address of a ucp_ep_h
        self.peer_key: int | None = None  # None: made from a worker's address
        self.initialized = True
        self.goodbye: Goodbye | None = None
        self._on_goodbye: Callable[[], object] | None = None
        self._error: UCXError | None = None
        self._error_handling = error_handling
        self._on_close: Callable[[], object] | None = None
        self._arrived: deque[Any] = deque()
        self._readers: deque[asyncio.Future[Any]] = deque()
        self._pending: dict[weft.Request[Any], Pending] = {}
        self._withdrawn: set[weft.Request[Any]] = set()
        self.said_goodbye = False
        wire.connections.add(self)
        self.worker.connections[key] = self
        for data in self.worker.early.pop(key, ()):
            self.take(DATA, 0, data)

    # ---- state

    @property
    def alive(self) -> bool:
        """Whether the peer is there, as far as is known."""
        return self._error is None or not self._error_handling

    def is_alive(self) -> bool:
        """Return :attr:`alive`; this is ucx-py's name."""
        return self.alive

    @property
    def open(self) -> bool:
        """Whether neither side has ended the connection."""
        return self.initialized and self._error is None

    def raise_on_error(self) -> None:
        """Raise the error that ended the connection, if the peer ended it."""
        if self._error is not None and self._error_handling:
            raise self._error

    def raise_unless_open(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if not self.open:
            self.raise_on_error()
            raise UCXCloseError("the endpoint is closed")

    def am_probe(self) -> bool:
        """Whether an active message can be received now."""
        self.worker.progress()
        return bool(self._arrived)

    def info(self) -> str:
        """Describe the wire."""
        lanes = ", ".join(self.wire.endpoint.transports) if not self.wire.endpoint.closed else "closed"
        return f"#\n# endpoint {self.handle:#x} to worker {self.wire.peer_id:#x}\n#\n#   lanes: {lanes}\n#\n"

    def set_close_callback(self, callback: Callable[[], object]) -> None:
        """Set a function to call once, when either side ends the connection."""
        self._on_close = callback

    def set_goodbye_callback(self, callback: Callable[[], object]) -> None:
        """Set a function to call when the peer says goodbye; if it did already, once the endpoint's user has it."""
        self._on_goodbye = callback
        if self.goodbye is not None:
            asyncio.get_running_loop().call_soon(callback)

    # ---- transfers

    def am_send(self, buffer: Any) -> weft.Request[None]:
        """Post an active message."""
        key, kind = (self.worker.id, UNASKED) if self.peer_key is None else (self.peer_key, DATA)
        return self.wire.endpoint.am_send(AM_ID, HEAD.pack(key, kind, 0), buffer)

    async def am_recv(self) -> Any:
        """Receive the next active message."""
        loop = asyncio.get_running_loop()
        self.worker.attach(loop)
        self.worker.take()
        if not self._arrived:
            self.raise_unless_open()
            if self.goodbye is not None:
                raise UCXCanceledError("am_recv: the peer closed the endpoint, and no message is left")
            reader = loop.create_future()
            self._readers.append(reader)
            self.worker.reading.add(self)
            try:
                return await reader
            except asyncio.CancelledError:
                if not reader.cancelled() and reader.done() and reader.exception() is None:
                    self._arrived.appendleft(reader.result())  # it arrived in the same turn: keep it for the next
                raise
            finally:
                with contextlib.suppress(ValueError):
                    self._readers.remove(reader)
                if not self._readers:
                    self.worker.reading.discard(self)
        message = self._arrived.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    @property
    def reading(self) -> bool:
        """Whether an :meth:`am_recv` waits."""
        return bool(self._readers)

    async def ended(self, request: weft.Request[Any], kind: Pending) -> Any:
        """Wait for `request`, but only as long as this connection lasts.

        Raises
        ------
        UCXCanceledError
            The connection ended first.
        """
        if request.done():
            return await request
        self._pending[request] = kind
        try:
            self.worker.attach(asyncio.get_running_loop())  # the end of the connection is noticed there
            return await request
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if request not in self._withdrawn or (task is not None and task.cancelling()):
                raise
            raise UCXCanceledError("the endpoint was closed") from None
        finally:
            self._pending.pop(request, None)
            self._withdrawn.discard(request)

    # ---- incoming messages

    def take(self, kind: int, count: int, data: memoryview) -> None:
        """Handle an active message for this connection."""
        if kind == GOODBYE:
            forced = _FORCED.unpack(data)[0] if data.nbytes == _FORCED.size else 0
            self.goodbye = Goodbye(count, forced)
            if self._on_goodbye is not None:
                self._on_goodbye()
        elif kind == RESET:
            self.lose()
        else:
            self._deliver(self._allocated(data))

    def _allocated(self, data: memoryview) -> Any:
        allocate = self.worker.allocators["host"]
        if allocate is bytearray:
            return bytearray(data)
        try:
            message = allocate(data.nbytes)
        except Exception as e:  # noqa: BLE001  (the allocator is the user's: who receives is told)
            return e
        made = "the host allocator returned"
        try:
            memory = memoryview(message)
            if memory.nbytes == data.nbytes:
                if data.nbytes:
                    memory.cast("B")[:] = data
                return message
        except (TypeError, BufferError):
            return TypeError(f"{made} {type(message).__name__}, which is no writable buffer")
        return ValueError(f"{made} {memory.nbytes} bytes for a message of {data.nbytes} bytes")

    def _deliver(self, message: Any) -> None:
        while self._readers:
            reader = self._readers.popleft()
            if reader.done() or reader.get_loop().is_closed():
                continue
            if isinstance(message, Exception):
                reader.set_exception(message)
            else:
                reader.set_result(message)
            return
        self._arrived.append(message)

    # ---- end

    def say_goodbye(self, goodbye: Goodbye) -> weft.Request[None]:
        """Tell the peer how many messages were sent; it ends the connection once it has received them."""
        assert self.peer_key is not None
        self.said_goodbye = True
        head = HEAD.pack(self.peer_key, GOODBYE, goodbye.sent)
        return self.wire.endpoint.am_send(AM_ID, head, _FORCED.pack(goodbye.forced))

    def lose(self) -> None:
        """Handle the end or the loss of the peer."""
        if not self.open:
            self._withdraw(Pending.FORCED_RECV)
            return
        if self.peer_key is None:
            self._error = UCXEndpointTimeoutError(f"Endpoint {self.handle:#x} error: Endpoint timeout")
        else:
            self._error = UCXConnectionResetError(f"Endpoint {self.handle:#x} error: Connection reset by remote peer")
        self._withdraw(Pending.FORCED_RECV)
        self._call_back()

    def finish(self, most: Pending) -> None:
        """End the connection after the peer's goodbye: cancel pending operations, up to this kind.

        Messages that have arrived can still be received.
        """
        self.initialized = False
        self._withdraw(most)
        self._call_back()

    def close(self) -> None:
        """End the connection at once: cancel pending operations, and tell the peer, unless it has already ended it."""
        was_open = self.open
        self.initialized = False
        self.wire.connections.discard(self)
        self.worker.connections.pop(self.key, None)
        self._withdraw(Pending.FORCED_RECV)
        if was_open and self.peer_key is not None and not self.said_goodbye and not self.wire.lost:
            with contextlib.suppress(weft.Error):  # the connection ends in any case
                self.wire.endpoint.am_send(AM_ID, HEAD.pack(self.peer_key, RESET, 0))
        self._call_back()

    def _withdraw(self, most: Pending) -> None:
        for request, kind in list(self._pending.items()):
            if kind <= most and request.cancel():
                self._withdrawn.add(request)
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done() and not reader.get_loop().is_closed():
                reader.set_exception(UCXCanceledError("am_recv: the endpoint was closed"))

    def _call_back(self) -> None:
        callback, self._on_close = self._on_close, None
        if callback is None:
            return
        try:
            callback()
        except Exception:  # noqa: BLE001  (the program's own: it must not stop the others on the wire)
            log.error("the close callback failed:\n%s", traceback.format_exc().rstrip())
