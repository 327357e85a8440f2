# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable, MutableMapping
from typing import Any

class SpillBuffer(MutableMapping[Any, object]):
    evict: Callable[[], int]
    fast: Any
    weight: Callable[[Any, object], int]
