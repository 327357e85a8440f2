# SPDX-License-Identifier: BSD-3-Clause
"""How many P2P shards a worker keeps in memory: on disk, each would be copied twice more, out and in.

Shards that other workers of the host have lent stay where they were made, but count here: they are kept for this
worker. Dask's own limits hold: no shard is kept above the fraction of memory at which a worker spills, and above it
kept shards go to disk. A task allocates at once, while the nanny looks only five times a second. So shards leave room
for the most that the worker recently had besides them, and never exceed a fraction of its limit.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

#: Shards take at most this fraction of a worker's memory limit ...
_PART = 4
#: ... and, with the recent peak of everything else, at most this much of it: above, Dask pauses a worker.
_FULL = 0.8
#: The recent peak covers the last one to two periods of this many seconds.
_LATELY_S = 30.0
#: Seconds for which a measurement of the worker's memory is used.
_HOLDS_S = 0.05


class Holder(Protocol):
    """Holds shards in memory."""

    async def give_way(self) -> None:
        """Write shards to disk while `Room.excess` is positive, and call `Room.written`."""

    def drop_unreadable(self) -> None:
        """Drop what a closed shuffle holds: shards, with `Room.leave`, and partitions in the traceback of its error."""


class Room:
    """The room for shards in a worker's memory. It is thread-safe: tasks' threads read output partitions.

    Parameters
    ----------
    limit_nbytes
        The worker's memory limit.
    plenty_nbytes
        Above this, no more shards are kept.
    measure
        Returns the bytes of the worker's memory, including borrowed memory.
    """

    def __init__(
        self,
        limit_nbytes: int,
        plenty_nbytes: float,
        measure: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most_nbytes, self._full_nbytes = limit_nbytes // _PART, limit_nbytes * _FULL
        self._plenty_nbytes, self._measure, self._clock = plenty_nbytes, measure, clock
        self._kept, self._came = 0, 0
        self._memory, self._until = 0, 0.0
        self._beside, self._beside_before, self._began = 0, 0, clock()
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._relief: asyncio.Task[None] | None = None

    def add(self, holder: Holder) -> None:
        """Ask `holder` to give way when memory is short."""
        self._holders.add(holder)

    def take(self, nbytes: int) -> bool:
        """Reserve `nbytes` bytes, if there is room; tell whether there was."""
        if self._clock() >= self._until:
            self.note(self._measure())
        with self._lock:
            fits = (
                self._kept + nbytes <= self.most_nbytes
                and self._memory + self._came + nbytes <= self._plenty_nbytes
                and max(self._beside, self._beside_before) + self._kept + nbytes <= self._full_nbytes
            )
            if fits:
                self._kept += nbytes
                self._came += nbytes
            return fits

    def leave(self, nbytes: int) -> None:
        """Release `nbytes` bytes of the shards of a shuffle that has ended."""
        with self._lock:
            self._kept -= nbytes

    def written(self, nbytes: int) -> None:
        """Release `nbytes` bytes of shards that were written to disk to make room."""
        with self._lock:
            self._kept -= nbytes
            self._came -= nbytes

    def note(self, nbytes: int) -> None:
        """Update the bytes of the worker's memory, including borrowed memory."""
        now = self._clock()
        with self._lock:
            beside = max(0, nbytes - self._kept)
            if now - self._began > _LATELY_S:
                self._beside_before, self._beside, self._began = self._beside, beside, now
            self._beside = max(self._beside, beside)
            self._memory, self._came, self._until = nbytes, 0, now + _HOLDS_S

    def excess(self) -> int:
        """Return how many bytes of kept shards are too many."""
        with self._lock:
            return max(0, min(self._kept, int(self._memory + self._came - self._plenty_nbytes)))

    def relieve(self) -> None:
        """Ask holders to drop what is of no use, and to give way if needed; only an event loop's thread does so."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        for holder in list(self._holders):
            holder.drop_unreadable()
        if self.excess() and (self._relief is None or self._relief.done()):
            self._relief = loop.create_task(self._give_way())

    async def _give_way(self) -> None:
        for holder in list(self._holders):
            if self.excess():
                await holder.give_way()
