# SPDX-License-Identifier: BSD-3-Clause
"""Types for annotations: the buffers that operations accept, and the requests that they return."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BufferLike", "Request", "SupportsCudaArrayInterface", "SupportsDLPack"]

ResultT_co = TypeVar("ResultT_co", covariant=True)


class SupportsDLPack(Protocol):
    """An array that exports its memory by DLPack, like those of PyTorch, JAX and CuPy."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array that exports CUDA memory by ``__cuda_array_interface__``, like Numba's."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


#: Memory that can be sent and, if it is writable, received into: anything contiguous with the buffer protocol, DLPack
#: or ``__cuda_array_interface__``.
BufferLike: TypeAlias = "Buffer | SupportsDLPack | SupportsCudaArrayInterface"


@runtime_checkable
class Request(Protocol[ResultT_co]):
    """An operation in flight: wait for it with :meth:`wait`, or ``await`` it.

    Every operation returns a request, over UCX and over TLS; ``isinstance(x, weft.Request)`` works. The result of a
    ``Request[memoryview]`` is a memoryview. Requests follow asyncio's future protocol: ``gather``, ``wait``,
    ``wait_for`` and ``shield`` accept them directly; ``create_task`` and ``TaskGroup`` need a coroutine
    that awaits one.

    Cancelling ends the request at once. The operation is withdrawn if possible. Otherwise it runs on: its buffer stays
    locked until it ends, and its result is dropped. A message that was not received goes back to its connection.

    Dropping a receive of a peer that is pending, is not awaited and has no callback withdraws it; a send goes on.
    """

    def wait(self, timeout: float | None = None) -> ResultT_co:
        """Block until the operation is complete and return its result.

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

        Ctrl-C interrupts the wait; the request is then still pending.
        """
        ...

    def __await__(self) -> Generator[Any, None, ResultT_co]: ...

    def done(self) -> bool:
        """Return whether the request has completed, failed or been cancelled."""
        ...

    def cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        ...

    def result(self) -> ResultT_co:
        """Return the result, or raise the error that ended the operation.

        As asyncio's futures: InvalidStateError while it is pending, asyncio.CancelledError if it was cancelled.
        """
        ...

    def exception(self) -> BaseException | None:
        """Return the error that ended the operation, or None; raise in the same cases as :meth:`result`."""
        ...

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the request; return False if it is done already.

        As with asyncio's futures, `msg` becomes the argument of the ``CancelledError`` that awaiting tasks get.
        ThreadError if the worker belongs to another thread.
        """
        ...

    def add_done_callback(self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None) -> None:
        """Call `fn` with this request, from the running loop and in `context`, once it is done."""
        ...

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Remove `fn`; return how often it had been added."""
        ...

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that this request is awaited in."""
        ...
