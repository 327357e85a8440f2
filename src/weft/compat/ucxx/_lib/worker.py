# SPDX-License-Identifier: BSD-3-Clause
"""``UCXWorker`` and ``UCXRequest`` of UCXX's core, and the loop that drives them if the program has none."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar, Protocol

import weft
from weft.compat._core import describe
from weft.compat._core.address import UCXAddress
from weft.compat._core.context import ApplicationContext
from weft.compat._core.endpoint import plain
from weft.compat._core.exceptions import (
    UCXCanceledError,
    UCXConnectionResetError,
    UCXEndpointTimeoutError,
    UCXMessageTruncatedError,
    UCXUnsupportedError,
)
from weft.compat.ucxx._lib.pointers import no_pointer
from weft.compat.ucxx._lib.tag import TagProbeResult, UCXXTag, UCXXTagMask, UCXXTagMaskFull

_OK, _INPROGRESS, _IO_ERROR = 0, 1, -3
#: Of the errors with which a transfer ends. Source: ``ucs/type/status.h``.
_STATUSES: dict[type[BaseException], int] = {
    UCXMessageTruncatedError: -9,
    UCXCanceledError: -16,
    UCXConnectionResetError: -25,
    UCXEndpointTimeoutError: -80,
}
_EVENT_S = 0.1  # the longest that progress_worker_event sleeps


class Feature(enum.Enum):
    """Features of a context. Source: ``enum ucp_feature``."""

    TAG = 1
    RMA = 2
    AMO32 = 4
    AMO64 = 8
    WAKEUP = 16
    STREAM = 32
    AM = 64


class _Thread(threading.local):
    """The loop that a thread's workers share if the program runs none."""

    loop: asyncio.AbstractEventLoop | None = None


_thread = _Thread()


def this_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop, or this thread's own."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        if _thread.loop is None:
            _thread.loop = asyncio.new_event_loop()
        return _thread.loop


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that connects, to its end."""
    loop = this_loop()
    if loop.is_running():
        coroutine.close()
        raise UCXUnsupportedError("UCXX's core cannot connect inside a running loop: use ucxx.create_endpoint there")
    return loop.run_until_complete(coroutine)


class Makes(Protocol):
    """The interface of ``UCXContext`` to workers."""

    feature_flags: int

    def make(self) -> ApplicationContext[Any, Any]:
        """Make a context for a worker."""
        ...


class UCXRequest:
    """A transfer in flight."""

    def __init__(self, worker: UCXWorker, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = this_loop().create_task(coroutine)
        worker.pending.add(self._task)
        self._task.add_done_callback(worker.pending.discard)
        self._task.add_done_callback(_look)

    @property
    def completed(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    all_completed = completed

    def check_error(self) -> None:
        """Raise the error that ended it, if any."""
        if self._task.cancelled():
            raise UCXCanceledError("the request was cancelled")
        if self._task.done() and (error := self._task.exception()) is not None:
            raise error

    @property
    def status(self) -> int:
        """UCX's status: 0 once it has succeeded, 1 before it ends, and below 0 for an error."""
        if not self.completed:
            return _INPROGRESS
        try:
            self.check_error()
        except Exception as error:  # noqa: BLE001  (its class is what is asked for)
            return _STATUSES.get(type(error), _IO_ERROR)
        return _OK

    @property
    def future(self) -> asyncio.Future[Any]:
        """A future that ends with it, to be awaited in the loop that progresses it."""
        return self._task

    @property
    def recv_buffer(self) -> Any:
        """The memory with the active message."""
        return self._task.result() if self.completed else None

    @property
    def py_buffers(self) -> list[Any]:
        """The buffers that ``tag_recv_multi`` received."""
        if not self.completed:
            raise RuntimeError("Some requests are not completed yet")
        return list(self._task.result() or ())

    @property
    def requests(self) -> tuple[UCXRequest, ...]:
        """This request itself: several buffers are one request."""
        return (self,)

    async def wait(self) -> None:
        """Wait for it in the running loop."""
        await asyncio.wait([self._task])
        self.check_error()

    wait_yield = wait


