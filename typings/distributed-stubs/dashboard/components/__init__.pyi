# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

class DashboardComponent:
    root: Any
    def update(self) -> None: ...

def add_periodic_callback(doc: Any, component: DashboardComponent, interval: int) -> None: ...
