# SPDX-License-Identifier: BSD-3-Clause
from typing import Literal

class WorkerMemoryManager:
    memory_limit: int | None
    memory_spill_fraction: float | Literal[False]
    memory_target_fraction: float | Literal[False]

class NannyMemoryManager:
    memory_limit: int | None
    memory_terminate_fraction: float | Literal[False]
