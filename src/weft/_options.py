# SPDX-License-Identifier: BSD-3-Clause
"""Conventions that all commands share: the layout of help, ``--json`` and ``--color``, and how values are read.

An option of several commands gets its name and meaning here, or in ``bench.common.options`` if only benchmarks have
it; `tests/test_commands.py` walks all parsers and compares them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weft.errors import InvalidParamError

if TYPE_CHECKING:
    from rich.console import Console

#: The value of ``--json`` without a file.
STDOUT = Path("-")
COLORS = ("auto", "always", "never")
#: Timers reject numbers above some bound, which differs between them.
LONGEST_S = 1e8

Number = TypeVar("Number", int, float)


def add_command(commands: Any, name: str, text: str, description: str, examples: Iterable[str]) -> Any:
    """Add a subcommand.

    Parameters
    ----------
    commands : what ``ArgumentParser.add_subparsers`` returned
    name, text : str
        Name of the command, and its line in the list of commands.
    description : str
        What it does, in sentences.
    examples : iterable of str
        Command lines, shown verbatim.
    """
    return commands.add_parser(
        name,
        help=text,
        description=filled(description),
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def filled(text: str) -> str:
    """Wrap the paragraphs of a description, for any terminal."""
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), 74) for paragraph in paragraphs)


def add_alias(parser: Any, action: argparse.Action, *names: str, **changes: Any) -> None:
    """Accept the name that other programs use for an option; help does not show it."""
    as_is = {"dest": action.dest, "type": action.type, "nargs": action.nargs, **changes}
    parser.add_argument(*names, **as_is, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


# --- output -------------------------------------------------------------------------------------------------


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``, as read by `print_text`."""
    text = "write the result as JSON to FILE; without FILE, print JSON in place of the text"
    parser.add_argument("--json", nargs="?", type=json_file, const=STDOUT, metavar="FILE", help=text)


def add_color(parser: argparse.ArgumentParser) -> None:
    """Add ``--color``, as read by `console`."""
    text = "auto, always or never (default: auto: in a terminal, unless NO_COLOR is set)"
    parser.add_argument("--color", choices=COLORS, default="auto", metavar="WHEN", help=text)


def json_file(text: str) -> Path:
    """Read the file of ``--json``; reject an address, which belongs to the command."""
    if "://" in text or re.search(r":[0-9]+$", text):
        raise argparse.ArgumentTypeError(f"{text!r} is an address, not a file: write it before --json")
    return Path(text)


def print_text(file: Path | None, record: Mapping[str, Any], *, indent: int = 2) -> bool:
    """Write `record` as ``--json`` requests; return whether the text is still to be printed.

    Raises
    ------
    InvalidParamError
        The file cannot be written.
    """
    if file is None:
        return True
    text = json.dumps(record, indent=indent, allow_nan=False)
    if file == STDOUT:
        print(text)
        return False
    try:
        file.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InvalidParamError(f"cannot write {file}: {error.strerror}") from error
    return True


def console(color: str, **options: Any) -> Console:
    """Return a console for standard output, or for standard error with ``stderr=True``, with or without colour."""
    from rich.console import Console

    if color == "always":
        return Console(force_terminal=True, color_system="standard", **options)
    return Console(color_system=None, **options) if color == "never" else Console(**options)


def refuse_unused(why: str, **given: object) -> None:
    """Raise if one of the options `given`, by Python name and value, is set: it would have no effect.

    Raises
    ------
    InvalidParamError
        The message names the options, and `why` they have no effect.
    """
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False, (), [], "")]
    if names:
        raise InvalidParamError(f"{', '.join(names)}: {why}")


# --- values -------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """Read a number from 1 up, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def port(text: str) -> int:
    """Read a port, for argparse."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 1 and 65535")
    return int(text)


def positive(kind: Callable[[str], Number], text: str) -> Number:
    """Read a finite number above 0, for argparse."""
    with contextlib.suppress(ValueError):
        if 0 < (value := kind(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def timeout(text: str) -> float:
    """Read a time in seconds that is within the range of the system's timers, for argparse."""
    if (value := positive(float, text)) > LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is above {LONGEST_S:.0f}, three years")
    return value


def protocols(text: str) -> list[str]:
    """Read Dask protocols separated by commas, each once, for argparse."""
    names = [name.strip().removesuffix("://") for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r}: give protocols such as tcp,ucx, each once")
    return names
