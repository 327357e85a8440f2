# SPDX-License-Identifier: BSD-3-Clause
"""What a worker may spill: nothing that another process counts, because that makes no room here.

A borrowed key takes none of its worker's memory while the owner counts it (`shared_pages`). Read back from disk, it
is a copy, which does.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

from weft import _native
from weft.dask import patches_spill

#: Buffers below this size are not lent.
_LARGE_NBYTES = 1 << 16


def spill_own(buffer: object, borrowed_nbytes: Callable[[], int]) -> None:
    """Keep a worker's spill buffer from evicting borrowed values, and exclude them from its capacity.

    Parameters
    ----------
    buffer
        ``Worker.data``; unchanged if it does not spill.
    borrowed_nbytes
        Returns about how many bytes of this process's keys others count.
    """
    patches_spill.steer_spilling(buffer, _is_own, borrowed_nbytes)


def _is_own(value: object) -> bool:
    """Tell whether spilling a value makes room. Values are not inspected while nothing is borrowed."""
    return not _native.pool_statistics()["borrowed_nbytes"] or not _is_borrowed(value)


def _is_borrowed(value: object) -> bool:
    """Tell whether others count all the memory of a value's buffers.

    Only NumPy's and pandas' values are inspected: finding the buffers of any other object takes a pickle.
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
