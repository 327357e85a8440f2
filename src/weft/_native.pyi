"""
UCP for weft: contexts, workers, endpoints, requests, connections and the receive pool.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
import contextvars
from typing import Any, Literal, NoReturn, overload

from typing_extensions import Buffer, Self

import weft.typing


def bind(path: str) -> None: ...

def bound() -> bool: ...

def keep_sighup(load: Callable[[], Any]) -> Any: ...

def close_in_child(fd: int) -> None: ...

def keep_in_child(fd: int) -> None: ...

def forked() -> bool: ...

class Block:
    @property
    def nbytes(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def pooled(self) -> bool: ...

    @property
    def lent(self) -> bool: ...

def pool_allocate(nbytes: int) -> memoryview: ...

def pool_set_cap(nbytes: int) -> None: ...

def pool_set_hold(seconds: float, ceiling_nbytes: int = 18446744073709551615, low_water_nbytes: int = 0) -> None: ...

def pool_join(fd: int) -> bool: ...

def pool_settle(other_nbytes: int | None = None) -> None: ...

def pool_trim(nbytes: int) -> None: ...

def pool_cool() -> None: ...

def flag_loans() -> None: ...

def loans_counted_elsewhere() -> tuple[int, int] | None: ...

def is_flagged(buffer: object) -> bool: ...

def pool_statistics() -> dict[str, int]: ...

def pool_small_on_huge(on: bool) -> None: ...

def pool_limit_mappings(most: int) -> int: ...

def arrow_in_pool(on: bool, library: str) -> bool: ...

def numpy_in_pool(on: bool) -> bool: ...

class Context:
    """A UCP context: the transports and devices that its workers may use."""

    def __init__(self, settings: dict[str, str], defaults: dict[str, str], features: Iterable[str], shm_nbytes: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def close(self) -> None:
        """
        Release the context. Idempotent.

        Raises
        ------
        InvalidParamError
            Workers, memories or views of its messages are still open.
        """

    @property
    def memory_types(self) -> list[str]:
        """
        Memory types that its transports can send from and receive into: ``host``; ``cuda`` and others with a GPU, its driver and UCX's modules for it. Source: ``ucp_context_query``.
        """

    @property
    def features(self) -> list[str]:
        """The features that the context was made with."""

    @property
    def config(self) -> dict[str, tuple[str, str]]:
        """
        Settings that the caller or weft changed: name to (value, ``argument`` or ``weft``). UCX reads ``UCX_*`` itself.
        """

    def mem_map(self, buffer: weft.typing.BufferLike) -> Memory:
        """
        Let peers that have its key read and write `buffer`.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape
            Locked until the memory is closed. Peers may change it at any time.

        Returns
        -------
        Memory

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``rma``.
        ReadOnlyError, NotContiguousError
            weft cannot write to `buffer` in place.

        Source: ``ucp_mem_map``.
        """

    def mem_alloc(self, nbytes: int) -> Memory:
        """
        Allocate memory that peers with its key may read and write.

        Parameters
        ----------
        nbytes : int
            At least 1. ``memoryview(memory)`` is the memory itself, writable.

        Returns
        -------
        Memory

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``rma``.
        NoMemoryError
            The memory cannot be allocated.

        Source: ``ucp_mem_map`` with ``UCP_MEM_MAP_ALLOCATE``.
        """

class Request:
    """
    An operation under way: wait for it with :meth:`wait`, or ``await`` it.

    It follows asyncio's future protocol: ``gather``, ``wait``, ``wait_for`` and ``shield`` accept it
    directly; ``create_task`` and ``TaskGroup`` need a coroutine that awaits it.

    Cancelling ends the request at once. UCX withdraws the operation if it can. Otherwise the operation runs on: its
    buffer stays locked until it ends, and its result is dropped. A message that nobody received goes back to its
    connection.
    """

    def __iter__(self) -> Generator[Any, None, Any]: ...

    def __next__(self) -> Any: ...

    def __await__(self) -> Generator[Any, None, Any]: ...

    def wait(self, timeout: float | None = None) -> Any:
        """
        Block until the operation is complete and return its result.

        Parameters
        ----------
        timeout : float, optional
            Seconds; a negative value counts as 0. None waits without limit.

        Returns
        -------
        object
            The operation's result; None for sends.

        Raises
        ------
        TimedOutError
            The timeout expired. The request is still pending; you may wait for it again.
        InvalidParamError
            `timeout` is NaN.
        CanceledError
            The request was cancelled.
        ThreadError
            The worker belongs to another thread.
        Error
            The error that ended the operation.

        Ctrl-C interrupts the wait within 100 ms; the request is then still pending.
        """

    def done(self) -> bool:
        """True once the request has completed, failed or been cancelled."""

    def cancelled(self) -> bool:
        """True if it was cancelled."""

    def result(self) -> Any:
        """
        Return the result, or raise the error that ended the operation.

        As asyncio's futures: InvalidStateError while it is pending, asyncio.CancelledError if it was cancelled.
        """

    def exception(self) -> BaseException | None:
        """
        Return the error that ended the operation, or None; raise in the same cases as :meth:`result`.
        """

    def cancel(self, msg: Any = None) -> bool:
        """
        Cancel the request; False if it is done already. ThreadError if the worker belongs to another thread.
        """

    def add_done_callback(self, fn: Callable[[Request], object], *, context: contextvars.Context | None = None) -> None:
        """Call `fn` with this request, from the running loop, once it is done."""

    def remove_done_callback(self, fn: Callable[[Request], object]) -> int:
        """Remove `fn`; return how often it had been added."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that this request is awaited in."""

    def throw(self, type: Any, value: Any = None, traceback: Any = None) -> NoReturn:
        """Part of the awaiting protocol."""

    @property
    def op(self) -> str:
        """The operation's name."""

    def __repr__(self) -> str: ...

