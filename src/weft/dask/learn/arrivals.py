# SPDX-License-Identifier: BSD-3-Clause
"""The large values that a worker receives from other hosts: each waits for its turn (``weft.links.intake`` decides)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from weft.links.intake import STALLED_S, Intake, distance

#: The next value is requested when this share of one is left, so that the port is not idle meanwhile.
_LAST = 1 / 4


class Turn:
    """A request for some values. It ends by itself when they have almost arrived."""

    def __init__(self, nbytes: int, landed: Callable[[int], None], ended: Callable[[], None]) -> None:
        self._left, self._last, self._landed, self._ended = nbytes, nbytes * _LAST, landed, ended
        self._over = False

    def landed(self, nbytes: int) -> None:
        """Record that some bytes have arrived."""
        self._left -= nbytes
        self._landed(nbytes)
        if self._left <= self._last:
            self.end()

    def end(self) -> None:
        """Let the next one begin."""
        if not self._over:
            self._over = True
            self._ended()


class Arrivals:
    """The requests of one worker."""

    def __init__(self) -> None:
        self._intake: Intake[asyncio.Future[None]] = Intake()
        self._number = 0
        self._nbytes: dict[str, int] = {}  # by source, since nothing was wanted

    def beside(self, source: str) -> int:
        """Return the bytes that come from other sources than this one, since the worker last wanted nothing."""
        return sum(nbytes for other, nbytes in self._nbytes.items() if other != source)

    @contextlib.asynccontextmanager
    async def turn(self, here: str, source: str, tasks: list[Any]) -> AsyncGenerator[Turn]:
        """Wait until some values may be requested: the urgent ones, then those of the next sources on the ring."""
        nbytes = sum(ts.get_nbytes() for ts in tasks)
        urgency = min((ts.priority or () for ts in tasks), default=())
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = Turn(nbytes, self._landed, self._ended)
        self._number += 1
        self._nbytes[source] = self._nbytes.get(source, 0) + nbytes
        self._intake.wait(begun, (urgency, distance(here, source)))
        try:
            await asyncio.sleep(0)  # Dask makes several requests at once: the first of them must not begin by chance
            self._begin()
            while not begun.done():
                done, _ = await asyncio.wait((begun,), timeout=STALLED_S)
                if not done:
                    self._intake.look(time.monotonic())
                    self._begin()
            yield turn
        finally:
            self._number -= 1
            if not self._number:
                self._nbytes.clear()
            if begun.done():
                turn.end()
            else:
                self._intake.withdraw(begun)

    def _begin(self) -> None:
        while (begun := self._intake.begin()) is not None:
            begun.set_result(None)

    def _landed(self, nbytes: int) -> None:
        self._intake.landed(nbytes, time.monotonic())
        self._begin()

    def _ended(self) -> None:
        self._intake.end()
        self._begin()
