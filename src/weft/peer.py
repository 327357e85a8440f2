# SPDX-License-Identifier: BSD-3-Clause
"""The public side of a connection, and its construction from the result of a handshake."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft import _frames, _native
from weft._connect.address import join, of_socket
from weft._connect.channel_protocol import Channel
from weft._connect.sockets import OwnedSocket, keep_alive, round_trip_of
from weft._request import PythonRequest, detached
from weft._tls.channel import TlsChannel
from weft.errors import CanceledError, HandshakeError, PeerLostError, TimedOutError, UnsupportedError
from weft.typing import Request, ResultT_co

if TYPE_CHECKING:
    from weft._connect.handshake import Joined
    from weft.explain.explanation import Explanation

#: ``allocate(nbytes, device, library)`` returns memory to receive into.
Allocate = Callable[[int, int, str], Any]
_HALFWAY = "a message with device memory was given up halfway"
#: Converts a message into a result, and the requests that must follow it.
Convert = Callable[[Any], tuple[Any, list[Request[Any]]]]


def _on_host(nbytes: int, _device: int, _library: str) -> bytearray:
    return bytearray(nbytes)


class Peer(_native.Peer):
    """One side of a connection; it sends to the other side and receives from it.

    :func:`weft.connect` and :func:`weft.listen` make peers. Every operation returns a :class:`weft.Request`: call
    ``.wait(timeout)``, or ``await`` it. A peer belongs to the thread, and to the event loop, that made it.

    Attributes
    ----------
    local_address, remote_address : str
        ``host:port`` of the two ends. Within a host a connection may be made without TCP; the caller's port is then 0.
    same_host : bool
        Whether the other process has proved that it runs on this host as this user.
    remote : dict
        The ``info`` that the other side passed to :func:`weft.connect` or :func:`weft.listen`.
    round_trip_s : float
        The shortest round trip that the kernel measured during the handshake, in seconds; 0.0 if it measured none, or
        if the connection was made without TCP.
    """

    _channel: Channel  # set by the native base class

    def __init__(
        self,
        channel: Channel,
        *,
        local_address: str,
        remote_address: str,
        same_host: bool,
        remote: dict[str, Any],
        config: Mapping[str, tuple[str, str]] | None = None,
        why_ucx: str | None = "",
        round_trip_s: float = 0.0,
    ) -> None:
        super().__init__(channel)
        self.round_trip_s = round_trip_s
        self._config, self._why_ucx = config, why_ucx
        self.local_address = local_address
        self.remote_address = remote_address
        self.same_host = same_host
        self.remote = remote

    def send_frames(self, buffers: Sequence[Any], *, lend: bool = False, stage: bool = False) -> Request[None]:
        """Send several buffers as one message, for :meth:`recv_frames`. Large buffers are not copied first.

        Parameters
        ----------
        buffers : sequence of contiguous buffers
            Host memory needs the buffer protocol. Memory of a CUDA device needs ``nbytes``; each such buffer travels
            separately, and the message is sent when all of them are. Send device memory only to a peer that can
            receive it. All buffers are locked until the request completes.
        lend : bool
            Lend buffers of 64 KiB and more where possible, as :meth:`lend` does. You may change them once the request
            is done: the peer keeps what was sent.
        stage : bool
            Copy other buffers of 1 MiB to 256 MiB into shared memory when the message's turn comes, and lend that.
            This is faster if either process has other work to do.

        Returns
        -------
        Request
            Done when you may change the buffers.

        Raises
        ------
        UnsupportedError
            A buffer is in device memory that UCX cannot reach here. Nothing was sent.
        NotContiguousError
            A buffer is not contiguous.
        InvalidParamError
            A buffer holds Python objects.
        TypeError
            `buffers` is no sequence, or one of them is no buffer.
        ClosedError
            The peer is closed.

        Cancelling a message with device memory aborts the connection, because the peer waits for all of it.
        """
        return self.send_packed(self.pack(buffers), lend=lend, stage=stage)

    def pack(self, buffers: Sequence[Any]) -> _frames.Packed:
        """Arrange buffers as a message for :meth:`send_packed`; send nothing else in between. See :meth:`send_frames`.

        Returns
        -------
        Packed
            The message. It knows its size in bytes, and whether a buffer is on a CUDA device.
        """
        try:
            return _frames.pack(buffers, self._channel.next_place)
        except TypeError as e:
            raise TypeError(f"send_frames: {e}; pass a sequence of contiguous buffers") from None

    def send_packed(self, packed: _frames.Packed, *, lend: bool = False, stage: bool = False) -> Request[None]:
        """Send `packed`, a message of :meth:`pack`; `lend` and `stage` are as for :meth:`send_frames`."""
        if not isinstance(packed, _frames.Packed):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise TypeError(f"send_packed: pass a message of Peer.pack, not {type(packed).__name__}")
        if not packed.placed:
            return self._channel.send(packed.first, packed.large, lend, stage)
        head, *rest = self._channel.send_placed(packed.first, packed.large, lend, stage, packed.placed)
        return Pending(head, self._channel, None, rest)

    def recv_frames(self, allocate: Allocate = _on_host) -> Request[list[Any]]:
        """Receive a message of :meth:`send_frames`: a list of writable, aligned buffers, one for each sent.

        Parameters
        ----------
        allocate : callable
            ``allocate(nbytes, device, library)`` returns the memory for a buffer from a CUDA device: `device` is the
            device's number, `library` is ``cupy``, ``numba``, ``torch``, ``rmm`` or empty. The list contains what it
            returns. By default such buffers arrive in bytearrays.

        Returns
        -------
        Request
            Its result is the list of buffers.

        Cancelling loses no message. But once device memory is being received into memory of `allocate`, cancelling
        aborts the connection.
        """
        return Pending(self._channel.recv(), self._channel, lambda message: self._land(message, allocate), [])

    def _land(self, message: _frames.Message, allocate: Allocate) -> tuple[list[Any], list[Request[Any]]]:
        buffers, elsewhere = _frames.unpack(message)
        if not elsewhere:
            return buffers, []
        landing = Landing(self._channel)
        try:
            for index in elsewhere:
                number, nbytes, device, library = buffers[index]
                buffers[index] = memory = allocate(nbytes, device, library)
                if number is not None:
                    landing.append(self._channel.recv_placed(number, memory))
        except BaseException as e:
            self._channel.abort(f"no memory to receive a message into: {e!r}")
            raise
        return buffers, landing

    def send_obj(self, obj: object) -> Request[None]:
        """Send a Python object with pickle protocol 5, for :meth:`recv_obj`. Its large buffers are not copied."""
        import pickle  # lazy: it would slow down weft's import

        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        return self.send_frames([head, *(b.raw() for b in buffers)])

    def recv_obj(self) -> Request[Any]:
        """Receive an object that the peer sent with :meth:`send_obj`.

        Unpickling runs code that the sender chooses: receive objects only from peers that you trust.
        """
        return Pending(self._channel.recv(), self._channel, _unpickle, [])

    def close(self) -> Request[None]:
        """Close the connection after the peer has received everything that was sent before.

        Returns
        -------
        Request
            Done when the peer has all messages in its memory, or has closed the connection itself. It stays pending
            while the peer leaves large messages unread. Between hosts and over TLS, the peer must also say so: its
            thread must call weft again, or its loop must run.

        Raises
        ------
        PeerLostError
            From the request: the peer was lost before it had everything. The connection is closed nevertheless.
        """
        return self._channel.close()

    def abort(self) -> None:
        """Close at once. Messages not yet received are lost; the peer gets PeerLostError. Any thread; idempotent.

        Without an event loop it waits up to 0.1 s for space in the peer's queue.
        """
        self._channel.abort()

    @property
    def closed(self) -> bool:
        """Whether this side has closed or aborted the connection."""
        return self._channel.closed

    @property
    def ended(self) -> bool:
        """Whether the other side has closed the connection or is gone; there may be messages left to receive."""
        return self._channel.ended

    @property
    def lent_nbytes(self) -> tuple[int, int]:
        """Bytes sent to the peer, and bytes received from it, without being copied, so far."""
        return self._channel.lent_sent_nbytes, self._channel.lent_received_nbytes

    @property
    def landed(self) -> tuple[int, float, float]:
        """What the link has delivered so far, as ``(nbytes, seconds, busy)``; zeros if TLS carries the messages.

        `nbytes` counts large messages that arrived. `seconds` is how long they were on their way, without the time
        that they waited to be received. `busy` is the integral, over these seconds, of the number of connections of
        this thread that were receiving over the network.
        """
        return self._channel.landed

    @property
    def memory_types(self) -> list[str]:
        """Memory types that UCX can send from and receive into here: ``host``, ``cuda``, ..."""
        return self._channel.memory_types

    @property
    def transports(self) -> list[str]:
        """The lanes between the two processes, as ``transport/device``."""
        return self._channel.transports

    def explain(self) -> Explanation:
        """Explain which wire carries this connection's messages, and why others do not.

        Returns
        -------
        Explanation
            Print it, or call its ``json()``. It lists the lanes, the protocol for each size, the time that UCX expects
            messages to take, and the transports that are not used, each with the reason and its evidence; ``unknown``
            if there is none. It sends nothing and so measures nothing; ``weft explain`` measures. UCX 1.23 chooses
            protocols with the first message, and reports no sizes before. UCX is not loaded for a connection that
            weft's own ring carries.

        Raises
        ------
        ClosedError
            The connection's worker is closed.
        PeerLostError
            The peer is gone, and its lanes with it.
        UnsupportedError
            TLS carries the messages.

        If UCX carries the messages, the first call in a process runs ``ucx_info``, which blocks an event loop for half
        a second.
        Source: ``ucp_ep_query``, ``ucp_ep_print_info``, ``ucp_ep_evaluate_perf``.
        """
        if not isinstance(self._channel, _native.Channel):
            raise UnsupportedError(f"explain {self.remote_address}: its messages go over the TLS connection")
        from weft.explain import explain  # lazy: rarely needed, and a quarter of weft's own import time

        return explain(
            self._channel,
            config=self._config or {},
            why_ucx=self._why_ucx,
            same_host=self.same_host,
            local_address=self.local_address,
            remote_address=self.remote_address,
            remote=self.remote,
        )

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self.ended else "open"
        return f"<weft.Peer {self.remote_address} {state}>"

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and not self.closed and not self._channel.loss_raised:
            self.close().wait()
        else:
            self.abort()

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None and not self.closed and not self._channel.loss_raised:
            await self.close()
        else:
            self.abort()


class Pending(PythonRequest[ResultT_co]):
    """A request that is followed by others, or whose result is converted.

    :meth:`wait`, :meth:`__await__`, callbacks and :meth:`done` each process the requests one after the other. A signal
    handler that raises meanwhile, as Ctrl-C does, ends nothing: the next of these goes on, and converts again.
    """

    _name = "message"
    _follower: Follower | None = None

    def __init__(
        self, request: Request[Any], channel: Channel, convert: Convert | None, parts: Sequence[Request[Any]]
    ) -> None:
        self.current = request
        self._channel = channel
        self._convert = convert
        self._parts = parts
        self._at = 0

    def _next(self, value: Any) -> None:
        """Process the result of the current request, and go on to the next one."""
        if self._convert is not None:
            result, parts = self._convert(value)
            self._result, self._parts, self._convert = result, parts, None
        if self._at < len(self._parts):
            self.current = self._parts[self._at]
            self._at += 1
            return
        self._done = True

    def done(self) -> bool:
        """Return whether the request has completed, failed or been cancelled."""
        while not self._done and self.current.done():
            try:
                self._next(self.current.result())
            except (Exception, asyncio.CancelledError) as e:  # noqa: BLE001 - that of a cancelled request, too
                self._stop(e)
            self._tell()
        return self._done

    def _tell(self) -> None:
        """Call what waits for the result. What a signal handler raises meanwhile is no error of the conversion."""
        if self._done and self._callbacks is not None:
            self._end()

    def _block(self, timeout: float | None) -> None:
        current = self.current
        try:
            value = current.wait(timeout)
        except Exception as e:
            if not _failed(current):  # not its error, but a limit of time, or what a signal handler raised
                if self._at and isinstance(e, TimedOutError):
                    return  # it would name the part of the caller's time that the requests before have left
                raise
            self._stop(e)
            return
        try:
            self._next(value)
        except Exception as e:  # noqa: BLE001 - of the conversion
            self._stop(e)
        self._tell()

    def _watch(self) -> None:
        self.current.add_done_callback(self._on_done)

    def _unwatch(self) -> None:
        self.current.remove_done_callback(self._on_done)
        self.follow()

    def follow(self) -> None:
        if self._follower is None or self._follower.current is not self.current:
            self._follower = Follower(self)
            self.current.add_done_callback(self._follower)

    def _on_done(self, _: Request[Any]) -> None:
        if not self.done() and self._callbacks is not None:
            self._watch()

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        while not self._done:
            current = self.current
            try:
                value = yield from current.__await__()
            except BaseException as e:
                ended = isinstance(e, (asyncio.CancelledError, GeneratorExit))
                if ended or (isinstance(e, Exception) and _failed(current)):
                    self._stop(e)
                else:  # it was refused, as in a wrong thread, or interrupted
                    traceback.clear_frames(e.__traceback__)  # as in `wait`
                    del self, current
                raise
            if current is self.current and not self._done:  # no other awaiting task has advanced it
                try:
                    self._next(value)
                except (Exception, asyncio.CancelledError) as e:
                    self._stop(e)
                    raise
                self._tell()
        if self._cancelled or self._error is not None:
            return self.result()
        return self._result  # type: ignore[no-any-return]

    __iter__ = __await__

    def _stop(self, error: BaseException) -> None:
        """End with the current request's error, or with one thrown into the awaiting task."""
        if not isinstance(error, PeerLostError):
            self._give_up()
        if isinstance(error, Exception) and not isinstance(error, CanceledError):
            self.fail(detached(error))
        elif not self._done:
            if isinstance(error, asyncio.CancelledError) and error.args:
                self._cancel_message = error.args[0]
            self._cancelled = True
            self._end()

    def _withdraw(self, msg: object) -> bool:
        if not self._parts:
            return self.current.cancel(msg)
        if self.done():
            return False
        self._give_up()
        return True

    def _give_up(self) -> None:
        if self._parts:
            self._channel.abort(_HALFWAY)


