# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks' command lines have in common: sizes, choices."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

UNITS = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def size_text(nbytes: int) -> str:
    """Write a size with the largest unit that divides it."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "kB"):
        if nbytes % UNITS[unit] == 0:
            return f"{nbytes // UNITS[unit]} {unit}"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Read a size such as ``8``, ``1KiB`` or ``1MB``; raise what argparse shows for anything else."""
    match = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", text.strip())
    if match is None or match[2] not in UNITS or int(match[1]) == 0:
        units = ", ".join(filter(None, UNITS))
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 1KiB or 1MB (whole {units})")
    return int(match[1]) * UNITS[match[2]]


def sizes(text: str) -> list[int]:
    """Read sizes with commas between them, each a size or ``MIN:MAX[:FACTOR]`` (by powers of two without it)."""
    return sorted({nbytes for part in text.split(",") for nbytes in _series(part)})


def _series(text: str) -> Iterator[int]:
    first, *rest = text.split(":")
    nbytes = parse_size(first)
    if not rest:
        yield nbytes
        return
    factor = rest[1] if len(rest) == 2 else "2" if len(rest) == 1 else ""
    if not (factor.isascii() and factor.isdecimal()) or int(factor) < 2 or (largest := parse_size(rest[0])) < nbytes:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 1:1MiB, or 1:1MiB:4 for 1, 4, 16 and so on")
    while nbytes <= largest:
        yield nbytes
        nbytes *= int(factor)


def some_of(allowed: Sequence[str], text: str) -> list[str]:
    """Read names with commas between them, all of `allowed`."""
    chosen = [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
    return chosen


def protocols(text: str) -> list[str]:
    """Read Dask's protocols with commas between them, each once."""
    names = [name.strip().removesuffix("://") for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r}: give protocols such as tcp,ucx, each once")
    return names
