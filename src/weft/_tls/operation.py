# SPDX-License-Identifier: BSD-3-Clause
"""Requests of a TLS channel's operations, completed by its turns."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from weft._request import PythonRequest
from weft.errors import TruncatedError
from weft.typing import ResultT_co


class Message(NamedTuple):
    """What one message has, and its place in the order of arrival."""

    number: int
    segments: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """Return the length of all segments in bytes."""
        return sum(segment.nbytes for segment in self.segments)


class Turns(Protocol):
    """The interface of the channel to its operations."""

    def turn_until(self, operation: Operation[Any], timeout_s: float | None) -> None: ...
    def withdraw(self, operation: Operation[Any]) -> None: ...
    def give_back(self, messages: list[Message]) -> None: ...
    def hold(self, receive: Receive[Any]) -> None: ...
    def let_go(self, receive: Receive[Any]) -> None: ...
    def take_back(self, receive: Receive[Any]) -> None: ...


class Operation(PythonRequest[ResultT_co]):
    """A send, a receive or a close in progress.

    Cancelling ends the waiter at once. A send that has begun continues; a message that was taken for a cancelled
    receive goes to the next one.
    """

    def __init__(self, channel: Turns, name: str) -> None:
        self._channel, self._name = channel, name

    def _block(self, timeout: float | None) -> None:
        self._channel.turn_until(self, timeout)

    def _withdraw(self) -> bool:
        self._channel.withdraw(self)
        return True

    def _undo(self) -> None:
        """Return messages that no caller received."""

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        if not self._done:
            self._asyncio_future_blocking = True
            try:
                yield self
            except BaseException:
                # asyncio may have read the result already, but the caller has not received it
                if self._done and self._error is None:
                    self._undo()
                else:
                    self.cancel()
                raise
        return self.result()

    __iter__ = __await__


class Receive(Operation[ResultT_co]):
    """A receive of one message, of `count` messages, or of one into the buffer `into`.

    The channel holds it only while it has callbacks: without them and without references, nobody waits for it.
    """

    def __init__(self, channel: Turns, name: str, *, count: int | None = None, into: memoryview | None = None) -> None:
        super().__init__(channel, name)
        self._count, self._into = count, into
        self._taken: list[Message] = []
        self._delivered = False
        if count == 0:
            self.finish([])

    def __del__(self) -> None:
        # Dropped before anybody took the result, as by a task that was cancelled before it ran: nothing may be lost.
        if not self._delivered and (self._taken or not self._done):
            self._channel.take_back(self)

    def _watch(self) -> None:
        self._channel.hold(self)

    def _unwatch(self) -> None:
        self._channel.let_go(self)

    def wait(self, timeout: float | None = None) -> ResultT_co:
        """Block until the operation is complete and return its result."""
        result = super().wait(timeout)
        self._delivered = True
        return result

    def result(self) -> ResultT_co:
        """Return the result, or raise the error that ended the operation."""
        result = super().result()
        self._delivered = True
        return result

    def take(self, message: Message) -> bool:
        """Take a message; False if it does not fit, which ends this receive."""
        total = message.nbytes
        if self._into is not None:
            if total > self._into.nbytes:
                text = f"{self._name}: the message has {total} B; it stays for the next receive"
                self.fail(TruncatedError(text, op="recv_into"))
                return False
            at = 0
            for segment in message.segments:
                self._into[at : at + segment.nbytes] = segment
                at += segment.nbytes
        self._taken.append(message)
        if self._into is not None:
            self.finish(total)
        elif self._count is None:
            self.finish(_view(message))
        elif len(self._taken) == self._count:
            self.finish([_view(each) for each in self._taken])
        return True

    def _end(self) -> None:
        self._into = None  # release the caller's memory
        self._channel.let_go(self)
        super()._end()

    def put_back(self) -> list[Message]:
        """Return the messages taken so far, and give them up."""
        taken, self._taken = self._taken, []
        return taken

    def _undo(self) -> None:
        self._channel.give_back(self.put_back())

    def _withdraw(self) -> bool:
        super()._withdraw()
        self._undo()
        return True


def _view(message: Message) -> memoryview | tuple[memoryview, ...]:
    return message.segments[0] if len(message.segments) == 1 else message.segments
