# SPDX-License-Identifier: BSD-3-Clause
"""A worker: it fetches its tasks' inputs, runs the tasks, and serves others. A policy chooses the sources."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from weft.simulate.engine import Engine
from weft.simulate.tasks import Task, WorkerState

#: Limits of Dask's worker (distributed.yaml, worker_state_machine.py): concurrent requests that it serves, twice as
#: many for its own host; concurrent requests that it sends, one to each source; bytes of a request for several keys.
SERVED_AT_ONCE, FETCHED_AT_ONCE, REQUEST_NBYTES = 10, 50, 50_000_000
#: Seconds until a busy source is asked again.
BUSY_S = 0.15


class Decisions(Protocol):
    """The interface of a policy to a worker and its cluster.

    Attributes
    ----------
    bandwidth : float
        Bytes/second by which bytes to fetch count as work.
    relayed_nbytes : int
        Bytes that went through a third worker.
    """

    bandwidth: float
    relayed_nbytes: int

    def join(self, cluster: Any) -> None:
        """Start to decide for a cluster."""

    def update_graph(self, tasks: Sequence[Task]) -> None:
        """Plan for a graph, before its first task is placed."""

    def place(self, task: Task) -> WorkerState:
        """Choose where a task runs."""
        ...

    def steal(self) -> None:
        """Move tasks between workers."""

    def sources(self, worker: Worker) -> Iterator[tuple[Worker, list[Task]]]:
        """Yield the sources to ask, with the keys to ask for."""
        ...

    def fetch(self, worker: Worker, source: Worker, keys: list[Task]) -> None:
        """Fetch values from a source."""

    def lost(self, worker: Worker) -> None:
        """Handle the death of a worker."""

    def replicate(self, key: Task) -> float:
        """Copy a value to all workers; return the simulated seconds."""
        ...


class Around(Protocol):
    """The interface of a cluster to its workers."""

    engine: Engine
    policy: Decisions

    def compute(self, worker: Worker, task: Task, done: Callable[[], None]) -> None:
        """Run a task."""

    def finished(self, worker: Worker, task: Task) -> None:
        """Handle the end of a task."""

    def has(self, worker: Worker, key: Task) -> None:
        """Handle a new copy on a worker."""


class Worker:
    """One worker in a cluster.

    Attributes
    ----------
    has : dict of Task to None
        Keys that it holds.
    wanted : dict of Task to dict of Task to None
        Keys to fetch, and the tasks that wait for each.
    in_flight : dict of Worker to list of Task
        Keys requested from each source.
    busy : dict of Worker to None
        Sources that refused, and are not asked for a while.
    """

    def __init__(self, cluster: Around, state: WorkerState) -> None:
        self.cluster, self.state, self.name = cluster, state, state.address
        self.alive = True
        self.has: dict[Task, None] = {}
        self.wanted: dict[Task, dict[Task, None]] = {}
        self.coming: dict[Task, None] = {}
        self.in_flight: dict[Worker, list[Task]] = {}
        self.busy: dict[Worker, None] = {}
        self.serving = self.receiving = 0
        self._missing: dict[Task, int] = {}
        self._ready: list[tuple[int, Task]] = []
        self.running: dict[Task, None] = {}
        self._looking = False

    # ---- tasks ------------------------------------------------------------------------------------------------------

    def run(self, task: Task) -> None:
        """Receive a task."""
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
        """Fetch a key that no task here needs: a copy."""
        if key not in self.has:
            self.wanted.setdefault(key, {})
            self.look()

    def may_leave(self, task: Task) -> bool:
        """Tell whether a task may still be moved: it is not running."""
        return task not in self.running

    def leave(self, task: Task) -> None:
        """Give up a task that runs elsewhere."""
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
        """Schedule a choice of sources for after all events of this instant."""
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
        """Handle an answer; keys of the request that did not arrive have to be requested again."""
        asked = self.in_flight.pop(source, [])
        for key in asked:
            self.coming.pop(key, None)
        for key in keys:
            self.keep(key)
        self.look()

    def keep(self, key: Task) -> None:
        """Store a key, and run the tasks that waited for it."""
        if key in self.has or not self.alive:
            return
        self.has[key] = None
        self.cluster.has(self, key)
        for task in self.wanted.pop(key, ()):
            left = self._missing[task] = self._missing[task] - 1
            if not left:
                self._is_ready(task)

    def refused(self, source: Worker, *, until_s: float) -> None:
        """Handle a refusal; the source is asked again after `until_s`, or when it notifies this worker."""
        self.busy[source] = None
        self.got(source, ())
        self.cluster.engine.after(until_s, self.free, source)

    def free(self, source: Worker) -> None:
        """Handle a source's notification that it is free, or the end of the wait for it."""
        if source in self.busy:
            del self.busy[source]
            self.look()

    def is_busy(self, asker: Worker) -> bool:
        """Tell whether this worker refuses a request."""
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
