# SPDX-License-Identifier: BSD-3-Clause
"""What Dask decides: where a task runs, from whom a worker fetches, what moves to another worker, how copies are made.

As distributed 2026.7 has it: bytes over one bandwidth; a source of the same host, then whoever has most, then chance.
Stealing is its essence: tasks that wait, of the workers with most to do, for those with nothing, cheapest first;
without Dask's levels that are kept between rounds. What weft decides is in ``learned``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from weft.simulate.cluster import Cluster
from weft.simulate.network import Way
from weft.simulate.sharing import Flow
from weft.simulate.tasks import Task, WorkerState
from weft.simulate.worker import BUSY_S, Worker

#: Dask's: the one bandwidth before anything was fetched, how fast it follows, and of what sizes; what stealing adds.
_BANDWIDTH, _KEEP, _LEAST_NBYTES, _STEAL_S = 100e6, 0.95, 1_000_000, 0.1
#: A task that costs so many times more to move than it computes stays; as does a short one.
_STEAL_MOST, _STEAL_LEAST_S = 2.0**8, 0.005


class Policy:
    """Dask's decisions, for one cluster."""

    name = "stock"
    cluster: Cluster

    def __init__(self) -> None:
        self.bandwidth = _BANDWIDTH
        self._sending: dict[Worker, dict[Flow, Worker]] = {}

    def join(self, cluster: Cluster) -> None:
        """Decide for a cluster."""
        self.cluster = cluster

    # ---- where a task runs ------------------------------------------------------------------------------------------

    def place(self, task: Task) -> WorkerState:
        """Choose the worker on which a task starts first: of those that have something of what it needs, or of all."""
        candidates = dict.fromkeys(state for dep in task.dependencies for state in dep.who_has)
        among = list(candidates or self.cluster.workers.values())
        if len(among) == 1:
            return among[0]
        return min(among, key=lambda state: self.objective(task, state))

    def objective(self, task: Task, state: WorkerState) -> tuple[float, int, int]:
        """Return what is least for the worker on which a task starts first."""
        return state.occupancy / state.nthreads + self.comm_s(task, state), state.nbytes, state.number

    def comm_s(self, task: Task, state: WorkerState) -> float:
        """Return what fetching is thought to take."""
        return self.network_s(task, state)

    def network_s(self, task: Task, state: WorkerState) -> float:
        """Return what fetching counts for in a worker's occupancy."""
        return sum(dep.nbytes for dep in task.dependencies if dep not in state.has_what) / self.bandwidth

    # ---- stealing ---------------------------------------------------------------------------------------------------

    def steal(self) -> None:
        """Move tasks from workers that have many to such as have none."""
        states = list(self.cluster.workers.values())
        idle = [state for state in states if len(state.processing) < state.nthreads]
        full = [state for state in states if len(state.processing) > state.nthreads]
        if not idle or not full:
            return
        full.sort(key=lambda state: -state.occupancy)
        moved: set[Task] = set()
        for victim in full[: 2 * len(idle)]:
            for task in sorted(victim.processing, key=self._ratio):
                if not idle or len(victim.processing) - sum(t in moved for t in victim.processing) <= victim.nthreads:
                    break
                if self._ratio(task) > _STEAL_MOST or task.worker is not None:
                    continue
                thief = min(idle, key=lambda state: (state.occupancy + self.comm_s(task, state), state.number))
                seconds = self.cluster.expected_s(task)
                there = thief.occupancy / thief.nthreads + self.comm_s(task, thief) + seconds
                here = victim.occupancy / victim.nthreads - (self.comm_s(task, victim) + seconds) / 2
                if there <= here and self.cluster.at[victim].may_leave(task):
                    moved.add(task)
                    idle.remove(thief)
                    self.cluster.move(task, thief)

    def _ratio(self, task: Task) -> float:
        seconds = self.cluster.expected_s(task)
        return math.inf if seconds < _STEAL_LEAST_S else (self.move_s(task) + _STEAL_S) / seconds

    def move_s(self, task: Task) -> float:
        """Return what moving a task to another worker is thought to take."""
        return task.get_nbytes_deps() / self.bandwidth

    # ---- fetching ---------------------------------------------------------------------------------------------------

    def sources(self, worker: Worker) -> Iterator[tuple[Worker, list[Task]]]:
        """Yield whom a worker asks, and for what, in this order."""
        held: dict[WorkerState, list[Task]] = {}
        for key in sorted(worker.wanted, key=_first_needed(worker)):
            if key not in worker.coming:
                for state in key.who_has:
                    held.setdefault(state, []).append(key)
        host, chance = worker.state.host, self.cluster.random.random
        first = _first_needed(worker)
        order = sorted((first(keys[0]), s.host != host, -len(keys), chance(), s.number, s) for s, keys in held.items())
        for *_, state in order:
            yield self.cluster.at[state], held[state]

    def fetch(self, worker: Worker, source: Worker, keys: list[Task]) -> None:
        """Get values from one that has them, in one request."""
        self.request(worker, source, keys, lambda: worker.got(source, keys))

    def request(self, worker: Worker, source: Worker, keys: list[Task], done: Callable[[], None]) -> None:
        """Ask one that has values for them, whatever is decided; if it is busy, somewhat later again."""
        cluster = self.cluster
        way = cluster.network.way(source.name, worker.name)
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

    def move(self, worker: Worker, source: Worker, way: Way, nbytes: int, done: Callable[[], None]) -> None:
        """Send so many bytes, and count them."""
        cluster = self.cluster
        begin = cluster.engine.now_s
        source.serving += 1
        sending = self._sending.setdefault(source, {})
        before = self.flows(way)

        def there() -> None:
            sending.pop(flow, None)
            source.serving -= 1
            cluster.moved_nbytes += nbytes if way.links else 0
            if worker.alive:
                flows = [(a + b) / 2 for a, b in zip(before, self.flows(way), strict=True)]
                self.moved(worker, source, way, nbytes, cluster.engine.now_s - begin, flows)
                done()
            self.served(source)

        flow = cluster.engine.move(way.links, nbytes, there)
        sending[flow] = worker

    def flows(self, way: Way) -> tuple[int, int]:
        """Return how many flows leave by the first link of a way now, and how many come by its last."""
        on = self.cluster.engine.links.on
        return (len(on(way.links[0])) or 1, len(on(way.links[-1])) or 1) if way.links else (1, 1)

    def refuse(self, worker: Worker, source: Worker) -> None:
        """Tell one that asks that there is no room."""
        worker.refused(source, until_s=BUSY_S)

    def served(self, source: Worker) -> None:
        """Take note that a worker has room again."""

    def moved(self, worker: Worker, source: Worker, way: Way, nbytes: int, seconds: float, flows: list[float]) -> None:
        """Learn from a transfer."""
        if nbytes > _LEAST_NBYTES:
            measured = nbytes / max(1e-3, seconds + way.latency_s)
            share = 1 / len(self.cluster.workers)
            self.bandwidth += (1 - _KEEP) * share * (measured - self.bandwidth)

    def lost(self, worker: Worker) -> None:
        """Hear that a worker has died: nothing comes of it any more, and nothing goes there."""
        for flow, to in self._sending.pop(worker, {}).items():
            self.cluster.engine.stop(flow)
            to.got(worker, ())
        for source, sending in self._sending.items():
            for flow, to in list(sending.items()):
                if to is worker:
                    self.cluster.engine.stop(flow)
                    del sending[flow]
                    source.serving -= 1

    # ---- copies -----------------------------------------------------------------------------------------------------

    def replicate(self, key: Task) -> float:
        """Give a value to all workers; return the simulated seconds that it takes.

        As ``Scheduler.replicate``: each that has it gives it to two more, chosen by chance, and then again.
        """
        cluster = self.cluster
        begin = cluster.engine.now_s
        while missing := [state for state in cluster.workers.values() if state not in key.who_has]:
            chosen = cluster.random.sample(missing, min(len(missing), 2 * len(key.who_has)))
            for state in chosen:
                cluster.engine.after(cluster.costs.message_s, cluster.at[state].want, key)
            cluster.engine.run()
        return cluster.engine.now_s - begin


def _first_needed(worker: Worker) -> Callable[[Task], int]:
    def priority(key: Task) -> int:
        return min((task.priority for task in worker.wanted.get(key, ())), default=0)

    return priority
