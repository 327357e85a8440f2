# SPDX-License-Identifier: BSD-3-Clause
"""What a TLS channel's operations return: to them what ``_native.Request`` is to UCX's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any, Protocol

from weft.errors import CanceledError, TimedOutError


class Channel(Protocol):
    """What an operation asks of its channel."""

    def turn_until(self, operation: Operation, timeout_ms: float | None) -> None: ...
    def withdraw(self, operation: Operation) -> None: ...
    def give_back(self, message: Any) -> None: ...


class Operation:
    """A send, a receive or a close under way: wait for it with :meth:`wait`, or ``await`` it, once.

    Cancelling ends the waiter at once. A send that has begun goes on; a message that nobody received is given to the
    next receive.
    """

    __slots__ = ("_cancelled", "_channel", "_done", "_error", "_future", "_name", "_result")

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel, self._name = channel, name
        self._done = self._cancelled = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._future: asyncio.Future[None] | None = None

    def finish(self, result: Any) -> None:
        """End it well."""
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """End it with an error."""
        if not self._done:
            self._error = error
            self._end()

    def _end(self) -> None:
        self._done = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def wait(self, timeout: float | None = None) -> Any:
        """Block until it is done, and return its result; see :meth:`Request.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done:
            left_ms = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
            self._channel.turn_until(self, left_ms)
            if not self._done and left_ms == 0:
                raise TimedOutError(f"{self._name}: not done within {timeout} s; it is still pending")
        return self.result()

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._done:
            self._future = asyncio.get_running_loop().create_future()
            try:
                yield from self._future
            except BaseException:
                if self._done and self._error is None and self._result is not None:
                    self._channel.give_back(self._result)
                else:
                    self.cancel()
                raise
        return self.result()

    def cancel(self) -> bool:
        """End the waiter; see :meth:`Request.cancel`."""
        if self._done:
            return False
        self._cancelled = True
        self._channel.withdraw(self)
        self.fail(CanceledError(f"{self._name}: cancelled"))
        return True

    def done(self) -> bool:
        """Tell whether ``wait`` would return at once."""
        return self._done

    def cancelled(self) -> bool:
        """Tell whether it was cancelled."""
        return self._cancelled

    def result(self) -> Any:
        """Return the result, or raise what ended it."""
        if not self._done:
            raise asyncio.InvalidStateError(f"{self._name}: still pending")
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self) -> BaseException | None:
        """Return what ended it, or None."""
        return self._error
