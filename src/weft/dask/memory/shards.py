# SPDX-License-Identifier: BSD-3-Clause
"""How much of P2P's shards a worker keeps in memory: on disk each would be copied twice more, out and in.

What other workers of the host have lent stays where they made it. Dask's own limits hold: no shard is kept above the
fraction of memory at which a worker spills, and shards, which Dask cannot spill, never are more than a part of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Shards are at most this part of a worker's memory limit.
_PART = 4
#: Seconds for which the worker's memory is taken to be what it was.
_HOLDS_S = 0.05


class Room:
    """Room for shards in a worker's memory. Output partitions are read in the threads of tasks.

    Parameters
    ----------
    limit_nbytes
        The worker's memory limit.
    plenty_nbytes
        Above this nothing more is kept.
    measure
        Returns the bytes of the worker's memory.
    """

    def __init__(
        self,
        limit_nbytes: int,
        plenty_nbytes: float,
        measure: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = limit_nbytes // _PART
        self._plenty_nbytes, self._measure, self._clock = plenty_nbytes, measure, clock
        self._kept, self._came = 0, 0
        self._memory, self._until = 0, 0.0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Tell whether there is room for so much in memory, and note that it is taken."""
        now = self._clock()
        if now >= self._until:
            self._memory, self._came, self._until = self._measure(), 0, now + _HOLDS_S
        with self._lock:
            fits = self._kept + nbytes <= self._most and self._memory + self._came + nbytes <= self._plenty_nbytes
            if fits:
                self._kept += nbytes
                self._came += nbytes
            return fits

    def leave(self, nbytes: int) -> None:
        """Note that so much is gone."""
        with self._lock:
            self._kept -= nbytes
