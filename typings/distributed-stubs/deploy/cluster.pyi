# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

class Cluster:
    def close(self, timeout: Any = None) -> Any: ...