class Worker:
    """
    A UCP worker: it sends and receives for the one thread that made it.

    A worker does not progress by itself. It progresses while a thread waits for a request, and in the turns of an
    asyncio loop in which a request was awaited. With ``links_only``, it is for weft's own connections alone: it has no
    address and makes no endpoints.
    """

    def __init__(self, context: Context, *, links_only: bool = False) -> None: ...

    @property
    def address(self) -> bytes:
        """The worker's address: bytes for :meth:`connect` on another worker."""

    @property
    def max_am_header(self) -> int:
        """The longest header of an active message, in bytes."""

    def fileno(self) -> int:
        """
        A descriptor that becomes readable when there is something to progress.
        """

    def progress(self) -> int:
        """
        Progress once and complete the requests that ended; return the number of events that UCX handled.
        """

    def arm(self) -> bool:
        """
        Arm :meth:`fileno` for the next event. False: there are events left; call :meth:`progress` first.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def close(self) -> None:
        """
        Close every endpoint and connection, end every request and destroy the worker. Idempotent.
        """

    @property
    def handle(self) -> int:
        """
        The address of the ``ucp_worker_h``, for libraries that call UCX themselves; the worker keeps owning it.
        """

    @property
    def dropped_messages(self) -> int:
        """
        How many messages were dropped: those without a valid connection id, from a stranger, and those for a connection that is closed.
        """

    @property
    def closed(self) -> bool:
        """Whether the worker was closed."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Progress in this event loop's turns, also while no request is awaited."""

    def connect(self, address: bytes) -> Endpoint:
        """
        Make an endpoint that sends to the worker with this address.

        Parameters
        ----------
        address : bytes
            The other worker's :attr:`address`. It must come from a source that you trust: UCX parses it unchecked.

        Raises
        ------
        UnreachableError
            No transport of this context reaches that worker.
        Error
            This worker has already made 65,535 endpoints to that one, closed ones included, which is UCX's limit.

        Such an endpoint has no liveness check: a dead peer is noticed by UCX's keepalive, or never. In UCX 1.22 a peer on
        this host that ends before this side has answered it crashes this process (docs/faults.md). :func:`weft.connect`
        notices a dead peer within a second. Source: ``ucp_ep_create``.
        """

    def flush(self) -> weft.typing.Request[None]:
        """
        Return a request that completes when the peers have everything sent, put and added before. Source: ``ucp_worker_flush_nbx``.
        """

    def tag_recv(self, buffer: weft.typing.BufferLike, tag: int, mask: int = 0xffffffffffffffff) -> weft.typing.Request[tuple[int, int]]:
        """
        Post a receive for the next message whose tag matches.

        Parameters
        ----------
        buffer : writable contiguous buffer, DLPack tensor or CUDA array, any shape
            Filled in place. Locked until the request completes. A message has at most ``buffer.nbytes`` bytes. Protocols are
            tried as by :meth:`Endpoint.tag_send`. A DLPack tensor before version 1.0 cannot say that it is read-only.
        tag, mask : int, 0 <= value < 2**64
            A message matches if ``(sent ^ tag) & mask == 0``.

        Returns
        -------
        Request
            Its result is ``(nbytes, sender_tag)``.

        Raises
        ------
        ReadOnlyError, NotContiguousError, UnsupportedError
            weft cannot write to `buffer` in place. Nothing was posted.
        TruncatedError
            From the request: the message was longer than `buffer`.

        Cancelling withdraws the receive if it has not matched; a matched one completes.
        Source: ``ucp_tag_recv_nbx``.
        """

    def tag_probe(self, tag: int, mask: int = 0xffffffffffffffff, *, remove: bool = False) -> tuple[int, int] | TagMessage | None:
        """
        Look for a message that has arrived and that no receive has matched.

        Parameters
        ----------
        tag, mask : int, 0 <= value < 2**64
            A message matches if ``(sent ^ tag) & mask == 0``.
        remove : bool
            Remove the message, so that no receive posted later matches it.

        Returns
        -------
        None, (int, int) or TagMessage
            None if there is no such message; else ``(nbytes, sender_tag)``; with `remove` a message for
            :meth:`tag_msg_recv`, which is lost if you drop it.

        It does not progress the worker: call :meth:`progress` between probes. Source: ``ucp_tag_probe_nb``.
        """

    def tag_msg_recv(self, buffer: weft.typing.BufferLike, message: TagMessage) -> weft.typing.Request[tuple[int, int]]:
        """
        Receive a message that :meth:`tag_probe` removed.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape
            At least ``message.nbytes`` long. Filled in place; locked until the request completes.
        message : TagMessage
            Used up by this call, unless it raises.

        Returns
        -------
        Request
            Its result is ``(nbytes, sender_tag)``.

        Raises
        ------
        ReadOnlyError, NotContiguousError
            weft cannot write to `buffer` in place.
        TruncatedError
            From the request: the message was longer than `buffer`. It is lost.

        Source: ``ucp_tag_msg_recv_nbx``.
        """

    def am_recv(self, id: int) -> weft.typing.Request[tuple[bytes, memoryview]]:
        """
        Receive the next active message with this id.

        Parameters
        ----------
        id : int, 0 <= id < 63
            The id given to :meth:`Endpoint.am_send`. The first call for an id registers it; messages with an id that was
            never registered are dropped by UCX.

        Returns
        -------
        Request
            Its result is ``(header, data)``: bytes, and a writable memoryview of pooled memory.

        Cancelling withdraws the receive, never a message. Source: ``ucp_worker_set_am_recv_handler``.
        """

    def set_am_recv_handler(self, id: int, handler: Callable[[ActiveMessage], object] | None) -> None:
        """
        Set the handler of active messages with this id.

        Parameters
        ----------
        id : int, 0 <= id < 63
        handler : callable of one ActiveMessage, or None
            Called while the worker progresses: it may post operations, and must not wait for them. Exceptions go to
            ``sys.unraisablehook``. None removes the handler; UCX then drops messages with this id.

        Raises
        ------
        InvalidParamError
            :meth:`am_recv` receives the messages of this id.

        Source: ``ucp_worker_set_am_recv_handler``.
        """

    def tag_recv_many(self, buffers: Sequence[weft.typing.BufferLike], tag: int, mask: int = 0xffffffffffffffff) -> weft.typing.Request[list[tuple[int, int]]]:
        """
        Post a receive into each of `buffers`, in order, with one request for all.

        Parameters
        ----------
        buffers : sequence of writable contiguous buffers
            Each takes one message. Locked until the request completes.
        tag, mask : int, 0 <= value < 2**64
            A message matches if ``(sent ^ tag) & mask == 0``.

        Returns
        -------
        Request
            Its result is a list of ``(nbytes, sender_tag)``. It fails with the first error.

        Raises
        ------
        ReadOnlyError, NotContiguousError
            weft cannot write to a buffer in place. Nothing was posted.

        Cancelling withdraws the receives that have not matched; messages that arrived are in their buffers.
        Source: ``ucp_tag_recv_nbx``.
        """

    def listen_sockaddr(self, address: str) -> SockaddrListener:
        """
        Listen for programs that connect with UCX alone, such as weft's :meth:`connect_sockaddr`.

        Parameters
        ----------
        address : str
            ``"host:port"``, or ``":port"`` for all devices. Port 0 chooses a free port. IPv4 only.

        Returns
        -------
        SockaddrListener

        Raises
        ------
        AddressError
            The host is unknown or another one, the port is in use, or this process may not use it.
        InvalidParamError
            There is no port, or it is not a number up to 65535.
        UnsupportedError
            The address is IPv6, with which UCX's own listener crashes.

        Connections are not authenticated: every program that reaches the port is connected. :func:`weft.listen`
        authenticates user and host.
        Source: ``ucp_listener_create``.
        """

    def connect_sockaddr(self, address: str) -> Endpoint:
        """
        Make an endpoint to a UCX listener.

        Parameters
        ----------
        address : str
            ``"host:port"``. IPv4 only.

        Returns
        -------
        Endpoint
            It connects while the worker progresses; messages wait until it is connected.

        Raises
        ------
        InvalidParamError
            There is no port, or it is not a number up to 65535.
        UnsupportedError
            The address is IPv6, with which UCX's own listener crashes.
        UnreachableError, PeerLostError
            The host is unknown. From the first operation: no program listens there, or it has stopped.

        Source: ``ucp_ep_create`` with ``UCP_EP_PARAMS_FLAGS_CLIENT_SERVER``.
        """

