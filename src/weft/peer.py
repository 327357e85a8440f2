# SPDX-License-Identifier: BSD-3-Clause
"""A connection as its user sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft import _native
from weft._connect import frames
from weft._native import Request
from weft.errors import PeerLostError, UnsupportedError

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation
    from weft.typing import BufferLike
#: ``allocate(nbytes, device, library)``: memory to receive into.
Allocate = Callable[[int, int, str], Any]
#: What a message is, and the requests for what follows it.
Convert = Callable[[Any], tuple[Any, list[Request]]]


def _on_host(nbytes: int, _device: int, _library: str) -> bytearray:
    return bytearray(nbytes)


class Peer:
    """The other side of a connection.

    Made by :func:`weft.connect` and :func:`weft.listen`. Every operation returns something to wait for with
    ``.wait(timeout)`` or to ``await``. A peer belongs to the thread, and the event loop, that made it.

    Attributes
    ----------
    local_address, remote_address : str
        ``host:port`` of the two ends of the socket that the connection was made over.
    same_host : bool
        The other process has proved that it runs on this host, as this user.
    remote : dict
        What the other side told of itself in the handshake.
    """

    def __init__(
        self,
        channel: _native.Channel,
        *,
        local_address: str,
        remote_address: str,
        same_host: bool,
        remote: dict[str, Any],
        config: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self._channel = channel
        self._config = config
        self.local_address = local_address
        self.remote_address = remote_address
        self.same_host = same_host
        self.remote = remote

    def send(self, buffer: BufferLike) -> Request:
        """Send one message.

        Parameters
        ----------
        buffer : contiguous buffer, DLPack tensor or CUDA array, any shape
            Locked until the request completes; then it may be changed. Device memory is sent from where it lies, once
            its producer's stream is done; the peer receives it in host memory. See :meth:`Endpoint.tag_send`.

        Returns
        -------
        Request
            Done when `buffer` is yours again, which does not mean that the peer has the message. It stays
            pending while 4 MiB of small messages, or 8,000 large ones, lie unread at the peer.

        Raises
        ------
        NotContiguousError
            Nothing was sent.
        InvalidParamError
            `buffer` holds Python objects: see :meth:`send_obj`. Nothing was sent.
        UnsupportedError
            `buffer` lies in device memory that UCX cannot reach here. Nothing was sent.
        ClosedError
            This side has closed the connection.
        PeerLostError
            From the request: the peer is gone; PeerClosedError if it said goodbye.

        Cancelling a message that still waits for its turn withdraws it; one under way is sent.
        """
        return self._channel.send(buffer)

    def lend(self, buffer: BufferLike) -> Request:
        """Send one message without copying it, if that can be done: the peer reads the pages that you wrote.

        It can if the peer is another process on this host and `buffer` lies in weft's pool: memory that was
        received, ``numpy`` arrays made under :func:`weft.arrays_in_pool`. What another process of this host lent to
        this one is lent on, unless this process has written to it: the peer reads the first one's pages, also after
        the end of this process. Else this is :meth:`send`.

        Parameters
        ----------
        buffer : contiguous buffer, DLPack tensor or CUDA array, any shape
            Must not be changed from here on, not even after the request is complete: the peer may see the change, or
            not, page by page. It may be dropped: its memory is not used again before the peer has let go of it.

        Returns
        -------
        Request
            Done when the message is on its way. What the peer receives is writable, and what it writes is its own.

        Raises
        ------
        NotContiguousError, InvalidParamError, UnsupportedError, ClosedError, PeerLostError
            As :meth:`send`.
        """
        return self._channel.lend(buffer)

    def recv(self) -> Request:
        """Receive the next message, in the order in which they were sent.

        Returns
        -------
        Request
            Wait or await it for a writable memoryview of pooled memory, aligned to 64 B, which lives as long
            as anything refers to it.

        Raises
        ------
        ClosedError
            This side has closed the connection.
        PeerLostError
            From the request, once everything that arrived has been received; PeerClosedError if the peer
            said goodbye.

        Cancelling withdraws the waiter, never a message: the next ``recv`` gets it.
        """
        return self._channel.recv()

    def send_frames(self, buffers: Sequence[Any], *, lend: bool = False, stage: bool = False) -> Request | Pending:
        """Send several buffers as one message, for :meth:`recv_frames`. Large ones are sent from where they lie.

        Those of the host must have the buffer protocol. With `lend`, those of 64 KiB and more are lent where they can
        be, as by :meth:`lend`, but may be changed once the request is done: what this process then writes is its own,
        and the peer keeps what was sent. With `stage`, other ones of 1 MiB to 256 MiB are copied into shared memory
        when it is the message's turn, and lent from there: they may be changed once the request is done, as without,
        and it is faster where either process has other work to do. Those on a CUDA device need contiguous memory, and
        ``nbytes``; each travels by itself, and the message is sent when all of them are: send them only to who can
        take them.

        Raises
        ------
        UnsupportedError
            One lies in device memory that UCX cannot reach here. Nothing was sent.

        Cancelling a message with device memory aborts the connection: the other side was promised all of it.
        """
        return self.send_packed(self.pack(buffers), lend=lend, stage=stage)

    def pack(self, buffers: Sequence[Any]) -> frames.Packed:
        """Arrange buffers as a message, for :meth:`send_packed`, with nothing sent in between; see :meth:`send_frames`.

        Returns
        -------
        Packed
            Has their bytes, and whether one lies on a CUDA device: so a caller who wants to know need not go through
            them again.
        """
        return frames.pack(buffers, self._channel.next_place)

    def send_packed(self, packed: frames.Packed, *, lend: bool = False, stage: bool = False) -> Request | Pending:
        """Send what :meth:`pack` arranged, as :meth:`send_frames` does."""
        if not packed.placed:
            return self._channel.send(packed.first, packed.large, lend, stage)
        head, *rest = self._channel.send_placed(packed.first, packed.large, lend, stage, packed.placed)
        return Pending(head, self._channel, None, rest)

    def recv_frames(self, allocate: Allocate = _on_host) -> Pending:
        """Receive a message of :meth:`send_frames`: a list of writable, aligned buffers, one for each sent.

        Parameters
        ----------
        allocate : callable
            ``allocate(nbytes, device, library)`` returns the memory for a buffer that lay on CUDA device number
            `device`, and was ``cupy``'s, ``numba``'s, ``torch``'s, ``rmm``'s or, if `library` is empty, somebody
            else's. It is what the list then has. A bytearray if not given.

        Cancelling withdraws the waiter, never a message; but once device memory is on its way into memory of
        `allocate`, it aborts the connection.
        """
        return Pending(self._channel.recv(), self._channel, lambda message: self._land(message, allocate), [])

    def _land(self, message: frames.Message, allocate: Allocate) -> tuple[list[Any], list[Request]]:
        buffers, elsewhere = frames.unpack(message)
        landing: list[Request] = []
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

    def send_obj(self, obj: object) -> Request | Pending:
        """Send a Python object: pickle protocol 5, its large buffers not copied. For :meth:`recv_obj`."""
        import pickle  # here, and not above: weft's import waits for it otherwise

        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        return self.send_frames([head, *(b.raw() for b in buffers)])

    def recv_obj(self) -> Pending:
        """Receive an object of :meth:`send_obj`.

        Unpickling runs code of the sender's choice: receive objects only from peers that you trust.
        """
        return Pending(self._channel.recv(), self._channel, _unpickle, [])

    def close(self) -> Request:
        """Say goodbye, and wait until the peer has received everything that was sent before.

        Returns
        -------
        Request
            Done when the peer has it all in its memory, or has closed the connection itself. It stays pending
            while the peer leaves large messages unread.

        Raises
        ------
        PeerLostError
            From the request: the peer was lost before it had everything. The connection is closed all the same.
        """
        return self._channel.close()

    def abort(self) -> None:
        """Close at once. What was not received is lost; the peer gets PeerLostError. Any thread; idempotent."""
        self._channel.abort()

    @property
    def closed(self) -> bool:
        """This side has closed or aborted the connection."""
        return self._channel.closed

    @property
    def ended(self) -> bool:
        """The other side has closed the connection or is gone; messages may be left to receive."""
        return self._channel.ended

    @property
    def lent_nbytes(self) -> tuple[int, int]:
        """Bytes that went to the peer and that came from it without being copied, so far."""
        return self._channel.lent_sent_nbytes, self._channel.lent_received_nbytes

    @property
    def memory_types(self) -> list[str]:
        """What UCX can send from and receive into here: ``host``, ``cuda``, ...; see :class:`weft.Context`."""
        return self._channel.memory_types

    @property
    def transports(self) -> list[str]:
        """The lanes between the two processes, as ``transport/device``."""
        return self._channel.transports

    def explain(self) -> Explanation:
        """Tell which wire carries this connection's messages, and why not another one.

        Returns
        -------
        Explanation
            To print, or as :meth:`Explanation.json`: lanes, which size goes by which protocol, what UCX expects
            messages to take, and each transport that is not used, with the reason and what that was read from;
            ``unknown`` where nothing was found. Nothing is sent, so nothing is measured: ``weft explain`` does that.
            UCX 1.23 chooses protocols with the first message: before that it has no sizes to tell.

        Raises
        ------
        ClosedError
            The worker of this connection is closed.
        PeerLostError
            The peer is gone, and its lanes with it.
        UnsupportedError
            UCX does not carry its messages: they go over the TLS connection.

        The first call in a process runs ``ucx_info``, half a second in which an event loop stands still.
        Source: ``ucp_ep_query``, ``ucp_ep_print_info``, ``ucp_ep_evaluate_perf``.
        """
        if self._config is None:
            raise UnsupportedError(
                f"explain {self.remote_address}: its messages go over the TLS connection, not by UCX"
            )
        from weft.explain import explain  # seldom asked for, and a quarter of weft's own import

        return explain(
            self._channel,
            config=self._config,
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
        if kind is None and not self.closed:
            self.close().wait()
        else:
            self.abort()

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None and not self.closed:
            await self.close()
        else:
            self.abort()


class Pending:
    """A request that others follow, or whose result is made into something else. Wait for it or await it, once."""

    __slots__ = ("_channel", "_convert", "_parts", "_request", "_result")

    def __init__(
        self, request: Request, channel: _native.Channel, convert: Convert | None, parts: list[Request]
    ) -> None:
        self._request = request
        self._channel = channel
        self._convert = convert
        self._parts = parts
        self._result: Any = None

    def _begin(self, value: Any) -> None:
        convert, self._convert = self._convert, None
        if convert is not None:
            self._result, self._parts = convert(value)

    def wait(self, timeout: float | None = None) -> Any:
        """Block until it is there; see :meth:`Request.wait`."""
        until = None if timeout is None else time.monotonic() + timeout
        self._begin(self._request.wait(timeout))
        for part in self._parts:
            part.wait(None if until is None else max(0.0, until - time.monotonic()))
        return self._result

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            self._begin((yield from self._request.__await__()))
            for part in self._parts:
                yield from part.__await__()
        except PeerLostError:
            raise
        except BaseException:
            self._give_up()
            raise
        return self._result

    def done(self) -> bool:
        """Tell whether ``wait`` would return at once; before it was waited for, whether the message has begun."""
        return self._request.done() and all(part.done() for part in self._parts)

    def cancel(self) -> bool:
        """Withdraw it; see :meth:`Peer.recv` and, for what device memory does to it, :meth:`Peer.recv_frames`."""
        if not self._parts:
            return self._request.cancel()
        if self.done():
            return False
        self._give_up()
        return True

    def _give_up(self) -> None:
        if self._parts:
            self._channel.abort("a message with device memory was given up halfway")


def _unpickle(message: frames.Message) -> tuple[Any, list[Request]]:
    (head, *buffers), _ = frames.unpack(message)
    import pickle

    return pickle.loads(head, buffers=buffers), []  # noqa: S301
