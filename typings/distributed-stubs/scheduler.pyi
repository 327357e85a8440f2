# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable, Mapping
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

class WorkerState:
    address: str
    has_what: Mapping[Any, None]
    metrics: dict[str, Any]
    name: object
    nthreads: int
    @property
    def occupancy(self) -> float: ...

class Scheduler:
    bandwidth_types: dict[str, float]
    bandwidth_workers: dict[tuple[str, str], float]
    extensions: dict[str, object]
    handlers: dict[str, Callable[..., Any]]
    http_application: Any
    idle: Mapping[str, WorkerState]
    running: set[WorkerState]
    tasks: dict[Any, Any]
    workers: dict[str, WorkerState]
    def _get_prefix_duration(self, prefix: Any) -> float: ...
    def add_plugin(self, plugin: SchedulerPlugin) -> None: ...
    def get_comm_cost(self, ts: Any, ws: WorkerState) -> float: ...
    def valid_workers(self, ts: Any) -> set[WorkerState] | None: ...
    def worker_objective(self, ts: Any, ws: WorkerState) -> tuple[Any, ...]: ...
