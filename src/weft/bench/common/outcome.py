# SPDX-License-Identifier: BSD-3-Clause
"""What a benchmark's command leaves: its record and status, or one line that says why there is none."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import psutil
from rich.console import Console

from weft import _distribution, _options
from weft._units import format_size
from weft.bench.common.errors import BenchError, UsageError
from weft.errors import Error, InvalidParamError


def reported(command: str, work: Callable[[], int]) -> int:
    """Do `work`, and say in one line on stderr why it could not be done.

    Returns
    -------
    int
        What `work` returned; 1 if it could not be done, 2 if the options ask for what cannot be, 130 if it was
        interrupted.
    """
    try:
        return work()
    except (UsageError, InvalidParamError) as error:
        notes().print(f"{command}: {error}")
        return 2
    except (BenchError, Error) as error:
        notes().print(f"{command}: {error}")
        return 1
    except KeyboardInterrupt:
        notes().print(f"{command}: interrupted; its processes are ended, nothing is written")
        return 130


def notes() -> Console:
    """Make what writes plain lines on stderr."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def refuse_files(*paths: Path | None) -> None:
    """Raise for files that could not be written after minutes of measuring."""
    for path in paths:
        _options.refuse_file(path)


def refuse_missing(*packages: str) -> None:
    """Raise for packages that measuring would miss."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise BenchError(f"{name} is not installed: {_distribution.install('bench')}")


def refuse_sizes(sizes: Sequence[int]) -> None:
    """Raise for messages that this machine's memory does not hold: two processes have two of each, and copies."""
    if 8 * max(sizes) > psutil.virtual_memory().available:
        raise UsageError(f"{format_size(max(sizes))} is too large for the memory that is free")


def read_record(path: Path) -> dict[str, Any]:
    """Read a record; empty for JSON that is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {_options.why_unread(error)}") from error
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def first_row(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first measurement of a record, by which kinds are told apart; empty if there is none."""
    for name in ("workloads", "records"):
        rows = record.get(name)
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            return cast("dict[str, Any]", rows[0])
    return {}


@contextlib.contextmanager
def of_a_benchmark(path: Path, done: str) -> Generator[None]:
    """Say of a record that is read within that it is none, or is of a benchmark that cannot be `done`."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, statistics.StatisticsError) as error:
        of = str(read_record(path).get("command", "")).removeprefix("weft ")
        if of == "bench links":
            raise UsageError(f"{path}: a record of {of} cannot be {done}") from error
        raise UsageError(f"{path} is no record of a benchmark that can be {done}") from error


def write(path: Path | None, text: str) -> None:
    """Write `text` to `path`, if there is one."""
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}") from error


def written(path: Path | None, record: Mapping[str, Any]) -> contextlib.AbstractContextManager[bool]:
    """Write a record as ``--json`` asks; give whether the text is to be printed within."""
    return _options.written(path, record, indent=1)


def write_record(path: Path | None, record: Mapping[str, Any]) -> None:
    """Write a record that a script has made."""
    with written(path, record):
        pass