class Endpoint:
    """Sends to one other worker. Made by :meth:`Worker.connect`."""

    def flush(self) -> weft.typing.Request[None]:
        """
        Return a request that completes when the peer has everything sent before. Source: ``ucp_ep_flush_nbx``.
        """

    def close(self, *, force: bool = False) -> weft.typing.Request[None]:
        """
        Flush and close; `force` ends what is under way with an error instead, but not where the context has ``amo``. Source: ``ucp_ep_close_nbx``.
        """

    @property
    def transports(self) -> list[str]:
        """The lanes in use, as ``transport/device``. Source: ``ucp_ep_query``."""

    def print_info(self) -> str:
        """
        Return UCX's description of the endpoint: its lanes, and a table of protocols for each operation used so far. For people to read; the text depends on UCX's version. Empty if UCX has none. Source: ``ucp_ep_print_info``.
        """

    def evaluate_perf(self, nbytes: int) -> float | None:
        """
        Return how many seconds UCX expects a message of `nbytes` to take over the fastest lane; None if it does not tell. Source: ``ucp_ep_evaluate_perf``.
        """

    @property
    def handle(self) -> int:
        """
        The address of the ``ucp_ep_h``, for libraries that call UCX themselves; the endpoint keeps owning it.
        """

    @property
    def closed(self) -> bool:
        """Whether the endpoint is closed."""

    def tag_send(self, buffer: weft.typing.BufferLike, tag: int) -> weft.typing.Request[None]:
        """
        Send `buffer` under `tag`.

        Parameters
        ----------
        buffer : contiguous buffer, DLPack tensor or CUDA array, any shape, C or Fortran order
            Locked until the request completes; not modified. The buffer protocol is tried first, then DLPack, then
            ``__cuda_array_interface__``. Device memory is sent directly, after the array's stream has finished (DLPack: the
            producer orders CUDA's default stream after its own, and weft waits for the default stream; CUDA array interface:
            weft waits for ``stream``, if there is one).
        tag : int, 0 <= value < 2**64

        Returns
        -------
        Request
            Done when `buffer` may be changed again. That does not mean that the peer has the message.

        Raises
        ------
        NotContiguousError
            Nothing was sent.
        UnsupportedError
            `buffer` is in memory that UCX cannot reach here; see :attr:`Context.memory_types`. Nothing was sent.
        PeerLostError
            From the request: the peer is gone.

        Cancelling ends the request; the transfer goes on, and the buffer stays locked until it ends.
        Source: ``ucp_tag_send_nbx``.
        """

    def tag_send_sync(self, buffer: weft.typing.BufferLike, tag: int) -> weft.typing.Request[None]:
        """
        Send `buffer` under `tag`; complete when the peer has matched it.

        Like :meth:`tag_send`, but the request completes only when a receive of the peer has matched the message.
        Source: ``ucp_tag_send_sync_nbx``.
        """

    def am_send(self, id: int, header: Buffer, data: weft.typing.BufferLike | list[weft.typing.BufferLike] | tuple[weft.typing.BufferLike, ...] | None = None, *, reply: bool = False) -> weft.typing.Request[None]:
        """
        Send an active message.

        Parameters
        ----------
        id : int, 0 <= id < 63
        header : bytes-like
            At most :attr:`Worker.max_am_header` bytes; copied at once.
        data : contiguous buffer, DLPack tensor or CUDA array, or a list of them, optional
            Locked until the request completes. A list arrives as one block; all its buffers must be in one type of memory.
        reply : bool
            Give the peer's handler an endpoint to reply with (:attr:`ActiveMessage.reply`).

        Returns
        -------
        Request
            Done when the buffers may be changed again.

        Raises
        ------
        InvalidParamError
            The header is too long. Nothing was sent.
        NotContiguousError, UnsupportedError
            As :meth:`tag_send`.

        Cancelling ends the request; the transfer goes on. Source: ``ucp_am_send_nbx``.
        """

    def tag_send_many(self, buffers: Sequence[weft.typing.BufferLike], tag: int) -> weft.typing.Request[None]:
        """
        Send each of `buffers` under `tag`, in order, with one request for all.

        Parameters
        ----------
        buffers : sequence of contiguous buffers
            Each is one message. Locked until the request completes; not modified.
        tag : int, 0 <= value < 2**64

        Returns
        -------
        Request
            Done when all buffers may be changed again. It fails with the first error.

        Raises
        ------
        NotContiguousError
            Nothing was sent.

        Source: ``ucp_tag_send_nbx``, once for each.
        """

    def stream_send(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]:
        """
        Append `buffer` to the stream to the peer.

        Parameters
        ----------
        buffer : contiguous buffer, any shape
            Locked until the request completes; not modified.

        Returns
        -------
        Request
            Done when `buffer` may be changed again.

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``stream``.
        NotContiguousError
            Nothing was sent.

        Source: ``ucp_stream_send_nbx``.
        """

    def stream_recv(self, buffer: weft.typing.BufferLike, *, wait_all: bool = False) -> weft.typing.Request[int]:
        """
        Receive bytes of the stream from the peer.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape
            Filled from its beginning. Locked until the request completes.
        wait_all : bool
            Complete only when `buffer` is full; otherwise as soon as any bytes arrive.

        Returns
        -------
        Request
            Its result is the number of bytes.

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``stream``.
        ReadOnlyError, NotContiguousError
            weft cannot write to `buffer` in place.

        Two endpoints share one stream if each was made from the address of the other's worker. Cancelling ends the request,
        but UCX cannot withdraw the receive: it takes the next bytes, and the buffer stays locked until then.
        Source: ``ucp_stream_recv_nbx``.
        """

    def rkey_unpack(self, key: RemoteKey) -> Rkey:
        """
        Make a peer's key usable with this endpoint.

        Parameters
        ----------
        key : RemoteKey
            A key to memory of the peer that this endpoint is connected to.

        Returns
        -------
        Rkey
            For :meth:`put`, :meth:`get` and :meth:`atomic_op`.

        Raises
        ------
        UnreachableError
            No transport of the endpoint reaches that memory.

        Source: ``ucp_ep_rkey_unpack``.
        """

    def put(self, buffer: weft.typing.BufferLike, rkey: Rkey, offset: int = 0) -> weft.typing.Request[None]:
        """
        Write `buffer` into a peer's memory.

        Parameters
        ----------
        buffer : contiguous buffer, any shape
            Locked until the request completes; not modified.
        rkey : Rkey
            From :meth:`rkey_unpack` of this endpoint.
        offset : int
            Position in the peer's memory, in bytes from its beginning.

        Returns
        -------
        Request
            Done when `buffer` may be changed again. The peer's memory has the bytes once a later :meth:`flush` is done.

        Raises
        ------
        InvalidParamError
            The bytes would exceed the memory. Nothing was written.

        Cancelling ends the request; the transfer goes on. Source: ``ucp_put_nbx``.
        """

    def get(self, buffer: weft.typing.BufferLike, rkey: Rkey, offset: int = 0) -> weft.typing.Request[None]:
        """
        Read from a peer's memory into `buffer`.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape
            Filled in place. Locked until the request completes.
        rkey : Rkey
            From :meth:`rkey_unpack` of this endpoint.
        offset : int
            Position in the peer's memory, in bytes from its beginning.

        Returns
        -------
        Request
            Done when `buffer` is filled.

        Raises
        ------
        InvalidParamError
            The bytes would exceed the memory. Nothing was read.

        Cancelling ends the request; the transfer goes on. Source: ``ucp_get_nbx``.
        """

    @overload
    def atomic_op(self, op: str, value: int, rkey: Rkey, offset: int = 0, *, compare: int | None = None, nbytes: int = 8, fetch: Literal[True] = True) -> weft.typing.Request[int]:
        """
        Change one integer in a peer's memory atomically.

        Parameters
        ----------
        op : {"add", "and", "or", "xor", "swap", "cswap"}
        value : int
            The operand, signed or unsigned; for swap and cswap the new value.
        rkey : Rkey
            From :meth:`rkey_unpack` of this endpoint.
        offset : int
            Position in the peer's memory, in bytes; a multiple of `nbytes`.
        compare : int, only for cswap
            Swap only if the memory holds this value.
        nbytes : {8, 4}
            Size of the integer, in the machine's byte order.
        fetch : bool
            Return the old value; swap and cswap always do.

        Returns
        -------
        Request
            Its result is the old value, unsigned, or None. Without `fetch` the change is at the peer only after a flush.

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``amo``.
        InvalidParamError
            `op` is none of these, `compare` is missing or superfluous, `value` does not fit, or `offset` is not a multiple of
            `nbytes` within the memory.

        Atomic with respect to other operations through UCX; with respect to the owner's own instructions only on transports
        that use the CPU's (posix does). Source: ``ucp_atomic_op_nbx``.
        """
    @overload
    def atomic_op(self, op: str, value: int, rkey: Rkey, offset: int = 0, *, compare: int | None = None, nbytes: int = 8, fetch: bool) -> weft.typing.Request[int | None]: ...

