# SPDX-License-Identifier: BSD-3-Clause
"""What a TLS channel's operations return: the request that its turns end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from weft._request import PythonRequest
from weft.typing import ResultT_co


class Turns(Protocol):
    """What an operation asks of its channel."""

    def turn_until(self, operation: Operation[Any], timeout_s: float | None) -> None: ...
    def withdraw(self, operation: Operation[Any]) -> None: ...
    def give_back(self, message: Any) -> None: ...


class Operation(PythonRequest[ResultT_co]):
    """A send, a receive or a close under way.

    Cancelling ends the waiter at once. A send that has begun goes on; a message that nobody received is given to the
    next receive.
    """

    def __init__(self, channel: Turns, name: str) -> None:
        self._channel, self._name = channel, name

    def _block(self, timeout: float | None) -> None:
        self._channel.turn_until(self, timeout)

    def _withdraw(self) -> bool:
        self._channel.withdraw(self)
        return True

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        if not self._done:
            self._asyncio_future_blocking = True
            try:
                yield self
            except BaseException:
                # asyncio may have asked for the result already: that does not mean that somebody got it
                if self._done and self._error is None and self._result is not None:
                    self._channel.give_back(self._result)
                else:
                    self.cancel()
                raise
        return self.result()

    __iter__ = __await__
