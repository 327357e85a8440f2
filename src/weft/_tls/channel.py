# SPDX-License-Identifier: BSD-3-Clause
"""A connection that sends its messages over its TLS socket, because UCX would send them over the network unencrypted.

It implements :class:`weft._connect.channel_protocol.Channel`, as ``_native.Channel`` does; nothing is lent, and UCX is
not involved. Like a worker it makes no progress by itself: every operation takes a turn, and so do ``wait``, and a loop
whenever the socket is ready.

A goodbye is acknowledged when everything before it has arrived; an end of file without one is a loss, on either side.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from weft._connect.address import device_of
from weft._tls.framing import (
    ACKNOWLEDGE,
    DATA,
    GOODBYE,
    PIECE_NBYTES,
    Outgoing,
    bytes_of,
    message_parts,
    writable_bytes_of,
)
from weft._tls.operation import Message, Operation, Receive
from weft._tls.session import Session
from weft.errors import ClosedError, Error, NoMemoryError, PeerClosedError, PeerLostError, ThreadError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from weft.typing import BufferLike, ResultT_co

#: Bytes moved each way in one turn, at most: 1 ms of encryption.
_TURN_NBYTES = 1 << 20
#: The socket is not read while this many bytes of messages wait for a receive.
_UNREAD_NBYTES = 16 << 20
#: A blocking wait looks this often whether another thread has dropped a receive.
_SLEEP_S = 0.05


class TlsChannel:
    """One side of the connection; owns `sock`. Belongs to the thread, and the event loop if any, that made it."""

    lent_sent_nbytes = lent_received_nbytes = 0  # nothing is lent
    landed = (0, 0.0, 0.0)  # nothing is announced
    next_place = 0

    def __init__(self, session: Session, sock: socket.socket, name: str) -> None:
        sock.setblocking(False)
        self._tls, self._incoming, self._outgoing = session.tls, session.incoming, session.outgoing
        self._sock, self._name = sock, name
        self._owner = threading.get_ident()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._closed = False
        self._closing: Operation[None] | None = None
        self._goodbye = self._acknowledged = False  # received from the other side
        self._fault: Error | None = None
        self._sends: deque[Outgoing] = deque()
        self._encrypted = memoryview(b"")  # not yet accepted by the socket
        self._unwritable: Error | None = None  # why nothing can be sent any more
        self._waiters: deque[weakref.ref[Receive[Any]]] = deque()
        self._held: set[Receive[Any]] = set()  # those of them that have callbacks
        self._dropped: deque[Receive[Any]] = deque()  # by any thread, at any moment: not yet looked at
        self._inbox: deque[Message] = deque()  # in order of arrival
        self._arrived = 0
        self.unread_nbytes = 0
        self._parts = message_parts()
        self._part = next(self._parts)
        self._filled = 0
        self._watched = (False, False)
        self._watch()

    # ---- the interface of a channel

    def send(
        self, first: BufferLike, rest: Sequence[Buffer] | None = None, lend: bool = False, stage: bool = False
    ) -> Operation[None]:
        self._check_open("send")
        return self._send_all("send", [[bytes_of(buffer) for buffer in (first, *(rest or ()))]])

    def send_many(self, buffers: Sequence[BufferLike]) -> Operation[None]:
        self._check_open("send_many")
        return self._send_all("send_many", [[bytes_of(buffer)] for buffer in buffers])

    def _send_all(self, op: str, messages: list[list[memoryview]]) -> Operation[None]:
        operation: Operation[None] = Operation(self, f"{op} to {self._name}")
        refusal = self._fault or self._unwritable
        if refusal is not None:
            operation.fail(refusal)
            return operation
        if not messages:
            operation.finish(None)
        for left, segments in zip(range(len(messages) - 1, -1, -1), messages, strict=True):
            self._sends.append(Outgoing(operation, DATA, segments, last=not left))
        self.turn()
        return operation

    def lend(self, buffer: BufferLike) -> Operation[None]:
        return self.send(buffer)

    def recv(self) -> Receive[Any]:
        self._check_open("recv")
        return self._receive_with(Receive(self, f"recv from {self._name}"))

    def recv_into(self, buffer: Buffer) -> Receive[int]:
        self._check_open("recv_into")
        return self._receive_with(Receive(self, f"recv_into from {self._name}", into=writable_bytes_of(buffer)))

    def recv_many(self, count: int) -> Receive[list[Any]]:
        self._check_open("recv_many")
        return self._receive_with(Receive(self, f"recv_many from {self._name}", count=count))

    def _receive_with(self, operation: Receive[ResultT_co]) -> Receive[ResultT_co]:
        if not operation.done():
            self._waiters.append(weakref.ref(operation))
            self._deliver()
        if not operation.done() or self._watched[0] != self._reads():
            self.turn()
        return operation

    def close(self) -> Operation[None]:
        self._check_owner("close")
        begun = self._closing is not None
        if self._closing is not None and not self._closing.cancelled():
            return self._closing
        operation: Operation[None] = Operation(self, f"close {self._name}")
        self._closing = operation
        _fail(self._waiters, self._closed_by_this_side())
        if self._sock.fileno() < 0:
            self._closed = True
            self._settle_close()
        else:
            if not begun:
                self._sends.append(Outgoing(None, GOODBYE, []))
            self.turn()
        return operation

    def abort(self, reason: str = "the connection was aborted by this side") -> None:
        if threading.get_ident() == self._owner:
            self._end(ClosedError(f"{self._name}: {reason}"))
            return
        # Another thread called this: the owner finishes it at its next turn.
        self._closed = True
        with contextlib.suppress(OSError, RuntimeError):  # the channel has ended meanwhile, or its loop has
            self._sock.shutdown(socket.SHUT_RDWR)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.turn)

    @property
    def closed(self) -> bool:
        return self._closed or self._closing is not None

    @property
    def memory_types(self) -> list[str]:
        return ["host"]

    @property
    def ended(self) -> bool:
        return self._fault is not None

    @property
    def loss_raised(self) -> bool:
        return self._fault is not None and not self._goodbye and self._fault.__traceback__ is not None

    @property
    def transports(self) -> list[str]:
        return [f"tls/{device_of(self._sock.getsockname()[0])}"] if self._sock.fileno() >= 0 else []

    def send_placed(self, *_: object) -> NoReturn:
        raise UnsupportedError(f"send to {self._name}: device memory does not go over TLS; send it from host memory")

    def recv_placed(self, *_: object) -> NoReturn:
        raise UnsupportedError(f"recv from {self._name}: the message claims device memory, which does not go over TLS")

    # ---- for operations

    def turn_until(self, operation: Operation[Any], timeout_s: float | None) -> None:
        """Take a turn; if `operation` is still pending, wait until the socket is ready and take another."""
        self._check_owner("wait")
        self.turn()
        if not operation.done():
            poll = select.poll()
            poll.register(self._sock, self._reads() * select.POLLIN | self._writes() * select.POLLOUT)
            poll.poll(min(_SLEEP_S if timeout_s is None else timeout_s, _SLEEP_S) * 1000)
            self.turn()

    def withdraw(self, operation: Operation[Any]) -> None:
        """Withdraw an operation that has not begun."""
        self._check_owner("cancel")
        self._remove(operation)
        self._sends = deque(send for send in self._sends if send.begun or send.operation is not operation)

    def give_back(self, messages: list[Message]) -> None:
        """Return messages of a receive that was cancelled to the queue, for the next one."""
        if self.closed:
            return
        for message in messages:
            self._keep(message)
        self._deliver()

    def hold(self, receive: Receive[Any]) -> None:
        """Refer to a receive that has callbacks."""
        self._held.add(receive)

    def let_go(self, receive: Receive[Any]) -> None:
        """Undo :meth:`hold`."""
        self._held.discard(receive)

    def take_back(self, receive: Receive[Any]) -> None:
        """Let the owner withdraw a receive that was dropped, or return its messages to the queue.

        Any thread calls this, perhaps in the middle of this channel's own code: it changes nothing else.
        """
        if self.closed:
            return
        self._dropped.append(receive)
        me: weakref.ref[TlsChannel] = weakref.ref(self)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_turn, me)

    # ---- turns

    def turn(self) -> None:
        """Send and receive as much as possible without waiting."""
        if self._dropped:
            self._deliver()
        if self._sock.fileno() < 0:
            return
        if self._closed:
            self._end(self._closed_by_this_side())
            return
        try:
            self._send()
            self._receive()
            self._send()  # maybe an acknowledgement
        except ssl.SSLError as e:
            self._lose(f"TLS failed: {e.reason or e}")
        except OSError as e:
            self._lose(e.strerror or str(e))
        except MemoryError as e:
            self._end(NoMemoryError(f"{self._name}: no memory for a message: {e}"))
        else:
            if self._closing is not None and (self._acknowledged or (self._goodbye and not self._writes())):
                self._closing.finish(None)
                self._end(self._closed_by_this_side())
            self._watch()

    def _send(self) -> None:
        for _ in range(2 * _TURN_NBYTES // PIECE_NBYTES):
            if not self._encrypted and not self._encrypt():
                return
            try:
                self._encrypted = self._encrypted[self._sock.send(self._encrypted) :]
            except BlockingIOError:
                return
            except OSError as e:  # the other side's last data may still be readable
                self._encrypted = memoryview(b"")
                self._unwritable = PeerLostError(f"{self._name}: {e.strerror or e}")
                self._drop_sends(self._unwritable)
                return

    def _encrypt(self) -> bool:
        """Encrypt the next pieces, up to one send; False if there is nothing to send."""
        while self._sends and self._outgoing.pending < PIECE_NBYTES:
            send = self._sends[0]
            piece = send.next_piece()
            taken = self._tls.write(piece)
            if taken < piece.nbytes:
                send.parts.appendleft(piece[taken:])
            if not send.parts:
                self._sends.popleft()
                if send.last and send.operation is not None and not send.operation.done():
                    send.operation.finish(None)
        self._encrypted = memoryview(self._outgoing.read())
        return bool(self._encrypted)

    def _receive(self) -> None:
        self._decrypt()
        for _ in range(_TURN_NBYTES // PIECE_NBYTES):
            if not self._reads():
                return
            try:
                data = self._sock.recv(PIECE_NBYTES)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionError("the other side closed the socket without ending the connection")
            self._incoming.write(data)
            self._decrypt()

    def _decrypt(self) -> None:
        while self._reads():
            if self._filled < self._part.nbytes:
                try:
                    nbytes: int = self._tls.read(self._part.nbytes - self._filled, self._part[self._filled :])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    return
                if not nbytes:
                    raise ConnectionError("the other side ended TLS without ending the connection")
                self._filled += nbytes
            if self._filled == self._part.nbytes:
                self._next_part()

    def _next_part(self) -> None:
        self._filled = 0
        try:
            self._part = next(self._parts)
        except StopIteration as stop:
            self._parts = message_parts()
            self._part = next(self._parts)
            self._handle(*stop.value)

    def _handle(self, kind: int, segments: tuple[memoryview, ...]) -> None:
        if kind == DATA and self._closing is None:
            self._arrived += 1
            self._keep(Message(self._arrived, segments))
        elif kind == GOODBYE:
            self._goodbye = True
            self._fault = PeerClosedError(f"{self._name}: the peer has closed the connection")
            self._drop_sends(self._fault)
            self._sends.append(Outgoing(None, ACKNOWLEDGE, []))
        elif kind == ACKNOWLEDGE:
            self._acknowledged = True
        self._deliver()

    def _keep(self, message: Message) -> None:
        self.unread_nbytes += message.nbytes
        at = len(self._inbox)
        while at and self._inbox[at - 1].number > message.number:
            at -= 1
        self._inbox.insert(at, message)

    def _remove(self, operation: Operation[Any]) -> None:
        """Remove an operation from the receives that wait, and those that nobody refers to any more."""
        self._waiters = deque(each for each in self._waiters if each() not in (None, operation))

    def _deliver(self) -> None:
        while self._dropped:
            dropped = self._dropped.popleft()
            self._remove(dropped)
            for message in dropped.put_back():
                self._keep(message)
        while self._waiters:
            first = self._waiters[0]()
            if first is None:
                self._waiters.popleft()
            elif self._inbox:
                if first.take(self._inbox[0]):
                    self.unread_nbytes -= self._inbox.popleft().nbytes
            elif self._fault is not None:
                first.fail(self._fault)
                for message in first.put_back():
                    self._keep(message)
            else:
                return
            if first is not None and first.done():
                self._waiters.popleft()

    def _reads(self) -> bool:
        return self._closing is not None or bool(self._waiters) or self.unread_nbytes < _UNREAD_NBYTES

    def _writes(self) -> bool:
        return self._unwritable is None and bool(self._encrypted or self._sends or self._outgoing.pending)

    # ---- ends

    def _check_owner(self, op: str) -> None:
        if threading.get_ident() != self._owner:
            raise ThreadError(f"{op} ({self._name}): the connection belongs to another thread", op=op)

    def _check_open(self, op: str) -> None:
        self._check_owner(op)
        if self.closed:
            raise ClosedError(f"{op} ({self._name}): the connection was closed by this side", op=op)

    def _closed_by_this_side(self) -> ClosedError:
        return ClosedError(f"{self._name}: the connection was closed by this side")

    def _settle_close(self) -> None:
        """Complete a close whose socket is gone; it succeeded if the other side had sent its goodbye."""
        if self._closing is not None and self._fault is not None and not self._goodbye:
            self._closing.fail(self._fault)
        elif self._closing is not None:
            self._closing.finish(None)

    def _drop_sends(self, error: Error) -> None:
        """Fail sends that have not begun; a message that was begun must be completed before anything else is sent."""
        begun = [send for send in self._sends if send.begun and self._unwritable is None]
        for send in self._sends:
            if send.operation is not None and send not in begun:
                send.operation.fail(error)
        self._sends = deque(begun)

    def _lose(self, reason: str) -> None:
        """Handle the loss of the other side."""
        self._release()
        if not self._goodbye:
            self._fault = self._unwritable = PeerLostError(f"{self._name}: {reason}")
        assert self._fault is not None
        self._unwritable = self._fault
        self._drop_sends(self._fault)
        self._deliver()
        self._settle_close()

    def _end(self, error: Error) -> None:
        """End this side."""
        self._closed = True
        self._unwritable = error
        self._release()
        self._inbox.clear()
        self._dropped.clear()
        self.unread_nbytes = 0
        self._drop_sends(error)
        _fail(self._waiters, error)
        if self._closing is not None:
            self._closing.fail(error)

    # ---- the socket

    def _watch(self) -> None:
        """Let the loop call a turn when the socket is ready for reads or writes that are needed."""
        if self._loop is None or self._sock.fileno() < 0:
            return
        wanted = (self._reads(), self._writes())
        me: weakref.ref[TlsChannel] = weakref.ref(self)  # the loop must not keep a dropped channel alive
        if wanted[0] != self._watched[0]:
            if wanted[0]:
                self._loop.add_reader(self._sock, _turn, me)
            else:
                self._loop.remove_reader(self._sock)
        if wanted[1] != self._watched[1]:
            if wanted[1]:
                self._loop.add_writer(self._sock, _turn, me)
            else:
                self._loop.remove_writer(self._sock)
        self._watched = wanted

    def _release(self) -> None:
        if self._sock.fileno() >= 0:
            _close(self._loop, self._sock)

    def __del__(self) -> None:
        if self._sock.fileno() < 0:
            return
        if self._loop is None or threading.get_ident() == self._owner:
            self._release()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_close, self._loop, self._sock)


def _close(loop: asyncio.AbstractEventLoop | None, sock: socket.socket) -> None:
    if sock.fileno() < 0:  # ended meanwhile
        return
    if loop is not None and not loop.is_closed():
        loop.remove_reader(sock)
        loop.remove_writer(sock)
    sock.close()


def _turn(reference: weakref.ref[TlsChannel]) -> None:
    channel = reference()
    if channel is not None:
        channel.turn()


def _fail(receives: deque[weakref.ref[Receive[Any]]], error: Error) -> None:
    while receives:
        receive = receives.popleft()()
        if receive is not None:
            receive.fail(error)
