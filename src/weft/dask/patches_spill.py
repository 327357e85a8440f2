# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a worker's spill buffer that weft replaces: what it evicts, and the memory that it reads files into.

See also ``patches``.
"""

from __future__ import annotations

import functools
import os
import struct
import weakref
from collections.abc import Callable
from typing import Any

from distributed.spill import AnyKeyFile, SpillBuffer
from zict.common import locked, nodefault

from weft.dask import patches

#: NumPy takes about twice as long with numbers that are not aligned.
_ALIGNMENT = 64


def steer_spilling(buffer: object, may_spill: Callable[[object], bool], extra_nbytes: Callable[[], int]) -> None:
    """Restrict what a worker's spill buffer may evict, and raise its capacity by bytes that cost no memory.

    Parameters
    ----------
    buffer
        ``Worker.data``; only a ``SpillBuffer`` (spill.py:74) is changed. Its ``weight``, ``evict`` and ``fast.evict``
        (zict/lru.py:185) are replaced: everything it spills passes through them.
    may_spill
        Called with the oldest values until it returns True.
    extra_nbytes
        Called whenever a key is added; returns how many bytes of keys take no memory.
    """
    if not isinstance(buffer, SpillBuffer):
        return
    fast = buffer.fast
    known = (
        patches.takes(buffer.evict)
        and patches.takes(fast.evict, "key")
        and all(hasattr(fast, name) for name in ("d", "heavy", "n", "order", "weight"))
        and patches.takes(fast.weight, "key", "value")
    )
    if not patches.as_known(known, "SpillBuffer", "workers also spill borrowed values"):
        return
    order = _SpillOrder(fast, may_spill)
    buffer.weight = fast.weight = functools.partial(_weigh, weakref.ref(fast), fast.weight, fast.n, extra_nbytes)
    buffer.evict = patches.Replaced(buffer.evict, order.evict)
    fast.evict = patches.Replaced(fast.evict, order.evict_fast)


def _weigh(
    fast: weakref.ref[Any],
    weigh: Callable[[Any, object], int],
    room_nbytes: int,
    extra_nbytes: Callable[[], int],
    key: Any,
    value: object,
) -> int:
    """Update the capacity, then weigh a new value."""
    lru = fast()
    assert lru is not None, "lru calls this"
    lru.n = room_nbytes + extra_nbytes()
    return weigh(key, value)


class _SpillOrder:
    """Chooses what a spill buffer's ``fast`` evicts next."""

    def __init__(self, fast: Any, may_spill: Callable[[object], bool]) -> None:
        self._fast = weakref.ref(fast)
        self._may_spill = may_spill

    def evict(self, evict: Callable[[], int]) -> int:
        """Evict for Dask's memory monitor; -1 means that nothing can be gained."""
        return evict() if self._choose() else -1

    def evict_fast(self, evict: Callable[[Any], Any], key: Any = nodefault) -> Any:
        """Evict for :meth:`evict`, and for the buffer itself when its keys exceed the capacity."""
        if key is nodefault:
            self._choose()
        return evict(key)

    def _choose(self) -> bool:
        """Make the oldest value that may be spilled the next to go; the values before it become most recently used."""
        fast = self._fast()
        assert fast is not None, "fast calls this"
        if fast.heavy:
            return bool(fast.d)
        for _ in range(len(fast.d)):
            key = next(iter(fast.order))
            if self._may_spill(fast.d[key]):
                return True
            fast[key]  # a lookup marks it as used
        return False


def read_spilled_into(buffer: object, allocate: Callable[[int], memoryview]) -> None:
    """Have a worker's spill buffer read files into memory from `allocate`.

    Parameters
    ----------
    buffer
        ``Worker.data``; only a ``SpillBuffer`` (spill.py:74) is changed. The class of its files (spill.py:289), whose
        ``__getitem__`` (zict/file.py:98) reads each into a ``bytearray``, is replaced.
    allocate
        Returns writable memory of at least so many bytes.
    """
    if not isinstance(buffer, SpillBuffer):
        return
    files: Any = getattr(getattr(buffer, "_slow_uncached", None), "d", None)
    if patches.as_known(type(files) is AnyKeyFile and not files.memmap, "SpillBuffer", "spilled arrays are not lent"):
        files.__class__ = _Files
        files.__dict__["allocate"] = allocate


class _Files(AnyKeyFile):  # type: ignore[misc] # zict has no types
    """Reads files into memory from `allocate`, with the first buffer of the value aligned."""

    allocate: Callable[[int], memoryview]

    @locked
    def __getitem__(self, key: str) -> memoryview:
        with open(os.path.join(self.directory, self.filenames[key]), "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            # The lengths of header and buffers come first (distributed/protocol/utils.py:39).
            count, header = struct.unpack("QQ", file.read(16)) if nbytes >= 16 else (0, 0)
            file.seek(0)
            before = -(8 * (1 + count) + header) % _ALIGNMENT
            memory = self.allocate(before + nbytes)[before : before + nbytes]
            with self.unlock():
                read = file.readinto(memory)
        assert read == nbytes, "nobody else writes to it"
        return memory
