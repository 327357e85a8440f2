# SPDX-License-Identifier: BSD-3-Clause
"""What Dask's spill buffer puts on disk: nothing that another process counts, for that makes no room here.

A key that was borrowed costs its worker no memory while the owner counts it (`borrowed`). It comes back from
disk as a copy, which does.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from typing import Any

from distributed.spill import SpillBuffer
from zict.common import NoDefault, nodefault

from weft import _native


def spill_own(buffer: SpillBuffer, borrowed_nbytes: Callable[[], int]) -> None:
    """Have a worker's spill buffer keep what others count, and give it room beside what the worker counts.

    Parameters
    ----------
    buffer
        Its ``weight``, ``evict`` and ``fast.evict`` are replaced, which is where all that it spills comes by.
    borrowed_nbytes
        Returns the bytes of this process's keys that others count, about.
    """
    buffer.weight = buffer.fast.weight = _Weight(buffer, borrowed_nbytes)
    buffer.evict, buffer.fast.evict = _Evict(buffer), _EvictFast(buffer.fast)


class _Weight:
    """Asked for the weight of what comes, before room is looked for."""

    def __init__(self, buffer: SpillBuffer, borrowed_nbytes: Callable[[], int]) -> None:
        self._fast = weakref.ref(buffer.fast)
        self._room = buffer.n
        self._weigh = buffer.weight
        self._borrowed_nbytes = borrowed_nbytes

    def __call__(self, key: Any, value: object) -> int:
        fast = self._fast()
        assert fast is not None, "it asks"
        fast.n = self._room + self._borrowed_nbytes()
        nbytes: int = self._weigh(key, value)
        return nbytes


class _Evict:
    """Asked by Dask to make room in memory; -1 is that there is nothing to gain."""

    def __init__(self, buffer: SpillBuffer) -> None:
        self._evict = weakref.WeakMethod(buffer.evict)
        self._fast = weakref.ref(buffer.fast)

    def __call__(self) -> int:
        evict, fast = self._evict(), self._fast()
        assert evict is not None, "it asks"
        if not _own_first(fast):
            return -1
        nbytes: int = evict()
        return nbytes


class _EvictFast:
    """Asked by that, and by the buffer itself when keys weigh too much."""

    def __init__(self, fast: Any) -> None:
        self._evict = weakref.WeakMethod(fast.evict)
        self._fast = weakref.ref(fast)

    def __call__(self, key: Any | NoDefault = nodefault) -> Any:
        evict = self._evict()
        assert evict is not None, "it asks"
        if key is nodefault:
            _own_first(self._fast())
        return evict(key)


def _own_first(fast: Any) -> bool:
    """Have a key that is the worker's own be the next to be evicted: those of others become the last used.

    Returns whether there is one. Who has borrowed nothing is not asked for more than that.
    """
    if fast.heavy or not _native.pool_statistics()["borrowed_nbytes"]:
        return bool(fast.d)
    for _ in range(len(fast.d)):
        key = next(iter(fast.order))
        if not _is_borrowed(fast.d[key]):
            return True
        fast[key]  # used
    return False


def _is_borrowed(value: object) -> bool:
    """Tell whether all the memory that a value brings to the wire is counted by others.

    Only what NumPy and pandas made is asked: to find the buffers of any object is to pickle it.
    """
    if type(value).__module__.partition(".")[0] not in ("numpy", "pandas"):
        return False
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception:  # noqa: BLE001 - whatever objects are in it: spilling will tell, or knows a way
        return False
    large = [view for view in (buffer.raw() for buffer in buffers) if view.nbytes >= 1 << 16]
    return bool(large) and all(map(_native.is_flagged, large))
