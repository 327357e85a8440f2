# SPDX-License-Identifier: BSD-3-Clause
"""Tasks and workers as a scheduler sees them: named as Dask's, so that what decides for Dask decides here."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Task:
    """A task, or a value that is there from the beginning.

    Parameters
    ----------
    key : str
    nbytes : int
        Of its result.
    seconds : float
        That it computes.
    dependencies : sequence of Task
    kind : str
        Tasks of a kind are thought to take as long: Dask's prefix of a key.
    worker : str, optional
        Where it has to run, or, of a value that is there, where it is.
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

    def __repr__(self) -> str:
        return f"<{self.key}>"

    def get_nbytes(self) -> int:
        """Return how large its result is."""
        return self.nbytes

    def get_nbytes_deps(self) -> int:
        """Return how large all that it needs is."""
        return sum(dep.nbytes for dep in self.dependencies)


class WorkerState:
    """A worker, as the scheduler thinks that it is.

    Attributes
    ----------
    has_what : dict of Task to None
        What it holds.
    processing : dict of Task to None
        What it was told to run.
    kinds : dict of str to int
        How many of these are of each kind.
    needs_what : dict of Task to int
        What it has to fetch, and for how many of these.
    network_nbytes : int
        How large that is.
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
        """Return in how many seconds it has done what it was told."""
        return self._occupancy(self)

    def hold(self, task: Task) -> None:
        """Take note that it has the result of a task."""
        if task not in self.has_what:
            self.has_what[task] = task.who_has[self] = None
            self.nbytes += task.nbytes
            if self.needs_what.pop(task, None) is not None:
                self.network_nbytes -= task.nbytes

    def process(self, task: Task) -> None:
        """Take note that it was told to run a task."""
        self.processing[task] = None
        self.kinds[task.kind] = self.kinds.get(task.kind, 0) + 1
        for dep in task.dependencies:
            if dep not in self.has_what:
                before = self.needs_what.get(dep, 0)
                self.needs_what[dep] = before + 1
                self.network_nbytes += 0 if before else dep.nbytes

    def unprocess(self, task: Task) -> None:
        """Take note that it has run it, or is not to."""
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
        """Hold nothing."""
        self.has_what.clear()
        self.nbytes = 0
