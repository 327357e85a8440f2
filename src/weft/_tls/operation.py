# SPDX-License-Identifier: BSD-3-Clause
"""Requests of a TLS channel's operations, completed by its turns."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from typing import Any, NoReturn, Protocol

from weft._request import PythonRequest
from weft._tls.framing import Message
from weft.errors import TruncatedError
from weft.typing import ResultT_co


class Turns(Protocol):
    """The interface of the channel to its operations."""

    def check_loop(self) -> None:
        """Refuse to be awaited in another thread, or without an event loop."""
        ...

    def turn_until(self, operation: Operation[Any], timeout_s: float | None) -> None: ...
    def withdraw(self, operation: Operation[Any]) -> None: ...
    def give_back(self, messages: list[Message]) -> None:
        """Move them from the list to those that no receive has taken."""
        ...

    def told(self, error: BaseException) -> None:
        """Note that a caller was told of an error."""
        ...

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
        self._channel.turn_until(self, None if timeout is None else max(timeout, 0.0))

    def _withdraw(self, msg: object) -> bool:
        self._channel.withdraw(self)
        return True

    def _raise(self, error: BaseException) -> NoReturn:
        self._channel.told(error)
        super()._raise(error)

    def _watch(self) -> None:
        self._channel.check_loop()

    def _undo(self) -> None:
        """Return messages that no caller received."""

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        if not self._done:
            try:
                self._channel.check_loop()
            except BaseException as e:
                traceback.clear_frames(e.__traceback__)
                del self
                raise
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

    Attributes
    ----------
    taken : list of Message
        What it has so far. Messages move between this list and the channel's in one call each, so that an exception of
        a signal handler cannot come in between.
    """

    _delivered = True  # until it is made

    def __init__(self, channel: Turns, name: str, *, count: int | None = None, into: memoryview | None = None) -> None:
        super().__init__(channel, name)
        self._count, self._into, self._fills = count, into, into is not None
        self.taken: list[Message] = []
        self._delivered = False
        if count == 0:
            self.finish([])

    def __del__(self) -> None:
        # Dropped before anybody took the result, as by a task that was cancelled before it ran: nothing may be lost.
        if not self._delivered and (self.taken or not self._done):
            self._channel.take_back(self)

    def _watch(self) -> None:
        super()._watch()
        self._channel.hold(self)

    def _unwatch(self) -> None:
        self._channel.let_go(self)

    def fits(self, message: Message) -> bool:
        """Prepare to take a message; False if it does not fit, which ends this receive."""
        if self._into is not None:
            if message.nbytes > self._into.nbytes:
                text = f"{self._name}: the message has {message.nbytes} B; it stays for the next receive"
                self.fail(TruncatedError(text, op="recv_into"))
                return False
            at = 0
            for segment in message.segments:
                self._into[at : at + segment.nbytes] = segment
                at += segment.nbytes
        return True

    @property
    def full(self) -> bool:
        """Whether it has taken all that it is for."""
        return len(self.taken) == (1 if self._count is None else self._count)

    def complete(self) -> None:
        """Finish a receive that is full."""
        if self._fills:
            self.finish(self.taken[0].nbytes)
        elif self._count is None:
            self.finish(_view(self.taken[0]))
        else:
            self.finish([_view(each) for each in self.taken])

    def _end(self) -> None:
        self._into = None  # release the caller's memory
        super()._end()
        self._channel.let_go(self)

    def _undo(self) -> None:
        self._channel.give_back(self.taken)

    def _withdraw(self, msg: object) -> bool:
        super()._withdraw(msg)
        self._undo()
        return True

    def drop(self) -> None:
        """Withdraw a receive that its caller does not get."""
        self._withdraw(None)


def _view(message: Message) -> memoryview | tuple[memoryview, ...]:
    return message.segments[0] if len(message.segments) == 1 else message.segments