class TagMessage:
    """
    A message that :meth:`Worker.tag_probe` removed from the queue; :meth:`Worker.tag_msg_recv` receives it.
    """

    @property
    def nbytes(self) -> int:
        """Length of the message in bytes."""

    @property
    def tag(self) -> int:
        """The tag that it was sent with."""

class ActiveMessage:
    """
    An active message, as passed to its handler.

    ``memoryview(message)`` is the data of an eager message, read-only, in UCX's own buffer: nothing is copied, and
    it stays valid until the view and the message are dropped. The data of a rendezvous message is still at its sender;
    :meth:`recv` fetches it. A message that is dropped before that is discarded; its sender sees success.
    """

    @property
    def header(self) -> bytes:
        """A copy of the header that was sent with the message."""

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes, without the header."""

    @property
    def rendezvous(self) -> bool:
        """
        Whether the data is still at the sender, until :meth:`recv` fetches it.
        """

    @property
    def reply(self) -> Endpoint | None:
        """
        An endpoint to the sender, if the message was sent with ``reply=True``. It raises PeerLostError once UCX has noticed that the sender is gone; with the feature ``stream``, ClosedError once the handler has returned.
        """

    @overload
    def recv(self, buffer: None = None) -> weft.typing.Request[memoryview]:
        """
        Receive the data.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape, optional
            At least :attr:`nbytes` long. Locked until the request completes. None: pooled memory.

        Returns
        -------
        Request
            Its result is the number of bytes, or without `buffer` a writable memoryview.

        Raises
        ------
        TruncatedError
            `buffer` is too small. The message is still there.
        InvalidParamError
            The message has already been received, or a memoryview of it is still in use.

        Source: ``ucp_am_recv_data_nbx``.
        """
    @overload
    def recv(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[int]: ...

class RemoteKey:
    """
    The key with which a peer reaches a :class:`Memory`. It can be pickled.

    Give it only to peers that you trust: whoever has it can read and write the memory while it is mapped. Accept keys
    only from peers that you trust: UCX parses them unchecked.
    """

    def __init__(self, address: int, nbytes: int, packed: bytes) -> None: ...

    @property
    def address(self) -> int:
        """Address of the memory in its owner's process."""

    @property
    def nbytes(self) -> int:
        """Length of the memory in bytes."""

    @property
    def packed(self) -> bytes:
        """The key as UCX packs it; a copy. Its length depends on the transports."""

    def __reduce__(self) -> tuple[type[RemoteKey], tuple[int, int, bytes]]: ...

