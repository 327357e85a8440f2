# SPDX-License-Identifier: BSD-3-Clause
"""Tasks and workers as a scheduler sees them: named as Dask's, so that what decides for Dask decides here."""

from __future__ import annotations

from collections.abc import Sequence


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
    processing : dict of Task to float
        What it was told to run, and the seconds that each counts for in `occupancy`.
    """

    __slots__ = ("address", "has_what", "host", "nbytes", "nthreads", "number", "occupancy", "processing")

    def __init__(self, address: str, host: str, nthreads: int, number: int) -> None:
        self.address, self.host, self.nthreads, self.number = address, host, nthreads, number
        self.has_what: dict[Task, None] = {}
        self.processing: dict[Task, float] = {}
        self.occupancy = 0.0
        self.nbytes = 0

    def __repr__(self) -> str:
        return f"<{self.address}>"

    def hold(self, task: Task) -> None:
        """Take note that it has the result of a task."""
        if task not in self.has_what:
            self.has_what[task] = task.who_has[self] = None
            self.nbytes += task.nbytes
