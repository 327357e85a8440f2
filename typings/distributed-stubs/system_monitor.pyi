# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable

class SystemMonitor:
    get_process_memory: Callable[[], int]
