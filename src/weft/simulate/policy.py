# SPDX-License-Identifier: BSD-3-Clause
"""Dask's decisions: where a task runs, where a worker fetches from, which tasks are stolen, how copies are made.

As in distributed 2026.7: bytes over one bandwidth; sources on the same host first, then those with most keys, then at
random. Stealing is simplified: waiting tasks move from the busiest workers to idle ones, cheapest first, without the
levels that Dask keeps between rounds. weft's decisions are in ``learned``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from weft.simulate.cluster import Cluster
from weft.simulate.network import Way
from weft.simulate.sharing import Flow
from weft.simulate.tasks import Task, WorkerState
from weft.simulate.worker import BUSY_S, Worker

#: Dask's values: the initial bandwidth, how fast it follows measurements, of which sizes; the extra cost of a steal.
_BANDWIDTH, _KEEP, _LEAST_NBYTES, _STEAL_S = 100e6, 0.95, 1_000_000, 0.1
#: A task stays if moving it costs this many times its computation, or if it is shorter than this.
_STEAL_MOST, _STEAL_LEAST_S = 2.0**8, 0.005

#: From as many workers on, a task without inputs is placed without a look at what they have to do.
_MANY = 20
#: Consider at most this many holders of a value, chosen at random.
_MOST_HOLDERS = 64


class Policy:
    """Dask's decisions for one cluster."""

    name = "stock"
    #: Seconds until a received piece of a value is sent on to the next worker.
    hop_s = 1e-3
    cluster: Cluster

    def __init__(self) -> None:
        self.bandwidth = _BANDWIDTH
        self.beside: dict[str, list[WorkerState]] = {}
        #: Bytes that went through a third worker.
        self.relayed_nbytes = 0
        self._sending: dict[Worker, dict[Flow, Worker]] = {}

    def join(self, cluster: Cluster) -> None:
        """Start to decide for a cluster."""
        self.cluster = cluster
        for state in cluster.workers.values():
            self.beside.setdefault(state.host, []).append(state)

    # ---- where a task runs ------------------------------------------------------------------------------------------

    def update_graph(self, tasks: Sequence[Task]) -> None:
        """Plan for a graph: Dask does not."""

    def place(self, task: Task) -> WorkerState:
        """Choose the worker on which a task starts first, among the holders of its inputs, or among all."""
        if not task.dependencies:
            return self._place_root()
        candidates = dict.fromkeys(state for dep in task.dependencies for state in dep.who_has)
        among = list(candidates or self.cluster.workers.values())
        if len(among) == 1:
            return among[0]
        return min(among, key=lambda state: self.objective(task, state))

    def _place_root(self) -> WorkerState:
        """Choose an idle worker in turn, or if there are few workers the least occupied one."""
        cluster = self.cluster
        pool = [state for name, state in cluster.workers.items() if name in cluster.idle]
        pool = pool or list(cluster.workers.values())
        start = cluster.n_tasks % len(pool)
        if len(pool) >= _MANY:
            return pool[start]
        least = min(pool, key=lambda state: state.occupancy)
        in_turn = (state for state in pool[start:] + pool[:start] if not state.occupancy)
        return least if least.occupancy else next(in_turn)

    def objective(self, task: Task, state: WorkerState) -> tuple[float, int, int]:
        """Return a key; its minimum is the worker on which a task starts first."""
        return state.occupancy / state.nthreads + self.comm_s(task, state), state.nbytes, state.number

    def comm_s(self, task: Task, state: WorkerState) -> float:
        """Return Dask's estimate of the seconds of fetching a task's inputs."""
        return sum(dep.nbytes for dep in task.dependencies if dep not in state.has_what) / self.bandwidth

    # ---- stealing ---------------------------------------------------------------------------------------------------

    def steal(self) -> None:
        """Move tasks from busy workers to idle ones."""
        cluster, occupied = self.cluster, _Occupied(self.cluster)
        idle: list[WorkerState] = occupied.idle()
        if not idle or len(idle) == len(cluster.workers):
            return
        for victim in occupied.full():
            by_cost = sorted((ratio, task.priority, task) for task in victim.processing if (ratio := self._ratio(task)))
            for ratio, _, task in by_cost:
                if not idle or ratio > _STEAL_MOST:
                    break
                thief = min(idle, key=lambda state: (occupied.s[state] + self.comm_s(task, state), state.number))
                seconds = cluster.expected_s(task)
                there = occupied.s[thief] + self.comm_s(task, thief) + seconds
                if there <= occupied.s[victim] - (self.comm_s(task, victim) + seconds) / 2:
                    cluster.move(task, thief)
                    occupied.moved(victim, thief, self.comm_s(task, victim) + seconds, there - occupied.s[thief])
                    idle = [state for state in idle if occupied.is_idle(state)]

    def _ratio(self, task: Task) -> float:
        """Return the cost of moving a task relative to its computation; 0: do not move it."""
        seconds = self.cluster.expected_s(task)
        if seconds < _STEAL_LEAST_S or task.worker is not None:
            return 0.0
        return (self.move_s(task) + _STEAL_S) / seconds

    def move_s(self, task: Task) -> float:
        """Return Dask's estimate of the seconds of moving a task to another worker."""
        return task.get_nbytes_deps() / self.bandwidth

    # ---- fetching ---------------------------------------------------------------------------------------------------

    def sources(self, worker: Worker) -> Iterator[tuple[Worker, list[Task]]]:
        """Yield the sources to ask, with the keys to ask for, in order."""
        first = first_needed(worker)
        at, taken = self.cluster.at, {**worker.in_flight, **worker.busy}
        held: dict[Worker, list[Task]] = {}
        for key in sorted(first, key=first.__getitem__):
            for state in self.holders(worker, key):
                if (source := at[state]) not in taken:
                    held.setdefault(source, []).append(key)
        if not held:
            return
        host, chance = worker.state.host, self.cluster.random.random
        rank = {w: (first[keys[0]], w.state.host != host, -len(keys), chance()) for w, keys in held.items()}
        if len(first) == 1:
            source = min(rank, key=rank.__getitem__)
            yield source, held[source]
            return
        for source in sorted(rank, key=rank.__getitem__):
            yield source, held[source]

    def holders(self, worker: Worker, key: Task) -> Iterable[WorkerState]:
        """Return a value's holders; if there are many, those on this host, or else a random sample."""
        if len(key.who_has) <= _MOST_HOLDERS:
            return key.who_has
        beside = self.beside.get(worker.state.host, ())
        near = [state for state in beside if state in key.who_has]
        return near or self.cluster.random.sample(list(key.who_has), _MOST_HOLDERS)

    def fetch(self, worker: Worker, source: Worker, keys: list[Task]) -> None:
        """Fetch values from a source in one request."""
        self.request(worker, source, keys, lambda: worker.got(source, keys))

    def request(self, worker: Worker, source: Worker, keys: list[Task], done: Callable[[], None]) -> None:
        """Send a request to a source; if it is busy, retry later."""
        cluster = self.cluster
        way = self.way(source, worker, sum(key.nbytes for key in keys))
        cluster.requests += 1

        def asked() -> None:
            if not source.alive:
                worker.got(source, ())
            elif source.is_busy(worker):
                self.refuse(worker, source)
            else:
                nbytes = sum(key.nbytes for key in keys)
                self.move(worker, source, way, nbytes, done)

        cluster.engine.after(way.latency_s, asked)

    def way(self, source: Worker, worker: Worker, nbytes: int) -> Way:
        """Return the path of `nbytes` bytes."""
        del nbytes
        return self.cluster.network.way(source.name, worker.name)

    def move(self, worker: Worker, source: Worker, way: Way, nbytes: int, done: Callable[[], None]) -> None:
        """Transfer and count `nbytes` bytes."""
        cluster = self.cluster
        begin = cluster.engine.now_s
        source.serving += 1
        sending = self._sending.setdefault(source, {})
        before = self.flows(source, worker)

        def there() -> None:
            sending.pop(flow, None)
            worker.receiving -= 1
            source.serving -= 1
            cluster.moved_nbytes += nbytes if way.links else 0
            if worker.alive:
                after = self.flows(source, worker)
                flows = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
                self.moved(worker, source, way, nbytes, cluster.engine.now_s - begin, flows)
                done()
            self.served(source)

        flow = cluster.engine.move(way.links, nbytes, there)
        sending[flow] = worker
        worker.receiving += 1

    def flows(self, source: Worker, worker: Worker) -> tuple[int, int]:
        """Return how many transfers a source sends, and a worker receives, with one more.

        As workers report it: none knows of its neighbours' transfers.
        """
        return len(self._sending.get(source, ())) + 1, worker.receiving + 1

    def refuse(self, worker: Worker, source: Worker) -> None:
        """Refuse a worker's request."""
        worker.refused(source, until_s=BUSY_S)

    def served(self, source: Worker) -> None:
        """Record that a source is free again."""

    def moved(
        self, worker: Worker, source: Worker, way: Way, nbytes: int, seconds: float, flows: tuple[float, float]
    ) -> None:
        """Learn from a transfer."""
        if nbytes > _LEAST_NBYTES:
            measured = nbytes / max(1e-3, seconds + way.latency_s)
            share = 1 / len(self.cluster.workers)
            self.bandwidth += (1 - _KEEP) * share * (measured - self.bandwidth)

    def lost(self, worker: Worker) -> None:
        """Handle a worker's death: its transfers stop, in both directions."""
        for flow, to in self._sending.pop(worker, {}).items():
            self.cluster.engine.stop(flow)
            to.receiving -= 1
            to.got(worker, ())
        for source, sending in self._sending.items():
            for flow, to in list(sending.items()):
                if to is worker:
                    self.cluster.engine.stop(flow)
                    del sending[flow]
                    source.serving -= 1

    # ---- copies -----------------------------------------------------------------------------------------------------

    def replicate(self, key: Task) -> float:
        """Copy a value to all workers; return the simulated seconds.

        As in ``Scheduler.replicate``: each holder gives it to two more, chosen at random, and so on.
        """
        cluster = self.cluster
        begin = cluster.engine.now_s
        while missing := [state for state in cluster.workers.values() if state not in key.who_has]:
            chosen = cluster.random.sample(missing, min(len(missing), 2 * len(key.who_has)))
            for state in chosen:
                cluster.engine.after(cluster.costs.message_s, cluster.at[state].want, key)
            cluster.engine.run()
        return cluster.engine.now_s - begin