class Memory:
    """
    Memory that peers may read and write. Made by :meth:`Context.mem_map` and :meth:`Context.mem_alloc`. It supports the buffer protocol.
    """

    @property
    def address(self) -> int:
        """Address of the memory in this process."""

    @property
    def nbytes(self) -> int:
        """Length of the memory in bytes."""

    def rkey_pack(self) -> RemoteKey:
        """
        Return the key with which a peer reaches this memory. Source: ``ucp_rkey_pack``.
        """

    def close(self) -> None:
        """
        Unmap the memory: its keys become invalid, and its buffer is unlocked. Idempotent.

        No operation of another process may be under way: this side does not know of them, and what they write then goes to
        memory that is no longer there, which may end this process. So have every peer flush its endpoint and say so, or close
        the workers by which they reach this process.

        Raises
        ------
        InvalidParamError
            A memoryview of the memory is in use, or an operation of this process on the memory may be under way. Nothing was
            unmapped.

        Source: ``ucp_mem_unmap``.
        """

    @property
    def closed(self) -> bool:
        """Whether the memory was unmapped."""

    def __enter__(self) -> Memory: ...

    def __exit__(self, *exc: object) -> None: ...

class Rkey:
    """
    A peer's memory, accessible through one endpoint. Made by :meth:`Endpoint.rkey_unpack`.
    """

    @property
    def address(self) -> int:
        """Address of the memory in its owner's process."""

    @property
    def nbytes(self) -> int:
        """Length of the memory in bytes."""

