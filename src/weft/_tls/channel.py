# SPDX-License-Identifier: BSD-3-Clause
"""A connection that sends its messages over its TLS socket, because UCX would send them over the network unencrypted.

It implements :class:`weft._connect.channel_protocol.Channel`, as ``_native.Channel`` does; nothing is lent, and UCX is
not involved. Like a worker it makes no progress by itself: every operation takes a turn, and so do ``wait``, and a loop
whenever the socket is ready.

A goodbye is acknowledged when everything before it has arrived; an end of file without one is a loss, on either side.

A signal handler may raise between any two calls in here, and within those of ``ssl``. So what one call takes, the same
call stores: ``map`` hands it on without Python's interpreter, which runs the handlers. ``ssl`` cannot do that: each of
its calls is announced first (`_encrypting`, `_decrypting`), and the next turn sees by what OpenSSL has left whether it
was made. Everything else may be done twice. Where nothing can be seen, the connection is lost, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import repeat, starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from weft._connect import sockets
from weft._connect.address import device_of
from weft._connect.links import forked
from weft._tls.framing import (
    ACKNOWLEDGE,
    DATA,
    GOODBYE,
    PIECE_NBYTES,
    Message,
    Outgoing,
    StreamError,
    bytes_of,
    writable_bytes_of,
)
from weft._tls.operation import Operation, Receive
from weft._tls.session import Session
from weft.errors import ClosedError, Error, NoMemoryError, PeerClosedError, PeerLostError, ThreadError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from weft.typing import BufferLike, ResultT_co

_T = TypeVar("_T")
#: Bytes moved each way in one turn, at most: 1 ms of encryption.
_TURN_NBYTES = 1 << 20
#: The socket is not read while this many bytes of messages wait for a receive.
_UNREAD_NBYTES = 16 << 20
#: A blocking wait looks this often whether another thread has dropped a receive.
_SLEEP_S = 0.05
#: Stands where a record will be decrypted, until it is.
_MARK = os.urandom(8)

#: A call of OpenSSL that encrypts a piece: of what, from where, the piece, and the bytes encrypted before the call.
_Encrypting = tuple[Outgoing, tuple[int, int], memoryview, int]
#: A call of OpenSSL that fills a room: of what, from where, the room; before the call, the bytes that the record had
#: left, and the first byte in the room.
_Decrypting = tuple[Message, tuple[int, int], memoryview, int, int]


class TlsChannel:
    """One side of the connection; owns `sock`. Belongs to the thread, and the event loop if any, that made it."""

    lent_sent_nbytes = lent_received_nbytes = 0  # nothing is lent
    landed = (0, 0.0, 0.0)  # nothing is announced
    next_place = 0

    def __init__(self, session: Session, sock: socket.socket, name: str) -> None:
        sock.setblocking(False)
        self._tls, self._incoming, self._outgoing = session.tls, session.incoming, session.outgoing
        self._sock, self._name = sock, name
        self._owner, self._process = threading.get_ident(), sockets.process
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        # Whether the loop calls a turn again for what is left in the socket, errors included: uvloop may not.
        self._polls = isinstance(self._loop, asyncio.BaseEventLoop)
        self._closed = False
        self._why_closed: Error | None = None
        self._over = False  # ended, and all is told of it
        self._lost = False
        self._closing: Operation[None] | None = None
        self._goodbye = self._acknowledged = False  # received from the other side
        self._fault: Error | None = None
        self._loss_raised = False
        self._sends: deque[Outgoing] = deque()
        self._encrypting: _Encrypting | None = None
        self._encrypted: deque[tuple[bytes, list[int]]] = deque()  # and how much of it the socket has accepted
        self._unwritable: Error | None = None  # why nothing can be sent any more
        self._farewell = deque([Outgoing(None, GOODBYE, [])])  # until it is among the sends
        self._answer = deque([Outgoing(None, ACKNOWLEDGE, [])])
        self._waiters: deque[weakref.ref[Receive[Any]]] = deque()
        self._held: set[Receive[Any]] = set()  # those of them that have callbacks
        self._dropped: deque[Receive[Any]] = deque()  # by any thread, at any moment: not yet looked at
        self._inbox: deque[Message] = deque()
        self._in_order = True
        self._undelivered = False  # whether a signal handler may have interrupted `_deliver`
        self._returned: deque[Message] = deque()  # by receives that have no use for them
        self._arriving = deque([Message(1, 0)])
        self._read_nbytes = deque([1], maxlen=1)  # of the last read of the socket
        self._decrypting: _Decrypting | None = None
        self._watched = (False, False)
        # Whether a turn stopped before the socket did; the handshake may have read a message.
        self._unfinished = self._incoming.pending > 0
        self._watch()

    # ---- the interface of a channel

    def send(
        self, first: BufferLike, rest: Sequence[Buffer] | None = None, lend: bool = False, stage: bool = False
    ) -> Operation[None]:
        self._check_open("send")
        return self._send_all("send", [[bytes_of(buffer, "send") for buffer in (first, *(rest or ()))]])

    def send_many(self, buffers: Sequence[BufferLike]) -> Operation[None]:
        self._check_open("send_many")
        return self._send_all("send_many", [[bytes_of(buffer, "send_many")] for buffer in buffers])

    def _send_all(self, op: str, messages: list[list[memoryview]]) -> Operation[None]:
        operation: Operation[None] = Operation(self, f"{op} to {self._name}")
        refusal = self._fault or self._unwritable
        if refusal is not None:
            operation.fail(refusal)
            return operation
        if not messages:
            operation.finish(None)
        left = range(len(messages) - 1, -1, -1)
        self._sends.extend(
            [Outgoing(operation, DATA, segments, last=not n) for n, segments in zip(left, messages, strict=True)]
        )
        self.turn(receives=self._loop is None)  # a loop takes a turn as soon as there is something to read
        return operation

    def lend(self, buffer: BufferLike) -> Operation[None]:
        self._check_open("lend")
        return self._send_all("lend", [[bytes_of(buffer, "lend")]])

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
        try:
            if not operation.done():
                self._waiters.append(weakref.ref(operation))
                self._deliver()
            if not operation.done() or self._watched[0] != self._reads():
                self.turn()
        except BaseException:
            operation.drop()
            raise
        return operation

    def close(self) -> Operation[None]:
        self._check_owner("close")
        if self._closing is not None and not self._closing.cancelled():
            return self._closing
        operation: Operation[None] = Operation(self, f"close {self._name}")
        self._closing = operation
        if self._over:
            self._closed = True
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
        return self._loss_raised

    @property
    def transports(self) -> list[str]:
        return [f"tls/{device_of(self._sock.getsockname()[0])}"] if self._sock.fileno() >= 0 else []

    def send_placed(self, *_: object) -> NoReturn:
        raise UnsupportedError(f"send to {self._name}: device memory does not go over TLS; send it from host memory")

    def recv_placed(self, *_: object) -> NoReturn:
        raise UnsupportedError(f"recv from {self._name}: the message claims device memory, which does not go over TLS")

    # ---- for operations

    def check_loop(self) -> None:
        """Refuse to be awaited in another thread, or without an event loop."""
        self._check_owner("await")
        asyncio.get_running_loop()

    def turn_until(self, operation: Operation[Any], timeout_s: float | None) -> None:
        """Take a turn; if `operation` is still pending, wait until the socket is ready and take another."""
        self._check_owner("wait")
        self.turn()
        if not operation.done() and not self._over:
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
        """Take back messages of a receive that was cancelled, for the next one."""
        if self.closed:
            return
        self._undelivered = True
        self._returned.extend(map(messages.pop, repeat(0, len(messages))))
        self._deliver()

    def told(self, error: BaseException) -> None:
        """Note that a caller was told of an error."""
        self._loss_raised |= error is self._fault and not self._goodbye

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

    def turn(self, *, receives: bool = True) -> None:
        """Send and receive as much as possible without waiting."""
        try:
            if self._dropped or self._undelivered:
                self._deliver()
            if self._over:
                self._settle_close()
            elif self._closed:
                self._end(self._why_closed or self._closed_by_this_side())
            elif self._lost:
                self._settle_loss()
            else:
                self._exchange(receives=receives)
        except BaseException:
            if self._loop is not None and not self._loop.is_closed():
                me: weakref.ref[TlsChannel] = weakref.ref(self)
                self._loop.call_soon(_turn, me)  # with what this turn has left
            raise

    def _exchange(self, *, receives: bool) -> None:
        try:
            if self._closing is not None:
                self._begin_close()
            self._settle_encrypting()  # before OpenSSL answers something that it reads
            if self._writes():
                self._send()
            if receives:
                self._receive()
                if self._writes():  # maybe an acknowledgement
                    self._send()
        except ssl.SSLError as e:
            self._lose(f"TLS failed: {e.reason or e}")
        except StreamError as e:
            self._lose(str(e))
        except OSError as e:
            if e.errno is None:  # not the kernel's: a signal handler raised it
                raise
            self._lose(e.strerror or str(e))
        except MemoryError as e:
            self._end(NoMemoryError(f"{self._name}: no memory for a message: {e}"))
        else:
            if self._closing is not None and (self._acknowledged or (self._goodbye and not self._writes())):
                self._settle_close()
                self._end(self._closed_by_this_side())
            self._watch()

    def _begin_close(self) -> None:
        _fail(self._waiters, self._closed_by_this_side())
        if self._farewell:
            _move(self._farewell, self._sends)

    def _send(self) -> None:
        for _ in range(2 * _TURN_NBYTES // PIECE_NBYTES):
            if not self._encrypted:
                self._encrypt()
                if not self._outgoing.pending:
                    return
                accepted: list[int] = []
                self._encrypted.extend(zip(map(self._outgoing.read, (-1,)), (accepted,), strict=True))
            data, accepted = self._encrypted[0]
            left = memoryview(data)[sum(accepted) :]
            try:
                accepted.extend(map(self._sock.send, (left,)))
            except BlockingIOError:
                return
            except OSError as e:  # the other side's last data may still be readable
                if e.errno is None:
                    raise
                self._unwritable = PeerLostError(f"{self._name}: {e.strerror or e}")
                self._drop_sends(self._unwritable)
                self._encrypted.clear()
                return
            if sum(accepted) == len(data):
                self._encrypted.popleft()
        self._unfinished = True

    def _encrypt(self) -> None:
        """Encrypt the next pieces, up to one send."""
        self._settle_encrypting()
        while self._sends and self._outgoing.pending < PIECE_NBYTES:
            send = self._sends[0]
            if not send.complete:
                send.begun = True
                piece = send.piece()
                self._encrypting = (send, send.place, piece, self._outgoing.pending)
                self._settle_encrypting(self._tls.write(piece))
                continue
            if send.last and send.operation is not None and not send.operation.done():
                send.operation.finish(None)
            self._sends.popleft()

    def _settle_encrypting(self, nbytes: int | None = None) -> None:
        """Move on by `nbytes` that were encrypted; None: find out whether they were."""
        if self._encrypting is None:
            return
        send, place, piece, encrypted = self._encrypting
        if send.place == place:
            if nbytes is None:
                grown = self._outgoing.pending - encrypted
                if 0 < grown < piece.nbytes:
                    raise StreamError("a signal handler interrupted the encryption of a message in the middle")
                nbytes = piece.nbytes if grown else 0
            send.go_on(nbytes)
        self._encrypting = None

    def _receive(self) -> None:
        self._decrypt()
        for _ in range(_TURN_NBYTES // PIECE_NBYTES):
            if not self._reads():
                return
            try:
                self._read_nbytes.extend(map(self._incoming.write, map(self._sock.recv, (PIECE_NBYTES,))))
            except BlockingIOError:
                return
            if not self._read_nbytes[0]:
                raise StreamError("the other side closed the socket without ending the connection")
            self._decrypt()
            if self._polls and self._read_nbytes[0] < PIECE_NBYTES:
                return
        self._unfinished = True

    def _decrypt(self) -> None:
        self._settle_decrypting()
        ready = self._tls.pending()  # bytes left of the current record
        while self._reads():
            message = self._arriving[0]
            while not message.complete:
                room = message.room()
                while room:
                    if not ready and not self._incoming.pending:
                        return  # `read` would raise SSLWantReadError, which takes longer than this
                    piece = room[: ready or message.record_nbytes()]
                    if not ready and piece.nbytes > 1:
                        piece[: len(_MARK)] = piece[-len(_MARK) :] = _MARK
                    self._decrypting = (message, message.place, piece, ready, piece[0])
                    try:
                        nbytes: int = self._tls.read(piece.nbytes, piece)  # type: ignore[assignment]
                    except ssl.SSLWantReadError:
                        self._decrypting = None
                        return
                    if not nbytes:
                        raise StreamError("the other side ended TLS without ending the connection")
                    message.fill(nbytes)
                    self._decrypting = None
                    ready = ready - nbytes if ready else self._tls.pending()
                    room = room[nbytes:]
                message.go_on()
            self._handle(message)

    def _settle_decrypting(self) -> None:
        """Find out whether an interrupted call filled its room, and move on by that."""
        if self._decrypting is None:
            return
        message, place, piece, ready, byte = self._decrypting
        if message.place == place:
            read = self._tls.pending() != ready
            if not ready and not read:
                if piece.nbytes == 1:  # no record has a single byte: where its first is read, others are left
                    read = piece[0] != byte
                else:
                    read = bytes(piece[-len(_MARK) :]) != _MARK
                    if not read and bytes(piece[: len(_MARK)]) != _MARK:
                        raise StreamError("a signal handler interrupted the decryption of a message in the middle")
            message.fill(piece.nbytes if read else 0)
        self._decrypting = None

    def _handle(self, message: Message) -> None:
        if len(self._arriving) == 1:
            self._arriving.append(Message(message.number + 1, message.end))
        self._undelivered = True
        if message.kind == DATA and self._closing is None:
            _move(self._arriving, self._inbox)
        else:
            if message.kind == ACKNOWLEDGE:
                self._acknowledged = True
            elif message.kind == GOODBYE and self._answer:
                self._goodbye = True
                self._fault = PeerClosedError(f"{self._name}: the peer has closed the connection")
                self._drop_sends(self._fault)
                _move(self._answer, self._sends)
            self._arriving.popleft()
        self._deliver()

    def _unread(self) -> deque[Message]:
        """Return the messages that no receive has taken, in order."""
        if self._returned:
            self._in_order = False
            _move(self._returned, self._inbox, len(self._returned))
        if not self._in_order:
            self._inbox = deque(sorted(self._inbox, key=attrgetter("number")))
            self._in_order = True
        return self._inbox

    def _remove(self, operation: Operation[Any]) -> None:
        """Remove an operation from the receives that wait, and those that nobody refers to any more."""
        self._waiters = deque(each for each in self._waiters if each() not in (None, operation))

    def _deliver(self) -> None:
        self._undelivered = True
        while self._dropped:
            dropped = self._dropped[0]
            self._remove(dropped)
            self._returned.extend(map(dropped.taken.pop, repeat(0, len(dropped.taken))))
            self._dropped.popleft()
        while self._waiters:
            reference = self._waiters[0]
            first = reference()
            if first is None or first.done():
                if first is not None:
                    self.let_go(first)
                if self._waiters and self._waiters[0] is reference:
                    self._waiters.popleft()
            elif first.full:
                first.complete()
            elif unread := self._unread():
                if first.fits(unread[0]):
                    _move(unread, first.taken)
            elif self._fault is not None:
                self._returned.extend(map(first.taken.pop, repeat(0, len(first.taken))))
                first.fail(self._fault)
            else:
                break
        self._undelivered = False

    @property
    def unread_nbytes(self) -> int:
        """Bytes of messages that wait for a receive; too many where some were given back out of order."""
        unread = self._unread()
        return unread[-1].end - unread[0].start if unread else 0

    def _reads(self) -> bool:
        if self._acknowledged:  # nothing follows
            return False
        return self._closing is not None or bool(self._waiters) or self.unread_nbytes < _UNREAD_NBYTES

    def _writes(self) -> bool:
        return self._unwritable is None and bool(self._encrypted or self._sends or self._outgoing.pending)

    # ---- ends

    def _check_owner(self, op: str) -> None:
        if self._process is not sockets.process:
            raise forked()
        if threading.get_ident() != self._owner:
            raise ThreadError(f"{op} ({self._name}): the connection belongs to another thread", op=op)

    def _check_open(self, op: str) -> None:
        self._check_owner(op)
        if self.closed:
            raise ClosedError(f"{op} ({self._name}): the connection was closed by this side", op=op)

    def _closed_by_this_side(self) -> ClosedError:
        return ClosedError(f"{self._name}: the connection was closed by this side")

    def _settle_close(self) -> None:
        """Complete a close that has an outcome; it succeeded if the other side had sent its goodbye."""
        if self._closing is None or self._closing.done():
            return
        if self._fault is not None and not self._goodbye:
            self._closing.fail(self._fault)
        else:
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
        if not self._goodbye:
            self._fault = PeerLostError(f"{self._name}: {reason}")
        self._unwritable = self._fault
        self._lost = True
        self._settle_loss()

    def _settle_loss(self) -> None:
        assert self._fault is not None
        self._drop_sends(self._fault)
        if self._closing is not None:
            _fail(self._waiters, self._closed_by_this_side())
        self._forget()
        self._deliver()
        self._settle_close()
        self._release()
        self._over = True

    def _end(self, error: Error) -> None:
        """End this side."""
        self._why_closed = self._unwritable = error
        self._closed = True
        self._inbox.clear()
        self._returned.clear()
        self._dropped.clear()
        self._forget()
        self._drop_sends(error)
        _fail(self._waiters, error)
        if self._closing is not None:
            self._closing.fail(error)
        self._release()
        self._over = True

    def _forget(self) -> None:
        """Release the message that was arriving, and what was being sent."""
        self._decrypting = self._encrypting = None
        self._arriving = deque([Message(1, 0)])
        self._encrypted.clear()

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
        if self._unfinished:  # after a reset uvloop calls its reader once, and never again (libuv's POLLERR)
            self._unfinished = False
            self._loop.call_soon(_turn, me)

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


def _move(source: deque[_T], target: deque[_T] | list[_T], count: int = 1) -> None:
    """Move the first of `source` to the end of `target`, each in one call."""
    target.extend(starmap(source.popleft, repeat((), count)))


def _fail(receives: deque[weakref.ref[Receive[Any]]], error: Error) -> None:
    while receives:
        receive = receives[0]()
        if receive is not None:
            receive.fail(error)
        receives.popleft()