def first_needed(worker: Worker) -> dict[Task, int]:
    """Return the keys that a worker wants and has not requested, with the priority of the first task that needs it."""
    return {
        key: min((task.priority for task in tasks), default=0)
        for key, tasks in worker.wanted.items()
        if key not in worker.coming
    }


class _Occupied:
    """How much each worker has to do, as seen by stealing, including what was just moved."""

    def __init__(self, cluster: Cluster) -> None:
        states = cluster.workers.values()
        self.s = {state: state.occupancy for state in states}
        self._processing = {state: len(state.processing) for state in states}
        self._mean = sum(self.s.values()) / max(1, sum(state.nthreads for state in states))

    def is_idle(self, state: WorkerState) -> bool:
        """As ``Scheduler.is_unoccupied``."""
        return self._processing[state] < state.nthreads or self.s[state] < state.nthreads * self._mean / 2

    def idle(self) -> list[WorkerState]:
        """Return the workers that may receive tasks."""
        return [state for state in self.s if self.is_idle(state)]

    def full(self) -> list[WorkerState]:
        """Return the workers that tasks may be stolen from, busiest first (``check_idle_saturated``)."""
        other = [state for state in self.s if self._waits(state) > 0 and not self.is_idle(state)]
        most = sorted(other, key=self.s.__getitem__, reverse=True)
        full = [state for state in most if self._waits(state) > max(0.4, 1.9 * self._mean)]
        return full or [state for state in most[:10] if self.s[state] > 0.2]

    def _waits(self, state: WorkerState) -> float:
        more = self._processing[state] - state.nthreads
        return self.s[state] * more / (self._processing[state] * state.nthreads) if more > 0 else 0.0

    def moved(self, victim: WorkerState, thief: WorkerState, less_s: float, more_s: float) -> None:
        """Move a task's load from victim to thief."""
        self.s[victim] -= less_s
        self.s[thief] += more_s
        self._processing[victim] -= 1
        self._processing[thief] += 1
