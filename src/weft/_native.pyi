"""
UCP for weft: context, worker, endpoint, request, connection, receive pool.
"""

import asyncio
from collections.abc import Callable, Generator
import contextvars
from typing import Any, NoReturn

from typing_extensions import Buffer


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

def pool_statistics() -> dict[str, int]: ...

def numpy_in_pool(on: bool) -> bool:
    """
    Have NumPy take arrays from 64 KiB up from the pool, in this context (a context variable of NumPy's).

    Returns whether it did before. Arrays that exist already stay where they are. Source: ``PyDataMem_SetHandler``.
    """

class Context:
    """A UCP context: the transports and devices that its workers may use."""

    def __init__(self, settings: dict[str, str], defaults: dict[str, str], uses_shm: bool) -> None: ...

    def close(self) -> None:
        """Release the context. Idempotent; its workers must be closed before."""

    @property
    def config(self) -> dict[str, tuple[str, str]]:
        """
        Settings that differ from UCX's defaults: name to (value, ``argument`` or ``weft``).
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
            Seconds. None waits without bound.

        Returns
        -------
        object
            What the operation gives; None for sends.

        Raises
        ------
        TimedOutError
            `timeout` is over; the request is still pending and may be waited for again.
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
        """End the waiter; False if it has ended already."""

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

    def __init__(self, context: Context, *, links_only: bool = False) -> None: ...

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

        Such an endpoint has no liveness: a peer that dies is noticed when UCX's keepalive does, or never.
        :func:`weft.connect` notices within a second. Source: ``ucp_ep_create``.
        """

    def tag_recv(self, buffer: Buffer, tag: int, mask: int = 0xffffffffffffffff) -> Request:
        """
        Post a receive for the next message whose tag matches.

        Parameters
        ----------
        buffer : writable contiguous buffer, any shape
            Filled in place. Locked until the request completes; ``buffer.nbytes`` bytes is the most that can arrive.
        tag, mask : int, 0 <= value < 2**64
            A message matches if ``(sent ^ tag) & mask == 0``.

        Returns
        -------
        Request
            Wait or await it for ``(nbytes, sender_tag)``.

        Raises
        ------
        ReadOnlyError, NotContiguousError
            `buffer` cannot be filled as it is. Nothing was posted.
        TruncatedError
            From the request: the message was longer than `buffer`.

        Cancelling withdraws the receive if it has not matched; a matched one completes.
        Source: ``ucp_tag_recv_nbx``.
        """

    def am_recv(self, id: int) -> Request:
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

    def close(self) -> None:
        """
        Close every endpoint and connection, end every request, destroy the worker. Idempotent.
        """

    @property
    def closed(self) -> bool: ...

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Progress in this event loop's turns, also while nothing is awaited."""

class Endpoint:
    """Sends to one other worker. Made by :meth:`Worker.connect`."""

    def tag_send(self, buffer: Buffer, tag: int) -> Request:
        """
        Send `buffer` under `tag`.

        Parameters
        ----------
        buffer : contiguous buffer, any shape
            Locked until the request completes, and unchanged by it.
        tag : int, 0 <= value < 2**64

        Returns
        -------
        Request
            Done when `buffer` may be changed again, which does not mean that the peer has the message.

        Raises
        ------
        NotContiguousError
            Nothing was sent.
        PeerLostError
            From the request.

        Cancelling ends the waiter; the transfer goes on with the buffer locked. Source: ``ucp_tag_send_nbx``.
        """

    def am_send(self, id: int, header: Buffer, data: Buffer | list[Buffer] | tuple[Buffer, ...] | None = None) -> Request:
        """
        Send an active message.

        Parameters
        ----------
        id : int, 0 <= id < 63
        header : bytes-like
            At most :attr:`Worker.max_am_header` bytes; copied at once.
        data : contiguous buffer, or a list of them, optional
            Locked until the request completes. A list arrives as one piece.

        Returns
        -------
        Request
            Done when the buffers may be changed again.

        Raises
        ------
        InvalidParamError
            The header is too long. Nothing was sent.

        Cancelling ends the waiter; the transfer goes on. Source: ``ucp_am_send_nbx``.
        """

    def flush(self) -> Request:
        """
        Return a request that is done once the peer has everything sent before. Source: ``ucp_ep_flush_nbx``.
        """

    def close(self, *, force: bool = False) -> Request:
        """
        Flush and close; `force` ends what is under way with an error instead. Source: ``ucp_ep_close_nbx``.
        """

    @property
    def transports(self) -> list[str]:
        """The lanes in use, as ``transport/device``. Source: ``ucp_ep_query``."""

    @property
    def closed(self) -> bool: ...

class Link:
    """
    The one endpoint between two workers, and the socket that tells of the other's end.
    """

    @property
    def address(self) -> bytes: ...

    def join(self, address: bytes, fd: int) -> None:
        """
        Connect to the other side's address. `fd` becomes the link's on success; -1 for none.
        """

    def open(self, local: int, remote: int, name: str) -> Channel: ...

    def close(self) -> None: ...

    @property
    def lost(self) -> bool: ...

    @property
    def transports(self) -> list[str]: ...

def prepare_link(worker: Worker, same_host: bool, name: str) -> Link:
    """Make one side of a link; its `address` is for the other side's `join`."""

class Channel:
    """A connection: ordered messages, bounded on both sides."""

    def send(self, first: Buffer, rest: list[Buffer] | None = None, lend: bool = False) -> Request: ...

    def lend(self, buffer: Buffer) -> Request: ...

    def recv(self) -> Request: ...

    def close(self) -> Request: ...

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
    def unread_nbytes(self) -> int: ...

    @property
    def lent_sent_nbytes(self) -> int: ...

    @property
    def lent_received_nbytes(self) -> int: ...

    @property
    def transports(self) -> list[str]: ...
