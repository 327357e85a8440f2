# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from distributed.system_monitor import SystemMonitor
from distributed.worker_memory import WorkerMemoryManager

class Worker:
    _protocol: str
    data: MutableMapping[Any, object]
    extensions: dict[str, object]
    get_metrics: Callable[[], Awaitable[dict[str, Any]]]
    memory_manager: WorkerMemoryManager
    monitor: SystemMonitor
    name: object
    nanny: str | None
    scheduler: Any
