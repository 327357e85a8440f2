# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

class SpillBuffer(MutableMapping[Any, object]):
    evict: Callable[[], int]
    fast: Any
    weight: Callable[[Any, object], int]

class AnyKeyFile(MutableMapping[Any, Any]):
    directory: str
    filenames: dict[Any, str]
    memmap: bool
    unlock: Callable[[], AbstractContextManager[None]]