class SockaddrListener:
    """
    Accepts connections from programs that use UCX. Made by :meth:`Worker.listen_sockaddr`.
    """

    @property
    def address(self) -> str:
        """
        The address that it listens at, ``host:port``. Source: ``ucp_listener_query``.
        """

    def accept(self) -> weft.typing.Request[Endpoint]:
        """
        Accept the next connection.

        Returns
        -------
        Request
            Its result is an :class:`Endpoint`.

        Raises
        ------
        ClosedError
            The listener is closed, or was closed meanwhile (from the request).

        Cancelling withdraws the accept; the connection stays for the next one.
        Source: ``ucp_ep_create`` with ``conn_request``.
        """

    def close(self) -> None:
        """
        Reject connections not yet accepted and all later ones; the port is freed with the worker. Idempotent. Source: ``ucp_listener_reject``.
        """

class Link:
    @property
    def address(self) -> bytes: ...

    def offer(self, fd: int) -> None: ...

    @property
    def memory(self) -> int: ...

    def join(self, address: bytes, fd: int, memory: int = -1) -> None: ...

    def open(self, local: int, remote: int, name: str) -> Channel: ...

    def close(self) -> None: ...

    @property
    def lost(self) -> bool: ...

    @property
    def handle(self) -> int: ...

    def print_info(self) -> str: ...

    @property
    def transports(self) -> list[str]: ...

