# SPDX-License-Identifier: BSD-3-Clause
"""How many large values a worker receives at once, and in which order: as few as fill its port.

Where every worker fetches from every other, flows that share the ports at both ends keep each other from filling
either. On 8 hosts of 200 Mb/s, with BBR, 88 MiB from seven sources each took 1.6 times the time that one port needs for
them when all were requested at once, and 1.25 when three were. Each worker begins with another source, so
that no source is asked by all. Nothing here knows how values travel.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Receive this many values at once, until more bring more.
LEAST = 2
#: A rate is measured for this long, after the same time in which new flows find their speed.
_WINDOW_S = 1.0
#: More at once are kept if they bring this share of what they would if nothing were shared.
_GAIN = 0.75
#: Seconds until more are tried again after that brought nothing.
_AGAIN_S = 10.0
#: If nothing has arrived for this long, one more may begin: the sources may be dead.
STALLED_S = 2.0


def distance(here: str, source: str) -> int:
    """Return how far a source is behind this worker on a ring of all workers; no two workers are equally far from one.

    The ring is the same for all, so workers that fetch from the nearest first do not all begin with the same source.
    """
    return (zlib.crc32(source.encode()) - zlib.crc32(here.encode())) % (1 << 32)


class Intake(Generic[T]):
    """The values that one worker receives, and those that wait for their turn.

    Attributes
    ----------
    most : int
        How many may arrive at once now.
    """

    def __init__(self) -> None:
        self.most = LEAST
        self._waiting: list[tuple[Any, int, T]] = []
        self._number = itertools.count()
        self._running = 0
        self._known = LEAST, 0.0  # a number that is worth it, and its bytes/second
        self._again_s = self._landed_s = 0.0
        self._since_s: float | None = None
        self._nbytes, self._settled = 0, False

    def wait(self, who: T, rank: Any) -> None:
        """Queue a value; those with the least rank begin first."""
        heapq.heappush(self._waiting, (rank, next(self._number), who))

    def begin(self) -> T | None:
        """Return the next value if it may begin now; each that began must end."""
        if not self._waiting or self._running >= self.most:
            return None
        self._running += 1
        return heapq.heappop(self._waiting)[2]

    def look(self, now_s: float) -> None:
        """Let one more begin if nothing has arrived for :data:`STALLED_S`; call this about as often."""
        if self._waiting and now_s - self._landed_s >= STALLED_S:
            self._landed_s = now_s
            self.most += 1

    def withdraw(self, who: T) -> None:
        """Remove a waiting value from the queue."""
        self._waiting = [each for each in self._waiting if each[2] is not who]
        heapq.heapify(self._waiting)

    def end(self) -> None:
        """Record that a value has arrived, or will not."""
        self._running -= 1
        if not self._running and not self._waiting:  # other sources may come next
            self.most, self._known, self._again_s = LEAST, (LEAST, 0.0), 0.0
            self._settle(None)

    def landed(self, nbytes: int, now_s: float) -> None:
        """Record that some of a value has arrived; `most` may change, if values wait."""
        self._landed_s = now_s
        if not self._waiting or self._running < self.most:
            self._settle(None)
            return
        if self._since_s is None:
            self._settle(now_s)
            return
        self._nbytes += nbytes
        elapsed_s = now_s - self._since_s
        if elapsed_s < _WINDOW_S:
            return
        if self._settled:
            self._measured(self._nbytes / elapsed_s, now_s)
        settled = not self._settled
        self._settle(now_s)
        self._settled = settled

    def _settle(self, now_s: float | None) -> None:
        self._since_s, self._nbytes, self._settled = now_s, 0, False

    def _measured(self, rate: float, now_s: float) -> None:
        count, before = self._known
        if self.most > count and rate < before * (1 + _GAIN * (self.most / count - 1)):
            self.most, self._again_s = count, now_s + _AGAIN_S
            return
        self._known = self.most, rate
        if now_s >= self._again_s:
            self.most += max(1, self.most // 2)
