# SPDX-License-Identifier: BSD-3-Clause
"""The options that several benchmarks have, each with its type and help, and the types of others."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from weft import _options
from weft._options import timeout, whole
from weft._units import parse_size


def add_rounds(
    parser: argparse.ArgumentParser, default: int | None, *, shown: int | None = None, text: str = "interleaved"
) -> argparse.Action:
    """Add ``--rounds``; where there is no `default`, help says the one `shown`."""
    text = f"rounds of everything, {text} (default: {default or shown})"
    return parser.add_argument("--rounds", type=whole, default=default, metavar="N", help=text)


def add_sizes(parser: argparse.ArgumentParser, default: str | None, *, shown: str | None = None) -> None:
    """Add ``--sizes``."""
    text = f"message sizes, comma-separated or MIN:MAX[:FACTOR] (default: {default or shown})"
    parser.add_argument("--sizes", type=sizes, default=default, metavar="SIZES", help=text)


def add_seconds_per_cell(parser: argparse.ArgumentParser, default: float | None, *, shown: float | None = None) -> None:
    """Add ``--seconds-per-cell``."""
    text = f"seconds to measure one row at one size in one round (default: {default or shown})"
    parser.add_argument("--seconds-per-cell", type=timeout, default=default, metavar="S", help=text)


def add_iterations(parser: argparse.ArgumentParser) -> None:
    """Add ``--iterations``."""
    text = "most round trips of one size in one round (default: %(default)s)"
    parser.add_argument("--iterations", type=whole, default=100_000, metavar="N", help=text)


def add_libraries(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add ``--libraries``, all of `names` without it."""
    allowed = functools.partial(some_of, names)
    text = f"some of {', '.join(names)} (default: all)"
    parser.add_argument("--libraries", type=allowed, default=",".join(names), metavar="NAMES", help=text)


def add_transports(parser: argparse.ArgumentParser, loops: str = "the C loop and the tags") -> None:
    """Add ``--transports`` of the ping-pongs."""
    text = f"UCX_TLS of {loops}; Peer uses weft's own choice (default: %(default)s)"
    transports = parser.add_argument("--transports", default="posix,self", metavar="NAMES", help=text)
    _options.add_alias(parser, transports, "--tls")


def add_wait(parser: argparse.ArgumentParser, text: str = "how to wait for a message: block, await") -> None:
    """Add ``--wait``."""
    ways = functools.partial(some_of, ("block", "await"))
    parser.add_argument(
        "--wait", type=ways, default="block,await", metavar="WAYS", help=f"{text} (default: %(default)s)"
    )


def add_timeout(parser: argparse.ArgumentParser, default: float, text: str = "seconds for any one step") -> None:
    """Add ``--timeout``."""
    parser.add_argument("--timeout", type=timeout, default=default, metavar="S", help=f"{text} (default: %(default)g)")


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
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
    return chosen


def add_output(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
    """Add ``--json`` and ``--color``; `names` are what the command's own argument may name."""
    _options.add_json(parser, names)
    _options.add_color(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` of a script, which prints its text in any case."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to FILE")


def replaces_text(file: Path | None) -> bool:
    """Tell whether ``--json`` without a file was given: nothing else goes to standard output then."""
    return file == _options.STDOUT
