"""
UCP for weft: context, worker, endpoint, request, connection, receive pool.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
import contextvars
from typing import Any, Literal, NoReturn, overload

from typing_extensions import Buffer, Self

import weft.typing


def bind(path: str) -> None:
    """Take every UCP function from the loaded library at `path`."""

def bound() -> bool: ...

def keep_sighup(load: Callable[[], Any]) -> Any:
    """
    Call `load` and put back what SIGHUP did before, which libucs takes over in a constructor.
    """

def close_in_child(fd: int) -> None:
    """Have a forked child close `fd` at once."""

def keep_in_child(fd: int) -> None:
    """Undo close_in_child."""

def forked() -> bool:
    """True in a child forked after weft was used."""

class Block:
    """
    Memory of the receive pool, or lent by another process; `memoryview(block)` is writable and keeps it.
    """

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

def pool_set_hold(seconds: float) -> None:
    """
    For so long keep, beyond the cap, as much as was in use at once; 0: nothing.
    """

def pool_settle() -> None:
    """Give back what was kept for the hold and has not been used again."""

def pool_trim(nbytes: int) -> None:
    """
    Give idle memory back until at most `nbytes` are left, and what was freed but is lent leave resident memory.
    """

def pool_cool() -> None:
    """
    Give the pages of all idle memory back; the files stay, and others need not map them anew.
    """

def flag_loans() -> None:
    """
    Have /proc/self/smaps tell which borrowed memory its owner still counts: such mappings have the flag `dd`.
    """

def loans_counted_elsewhere() -> tuple[int, int] | None:
    """
    Of all that was borrowed, the bytes that its owners count: what is resident, and what is mapped, touched or not.

    It flags as `flag_loans` does. None: `/proc/self/smaps` must be asked, because no owner counts some that is shared.
    """

def is_flagged(buffer: object) -> bool:
    """
    Whether all of a contiguous buffer is memory that `flag_loans` has flagged.
    """

def pool_statistics() -> dict[str, int]: ...

def numpy_in_pool(on: bool) -> bool:
    """
    Have NumPy take arrays from 64 KiB up from the pool, in this context (a context variable of NumPy's).

    Returns whether it did before. Arrays that exist already stay where they are. Source: ``PyDataMem_SetHandler``.
    """

class Context:
    """A UCP context: the transports and devices that its workers may use."""

    def __init__(self, settings: dict[str, str], defaults: dict[str, str], features: Iterable[str], shm_nbytes: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def close(self) -> None:
        """Release the context. Idempotent; its workers must be closed before."""

    @property
    def memory_types(self) -> list[str]:
        """
        What its transports can send from and receive into: ``host``; ``cuda`` and others where there is a GPU, its driver, and UCX's modules for it. Source: ``ucp_context_query``.
        """

    @property
    def features(self) -> list[str]:
        """What its workers can do, by the names that it is made with."""

    @property
    def config(self) -> dict[str, tuple[str, str]]:
        """
        Settings that differ from UCX's defaults: name to (value, ``argument`` or ``weft``).
        """

    def mem_map(self, buffer: weft.typing.BufferLike) -> Memory:
        """
        Let peers that are given its key read and write `buffer`.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape
            Locked until the memory is closed. Peers change it at any time.

        Returns
        -------
        Memory

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``rma``.
        ReadOnlyError, NotContiguousError
            `buffer` cannot be written as it is.

        Source: ``ucp_mem_map``.
        """

    def mem_alloc(self, nbytes: int) -> Memory:
        """
        Allocate memory that peers who are given its key may read and write.

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
            There is no room.

        Source: ``ucp_mem_map`` with ``UCP_MEM_MAP_ALLOCATE``.
        """

class Request:
    """
    An operation under way: wait for it with :meth:`wait`, or ``await`` it.

    It follows asyncio's future protocol, so ``gather``, ``wait``, ``wait_for``, ``timeout`` and ``shield`` take it
    as it is; ``create_task`` and ``TaskGroup`` take a coroutine that awaits it.

    Cancelling ends the waiter at once. The operation is withdrawn if UCX can, else it runs on, its buffer stays
    locked until it ends, and its result is dropped; a message that nobody received goes back to its connection.
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
            Seconds; below 0 as 0. None waits without bound.

        Returns
        -------
        object
            What the operation gives; None for sends.

        Raises
        ------
        TimedOutError
            `timeout` is over; the request is still pending and may be waited for again.
        InvalidParamError
            `timeout` is not a number (NaN).
        CanceledError
            The request was cancelled.
        ThreadError
            The worker belongs to another thread.
        Error
            Whatever ended the operation.

        Ctrl-C interrupts it within 100 ms; the request is then still pending.
        """

    def done(self) -> bool:
        """
        True once the waiter has ended: by completion, failure or cancellation.
        """

    def cancelled(self) -> bool:
        """True if it was cancelled."""

    def result(self) -> Any:
        """
        Return the result, or raise what ended the operation; InvalidStateError while it is pending.
        """

    def exception(self) -> BaseException | None:
        """Return what ended the operation, or None."""

    def cancel(self, msg: Any = None) -> bool:
        """
        End the waiter; False if it has ended already. ThreadError if the worker belongs to another thread.
        """

    def add_done_callback(self, fn: Callable[[Request], object], *, context: contextvars.Context | None = None) -> None:
        """Have the running loop call `fn` with this request once it is done."""

    def remove_done_callback(self, fn: Callable[[Request], object]) -> int:
        """Forget `fn`; return how often it had been added."""

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

    A worker does not progress by itself: it does while a request is waited for, or while asyncio's loop runs in
    which one was awaited.
    """

    def __init__(self, context: Context | None, *, links_only: bool = False) -> None: ...

    @property
    def address(self) -> bytes:
        """The worker's address: bytes for :meth:`connect` on another worker."""

    @property
    def max_am_header(self) -> int:
        """The longest header of an active message, in bytes."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to progress."""

    def progress(self) -> int:
        """
        Make one turn of progress and complete what it ended; return how much UCX had to do.
        """

    def arm(self) -> bool:
        """
        Have :meth:`fileno` tell of the next event; False if there is something to progress first.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def close(self) -> None:
        """
        Close every endpoint and connection, end every request, destroy the worker. Idempotent.
        """

    @property
    def handle(self) -> int:
        """
        The address of the ``ucp_worker_h``, for libraries that call UCX themselves; the worker keeps owning it.
        """

    @property
    def dropped_messages(self) -> int:
        """
        Messages for connections that were dropped: a stranger's, who does not know a connection's id, and those for a connection that is closed.
        """

    @property
    def closed(self) -> bool:
        """Whether the worker was closed."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Progress in this event loop's turns, also while nothing is awaited."""

    def connect(self, address: bytes) -> Endpoint:
        """
        Make an endpoint that sends to the worker with this address.

        Parameters
        ----------
        address : bytes
            The other worker's :attr:`address`. It must come from somebody you trust: UCX parses it unchecked.

        Raises
        ------
        UnreachableError
            No transport of this context leads there.
        Error
            It is the 65,536th from this worker to that one: UCX counts no further, also where the others are closed.

        Such an endpoint has no liveness: a peer that dies is noticed when UCX's keepalive does, or never.
        One on this host that ends before this side has answered it takes this process along, in UCX 1.22 (docs/faults.md).
        :func:`weft.connect` notices within a second. Source: ``ucp_ep_create``.
        """

    def flush(self) -> weft.typing.Request[None]:
        """
        Return a request that is done once the peers have everything that was sent, put and added before. Source: ``ucp_worker_flush_nbx``.
        """

    def tag_recv(self, buffer: weft.typing.BufferLike, tag: int, mask: int = 0xffffffffffffffff) -> weft.typing.Request[tuple[int, int]]:
        """
        Post a receive for the next message whose tag matches.

        Parameters
        ----------
        buffer : writable contiguous buffer, DLPack tensor or CUDA array, any shape
            Filled in place. Locked until the request completes; ``buffer.nbytes`` bytes is the most that can arrive. How it
            is taken: see :meth:`Endpoint.tag_send`. A tensor of DLPack before 1.0 cannot say that it is read-only.
        tag, mask : int, 0 <= value < 2**64
            A message matches if ``(sent ^ tag) & mask == 0``.

        Returns
        -------
        Request
            Wait or await it for ``(nbytes, sender_tag)``.

        Raises
        ------
        ReadOnlyError, NotContiguousError, UnsupportedError
            `buffer` cannot be filled as it is. Nothing was posted.
        TruncatedError
            From the request: the message was longer than `buffer`.

        Cancelling withdraws the receive if it has not matched; a matched one completes.
        Source: ``ucp_tag_recv_nbx``.
        """

    def tag_probe(self, tag: int, mask: int = 0xffffffffffffffff, *, remove: bool = False) -> tuple[int, int] | TagMessage | None:
        """
        Look for a message that has arrived and that no receive has taken.

        Parameters
        ----------
        tag, mask : int, 0 <= value < 2**64
            A message matches if ``(sent ^ tag) & mask == 0``.
        remove : bool
            Take the message, so that no receive posted later gets it.

        Returns
        -------
        None, (int, int) or TagMessage
            None if there is none; ``(nbytes, sender_tag)``; with `remove` a message for :meth:`tag_msg_recv`, which is lost if
            it is dropped.

        It makes no progress: call :meth:`progress` between looks. Source: ``ucp_tag_probe_nb``.
        """

    def tag_msg_recv(self, buffer: weft.typing.BufferLike, message: TagMessage) -> weft.typing.Request[tuple[int, int]]:
        """
        Receive what :meth:`tag_probe` took.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape
            At least ``message.nbytes`` long. Filled in place; locked until the request completes.
        message : TagMessage
            Used up by this call, unless it raises.

        Returns
        -------
        Request
            Wait or await it for ``(nbytes, sender_tag)``.

        Raises
        ------
        ReadOnlyError, NotContiguousError
            `buffer` cannot be filled as it is.
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
            Wait or await it for ``(header, data)``: bytes, and a writable memoryview of pooled memory.

        Cancelling withdraws the receive, never a message. Source: ``ucp_worker_set_am_recv_handler``.
        """

    def set_am_recv_handler(self, id: int, handler: Callable[[ActiveMessage], object] | None) -> None:
        """
        Have `handler` called with each active message of this id.

        Parameters
        ----------
        id : int, 0 <= id < 63
        handler : callable of one ActiveMessage, or None
            Called while the worker progresses: it may post operations and must not wait for them. What it raises goes to
            ``sys.unraisablehook``. None takes the handler away; UCX then drops what arrives.

        Raises
        ------
        InvalidParamError
            :meth:`am_recv` takes the messages of this id.

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
            Wait or await it for a list of ``(nbytes, sender_tag)``; it fails with the first error of any.

        Raises
        ------
        ReadOnlyError, NotContiguousError
            A buffer cannot be filled as it is. Nothing was posted.

        Cancelling withdraws the receives that have not matched; what came is in its buffer. Source: ``ucp_tag_recv_nbx``.
        """

    def listen_sockaddr(self, address: str) -> SockaddrListener:
        """
        Listen for programs that connect with UCX alone, weft's :meth:`connect_sockaddr` among them.

        Parameters
        ----------
        address : str
            ``"host:port"``, or ``":port"`` for every device. Port 0 picks one. IPv4 only.

        Returns
        -------
        SockaddrListener

        Raises
        ------
        AddressError
            The host is unknown, or the port is no number.
        UnsupportedError
            That is IPv6: UCX's own listener does not survive it.
        Error
            The port is in use, or not this process's to take.

        Nobody is authenticated: who reaches the port is connected. :func:`weft.listen` asks for a proof of user and host.
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
            Connecting goes on while the worker progresses; what is sent waits for it.

        Raises
        ------
        AddressError
            The host is unknown, or the port is no number.
        UnsupportedError
            That is IPv6: UCX's own listener does not survive it.
        UnreachableError, PeerLostError
            From the first operation: nobody listens there, or not any more.

        Source: ``ucp_ep_create`` with ``UCP_EP_PARAMS_FLAGS_CLIENT_SERVER``.
        """

class Endpoint:
    """Sends to one other worker. Made by :meth:`Worker.connect`."""

    def flush(self) -> weft.typing.Request[None]:
        """
        Return a request that is done once the peer has everything sent before. Source: ``ucp_ep_flush_nbx``.
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
        Return what UCX tells of the endpoint: its lanes, and a table of protocols for each operation that was looked up so far. For people; the text differs with UCX's version. Empty if UCX has none. Source: ``ucp_ep_print_info``.
        """

    def evaluate_perf(self, nbytes: int) -> float | None:
        """
        Return the seconds that UCX expects a message of `nbytes` to take over the fastest lane, None if it does not tell. Source: ``ucp_ep_evaluate_perf``.
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
            Locked until the request completes, and unchanged by it. The buffer protocol goes first, then DLPack, then
            ``__cuda_array_interface__``. Device memory is sent from where it lies, once the array's producer is done with it:
            its stream is waited for (DLPack: the producer orders CUDA's default stream after itself, and that one is waited
            for; CUDA array interface: ``stream``, or nothing where it is None or missing).
        tag : int, 0 <= value < 2**64

        Returns
        -------
        Request
            Done when `buffer` may be changed again, which does not mean that the peer has the message.

        Raises
        ------
        NotContiguousError
            Nothing was sent.
        UnsupportedError
            `buffer` lies in memory that UCX cannot reach here, see :attr:`Context.memory_types`. Nothing was sent.
        PeerLostError
            From the request.

        Cancelling ends the waiter; the transfer goes on with the buffer locked. Source: ``ucp_tag_send_nbx``.
        """

    def tag_send_sync(self, buffer: weft.typing.BufferLike, tag: int) -> weft.typing.Request[None]:
        """
        Send `buffer` under `tag`, and know that the peer has matched it.

        As :meth:`tag_send`, but the request is done only once a receive of the peer has taken the message.
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
            Locked until the request completes. A list arrives as one piece; all of it must lie in one kind of memory.
        reply : bool
            Give the peer's handler an endpoint to answer with (:attr:`ActiveMessage.reply`).

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

        Cancelling ends the waiter; the transfer goes on. Source: ``ucp_am_send_nbx``.
        """

    def tag_send_many(self, buffers: Sequence[weft.typing.BufferLike], tag: int) -> weft.typing.Request[None]:
        """
        Send each of `buffers` under `tag`, in order, with one request for all.

        Parameters
        ----------
        buffers : sequence of contiguous buffers
            Each is a message. Locked until the request completes, and unchanged by it.
        tag : int, 0 <= value < 2**64

        Returns
        -------
        Request
            Done when all buffers may be changed again; it fails with the first error of any.

        Raises
        ------
        NotContiguousError
            Nothing was sent.

        Source: ``ucp_tag_send_nbx``, once for each.
        """

    def stream_send(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]:
        """
        Append the bytes of `buffer` to the stream to the peer.

        Parameters
        ----------
        buffer : contiguous buffer, any shape
            Locked until the request completes, and unchanged by it.

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
            Complete only once `buffer` is full; else as soon as anything came.

        Returns
        -------
        Request
            Wait or await it for the number of bytes.

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``stream``.
        ReadOnlyError, NotContiguousError
            `buffer` cannot be filled as it is.

        Two endpoints are one stream when each was made from the other's worker's address. Cancelling ends the waiter; UCX
        cannot withdraw the receive, which takes the next bytes, with the buffer locked until then. Source: ``ucp_stream_recv_nbx``.
        """

    def rkey_unpack(self, key: RemoteKey) -> Rkey:
        """
        Make a peer's key usable with this endpoint.

        Parameters
        ----------
        key : RemoteKey
            Of memory of the peer that this endpoint leads to.

        Returns
        -------
        Rkey
            For :meth:`put`, :meth:`get` and :meth:`atomic_op`.

        Raises
        ------
        UnreachableError
            No lane of the endpoint reaches that memory.

        Source: ``ucp_ep_rkey_unpack``.
        """

    def put(self, buffer: weft.typing.BufferLike, rkey: Rkey, offset: int = 0) -> weft.typing.Request[None]:
        """
        Write `buffer` into a peer's memory.

        Parameters
        ----------
        buffer : contiguous buffer, any shape
            Locked until the request completes, and unchanged by it.
        rkey : Rkey
            From :meth:`rkey_unpack` of this endpoint.
        offset : int
            Where in the peer's memory, in bytes from its beginning.

        Returns
        -------
        Request
            Done when `buffer` may be changed again. The peer has the bytes once a :meth:`flush` that began later is done.

        Raises
        ------
        InvalidParamError
            The memory ends before. Nothing was written.

        Cancelling ends the waiter; the transfer goes on. Source: ``ucp_put_nbx``.
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
            Where in the peer's memory, in bytes from its beginning.

        Returns
        -------
        Request
            Done when `buffer` is filled.

        Raises
        ------
        InvalidParamError
            The memory ends before. Nothing was read.

        Cancelling ends the waiter; the transfer goes on. Source: ``ucp_get_nbx``.
        """

    @overload
    def atomic_op(self, op: str, value: int, rkey: Rkey, offset: int = 0, *, compare: int | None = None, nbytes: int = 8, fetch: Literal[True] = True) -> weft.typing.Request[int]:
        """
        Change one integer in a peer's memory as nobody else can in between.

        Parameters
        ----------
        op : {"add", "and", "or", "xor", "swap", "cswap"}
        value : int
            The operand, signed or unsigned, or what to swap in.
        rkey : Rkey
            From :meth:`rkey_unpack` of this endpoint.
        offset : int
            Where in the peer's memory, in bytes; a multiple of `nbytes`.
        compare : int, only for cswap
            Swap only if this lies there.
        nbytes : {8, 4}
            Of the integer, in the machine's byte order.
        fetch : bool
            Return what lay there; swap and cswap always do.

        Returns
        -------
        Request
            Wait or await it for the old value, unsigned, or for None. Without `fetch`, done says nothing of the peer: flush.

        Raises
        ------
        UnsupportedError
            The context was made without the feature ``amo``.

        Atomic towards other operations through UCX, and towards the owner's own instructions only on transports that use the
        CPU's (posix does). Source: ``ucp_atomic_op_nbx``.
        """
    @overload
    def atomic_op(self, op: str, value: int, rkey: Rkey, offset: int = 0, *, compare: int | None = None, nbytes: int = 8, fetch: bool) -> weft.typing.Request[int | None]: ...

class TagMessage:
    """A message that a probe took; :meth:`Worker.tag_msg_recv` receives it."""

    @property
    def nbytes(self) -> int:
        """Length of the message in bytes."""

    @property
    def tag(self) -> int:
        """The tag it was sent with."""

class ActiveMessage:
    """
    An active message, as its handler gets it.

    ``memoryview(message)`` is the data of an eager message, read-only, where UCX received it: nothing is copied, and
    it stays valid until the view and the message are dropped. The data of a rendezvous is still at its sender:
    :meth:`recv` brings it. A message that is dropped without that is refused; its sender sees success.
    """

    @property
    def header(self) -> bytes:
        """The header that was sent with it; a copy."""

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes, without the header."""

    @property
    def rendezvous(self) -> bool:
        """
        Whether the data is still at the sender, which keeps it until :meth:`recv` has fetched it.
        """

    @property
    def reply(self) -> Endpoint | None:
        """
        An endpoint to its sender, if sent with ``reply=True``: PeerLostError once UCX has noticed that it is gone; with the feature ``stream``, ClosedError once the handler has returned.
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
            Wait or await it for the number of bytes, or without `buffer` for a writable memoryview.

        Raises
        ------
        TruncatedError
            `buffer` is too small. The message is still there.
        InvalidParamError
            The message was received before, or a memoryview of it is alive.

        Source: ``ucp_am_recv_data_nbx``.
        """
    @overload
    def recv(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[int]: ...

class RemoteKey:
    """
    What a peer needs to reach a :class:`Memory`: give it to one that you trust, pickled or as it is.

    Whoever has it can read and write the memory as long as it is mapped. One that comes from elsewhere must come from
    somebody you trust, too: UCX parses it unchecked.
    """

    def __init__(self, address: int, nbytes: int, packed: bytes) -> None: ...

    @property
    def address(self) -> int:
        """Where the memory lies in its owner."""

    @property
    def nbytes(self) -> int:
        """Length of the memory in bytes."""

    @property
    def packed(self) -> bytes:
        """The key as UCX packs it; a copy. Its length depends on the transports."""

    def __reduce__(self) -> tuple[type[RemoteKey], tuple[int, int, bytes]]: ...

class Memory:
    """
    Memory that peers may read and write. Made by :meth:`Context.mem_map` and :meth:`Context.mem_alloc`; a buffer itself.
    """

    @property
    def address(self) -> int:
        """Where the memory lies in this process."""

    @property
    def nbytes(self) -> int:
        """Length of the memory in bytes."""

    def rkey_pack(self) -> RemoteKey:
        """
        Return the key that lets a peer reach this memory. Source: ``ucp_rkey_pack``.
        """

    def close(self) -> None:
        """
        Unmap the memory: keys to it are void, and its buffer is unlocked. Idempotent.
        """

    @property
    def closed(self) -> bool:
        """Whether the memory was unmapped."""

    def __enter__(self) -> Memory: ...

    def __exit__(self, *exc: object) -> None: ...

class Rkey:
    """
    A peer's memory as one endpoint reaches it. Made by :meth:`Endpoint.rkey_unpack`.
    """

    @property
    def address(self) -> int:
        """Where the memory lies in its owner."""

    @property
    def nbytes(self) -> int:
        """Length of the memory in bytes."""

class SockaddrListener:
    """
    Takes connections of programs that speak UCX. Made by :meth:`Worker.listen_sockaddr`.
    """

    @property
    def address(self) -> str:
        """Where it listens, ``host:port``. Source: ``ucp_listener_query``."""

    def accept(self) -> weft.typing.Request[Endpoint]:
        """
        Accept the next connection.

        Returns
        -------
        Request
            Wait or await it for an :class:`Endpoint`.

        Raises
        ------
        ClosedError
            From the request, too: the listener was closed meanwhile.

        Cancelling withdraws the waiter, never a connection. Source: ``ucp_ep_create`` with ``conn_request``.
        """

    def close(self) -> None:
        """
        Reject who was not accepted and who comes later; the port is freed with the worker. Idempotent. Source: ``ucp_listener_reject``.
        """

class Link:
    """
    What joins two workers: the carrier of messages between them, and the socket that tells of the other's end.
    """

    @property
    def address(self) -> bytes: ...

    def offer(self, fd: int) -> None:
        """
        Send over the socket `fd` what goes with the address; before the other side is told the address.
        """

    @property
    def memory(self) -> int:
        """
        A descriptor of what `offer` sends, the link's; -1: nothing is offered.
        """

    def join(self, address: bytes, fd: int, memory: int = -1) -> None:
        """
        Connect to the other side's address. `fd` becomes the link's on success; -1 for none. `memory`, the caller's, is what the other side offers; -1 if it comes over `fd`.
        """

    def open(self, local: int, remote: int, name: str) -> Channel: ...

    def close(self) -> None: ...

    @property
    def lost(self) -> bool: ...

    @property
    def handle(self) -> int: ...

    def print_info(self) -> str: ...

    @property
    def transports(self) -> list[str]: ...

def ring_error() -> str:
    """
    Why this process can have no rings, in the system's words; empty: it can.
    """

def prepare_link(worker: Worker, same_host: bool, name: str) -> Link:
    """Make one side of a link; its `address` is for the other side's `join`."""

class Channel:
    """A connection: ordered messages, bounded on both sides."""

    header_nbytes: int = 32

    rendezvous_nbytes: int = 262144

    lend_nbytes: int = 65536

    stage_nbytes: int = 1048576

    stage_limit_nbytes: int = 268435456

    whole_nbytes: int = 4096

    piece_nbytes: int = 8192

    large_piece_nbytes: int = 32768

    def send(self, first: weft.typing.BufferLike, rest: list[Buffer] | None = None, lend: bool = False, stage: bool = False) -> weft.typing.Request[None]: ...

    def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]: ...

    def recv(self) -> weft.typing.Request[Any]: ...

    def recv_into(self, buffer: Buffer) -> weft.typing.Request[int]: ...

    def send_many(self, buffers: Sequence[weft.typing.BufferLike]) -> weft.typing.Request[None]: ...

    def recv_many(self, count: int) -> weft.typing.Request[list[Any]]: ...

    def close(self) -> weft.typing.Request[None]: ...

    def abort(self, reason: str = 'the connection was aborted by this side') -> None: ...

    @property
    def closed(self) -> bool:
        """This side has closed or aborted it."""

    @property
    def ended(self) -> bool:
        """
        The other side has closed it or is gone; messages may be left to receive.
        """

    @property
    def loss_raised(self) -> bool:
        """
        The other side was lost, without a goodbye, and somebody was told by an exception.
        """

    def send_placed(self, first: Buffer, rest: list[Buffer], lend: bool, stage: bool, placed: list[Buffer]) -> list[weft.typing.Request[None]]:
        """
        As `send`, and after it each of `placed` for `recv_placed` of the other side. None may be cancelled: places are counted.
        """

    def recv_placed(self, place: int, buffer: Buffer) -> weft.typing.Request[None]:
        """
        Receive what was sent as number `place`, from 0 on, into `buffer`, which has just its size.
        """

    @property
    def next_place(self) -> int:
        """How many messages were sent with `send_placed`."""

    @property
    def memory_types(self) -> list[str]:
        """As of its worker's context."""

    @property
    def unread_nbytes(self) -> int: ...

    @property
    def lent_sent_nbytes(self) -> int: ...

    @property
    def lent_received_nbytes(self) -> int: ...

    @property
    def landed(self) -> tuple[int, float, float]:
        """
        Bytes that were announced and have arrived; the seconds from when they were asked for until they were here; and the integral over these seconds of how many connections of this worker received over the network.
        """

    @property
    def transports(self) -> list[str]: ...

    def print_info(self) -> str:
        """
        Return what UCX tells of the endpoint: its lanes, and a table of protocols for each operation that was looked up so far. For people; the text differs with UCX's version. Empty if UCX has none. Source: ``ucp_ep_print_info``.
        """

    def evaluate_perf(self, nbytes: int) -> float | None:
        """
        Return the seconds that UCX expects a message of `nbytes` to take over the fastest lane, None if it does not tell. Source: ``ucp_ep_evaluate_perf``.
        """

    @property
    def handle(self) -> int:
        """
        The address of the ``ucp_ep_h`` that its link sends through; 0 once that is lost.
        """

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

    def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]:
        """
        Send one message without copying it, if that can be done: the peer reads the pages that you wrote.

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

    def recv(self) -> weft.typing.Request[memoryview]:
        """
        Receive the next message, in the order in which they were sent.

        Returns
        -------
        Request
            Wait or await it for a writable memoryview, aligned to 64 B, which lives as long as anything refers to it. From
            4 KiB up it is memory of weft's pool.

        Raises
        ------
        ClosedError
            This side has closed the connection.
        PeerLostError
            From the request, once everything that arrived has been received; PeerClosedError if the peer
            said goodbye.

        Cancelling withdraws the waiter, never a message: the next ``recv`` gets it.
        """

    def recv_into(self, buffer: Buffer) -> weft.typing.Request[int]:
        """
        Receive the next message into `buffer`.

        Parameters
        ----------
        buffer : writable contiguous buffer of the host, any shape
            Filled from its beginning, in the order of its memory; ``buffer.nbytes`` bytes is the most that can arrive. Locked
            until the request has given its result, or was cancelled and the peer has done with it.

        Returns
        -------
        Request
            Wait or await it for the number of bytes that arrived. What was sent as several buffers arrives as one.

        Raises
        ------
        ReadOnlyError, NotContiguousError
            `buffer` cannot be filled as it is. No message was taken.
        TruncatedError
            From the request: the next message is longer than `buffer`. It stays, and the next receive gets it.
        ClosedError, PeerLostError
            As :meth:`recv`.

        A message of 256 KiB and more that is not lent lands in `buffer` without a copy where this is called before it arrives.
        Cancelling withdraws the waiter, never a message: the next receive gets it. `buffer` may have been written to.
        """

    def send_many(self, buffers: Sequence[weft.typing.BufferLike]) -> weft.typing.Request[None]:
        """
        Send each of `buffers` as a message, in order, with one request for all.

        Parameters
        ----------
        buffers : sequence of contiguous buffers
            Each is what :meth:`send` takes. Locked until the request completes.

        Returns
        -------
        Request
            Done when all buffers are yours again. As many are under way at a time as :meth:`send` could have sent: it stays
            pending while too much lies unread at the peer.

        Raises
        ------
        NotContiguousError, InvalidParamError, UnsupportedError, ClosedError
            As :meth:`send`. Nothing was sent.
        PeerLostError
            From the request: the peer is gone, and may have received a part of them.

        Cancelling withdraws those that still wait for their turn; the others are sent.
        """

    def recv_many(self, count: int) -> weft.typing.Request[list[memoryview]]:
        """
        Receive the next `count` messages, with one request for all.

        Parameters
        ----------
        count : int, 0 <= count

        Returns
        -------
        Request
            Wait or await it for a list of what :meth:`recv` gives, in the order in which they were sent.

        Raises
        ------
        ClosedError
            This side has closed the connection.
        PeerLostError
            From the request: the connection ended before there were `count` of them; PeerClosedError if the peer said
            goodbye. Those that arrived are there for the next receive.

        Cancelling loses no message: the next receive gets the first of them.
        """

def layout(array: object) -> tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    """
    What DLPack says of an array: type (code, bits, lanes), shape, strides in items, device (type, index).
    """

def view(memory: Buffer, dtype: tuple[int, int, int], shape: Sequence[int], strides: Sequence[int], device: tuple[int, int], writable: bool) -> Any:
    """
    `memory`, exported as an array of `device` by DLPack, and by the buffer protocol if that is the host.
    """

def cuda_device(address: int) -> int:
    """Which device, by index, the memory at `address` is of."""
