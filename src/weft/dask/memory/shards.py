# SPDX-License-Identifier: BSD-3-Clause
"""How much of P2P's shards a worker keeps in memory: on disk each would be copied twice more, out and in.

What other workers of the host have lent stays where they made it, and counts here all the same: it is kept for this
worker. Dask's own limits hold: no shard is kept above the fraction of memory at which a worker spills, and above that
what was kept goes to disk. A task takes its memory at once, and the nanny looks five times a second. So shards leave
room for as much as the worker lately had beside them, and never are more than a part of its limit.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

#: Shards are at most this part of a worker's memory limit ...
_PART = 4
#: ... and, with the most that it lately had beside them, this much of it: there Dask pauses a worker.
_FULL = 0.8
#: What is lately: since between one and two times so many seconds.
_LATELY_S = 30.0
#: Seconds for which the worker's memory is taken to be what it was.
_HOLDS_S = 0.05


class Holder(Protocol):
    """Holds shards that are in memory."""

    async def give_way(self) -> None:
        """Write shards to disk as long as `Room.excess` tells that there are too many, and call `Room.written`."""


class Room:
    """Room for shards in a worker's memory. Output partitions are read in the threads of tasks.

    Parameters
    ----------
    limit_nbytes
        The worker's memory limit.
    plenty_nbytes
        Above this nothing more is kept.
    measure
        Returns the bytes of the worker's memory, and of what it has borrowed.
    """

    def __init__(
        self,
        limit_nbytes: int,
        plenty_nbytes: float,
        measure: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._full_nbytes = limit_nbytes // _PART, limit_nbytes * _FULL
        self._plenty_nbytes, self._measure, self._clock = plenty_nbytes, measure, clock
        self._kept, self._came = 0, 0
        self._memory, self._until = 0, 0.0
        self._beside, self._beside_before, self._began = 0, 0, clock()
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._relief: asyncio.Task[None] | None = None

    def add(self, holder: Holder) -> None:
        """Have `holder` give way where memory is short."""
        self._holders.add(holder)

    def take(self, nbytes: int) -> bool:
        """Tell whether there is room for so much in memory, and note that it is taken."""
        if self._clock() >= self._until:
            self.note(self._measure())
        with self._lock:
            fits = (
                self._kept + nbytes <= self._most
                and self._memory + self._came + nbytes <= self._plenty_nbytes
                and max(self._beside, self._beside_before) + self._kept + nbytes <= self._full_nbytes
            )
            if fits:
                self._kept += nbytes
                self._came += nbytes
            return fits

    def leave(self, nbytes: int) -> None:
        """Note that so much is gone."""
        with self._lock:
            self._kept -= nbytes

    def written(self, nbytes: int) -> None:
        """Note that so much went to disk, to make room."""
        with self._lock:
            self._kept -= nbytes
            self._came -= nbytes

    def note(self, nbytes: int) -> None:
        """Note the bytes of the worker's memory, with what it has borrowed."""
        now = self._clock()
        with self._lock:
            beside = max(0, nbytes - self._kept)
            if now - self._began > _LATELY_S:
                self._beside_before, self._beside, self._began = self._beside, beside, now
            self._beside = max(self._beside, beside)
            self._memory, self._came, self._until = nbytes, 0, now + _HOLDS_S

    def excess(self) -> int:
        """Return how many bytes of what is kept are too much."""
        with self._lock:
            return max(0, min(self._kept, int(self._memory + self._came - self._plenty_nbytes)))

    def relieve(self) -> None:
        """Have holders give way if they must; for the thread of the worker's event loop, elsewhere nothing happens."""
        if not self.excess() or (self._relief is not None and not self._relief.done()):
            return
        try:
            self._relief = asyncio.get_running_loop().create_task(self._give_way())
        except RuntimeError:  # of another thread
            return

    async def _give_way(self) -> None:
        for holder in list(self._holders):
            if self.excess():
                await holder.give_way()
