# SPDX-License-Identifier: BSD-3-Clause
"""Conventions that all commands share: the layout of help, ``--json`` and ``--color``, and how values are read.

An option of several commands gets its name and meaning here, or in ``bench.common.options`` if only benchmarks have
it; `tests/test_commands.py` walks all parsers and compares them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import json
import os
import re
import socket
import textwrap
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weft.errors import Error, InvalidParamError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

#: The value of ``--json`` without a file.
STDOUT = Path("-")
COLORS = ("auto", "always", "never")
#: Timers reject numbers above some bound, which differs between them.
LONGEST_S = 1e8
#: Counts above this are mistakes: Python's loops end at 2**63, and at less if they keep their numbers.
MOST = 10**7

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
    """Wrap the paragraphs of a description, for any terminal; what is indented stays as it is."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        each if each.startswith(" ") else textwrap.fill(" ".join(each.split()), 74) for each in paragraphs
    )


def add_alias(parser: Any, action: argparse.Action, *names: str, **changes: Any) -> None:
    """Accept the name that other programs use for an option; help does not show it."""
    as_is = {"dest": action.dest, "type": action.type, "nargs": action.nargs, **changes}
    parser.add_argument(*names, **as_is, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


# --- output -------------------------------------------------------------------------------------------------


def add_json(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
    """Add ``--json``, as `written` reads it; `names` are what the command's own argument may name."""
    text = "write the result as JSON to FILE; without FILE, print JSON in place of the text"
    file = functools.partial(json_file, names)
    parser.add_argument("--json", nargs="?", type=file, const=STDOUT, metavar="FILE", help=text)


def add_color(parser: argparse.ArgumentParser) -> None:
    """Add ``--color``, as read by `console`."""
    text = "auto, always or never (default: auto: in a terminal; NO_COLOR keeps bold, never does not)"
    parser.add_argument("--color", choices=COLORS, default="auto", metavar="WHEN", help=text)


def json_file(names: Collection[str], text: str) -> Path:
    """Read the file of ``--json``; reject an address, and `names` with commas: they belong to the command."""
    if "://" in text or re.search(r":[0-9]+$", text):
        raise argparse.ArgumentTypeError(f"{text!r} is an address, not a file: write it before --json")
    if all(part in names for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is what to run, not a file: write it before --json")
    return Path(text)


def refuse_file(file: Path | None) -> None:
    """Raise for a file that could not be written in the end; it is neither opened nor created.

    Raises
    ------
    InvalidParamError
        It is a folder, is not writable, or would be in a folder that is not.
    """
    if file is None or file == STDOUT:
        return
    if os.path.isdir(file):
        raise InvalidParamError(f"cannot write {file}: it is a folder")
    if os.path.exists(file):
        if not os.access(file, os.W_OK):
            raise InvalidParamError(f"cannot write {file}: permission denied")
    elif not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        raise InvalidParamError(f"cannot write {file}: {file.parent} is not a writable folder")


def refuse_absent_device(name: str) -> None:
    """Raise for an ``--interface`` that this machine does not have.

    Raises
    ------
    InvalidParamError
        There is no such network device.
    """
    have = [device for _, device in socket.if_nameindex()]
    if name not in have:
        raise InvalidParamError(f"--interface {name}: no such network device here; there are {', '.join(have)}")


@contextlib.contextmanager
def written(file: Path | None, record: Mapping[str, Any], *, indent: int = 2) -> Generator[bool]:
    """Write `record` as ``--json`` requests; yield whether the text is to be printed within.

    Raises
    ------
    Error
        The file cannot be written; the text was printed.
    """
    if file is None:
        yield True
        return
    text = json.dumps(record, indent=indent, allow_nan=False)
    if file == STDOUT:
        print(text)
        yield False
        return
    failure: OSError | None = None
    try:
        file.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        failure = error
    yield True
    if failure is not None:
        raise Error(f"cannot write {file}: {failure.strerror}") from failure


def console(color: str, **options: Any) -> Console:
    """Return a console for standard output, or for standard error with ``stderr=True``, with or without colour."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with status 1
            raise BrokenPipeError

    if color == "always":
        return Piped(force_terminal=True, color_system="standard", **options)
    return Piped(color_system=None, **options) if color == "never" else Piped(**options)


def print_whole(console: Console, table: Table) -> None:
    """Print a table as wide as it must be: a line that the terminal wraps can be read, a cell that is cut off cannot.

    Columns that may be folded are, to the width of the terminal; a file or a pipe has none. The console stays as wide.
    """
    unbounded = console.options.update(width=10_000)
    for column in table.columns:
        sizes = [console.measure(cell, options=unbounded) for cell in (column.header, *column.cells)]
        column.min_width = max(size.maximum if column.no_wrap else size.minimum for size in sizes)
    console.width = whole_width(console, table)
    console.print(table, crop=False)


def whole_width(console: Console, drawn: RenderableType) -> int:
    """Return how wide a terminal must be for what is drawn; in a file or a pipe, how wide it is without a fold."""
    size = console.measure(drawn, options=console.options.update(width=10_000))
    return max(console.width, size.minimum if console.is_terminal else size.maximum)


def progress_console(color: str) -> Console:
    """Return a console for a progress bar on standard error, which is a terminal only where it really is one."""
    return console("never" if color == "never" else "auto", stderr=True)


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


def why_unread(error: OSError | ValueError) -> str:
    """Return why a file cannot be read, for a message that names it."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON (line {error.lineno}, column {error.colno})"
    return "not text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


# --- values -------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """Read a number from 1 up, for argparse."""
    if not text.isdecimal() or int(text[:99]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return _bounded(text, int(text[:99]))


def port(text: str) -> int:
    """Read a port, for argparse."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 1 and 65535")
    return int(text)


def not_empty(text: str) -> str:
    """Read a text, for argparse: an empty one is usually a shell's variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("is empty")
    return text


def whole(text: str) -> int:
    """Read a whole number above 0, for argparse."""
    return _bounded(text, positive(int, text))


def _bounded(text: str, value: int) -> int:
    if value > MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is above {MOST}")
    return value


def positive(kind: Callable[[str], Number], text: str) -> Number:
    """Read a finite number above 0, for argparse."""
    with contextlib.suppress(ValueError):
        if 0 < (value := kind(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: must be a {'whole ' if kind is int else ''}number above 0")


def timeout(text: str) -> float:
    """Read a time in seconds that is within the range of the system's timers, for argparse."""
    if (value := positive(float, text)) > LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is above {LONGEST_S:.0f}, three years")
    return value


def protocols(text: str) -> list[str]:
    """Read Dask protocols separated by commas, each once, for argparse."""
    names = [name.strip().removesuffix("://") for name in text.split(",")]
    if not all(re.fullmatch("[a-z][a-z0-9]*", name) for name in names) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r}: give protocols such as tcp,ucx, each once")
    return names
