# SPDX-License-Identifier: BSD-3-Clause
"""weft's placement of Dask tasks (``weft.dask.learn.placing``) applied to simulated tasks: its code, no copy of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, cast

from weft import _distribution
from weft.errors import UnsupportedError
from weft.links import LinkModel, Place, Prediction
from weft.simulate.tasks import Task, WorkerState

if TYPE_CHECKING:
    from weft.simulate.cluster import Cluster


class ClockedModel(LinkModel):
    """A model with the simulation's clock, even when its caller passes this machine's time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: Callable[[], float] = lambda: 0.0
        self._in_order: dict[str, dict[str, None]] = {}

    def place(self, worker: str, place: Place) -> None:
        """Register where a worker is, once."""
        super().place(worker, place)
        self._in_order.setdefault(place.host, {})[worker] = None

    def beside(self, worker: str) -> Set[str]:
        """Return the workers of the same host, in the same order in every process."""
        return self._in_order[self.place_of(worker).host].keys()

    def predict(self, source: str, destination: str, now_s: float, memory: str = "host") -> Prediction:
        """Return a link's prediction at the simulated time, whatever `now_s` is."""
        del now_s
        return super().predict(source, destination, self.clock(), memory)


class Placing:
    """Chooses where tasks of a simulated cluster run.

    Raises
    ------
    UnsupportedError
        Dask is not installed: the code that decides is part of weft for Dask.
    """

    def __init__(self, cluster: Cluster, model: ClockedModel, objective: Callable[[Task, WorkerState], Any]) -> None:
        try:
            from weft.dask.learn.placing import Placing
        except ImportError:
            raise UnsupportedError(f"Dask is not installed: {_distribution.install('dask')}") from None
        scheduler = _Scheduler(cluster, self.comm_s, objective)
        self._scheduler = scheduler
        self._placing = Placing(cast("Any", scheduler), model, lambda: model.clock())

    def update_graph(self, tasks: Sequence[Task]) -> None:
        """Divide the root tasks of a graph among the islands."""
        self._scheduler.tasks = {task.key: task for task in tasks}
        self._placing.roots.update_graph(cast("Any", self._scheduler), tasks=list(self._scheduler.tasks))

    def comm_s(self, task: Task, state: WorkerState) -> float:
        """Return the predicted seconds of fetching a task's inputs."""
        return self._placing.comm_cost(_nobody, task, cast("Any", state))

    def choose(self, stock: Callable[[Task], WorkerState], task: Task) -> WorkerState:
        """Return Dask's choice by these costs, or a better one."""
        return cast("WorkerState", self._placing.choose(cast("Any", stock), task))


class _Scheduler:
    """The attributes of a scheduler that :class:`weft.dask.learn.placing.Placing` uses."""

    def __init__(
        self,
        cluster: Cluster,
        comm_s: Callable[[Task, WorkerState], float],
        objective: Callable[[Task, WorkerState], Any],
    ) -> None:
        self.workers, self.idle = cluster.workers, cluster.idle
        self.running = cluster.at
        self.tasks: dict[str, Task] = {}
        self.get_comm_cost = comm_s
        self._objective = objective

    def worker_objective(self, task: Task, state: WorkerState) -> Any:
        """Return a key; its minimum is the worker on which a task starts first."""
        return self._objective(task, state)

    def valid_workers(self, task: Task) -> None:
        """Return None: a task may run anywhere."""
        del task


def _nobody(*_: Any) -> float:
    raise AssertionError("Dask's own cost is not used")
