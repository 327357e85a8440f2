# SPDX-License-Identifier: BSD-3-Clause
"""A worker: it fetches what its tasks need, runs them, and serves others. From where, is a policy's to say."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from weft.simulate.engine import Engine
from weft.simulate.tasks import Task, WorkerState

#: What Dask's worker does (distributed.yaml, worker_state_machine.py): it sends to so many at once, to twice as many of
#: its own host; it fetches from so many at once, from each by one request, of so many bytes if it is for several keys.
SERVED_AT_ONCE, FETCHED_AT_ONCE, REQUEST_NBYTES = 10, 50, 50_000_000
#: Seconds after which one that was busy is asked again.
BUSY_S = 0.15


class Decisions(Protocol):
    """What a policy is to a worker and its cluster.

    Attributes
    ----------
    bandwidth : float
        Bytes/second by which what is to be fetched counts as work.
    relayed_nbytes : int
        What went by way of a third worker.
    """

    bandwidth: float
    relayed_nbytes: int

    def join(self, cluster: Any) -> None:
        """Decide for a cluster."""

    def place(self, task: Task) -> WorkerState:
        """Choose where a task runs."""
        ...

    def steal(self) -> None:
        """Move tasks between workers."""

    def sources(self, worker: Worker) -> Iterator[tuple[Worker, list[Task]]]:
        """Yield whom a worker asks, and for what."""
        ...

    def fetch(self, worker: Worker, source: Worker, keys: list[Task]) -> None:
        """Get values from one that has them."""

    def lost(self, worker: Worker) -> None:
        """Hear that a worker has died."""

    def replicate(self, key: Task) -> float:
        """Give a value to all workers; return the simulated seconds."""
        ...


class Around(Protocol):
    """What a cluster is to its workers."""

    engine: Engine
    policy: Decisions

    def compute(self, worker: Worker, task: Task, done: Callable[[], None]) -> None:
        """Run a task."""

    def finished(self, worker: Worker, task: Task) -> None:
        """Hear that a task has run."""

    def has(self, worker: Worker, key: Task) -> None:
        """Hear that a worker has a copy."""


class Worker:
    """One worker in a cluster.

    Attributes
    ----------
    has : dict of Task to None
        What is here.
    wanted : dict of Task to dict of Task to None
        What is to be fetched, and the tasks that wait for it.
    in_flight : dict of Worker to list of Task
        What is asked of whom now.
    busy : dict of Worker to None
        Who said so and is not asked for a while.
    """

    def __init__(self, cluster: Around, state: WorkerState) -> None:
        self.cluster, self.state, self.name = cluster, state, state.address
        self.alive = True
        self.has: dict[Task, None] = {}
        self.wanted: dict[Task, dict[Task, None]] = {}
        self.coming: dict[Task, None] = {}
        self.in_flight: dict[Worker, list[Task]] = {}
        self.busy: dict[Worker, None] = {}
        self.waiting_here: dict[Worker, None] = {}
        self.serving = 0
        self._missing: dict[Task, int] = {}
        self._ready: list[tuple[int, Task]] = []
        self.running: dict[Task, None] = {}
        self._looking = False

    # ---- tasks ------------------------------------------------------------------------------------------------------

    def run(self, task: Task) -> None:
        """Hear of a task."""
        if not self.alive or task.processing_on is not self.state:
            return
        missing = [dep for dep in task.dependencies if dep not in self.has]
        self._missing[task] = len(missing)
        for dep in missing:
            self.wanted.setdefault(dep, {})[task] = None
        if missing:
            self.look()
        else:
            self._is_ready(task)

    def want(self, key: Task) -> None:
        """Fetch something that no task here needs: a copy was asked for."""
        if key not in self.has:
            self.wanted.setdefault(key, {})
            self.look()

    def may_leave(self, task: Task) -> bool:
        """Tell whether a task may still be moved: it does not run."""
        return task not in self.running

    def leave(self, task: Task) -> None:
        """Hear that a task runs elsewhere."""
        self._missing.pop(task, None)
        for dep in task.dependencies:
            tasks = self.wanted.get(dep)
            if tasks is not None:
                tasks.pop(task, None)
                if not tasks and dep not in self.coming:
                    del self.wanted[dep]

    def _is_ready(self, task: Task) -> None:
        del self._missing[task]
        heapq.heappush(self._ready, (task.priority, task))
        self._begin()

    def _begin(self) -> None:
        while self._ready and len(self.running) < self.state.nthreads:
            _, task = heapq.heappop(self._ready)
            if task.processing_on is not self.state:
                continue
            self.running[task] = None
            self.cluster.compute(self, task, functools.partial(self._ran, task))

    def _ran(self, task: Task) -> None:
        if not self.alive:
            return
        del self.running[task]
        self.has[task] = None
        self.cluster.finished(self, task)
        self._begin()

    # ---- fetching ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Have the sources chosen once all that happens now has happened."""
        if not self._looking and self.alive:
            self._looking = True
            self.cluster.engine.after(0.0, self._look)

    def _look(self) -> None:
        self._looking = False
        free = FETCHED_AT_ONCE - len(self.in_flight)
        if free <= 0 or not self.alive:
            return
        for source, keys in self.cluster.policy.sources(self):
            if source in self.in_flight or source in self.busy:
                continue
            asked = _as_large_as_allowed(key for key in keys if key not in self.coming)
            if not asked:
                continue
            self.in_flight[source] = asked
            self.coming.update(dict.fromkeys(asked))
            self.cluster.policy.fetch(self, source, asked)
            free -= 1
            if not free:
                return

    def got(self, source: Worker, keys: Iterable[Task]) -> None:
        """Take what arrived; what else was asked of this source has to be asked for again."""
        asked = self.in_flight.pop(source, [])
        for key in asked:
            self.coming.pop(key, None)
        for key in keys:
            self.keep(key)
        self.look()

    def keep(self, key: Task) -> None:
        """Have something, and run what waited for it."""
        if key in self.has or not self.alive:
            return
        self.has[key] = None
        self.cluster.has(self, key)
        for task in self.wanted.pop(key, ()):
            left = self._missing[task] = self._missing[task] - 1
            if not left:
                self._is_ready(task)

    def refused(self, source: Worker, *, until_s: float) -> None:
        """Hear that a source is busy; it is asked again after so many seconds, or when it says so."""
        self.busy[source] = None
        self.got(source, ())
        self.cluster.engine.after(until_s, self.free, source)

    def free(self, source: Worker) -> None:
        """Hear that a source that was busy is not, or stop waiting to hear it."""
        if source in self.busy:
            del self.busy[source]
            self.look()

    def is_busy(self, asker: Worker) -> bool:
        """Tell whether a request of another worker is refused."""
        near = asker.state.host == self.state.host
        return self.serving >= SERVED_AT_ONCE * (2 if near else 1)


def _as_large_as_allowed(keys: Iterable[Task]) -> list[Task]:
    asked: list[Task] = []
    nbytes = 0
    for key in keys:
        if asked and nbytes + key.nbytes > REQUEST_NBYTES:
            break
        asked.append(key)
        nbytes += key.nbytes
    return asked