class UCXWorker:
    """A worker. It belongs to the thread that made it, and progresses when that thread calls :meth:`progress`."""

    endpoint_type: ClassVar[Any]  #: ``UCXEndpoint``, which is made of a worker and thus defined later.

    def __init__(
        self, context: Makes, enable_delayed_submission: bool = False, enable_python_future: bool = False
    ) -> None:
        self._take(context.make(), enable_delayed_submission, enable_python_future)
        self.feature_flags = context.feature_flags
        self._core.attach(this_loop())

    def __del__(self) -> None:
        if getattr(self, "owned", False) and not self._core.native.closed:
            self._context.close()

    def _take(self, context: ApplicationContext[Any, Any], delayed: bool, future: bool) -> None:
        self._context = context
        self._core = context.core
        self.owned = True
        self.feature_flags = sum(feature.value for feature in Feature)
        self.enable_delayed_submission = delayed
        self.enable_python_future = future
        self.pending: set[asyncio.Task[Any]] = set()

    @classmethod
    def of(cls, context: ApplicationContext[Any, Any], delayed: bool, future: bool) -> UCXWorker:
        """Return a UCXWorker for the worker of the asyncio interface."""
        made = cls.__new__(cls)
        made._take(context, delayed, future)
        made.owned = False
        return made

    @property
    def context(self) -> ApplicationContext[Any, Any]:
        """The context that connects and listens."""
        return self._context

    @property
    def native(self) -> weft.Worker:
        """weft's own worker."""
        return self._core.native

    def need(self, feature: Feature) -> None:
        """Raise ValueError unless the context was made with `feature`."""
        if not self.feature_flags & feature.value:
            raise ValueError(f"UCXContext must be created with `Feature.{feature.name}`")

    # ---- connections

    def create_endpoint_from_hostname(self, ip_address: str, port: int, endpoint_error_handling: bool) -> Any:
        """Connect to a listener: :meth:`UCXEndpoint.create`."""
        return self.endpoint_type.create(self, ip_address, port, endpoint_error_handling)

    def create_endpoint_from_worker_address(self, address: UCXAddress, endpoint_error_handling: bool) -> Any:
        """Connect to a worker: :meth:`UCXEndpoint.create_from_worker_address`."""
        return self.endpoint_type.create_from_worker_address(self, address, endpoint_error_handling)

    # ---- description

    @property
    def handle(self) -> int:
        """The address of the ``ucp_worker_h``."""
        return self._core.native.handle

    @property
    def address(self) -> UCXAddress:
        """The address that another worker connects to."""
        return self._core.address()

    @property
    def info(self) -> str:
        """UCX's description of a worker with these settings."""
        return describe.worker_text(self._context.settings)

    @property
    def epoll_file_descriptor(self) -> int:
        """A descriptor that becomes readable when there is work, after :meth:`arm`."""
        return self._core.native.fileno()

    @property
    def ucxx_ptr(self) -> int:
        """Not supported; raises UCXUnsupportedError."""
        raise no_pointer("Worker")

    # ---- progress

    def init_blocking_progress_mode(self) -> None:
        """Do nothing: every worker can sleep."""

    def arm(self) -> bool:
        """Prepare to sleep on the descriptor; False if there is work."""
        return self._core.native.arm()

    def progress(self) -> None:
        """Progress the worker and pending operations once."""
        self._core.progress()
        loop = this_loop()
        if not loop.is_running():
            loop.call_soon(loop.stop)
            loop.run_forever()

    def progress_once(self) -> bool:
        """Progress, and return whether any request has ended."""
        before = len(self.pending)
        self.progress()
        return len(self.pending) < before

    def progress_worker_event(self, epoll_timeout: int = -1) -> None:
        """Sleep until a request ends, for at most `epoll_timeout` ms, and never longer than 100 ms."""
        self.progress()
        loop = this_loop()
        if self.pending and not loop.is_running():
            seconds = _EVENT_S if epoll_timeout < 0 else min(epoll_timeout / 1000, _EVENT_S)
            wait = asyncio.wait(set(self.pending), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            loop.run_until_complete(wait)

    def start_progress_thread(self, polling_mode: bool = False, epoll_timeout: int = -1) -> None:
        """Not supported: a worker belongs to the thread that made it. Raises UCXUnsupportedError."""
        raise UCXUnsupportedError(
            "weft has no progress thread: a worker belongs to the thread that made it; "
            "call progress() or progress_worker_event(), or use the asyncio interface"
        )

    def stop_progress_thread(self) -> None:
        """Do nothing: there is no such thread."""

    def cancel_inflight_requests(self, period: int = 0, max_attempts: int = 1) -> int:
        """Cancel all pending requests; return their number."""
        return sum(task.cancel() for task in list(self.pending))

    # ---- transfers

    def tag_probe(self, tag: UCXXTag, tag_mask: UCXXTagMask = UCXXTagMaskFull, remove: bool = False) -> TagProbeResult:
        """Look for a message with this tag; `remove` takes it from the queue, for :meth:`tag_recv_with_handle`."""
        self._core.progress()
        return TagProbeResult(self._core.native.tag_probe(int(tag), int(tag_mask), remove=remove))

    def tag_recv(self, arr: Any, tag: UCXXTag, tag_mask: UCXXTagMask = UCXXTagMaskFull) -> UCXRequest:
        """Receive a message from any sender."""
        self.need(Feature.TAG)
        return UCXRequest(self, self._context.recv(arr, int(tag), int(tag_mask)))

    def tag_recv_with_handle(self, arr: Any, probe_result: TagProbeResult) -> UCXRequest:
        """Receive the message that a probe removed from the queue."""
        return UCXRequest(self, _awaited(self._core.native.tag_msg_recv(plain(arr)[0], probe_result.take())))


def _look(task: asyncio.Task[Any]) -> None:
    """Take note of its error, which asyncio would log: who does not ask for it does not want it."""
    if not task.cancelled():
        task.exception()


async def _awaited(request: weft.Request[Any]) -> None:
    await request
