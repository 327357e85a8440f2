# SPDX-License-Identifier: BSD-3-Clause
"""The kernel's list format, ``0-3,8``: CPUs in sysfs, cpusets and nvidia-smi; NUMA nodes too.

Source: Linux, Documentation/admin-guide/kernel-parameters.rst, "cpu lists".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Larger than any Linux supports (NR_CPUS is 8192 at most); a typing error must not fill the memory.
MOST = 2**16

_PART = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def parse(text: str) -> tuple[int, ...]:
    """Read a list such as ``0-3,8``.

    Parameters
    ----------
    text : str
        The list; an empty one holds nothing.

    Returns
    -------
    tuple of int
        Ascending, each once.

    Raises
    ------
    ValueError
        `text` is not such a list.
    """
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part!r} in {text!r} is neither a number nor a range")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < MOST:
            raise ValueError(f"{part!r} in {text!r} is not an ascending range below {MOST}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def join(numbers: Iterable[int]) -> str:
    """Write `numbers` as the kernel does: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