class Follower:
    """Goes on with a request that was watched once, from one of its parts to the next, without keeping it."""

    def __init__(self, pending: Pending[Any]) -> None:
        self.current = pending.current
        self._pending = weakref.ref(pending, self._dropped)

    def _dropped(self, _: object) -> None:
        self.current.remove_done_callback(self)

    def __call__(self, _: Request[Any]) -> None:
        pending = self._pending()
        if pending is not None and not pending.done():
            pending.follow()


class Landing(list[Request[Any]]):
    """The receives of a message's device memory; the connection is of no use if they are dropped before their end."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def __del__(self) -> None:
        if not all(part.done() for part in self):
            self._channel.abort(_HALFWAY)


def _failed(request: Request[Any]) -> bool:
    return request.done() and (request.cancelled() or request.exception() is not None)


def _unpickle(message: _frames.Message) -> tuple[Any, list[Request[Any]]]:
    received, _ = _frames.unpack(message)
    if not received:
        raise HandshakeError("recv_obj: the message has no buffer; it was not sent by send_obj")
    head, *buffers = received
    import pickle

    return pickle.loads(head, buffers=buffers), []  # noqa: S301


def peer_of(joined: Joined, sock: socket.socket) -> Peer:
    """Make a peer from the result of a handshake over `sock`. The caller closes `sock`."""
    local, remote = joined.ends or (join(*of_socket(sock.getsockname())), join(*of_socket(sock.getpeername())))
    channel, config = joined.channel, None
    if joined.link is None or channel is None:
        channel = _over_tls(joined, sock)
    else:
        context = joined.link.worker.context
        config = None if context is None else context.config
        if not joined.same_host:
            keep_alive(sock)
        if joined.new_link and _announces():
            from weft import explain  # lazy: rarely needed, and a quarter of weft's own import time

            native, why_ucx, same_host = joined.link.native, joined.why_ucx, joined.same_host
            explain.announce(native, config or {}, why_ucx=why_ucx, same_host=same_host)
    return Peer(
        channel,
        local_address=local,
        remote_address=remote,
        same_host=joined.same_host,
        remote=joined.remote,
        config=config,
        why_ucx=joined.why_ucx,
        round_trip_s=0.0 if joined.ends else round_trip_of(sock),  # with `ends`, no TCP
    )


def _over_tls(joined: Joined, sock: socket.socket) -> TlsChannel:
    keep_alive(sock)
    own = OwnedSocket.duplicate(sock)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = TlsChannel(joined.session, own, join(*of_socket(sock.getpeername())))
    joined.workers.abort_with(channel)
    return channel


def _announces() -> bool:
    """Tell whether WEFT_EXPLAIN asks to report each new endpoint."""
    return os.environ.get("WEFT_EXPLAIN", "") not in ("", "0", "n")
