# SPDX-License-Identifier: BSD-3-Clause
"""Arrays that are born where another process of this host can read them, and what killed processes left there."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from weft import _native
from weft._connect.shm import orphans, remove_orphans

__all__ = ["arrays_in_pool", "orphans", "remove_orphans"]


@contextlib.contextmanager
def arrays_in_pool() -> Generator[None]:
    """Have NumPy make arrays of 64 KiB and more in weft's pool, so that :meth:`weft.Peer.lend` copies nothing.

    It holds for this thread, or this asyncio task and those that it starts, until the end of the block. What was
    made in it stays where it is. A forked child sees such arrays as they are at the moment it looks, not as they
    were when it was forked; what it writes stays its own.

    Raises
    ------
    ModuleNotFoundError
        NumPy is not installed.
    UnsupportedError
        NumPy is older than 1.22.
    """
    before = _native.numpy_in_pool(True)
    try:
        yield
    finally:
        _native.numpy_in_pool(before)
