# SPDX-License-Identifier: BSD-3-Clause
"""Tasks and workers as a scheduler sees them; the names are Dask's, so that code written for Dask can decide here."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Task:
    """A task, or an initial value.

    Parameters
    ----------
    key : str
    nbytes : int
        The size of its result.
    seconds : float
        Its computation.
    dependencies : sequence of Task
    kind : str
        Tasks of one kind are assumed to take the same time: Dask's key prefix.
    worker : str, optional
        The worker on which the task must run, or that holds the initial value.
    """

    __slots__ = (
        "actor",
        "dependencies",
        "dependents",
        "key",
        "kind",
        "nbytes",
        "priority",
        "processing_on",
        "seconds",
        "waiting_for",
        "who_has",
        "worker",
    )

    def __init__(
        self,
        key: str,
        nbytes: int,
        seconds: float = 0.0,
        dependencies: Sequence[Task] = (),
        *,
        kind: str = "task",
        worker: str | None = None,
    ) -> None:
        self.key, self.nbytes, self.seconds, self.kind, self.worker = key, nbytes, seconds, kind, worker
        self.dependencies = dict.fromkeys(dependencies)
        self.dependents: list[Task] = []
        for each in self.dependencies:
            each.dependents.append(self)
        self.who_has: dict[WorkerState, None] = {}
        self.processing_on: WorkerState | None = None
        self.waiting_for = len(self.dependencies)
        self.priority = 0
        self.actor = False

    # What Dask's scheduler knows of a task, and weft's code for it asks for.
    host_restrictions: None = None
    resource_restrictions: None = None

    @property
    def worker_restrictions(self) -> set[str] | None:
        """Return the worker on which it must run, if there is one."""
        return {self.worker} if self.worker else None

    @property
    def state(self) -> str:
        """Return Dask's name of its state."""
        return "memory" if self.who_has else "processing" if self.processing_on else "waiting"

    def __repr__(self) -> str:
        return f"<{self.key}>"

    def get_nbytes(self) -> int:
        """Return the size of its result."""
        return self.nbytes

    def get_nbytes_deps(self) -> int:
        """Return the total size of its inputs."""
        return sum(dep.nbytes for dep in self.dependencies)


class WorkerState:
    """A worker, as the scheduler sees it.

    Attributes
    ----------
    has_what : dict of Task to None
        Keys that it holds.
    processing : dict of Task to None
        Tasks assigned to it.
    kinds : dict of str to int
        The number of these tasks of each kind.
    needs_what : dict of Task to int
        Keys that it must fetch, and how many of its tasks need each.
    network_nbytes : int
        The total size of these keys.
    """

    __slots__ = (
        "_occupancy",
        "address",
        "has_what",
        "host",
        "kinds",
        "nbytes",
        "needs_what",
        "network_nbytes",
        "nthreads",
        "number",
        "processing",
    )

    def __init__(
        self, address: str, host: str, number: int, occupancy: Callable[[WorkerState], float], *, nthreads: int = 1
    ) -> None:
        self.address, self.host, self.nthreads, self.number = address, host, nthreads, number
        self._occupancy = occupancy
        self.has_what: dict[Task, None] = {}
        self.processing: dict[Task, None] = {}
        self.kinds: dict[str, int] = {}
        self.needs_what: dict[Task, int] = {}
        self.nbytes = self.network_nbytes = 0

    def __repr__(self) -> str:
        return f"<{self.address}>"

    @property
    def occupancy(self) -> float:
        """Return the seconds until it has finished its assigned tasks."""
        return self._occupancy(self)

    def hold(self, task: Task) -> None:
        """Record that it holds the result of a task."""
        if task not in self.has_what:
            self.has_what[task] = task.who_has[self] = None
            self.nbytes += task.nbytes
            if self.needs_what.pop(task, None) is not None:
                self.network_nbytes -= task.nbytes

    def process(self, task: Task) -> None:
        """Record that a task was assigned to it."""
        self.processing[task] = None
        self.kinds[task.kind] = self.kinds.get(task.kind, 0) + 1
        for dep in task.dependencies:
            if dep not in self.has_what:
                before = self.needs_what.get(dep, 0)
                self.needs_what[dep] = before + 1
                self.network_nbytes += 0 if before else dep.nbytes

    def unprocess(self, task: Task) -> None:
        """Record that a task is no longer assigned to it."""
        del self.processing[task]
        self.kinds[task.kind] -= 1
        if not self.kinds[task.kind]:
            del self.kinds[task.kind]
        for dep in task.dependencies:
            left = self.needs_what.get(dep, 0) - 1
            if left > 0:
                self.needs_what[dep] = left
            elif left == 0:
                del self.needs_what[dep]
                self.network_nbytes -= dep.nbytes

    def clear(self) -> None:
        """Drop all keys."""
        self.has_what.clear()
        self.nbytes = 0
