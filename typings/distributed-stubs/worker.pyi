# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from distributed.system_monitor import SystemMonitor
from distributed.worker_memory import WorkerMemoryManager

class Worker:
    _protocol: str
    address: str
    address_safe: str
    data: MutableMapping[Any, object]
    extensions: dict[str, object]
    get_data: Callable[..., Awaitable[Any]]
    get_metrics: Callable[[], Awaitable[dict[str, Any]]]
    handlers: dict[str, Callable[..., Any]]
    memory_manager: WorkerMemoryManager
    monitor: SystemMonitor
    name: object
    nanny: str | None
    retry_busy_worker_later: Callable[..., Awaitable[Any]]
    rpc: Any
    scheduler: Any
    state: Any
    def handle_stimulus(self, *stims: Any) -> None: ...
