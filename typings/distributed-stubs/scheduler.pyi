# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

class WorkerState:
    address: str
    metrics: dict[str, Any]
    name: object

class Scheduler:
    bandwidth_types: dict[str, float]
    bandwidth_workers: dict[tuple[str, str], float]
    extensions: dict[str, object]
    http_application: Any
    workers: dict[str, WorkerState]
