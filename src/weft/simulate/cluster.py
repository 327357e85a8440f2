# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler and its workers on a network, in simulated time. A policy makes the decisions.

Not simulated: memory and its limits (spilling, pausing), tasks queued at the scheduler, restrictions other than to one
worker, retries, actors, and failures other than a worker's death.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from weft.simulate.engine import Engine
from weft.simulate.network import Network
from weft.simulate.tasks import Task, WorkerState
from weft.simulate.worker import Decisions, Worker

#: Assumed duration of a kind of task that has not run yet (distributed.yaml: unknown-task-duration).
_UNKNOWN_S = 0.5
#: Seconds between rounds of work stealing.
_STEAL_EVERY_S = 0.1


class Costs(NamedTuple):
    """The overhead of a cluster.

    Attributes
    ----------
    message_s : float
        A message from the scheduler to a worker, or back.
    scheduler_s : float
        The scheduler's single thread, for each task that it sends and for each that finished.
    task_s : float
        A worker's thread, in addition to the task's computation.
    """

    message_s: float = 1e-3
    scheduler_s: float = 1e-4
    task_s: float = 5e-4


class Cluster:
    """A scheduler, workers, and the links between them.

    Parameters
    ----------
    network : Network
    policy : Policy or Learned
        Makes the decisions.
    seed : int
        The random seed: Dask chooses among equal sources at random.
    """

    def __init__(
        self,
        network: Network,
        policy: Decisions,
        *,
        costs: Costs | None = None,
        seed: int = 0,
        resolution_s: float = 0.0,
    ) -> None:
        self.network, self.policy, self.costs = network, policy, costs or Costs()
        self.engine = Engine([link.bandwidth_Bps for link in network.links], resolution_s=resolution_s)
        self.random = random.Random(seed)  # noqa: S311 - a simulation
        self.workers: dict[str, WorkerState] = {}
        self.idle: dict[str, WorkerState] = {}
        self.at: dict[WorkerState, Worker] = {}
        for number, (name, place) in enumerate(network.places.items()):
            state = self.workers[name] = WorkerState(name, place.host, number, self._occupancy)
            self.at[state] = Worker(self, state)
            self.idle[name] = state
        self.durations: dict[str, float] = {}
        self.moved_nbytes = self.requests = 0
        self._free_s = 0.0
        self._left = 0
        self._stealing = False
        policy.join(self)

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def put(self, values: Iterable[Task]) -> None:
        """Place values on their workers."""
        for value in values:
            assert value.worker is not None, "a value has a worker"
            state = self.workers[value.worker]
            state.hold(value)
            self.at[state].has[value] = None

    def forget(self) -> None:
        """Drop all values; what was learned stays."""
        for state in self.workers.values():
            state.clear()
            self.at[state].has.clear()
        self.moved_nbytes = self.requests = self.policy.relayed_nbytes = 0

    def compute_all(self, tasks: Iterable[Task]) -> float:
        """Run tasks, each after its dependencies, and return the simulated seconds.

        Raises
        ------
        RuntimeError
            Some tasks never end: a bug of the simulator.
        """
        begin = self.engine.now_s
        graph = list(tasks)
        self._left = len(graph)
        for number, task in enumerate(graph):
            task.priority = number
            task.waiting_for = sum(not dep.who_has for dep in task.dependencies)
        self.engine.after(self.costs.message_s, self._first, graph)
        self.engine.run()
        if self._left:
            raise RuntimeError(f"{self._left} of {len(graph)} tasks never end")
        return self.ended_s - begin

    def _first(self, graph: list[Task]) -> None:
        self.n_tasks = len(graph) + self.random.randrange(len(self.workers))
        self.policy.update_graph(graph)
        for task in graph:
            if not task.waiting_for and task.processing_on is None and not task.who_has:
                self._send(task)

    def _send(self, task: Task) -> None:
        state = self.workers.get(task.worker) if task.worker else None
        state = state or self.policy.place(task)
        self.process(task, state)
        self._busy(lambda: self._tell(self.at[state], task))

    def process(self, task: Task, state: WorkerState) -> None:
        """Record where a task runs."""
        task.processing_on = state
        state.process(task)
        self._look_whether_idle(state)

    def unprocess(self, task: Task) -> None:
        """Record that a task no longer runs on its worker."""
        state = task.processing_on
        assert state is not None, "the task ran somewhere"
        task.processing_on = None
        state.unprocess(task)
        self._look_whether_idle(state)

    def _look_whether_idle(self, state: WorkerState) -> None:
        if len(state.processing) >= state.nthreads:
            self.idle.pop(state.address, None)
        elif state.address in self.workers:
            self.idle[state.address] = state

    def expected_s(self, task: Task) -> float:
        """Return the recent duration of tasks of this kind."""
        return self.durations.get(task.kind, _UNKNOWN_S)

    def _occupancy(self, state: WorkerState) -> float:
        durations = self.durations
        seconds = sum(count * durations.get(kind, _UNKNOWN_S) for kind, count in state.kinds.items())
        return seconds + state.network_nbytes / self.policy.bandwidth

    def _tell(self, worker: Worker, task: Task) -> None:
        self.engine.after(self.costs.message_s, worker.run, task)
        if not self._stealing:
            self._stealing = True
            self.engine.after(_STEAL_EVERY_S, self._steal)

    def _busy(self, then: Callable[[], None]) -> None:
        """Queue an action for the scheduler's thread."""
        self._free_s = max(self._free_s, self.engine.now_s) + self.costs.scheduler_s
        self.engine.after(self._free_s - self.engine.now_s, then)

    def _steal(self) -> None:
        self._stealing = self._left > 0 and self.engine.waits
        if self._stealing:
            self.policy.steal()
            self.engine.after(_STEAL_EVERY_S, self._steal)

    def move(self, task: Task, to: WorkerState) -> None:
        """Move a waiting task to another worker, unless its worker has already started it."""
        worker = self.at[task.processing_on] if task.processing_on else None

        def asked() -> None:
            if worker is None or task.processing_on is not worker.state or not worker.may_leave(task):
                return
            worker.leave(task)
            self.unprocess(task)
            self.process(task, to)
            self._tell(self.at[to], task)

        self.engine.after(2 * self.costs.message_s, asked)

    # ---- messages from workers --------------------------------------------------------------------------------------

    def compute(self, worker: Worker, task: Task, done: Callable[[], None]) -> None:
        """Run a task on a worker's thread; if its host's cores are shared, they are the bottleneck."""
        cores = self.network.processors.get(worker.state.host)
        if cores is None:
            self.engine.after(task.seconds + self.costs.task_s, done)
        else:
            self.engine.move((cores,), task.seconds + self.costs.task_s, done, most=1.0)

    def finished(self, worker: Worker, task: Task) -> None:
        """Handle a worker's message that a task has finished."""
        self.engine.after(self.costs.message_s, self._busy, lambda: self._finished(worker, task))

    def _finished(self, worker: Worker, task: Task) -> None:
        if task.processing_on is not worker.state:
            return
        self.unprocess(task)
        worker.state.hold(task)
        before = self.durations.get(task.kind)
        took = task.seconds + self.costs.task_s
        self.durations[task.kind] = took if before is None else (before + took) / 2
        self._left -= 1
        self.ended_s = self.engine.now_s
        for dependent in task.dependents:
            dependent.waiting_for -= 1
            if not dependent.waiting_for:
                self._send(dependent)

    def has(self, worker: Worker, key: Task) -> None:
        """Handle a worker's message that it has a copy."""
        self.engine.after(self.costs.message_s, worker.state.hold, key)

    def kill(self, name: str) -> None:
        """Kill a worker: its fetched values are lost, and its tasks run elsewhere."""
        state = self.workers.pop(name)
        self.idle.pop(name, None)
        worker = self.at[state]
        worker.alive = False
        for key in state.has_what:
            key.who_has.pop(state, None)
        for task in list(state.processing):
            self.unprocess(task)
            task.worker = None
            self._send(task)
        self.policy.lost(worker)

    #: The number of tasks that the scheduler knows, with some of earlier graphs that are not released yet.
    n_tasks = 0
    #: The time at which the last task ended.
    ended_s = 0.0