def ring_error() -> str: ...

def prepare_link(worker: Worker, same_host: bool, name: str) -> Link: ...

class Channel:
    header_nbytes: int = 32

    rendezvous_nbytes: int = 262144

    lend_nbytes: int = 65536

    stage_nbytes: int = 1048576

    stage_limit_nbytes: int = 268435456

    whole_nbytes: int = 4096

    piece_nbytes: int = 8192

    large_piece_nbytes: int = 32768

    @staticmethod
    def last_small_nbytes() -> int: ...

    def send(self, first: weft.typing.BufferLike, rest: list[Buffer] | None = None, lend: bool = False, stage: bool = False) -> weft.typing.Request[None]: ...

    def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]: ...

    def recv(self) -> weft.typing.Request[Any]: ...

    def recv_into(self, buffer: Buffer) -> weft.typing.Request[int]: ...

    def send_many(self, buffers: Sequence[weft.typing.BufferLike]) -> weft.typing.Request[None]: ...

    def recv_many(self, count: int) -> weft.typing.Request[list[Any]]: ...

    def close(self) -> weft.typing.Request[None]: ...

    def abort(self, reason: str = 'the connection was aborted by this side') -> None: ...

    @property
    def closed(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    @property
    def loss_raised(self) -> bool: ...

    def send_placed(self, first: Buffer, rest: list[Buffer], lend: bool, stage: bool, placed: list[Buffer]) -> list[weft.typing.Request[None]]: ...

    def recv_placed(self, place: int, buffer: Buffer) -> weft.typing.Request[None]: ...

    @property
    def next_place(self) -> int: ...

    @property
    def memory_types(self) -> list[str]: ...

    @property
    def unread_nbytes(self) -> int: ...

    @property
    def lent_sent_nbytes(self) -> int: ...

    @property
    def lent_received_nbytes(self) -> int: ...

    @property
    def landed(self) -> tuple[int, float, float]: ...

    @property
    def transports(self) -> list[str]: ...

    def print_info(self) -> str: ...

    def evaluate_perf(self, nbytes: int) -> float | None: ...

    @property
    def handle(self) -> int: ...

class Peer:
    """
    The messages of :class:`weft.Peer`, over the channel of its connection.
    """

    def __init__(self, channel: object) -> None: ...

    def send(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]:
        """
        Send one message.

        Parameters
        ----------
        buffer : contiguous buffer, DLPack tensor or CUDA array, any shape
            Locked until the request completes; then you may change it. Device memory is sent directly, after its stream
            has finished; the peer receives it in host memory. See :meth:`Endpoint.tag_send`.

        Returns
        -------
        Request
            Done when you may change `buffer` again. That does not mean that the peer has the message. It stays pending
            while the peer has 4 MiB of small messages, or 8,000 large ones, unread.

        Raises
        ------
        NotContiguousError
            `buffer` is not contiguous. Nothing was sent.
        InvalidParamError
            `buffer` holds Python objects: see :meth:`send_obj`. Nothing was sent.
        UnsupportedError
            `buffer` is in device memory that UCX cannot reach here. Nothing was sent.
        ClosedError
            This side has closed the connection.
        PeerLostError
            From the request: the peer is gone; PeerClosedError if it closed the connection.

        Cancelling withdraws a message that is still queued; one under way is sent.
        """

    def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]:
        """
        Send one message without copying it where possible: the peer maps the pages that you wrote.

        It is possible if the peer is another process on this host and `buffer` is in weft's pool: memory of a received
        message, or ``numpy`` arrays made under :func:`weft.arrays_in_pool`. Memory that another process of this host
        lent to this one is lent on, unless this process has written to it: the peer maps the first owner's pages and
        keeps them after this process has ended. Otherwise this is :meth:`send`.

        Parameters
        ----------
        buffer : contiguous buffer, DLPack tensor or CUDA array, any shape
            Do not change it from here on, not even after the request has completed: the peer may see the change on some
            pages. You may drop it: its memory is not reused before the peer has released it.

        Returns
        -------
        Request
            Done when the message is on its way. The peer's memory is writable; its changes are not visible to you.

        Raises
        ------
        NotContiguousError, InvalidParamError, UnsupportedError, ClosedError, PeerLostError
            As :meth:`send`.
        """

    def recv(self) -> weft.typing.Request[memoryview]:
        """
        Receive the next message, in the order of sending.

        Returns
        -------
        Request
            Its result is a writable memoryview, aligned to 64 B. The memory lives as long as anything refers to it; from
            64 KiB up it belongs to weft's pool, so it can be lent on. Receive what :meth:`send_frames` and :meth:`send_obj`
            sent with :meth:`recv_frames` and :meth:`recv_obj`: here it comes as it was packed, as a tuple of memoryviews if
            it has large buffers.

        Raises
        ------
        ClosedError
            This side has closed the connection.
        PeerLostError
            From the request, after all messages that arrived have been received; PeerClosedError if the peer closed the
            connection.

        Cancelling loses no message: the next ``recv`` gets it.
        """

    def recv_into(self, buffer: Buffer) -> weft.typing.Request[int]:
        """
        Receive the next message into `buffer`.

        Parameters
        ----------
        buffer : writable contiguous buffer of the host, any shape
            Filled from its beginning, in memory order. A message has at most ``buffer.nbytes`` bytes. Locked until the
            request has its result or, after cancelling, until the peer no longer writes to it.

        Returns
        -------
        Request
            Its result is the number of bytes. Several buffers sent as one message arrive as one.

        Raises
        ------
        ReadOnlyError, NotContiguousError
            weft cannot write to `buffer` in place. No message was received.
        TruncatedError
            From the request: the next message is longer than `buffer`. It stays queued for the next receive.
        ClosedError, PeerLostError
            As for :meth:`recv`.

        A message of 256 KiB or more that is not lent arrives in `buffer` without a copy if you call this before it arrives.
        Cancelling loses no message: the next receive gets it. `buffer` may have been written to.
        """

    def send_many(self, buffers: Sequence[weft.typing.BufferLike]) -> weft.typing.Request[None]:
        """
        Send each of `buffers` as a message, in order, with one request for all.

        Parameters
        ----------
        buffers : sequence of contiguous buffers
            Each as for :meth:`send`. Locked until the request completes.

        Returns
        -------
        Request
            Done when you may change all buffers again. It stays pending while the peer has too much unread, as for
            :meth:`send`.

        Raises
        ------
        NotContiguousError, InvalidParamError, UnsupportedError, ClosedError
            As for :meth:`send`. Nothing was sent.
        PeerLostError
            From the request: the peer is gone; it may have received some of the messages.

        Cancelling withdraws the messages that are still queued; the others are sent.
        """

    def recv_many(self, count: int) -> weft.typing.Request[list[memoryview]]:
        """
        Receive the next `count` messages, with one request for all.

        Parameters
        ----------
        count : int, 0 <= count
            Number of messages.

        Returns
        -------
        Request
            Its result is a list of memoryviews as from :meth:`recv`, in the order of sending.

        Raises
        ------
        ClosedError
            This side has closed the connection.
        PeerLostError
            From the request: the connection ended before `count` messages arrived; PeerClosedError if the peer closed it.
            The messages that arrived stay for the next receive.

        Cancelling loses no message: the next receive gets the first one.
        """

def layout(array: object) -> tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...], tuple[int, int]]: ...

def view(memory: Buffer, dtype: tuple[int, int, int], shape: Sequence[int], strides: Sequence[int], device: tuple[int, int], writable: bool) -> Any: ...

def cuda_device(address: int) -> int: ...
