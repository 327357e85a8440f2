# SPDX-License-Identifier: BSD-3-Clause
"""Memory that a process has borrowed, as the kernel reports it, to the process itself and to its nanny.

The owner of lent memory counts it. A lock on the file says that the owner lives; it ends with the owner. A borrower
passes this on, as a flag of the mapping, to anyone who reads its mappings (``_native.flag_loans``). Of a flagged
mapping, the borrower counts the pages that it wrote to and those that no other process maps. Of an unflagged one, whose
owner released it or died, each process that maps it counts an equal share. So the processes of a host count each page
once, without electing anyone, and without a gap when one dies.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from weft import _native

#: A reading is used for this many times its own duration: walking page tables then takes 1 % of a core.
_HOLDS = 100
#: ... and for this many seconds: Dask asks ten times a second, also an idle worker, which may have borrowed from a
#: hundred others.
LEAST_S = 0.5
#: ... unless resident memory changed by more than this fraction, and by more than this: Dask's thresholds are a tenth
#: of the limit apart.
_MOVES, _MOVES_NBYTES = 64, 8 << 20

_NAMELESS = re.compile(rb"\S+ \S\S\Sp \S+ \S+ \d+ +/(?:#\d+|memfd:weft) \(deleted\)")
_FIELD = re.compile(rb"^(\w+): +(\d+) kB$", re.MULTILINE)


class Borrowed(NamedTuple):
    """Borrowed memory that other processes count, in bytes."""

    #: Resident.
    resident: int
    #: Mapped, resident or not: the size of a key includes both.
    mapped: int


NOTHING = Borrowed(0, 0)


def read(pid: int | str) -> Borrowed:
    """Read what a process has borrowed: ``"self"``, or a process of the same user.

    If the kernel does not tell, the result is 0, and the process counts as if it had copies. For this process, while
    owners count its loans, only those mappings are read; for another one, all mappings are.
    """
    own = _native.loans_counted_elsewhere() if pid == "self" else None
    if own is not None:
        return Borrowed(*own)
    try:
        smaps = Path(f"/proc/{pid}/smaps").read_bytes()
    except OSError:
        return NOTHING
    resident = mapped = 0
    for fields, flags in _mappings(smaps):
        size, present = fields[b"Size"], fields[b"Rss"]
        if b"dd" in flags:
            elsewhere = min(fields[b"Shared_Clean"] + fields[b"Shared_Dirty"], present - fields[b"Anonymous"])
        else:
            elsewhere = present - fields[b"Pss"]
        resident += elsewhere
        mapped += size - present + elsewhere
    return Borrowed(resident << 10, mapped << 10)


def _mappings(smaps: bytes) -> Iterator[tuple[dict[bytes, int], list[bytes]]]:
    """Yield the fields, in KiB, and the flags of each borrowed mapping."""
    end = 0
    while (named := smaps.find(b" (deleted)\n", end)) >= 0:
        line, begin = smaps.rfind(b"\n", 0, named) + 1, named + len(b" (deleted)\n")
        flags = smaps.find(b"VmFlags:", begin)
        end = smaps.find(b"\n", flags)
        if flags >= 0 and _NAMELESS.match(smaps, line):
            fields = {name: int(kib) for name, kib in _FIELD.findall(smaps, begin, flags)}
            words = smaps[flags:end].split()
            if b"rr" not in words:  # this flag marks what the process itself lent, also a private mapping
                yield fields, words
        elif flags < 0:
            return


class Reader:
    """Caches readings; reads again if the last one is old for its cost, or resident memory has changed."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = NOTHING
        self._of: int | str | None = None
        self._at = 0
        self._until = 0.0

    def read(self, pid: int | str, resident: int) -> Borrowed:
        """Return what a process has borrowed; `resident` is its resident memory in bytes."""
        began = self._clock()
        if pid != self._of or began >= self._until or self._moved(resident):
            self._last, self._of, self._at = read(pid), pid, resident
            ended = self._clock()
            self._until = ended + max(LEAST_S, _HOLDS * (ended - began))
        return self._last

    def _moved(self, resident: int) -> bool:
        return abs(resident - self._at) > max(resident // _MOVES, _MOVES_NBYTES)
