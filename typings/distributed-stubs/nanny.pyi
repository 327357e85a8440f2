# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Awaitable
from typing import Any

from distributed.worker_memory import NannyMemoryManager

class Nanny(Awaitable[Any]):
    memory_manager: NannyMemoryManager
    periodic_callbacks: dict[str, Any]
    process: Any
    def __init__(self, **kwargs: Any) -> None: ...
    def __await__(self) -> Any: ...
    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> Any: ...
    async def finished(self) -> None: ...
