# SPDX-License-Identifier: BSD-3-Clause
"""What a worker spills: nothing that another process counts, for that makes no room here.

A key that was borrowed costs its worker no memory while the owner counts it (`shared_pages`). It comes back from
disk as a copy, which does.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

from weft import _native
from weft.dask import patches

#: Smaller buffers are not lent.
_LARGE_NBYTES = 1 << 16


def spill_own(buffer: object, borrowed_nbytes: Callable[[], int]) -> None:
    """Have a worker's spill buffer keep what others count, and give it room beside what the worker counts.

    Parameters
    ----------
    buffer
        ``Worker.data``; left alone if it is no buffer that spills.
    borrowed_nbytes
        Returns the bytes of this process's keys that others count, about.
    """
    patches.steer_spilling(buffer, _is_own, borrowed_nbytes)


def _is_own(value: object) -> bool:
    """Tell whether spilling a value makes room. Where nothing is borrowed, no value is looked at."""
    return not _native.pool_statistics()["borrowed_nbytes"] or not _is_borrowed(value)


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
    large = [view for view in (buffer.raw() for buffer in buffers) if view.nbytes >= _LARGE_NBYTES]
    return bool(large) and all(map(_native.is_flagged, large))
