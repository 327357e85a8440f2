# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks' command lines have in common: sizes, choices."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from weft._units import parse_size


def size(text: str) -> int:
    """Read a size such as ``8``, ``1KiB`` or ``1MB``; raise what argparse shows for anything else."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def sizes(text: str) -> list[int]:
    """Read sizes with commas between them, each a size or ``MIN:MAX[:FACTOR]`` (by powers of two without it)."""
    return sorted({nbytes for part in text.split(",") for nbytes in _series(part)})


def _series(text: str) -> Iterator[int]:
    first, *rest = text.split(":")
    nbytes = size(first)
    if not rest:
        yield nbytes
        return
    factor = rest[1] if len(rest) == 2 else "2" if len(rest) == 1 else ""
    if not (factor.isascii() and factor.isdecimal()) or int(factor) < 2 or (largest := size(rest[0])) < nbytes:
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
