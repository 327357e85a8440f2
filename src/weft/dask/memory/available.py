# SPDX-License-Identifier: BSD-3-Clause
"""The memory that the host has left: the one figure that all of its processes share without telling each other.

Each worker keeps idle no more than a fraction of it. What one keeps lowers the figure for all, so the idle memory of
all workers together is bounded by it, too, and is given back when anything else on the host needs memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from weft.topo import cgroup, sysfs

#: What the kernel would reclaim before it is short.
_RECLAIMED = re.compile(r"^(?:in)?active_file (\d+)$", re.MULTILINE)


class Available:
    """Reads how much memory the host, and the control groups of this process, have left."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._limited = [folder for folder in cgroup.groups(root, "memory") if _limit(folder) is not None]

    def nbytes(self) -> int | None:
        """Return the bytes that are left; None if the kernel does not tell."""
        line = re.search(r"^MemAvailable: +(\d+) kB$", sysfs.text(self._root / "proc/meminfo") or "", re.MULTILINE)
        left = [int(line[1]) << 10] if line else []
        return min([*left, *_left(self._limited)], default=None)


def _limit(folder: Path) -> int | None:
    return sysfs.number(folder / "memory.max")


def _left(folders: Sequence[Path]) -> list[int]:
    """Return what control groups of version 2 have left."""
    left: list[int] = []
    for folder in folders:
        limit, used = _limit(folder), sysfs.number(folder / "memory.current")
        if limit is not None and used is not None:
            reclaimed = sum(map(int, _RECLAIMED.findall(sysfs.text(folder / "memory.stat") or "")))
            left.append(max(0, limit - used + reclaimed))
    return left
