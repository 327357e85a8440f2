# SPDX-License-Identifier: BSD-3-Clause
"""What operations take and return, for type checkers: memory, and the request for what is under way."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from typing_extensions import Buffer

ResultT_co = TypeVar("ResultT_co", covariant=True)


class SupportsDLPack(Protocol):
    """Tensors of PyTorch, JAX, CuPy and others."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """Arrays of Numba and others."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


#: What can be sent, and, where it may be written, received into.
BufferLike: TypeAlias = "Buffer | SupportsDLPack | SupportsCudaArrayInterface"


@runtime_checkable
class Request(Protocol[ResultT_co]):
    """An operation under way: wait for it with :meth:`wait`, or ``await`` it.

    Every operation returns one, over UCX and over TLS; ``isinstance`` tells. ``Request[memoryview]`` is one whose
    result is a memoryview. It follows asyncio's future protocol, so ``gather``, ``wait``, ``wait_for``, ``timeout`` and
    ``shield`` take it as it is; ``create_task`` and ``TaskGroup`` take a coroutine that awaits it.

    Cancelling ends the waiter at once. The operation is withdrawn if that can be done, else it runs on, its buffer
    stays locked until it ends, and its result is dropped; a message that was not received goes back to its connection.
    """

    def wait(self, timeout: float | None = None) -> ResultT_co:
        """Block until the operation is complete and return its result.

        Parameters
        ----------
        timeout : float, optional
            Seconds; below 0 as 0. None waits without bound.

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

        Ctrl-C interrupts it; the request is then still pending.
        """
        ...

    def __await__(self) -> Generator[Any, None, ResultT_co]: ...

    def done(self) -> bool:
        """Tell whether the waiter has ended: by completion, failure or cancellation."""
        ...

    def cancelled(self) -> bool:
        """Tell whether it was cancelled."""
        ...

    def result(self) -> ResultT_co:
        """Return the result, or raise what ended the operation; InvalidStateError while it is pending."""
        ...

    def exception(self) -> BaseException | None:
        """Return what ended the operation, or None; InvalidStateError while it is pending."""
        ...

    def cancel(self, msg: Any = None) -> bool:
        """End the waiter; return False if it has ended already.

        `msg` is accepted, as asyncio's futures do, and not used. ThreadError if the worker belongs to another thread.
        """
        ...

    def add_done_callback(self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None) -> None:
        """Have the running loop call `fn` with this request once it is done, in `context` or a copy of this one."""
        ...

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Forget `fn`; return how often it had been added."""
        ...

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that this request is awaited in."""
        ...
