# SPDX-License-Identifier: BSD-3-Clause
"""Placement of root tasks, those without inputs: roots whose results are combined run on one island.

Their placement decides what must cross a slow link at all, because later tasks follow their inputs. The roots of a
graph are divided once, when it arrives (``weft.links.islands.split``). If the scheduler queues roots, each island takes
its own first, and then the last ones of another island.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from weft.links import LinkModel, islands, split

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: For each task, at most this many workers of an island are considered, in rotation.
_MOST_LOOKED_AT = 16
#: Islands are recomputed after this many seconds, or when a worker joins or leaves.
_FRESH_S = 10.0


class Roots(SchedulerPlugin):  # type: ignore[misc] # distributed has no types
    """Divides the root tasks of a scheduler's graphs among islands.

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
        self._queues: list[deque[Any]] = []  # planned keys in order, by island
        self._asked: Any = None

    def look(self, now_s: float) -> None:
        """Recompute the islands, unless this was done recently."""
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
        """Drop all plans; Dask then places these tasks."""
        self._plan.clear()
        for queue in self._queues:
            queue.clear()
        self._asked = None

    # ---- a graph arrives -------------------------------------------------------------------------------------------

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
        if len(self._plan) > 2 * sum(map(len, self._queues)):  # keys of cancelled graphs
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
        """Return a worker of the island that a root task is planned for; None: Dask chooses."""
        island = self._plan.pop(ts.key, None)
        return None if island is None else self._least(island, self._scheduler.running)

    def _least(self, island: int, among: Any) -> WorkerState | None:
        """Return the least busy of some of an island's workers; each call considers others."""
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
        """Choose a worker for a root task if root tasks are not queued (``worker-saturation: inf``)."""
        return self.place(ts) or stock(ts)

    def is_rootish(self, stock: Callable[..., Any], ts: Any) -> Any:
        """Remember the task: Dask does not pass it on when it then asks for a worker."""
        self._asked = ts
        return stock(ts)

    def place_queued(self, stock: Callable[..., Any]) -> Any:
        """Choose a worker for a root task, or none, so that it stays queued until a worker of its island has room."""
        scheduler, ts = self._scheduler, self._asked
        self._asked = None
        if ts is None or ts.state not in ("waiting", "queued"):
            ts = scheduler.queued.peek() if scheduler.queued else None
        if ts is None:
            return stock()
        island = self._plan.get(ts.key)
        if island is None or scheduler.validate:  # which asserts that no task is queued while any worker has room
            return stock()
        ws = self._least(island, scheduler.idle_task_count)
        if ws is None and self._running(island):
            return None
        del self._plan[ts.key]
        return ws or stock()

    def fill(self, stock: Callable[..., Any], *, stimulus_id: str) -> Any:
        """Give workers with room queued tasks of their island, then do what Dask does."""
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
        """Return the first queued task of an island, or else the last one of the longest queue."""
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
    """Return whether a task can run at once on any worker, and others depend on it."""
    return bool(
        not ts.dependencies
        and ts.dependents
        and ts.state in ("released", "waiting")
        and not ts.actor
        and not (ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions)
    )


def _priority(ts: Any) -> Any:
    return ts.priority
