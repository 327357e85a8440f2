# SPDX-License-Identifier: BSD-3-Clause
"""Where the tasks of a graph run that need nothing: those whose results meet, on one island.

By them it is decided what has to cross a slow link at all: whatever follows goes to where its inputs are. Each graph's
are divided once, when it comes (``weft.links.islands.split``). Where the scheduler queues them, each island takes its
own, and when it has none left, the last of another's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from weft.links import LinkModel, islands, split

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: Of an island's workers so many are looked at for one task, in turns.
_MOST_LOOKED_AT = 16
#: Seconds for which islands are taken to stay as they are, if no worker comes or goes.
_FRESH_S = 10.0


class Roots(SchedulerPlugin):  # type: ignore[misc] # distributed has no types
    """Divides the root tasks of one scheduler's graphs.

    Attributes
    ----------
    island_of : dict
        The number of the island of each host.
    """

    name = "weft-roots"

    def __init__(self, scheduler: Scheduler, model: LinkModel, clock: Callable[[], float]) -> None:
        self._scheduler, self._model, self._clock = scheduler, model, clock
        self.island_of: dict[str, int] = {}
        self._workers: list[list[str]] = []  # by island
        self._turn: list[int] = []
        self._looked_s = -_FRESH_S
        self._known = 0
        self._plan: dict[Any, int] = {}
        self._queues: list[deque[Any]] = []  # what is planned, by island and in order
        self._asked: Any = None

    def look(self, now_s: float) -> None:
        """Find the islands, unless that was done a moment ago."""
        workers = self._scheduler.workers
        if now_s - self._looked_s < _FRESH_S and len(workers) == self._known:
            return
        self._looked_s, self._known = now_s, len(workers)
        model = self._model
        self.island_of = islands(model, workers, now_s)
        number = max(self.island_of.values(), default=-1) + 1
        self._workers = [[] for _ in range(number)]
        for address in workers:
            self._workers[self.island_of[model.place_of(address).host]].append(address)
        self._turn = [0] * number
        if len(self._queues) != number:
            self.forget()
            self._queues = [deque() for _ in range(number)]

    def forget(self) -> None:
        """Leave to Dask what was planned."""
        self._plan.clear()
        for queue in self._queues:
            queue.clear()
        self._asked = None

    # ---- a graph comes ----------------------------------------------------------------------------------------------

    def update_graph(self, scheduler: Scheduler, *, tasks: Iterable[Any], **_: Any) -> None:
        """Divide the root tasks of a graph among the islands."""
        self.look(self._clock())
        if len(self._workers) < 2:
            return
        known = scheduler.tasks
        roots = [ts for key in tasks if (ts := known.get(key)) is not None and _is_free(ts)]
        if len(roots) < 2:
            return
        roots.sort(key=_priority)
        threads = [self._threads(island) for island in range(len(self._workers))]
        if min(threads) <= 0:
            return
        followers = {follower for ts in roots for follower in ts.dependents}
        joined = [[ts.key for ts in follower.dependencies] for follower in followers]
        keys = [ts.key for ts in roots]
        for key, island in zip(keys, split(keys, joined, threads, self._least_busy()), strict=True):
            self._plan[key] = island
            self._queues[island].append(key)
        for i, queue in enumerate(self._queues):
            waiting = [ts for key in queue if key in self._plan and (ts := known.get(key)) is not None]
            self._queues[i] = deque(ts.key for ts in sorted(waiting, key=_priority))
        if len(self._plan) > 2 * sum(map(len, self._queues)):  # of graphs that were given up
            self._plan = {key: island for key, island in self._plan.items() if key in known}

    def _threads(self, island: int) -> int:
        return sum(ws.nthreads for ws in self._running(island))

    def _running(self, island: int) -> list[WorkerState]:
        workers, running = self._scheduler.workers, self._scheduler.running
        return [ws for each in self._workers[island] if (ws := workers.get(each)) is not None and ws in running]

    def _least_busy(self) -> int:
        return min(
            range(len(self._workers)),
            key=lambda island: sum(len(ws.processing) for ws in self._running(island)) / self._threads(island),
        )

    # ---- a task is ready --------------------------------------------------------------------------------------------

    def place(self, ts: Any) -> WorkerState | None:
        """Return a worker of the island that a root task was given to; None: that is Dask's to choose."""
        island = self._plan.pop(ts.key, None)
        return None if island is None else self._least(island, self._scheduler.running)

    def _least(self, island: int, among: Any) -> WorkerState | None:
        """Return the worker with least to do of some of an island's, others each time."""
        addresses, workers = self._workers[island], self._scheduler.workers
        best, least, looked_at = None, 0.0, 0
        begin = self._turn[island]
        for i in range(len(addresses)):
            ws = workers.get(addresses[(begin + i) % len(addresses)])
            if ws is None or ws not in among:
                continue
            busy = len(ws.processing) / ws.nthreads
            if best is None or busy < least:
                best, least = ws, busy
                self._turn[island] = begin + i + 1
            looked_at += 1
            if busy == 0 or looked_at == _MOST_LOOKED_AT:
                break
        return best

    def place_unqueued(self, stock: Callable[..., Any], ts: Any) -> Any:
        """Choose for a root task where none wait for workers to be free (``worker-saturation: inf``)."""
        return self.place(ts) or stock(ts)

    def is_rootish(self, stock: Callable[..., Any], ts: Any) -> Any:
        """Note which task is asked about: Dask does not say it where it then asks for a worker."""
        self._asked = ts
        return stock(ts)

    def place_queued(self, stock: Callable[..., Any]) -> Any:
        """Choose for a root task that waits until a worker of its island has room."""
        scheduler, ts = self._scheduler, self._asked
        self._asked = None
        if ts is None or ts.state not in ("waiting", "queued"):
            ts = scheduler.queued.peek() if scheduler.queued else None
        if ts is None:
            return stock()
        island = self._plan.get(ts.key)
        if island is None or scheduler.validate:  # which asserts that a task waits for room only where there is none
            return stock()
        ws = self._least(island, scheduler.idle_task_count)
        if ws is None and self._running(island):
            return None
        del self._plan[ts.key]
        return ws or stock()

    def fill(self, stock: Callable[..., Any], *, stimulus_id: str) -> Any:
        """Have workers with room take queued tasks of their island, then as Dask has it."""
        scheduler = self._scheduler
        if self._plan and scheduler.queued and scheduler.queued.peek().key in self._plan:
            idle = scheduler.idle_task_count
            for ws in list(idle):
                island = self.island_of.get(self._model.place_of(ws.address).host)
                while island is not None and ws in idle and (ts := self._next(island)) is not None:
                    self._plan[ts.key] = island
                    self._asked = ts
                    scheduler.transitions({ts.key: "processing"}, stimulus_id)
        return stock(stimulus_id=stimulus_id)

    def _next(self, island: int) -> Any:
        """Return the first queued task of an island, or the last of the one that has most."""
        own = self._queues[island]
        while own:
            if (ts := self._queued(own.popleft())) is not None:
                return ts
        other = max(self._queues, key=len)
        while other:
            if (ts := self._queued(other.pop())) is not None:
                return ts
        return None

    def _queued(self, key: Any) -> Any:
        ts = self._scheduler.tasks.get(key) if key in self._plan else None
        return ts if ts is not None and ts.state == "queued" else None


def _is_free(ts: Any) -> bool:
    """Tell a task that can run at once, anywhere, and whose result others need."""
    return bool(
        not ts.dependencies
        and ts.dependents
        and ts.state in ("released", "waiting")
        and not ts.actor
        and not (ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions)
    )


def _priority(ts: Any) -> Any:
    return ts.priority
