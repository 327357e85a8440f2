# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable, Mapping
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

class WorkerState:
    address: str
    has_what: Mapping[Any, None]
    metrics: dict[str, Any]
    name: object
    needs_what: Mapping[Any, int]
    nthreads: int
    processing: set[Any]
    @property
    def occupancy(self) -> float: ...

class Scheduler:
    bandwidth_types: dict[str, float]
    bandwidth_workers: dict[tuple[str, str], float]
    extensions: dict[str, object]
    handlers: dict[str, Callable[..., Any]]
    http_application: Any
    idle: Mapping[str, WorkerState]
    idle_task_count: set[WorkerState]
    queued: Any
    running: set[WorkerState]
    tasks: dict[Any, Any]
    validate: bool
    workers: dict[str, WorkerState]
    def _get_prefix_duration(self, prefix: Any) -> float: ...
    def add_plugin(self, plugin: SchedulerPlugin, *, idempotent: bool = ..., name: str | None = ...) -> None: ...
    def get_comm_cost(self, ts: Any, ws: WorkerState) -> float: ...
    def remove_plugin(self, name: str | None = ...) -> None: ...
    def transitions(self, recommendations: dict[Any, str], stimulus_id: str) -> None: ...
    def valid_workers(self, ts: Any) -> set[WorkerState] | None: ...
    def worker_objective(self, ts: Any, ws: WorkerState) -> tuple[Any, ...]: ...
