# SPDX-License-Identifier: BSD-3-Clause
"""Memory that a process has borrowed, as the kernel tells it: to the process itself, and to its nanny.

The owner of lent memory counts it. It says so by a lock on the file, which ends with it, and a borrower hands that on
to whoever reads its mappings by a flag (``_native.flag_loans``). Of a mapping with the flag, the borrower counts what
it wrote to and what nobody else has; of one without, its share: of what the owner gave up or left behind when it died,
each of those who have it counts an equal part. So a host's processes count each page once, with nobody to elect who
does, and no gap when one of them dies.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from weft import _native

#: A reading holds for so many times what it took: walking page tables costs a hundredth of a core.
_HOLDS = 100
#: ... unless resident memory moved by more than this part, and this much: Dask's fractions of the limit are a tenth
#: apart.
_MOVES, _MOVES_NBYTES = 64, 8 << 20

_NAMELESS = re.compile(rb"\S+ \S\S\Sp \S+ \S+ \d+ +/(?:#\d+|memfd:weft) \(deleted\)")
_FIELD = re.compile(rb"^(\w+): +(\d+) kB$", re.MULTILINE)


class Borrowed(NamedTuple):
    """What was borrowed and is counted elsewhere, in bytes."""

    #: Of what is resident.
    resident: int
    #: Of all that is mapped: a key's size has it, touched or not.
    mapped: int


NOTHING = Borrowed(0, 0)


def read(pid: int | str) -> Borrowed:
    """Read what a process has borrowed, ``"self"`` or one of this user's.

    Nothing is what a process has of which the kernel tells nothing: it counts as if it had copies. This process looks
    at what it has borrowed only, as long as the owners count it; of another, all mappings are read.
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
    """Yield fields, in KiB, and flags of the mappings that were borrowed."""
    end = 0
    while (named := smaps.find(b" (deleted)\n", end)) >= 0:
        line, begin = smaps.rfind(b"\n", 0, named) + 1, named + len(b" (deleted)\n")
        flags = smaps.find(b"VmFlags:", begin)
        end = smaps.find(b"\n", flags)
        if flags >= 0 and _NAMELESS.match(smaps, line):
            fields = {name: int(kib) for name, kib in _FIELD.findall(smaps, begin, flags)}
            words = smaps[flags:end].split()
            if b"rr" not in words:  # what a process lent is a private mapping, too, with this flag
                yield fields, words
        elif flags < 0:
            return


class Reader:
    """Reads anew when the last reading is old for what it took, or the process has grown or shrunk since."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = NOTHING
        self._of: int | str | None = None
        self._at = 0
        self._until = 0.0

    def read(self, pid: int | str, resident: int) -> Borrowed:
        """Return what a process has borrowed that has so many bytes resident."""
        began = self._clock()
        if pid != self._of or began >= self._until or self._moved(resident):
            self._last, self._of, self._at = read(pid), pid, resident
            ended = self._clock()
            self._until = ended + _HOLDS * (ended - began)
        return self._last

    def _moved(self, resident: int) -> bool:
        return abs(resident - self._at) > max(resident // _MOVES, _MOVES_NBYTES)
