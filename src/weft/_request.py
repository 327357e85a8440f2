# SPDX-License-Identifier: BSD-3-Clause
"""Requests that Python code completes: one implementation of asyncio's future protocol. UCX's own are native."""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from weft.errors import CanceledError, InvalidParamError, TimedOutError
from weft.typing import Request, ResultT_co


def detached(error: BaseException) -> BaseException:
    """Copy `error` without the frames that it has passed: a request that refers to it would keep them alive.

    An error of another library that cannot be copied is returned itself.
    """
    import copy

    try:
        fresh = copy.copy(error)
    except Exception:  # noqa: BLE001  (whatever its class raises)
        fresh = error
    if error.__cause__ is not None:
        fresh.__cause__ = error.__cause__
    return fresh.with_traceback(None)


class PythonRequest(Request[ResultT_co]):
    """A request that :meth:`finish`, :meth:`fail` or :meth:`cancel` ends."""

    _name: str  # the prefix of error messages
    _done = _cancelled = False
    _delivered = False  # whether a caller has the result
    _result: Any = None  # of type ResultT_co once set
    _error: BaseException | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _callbacks: list[tuple[Callable[[Any], object], contextvars.Context]] | None = None

    # attributes that asyncio reads from its futures
    _asyncio_future_blocking = False
    _cancel_message: Any = None

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        args = () if self._cancel_message is None else (self._cancel_message,)
        return asyncio.CancelledError(*args)

    # ---- for subclasses

    @abstractmethod
    def _block(self, timeout: float | None) -> None:
        """Progress the request for up to `timeout` seconds; a negative value counts as 0."""

    @abstractmethod
    def _withdraw(self, msg: object) -> bool:
        """Withdraw the operation; False if it has already ended."""

    def _watch(self) -> None:
        """Let the loop progress the request: the first callback was added."""

    def _unwatch(self) -> None:
        """Undo :meth:`_watch`: the last callback was removed."""

    # ---- completion

    def finish(self, result: Any) -> None:
        """Complete with a result."""
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """Complete with an error, unless already complete."""
        if not self._done:
            self._error = error
            self._end()

    def _end(self) -> None:
        self._done = True
        loop = self._loop
        while self._callbacks and loop is not None and not loop.is_closed():
            fn, context = self._callbacks.pop(0)
            try:
                loop.call_soon(fn, self, context=context)
            except BaseException:  # a signal handler's: whoever may not have been told is told later
                self._callbacks.insert(0, (fn, context))
                loop.call_soon(self._end)
                raise
        self._callbacks = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the request; False if it is done already."""
        if self._done or not self._withdraw(msg):
            return False
        self._cancel_message = msg
        self._cancelled = True
        self._end()
        return True

    # ---- waiting

    def wait(self, timeout: float | None = None) -> ResultT_co:
        """Block until the operation is complete and return its result; see :meth:`weft.Request.wait`."""
        try:
            left, deadline = timeout, math.inf
            if timeout is not None:
                if math.isnan(timeout):
                    raise InvalidParamError(
                        f"{self._name}: the timeout is NaN; pass seconds, or None to wait without limit"
                    )
                deadline = time.monotonic() + timeout
            while not self._done:
                self._block(left)
                if left is not None:
                    if left <= 0 and not self._done:
                        raise TimedOutError(f"{self._name}: not complete after {timeout} s")
                    left = max(deadline - time.monotonic(), 0.0)
            if self._cancelled:
                raise CanceledError(f"{self._name}: the request was cancelled")
            if self._error is not None:
                self._raise(self._error)
            self._delivered = True
            return self._result  # type: ignore[no-any-return]
        except BaseException as e:
            # A caller that keeps the error would keep the request, which would take the next message.
            traceback.clear_frames(e.__traceback__)
            del self
            raise

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise a copy of the error that ended the request."""
        fresh = detached(error)
        try:
            raise fresh
        finally:
            del fresh  # its traceback refers to this frame

    @abstractmethod
    def __await__(self) -> Generator[Any, None, ResultT_co]: ...

    def done(self) -> bool:
        """Return whether the request has completed, failed or been cancelled."""
        return self._done

    def cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        return self._cancelled

    def result(self) -> ResultT_co:
        """Return the result, or raise the error that ended the operation.

        As asyncio's futures: InvalidStateError while it is pending, asyncio.CancelledError if it was cancelled.
        """
        if not self._done or self._error is not None or self._cancelled:
            error = self.exception()
            if error is not None:
                self._raise(error)
        self._delivered = True
        return self._result  # type: ignore[no-any-return]

    def exception(self) -> BaseException | None:
        """Return the error that ended the operation, or None; raise in the same cases as :meth:`result`."""
        if self._cancelled:
            raise self._make_cancelled_error()
        if not self.done():
            raise asyncio.InvalidStateError(f"{self._name}: the request is not complete")
        return self._error

    # ---- callbacks

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that this request is awaited in."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def add_done_callback(self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None) -> None:
        """Call `fn` with this request, from the running loop, once it is done."""
        context = contextvars.copy_context() if context is None else context
        loop = asyncio.get_running_loop() if self._loop is None else self._loop
        if self.done():
            loop.call_soon(fn, self, context=context)
        elif self._callbacks is not None:
            self._callbacks.append((fn, context))
        else:
            self._watch()  # it may refuse, as in a wrong thread
            self._loop, self._callbacks = loop, [(fn, context)]

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Remove `fn`; return how often it had been added."""
        callbacks = self._callbacks or []
        kept = [entry for entry in callbacks if entry[0] != fn]
        removed = len(callbacks) - len(kept)
        callbacks[:] = kept
        if removed and not kept:
            self._callbacks = None
            self._unwatch()
        return removed

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "pending" if not self._done else "failed" if self._error else "done"
        return f"<weft.Request {self._name} {state}>"
