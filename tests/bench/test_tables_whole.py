# SPDX-License-Identifier: BSD-3-Clause
"""No table cuts off what it says, in a narrow terminal and in a file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("distributed")

from weft._options import print_whole
from weft.bench import compare
from weft.bench.dask import printed
from weft.bench.links import table as links
from weft.bench.pingpong.table import table_of
from weft.bench.scale import table as scale
from weft.bench.sweep import table as sweep
from weft.simulate import table as simulate

RECORDS = Path(__file__).parents[2] / "docs/benchmarks"


def long_sweep(record: Any, console: Console) -> None:
    sweep.show(record, console, form="long")


def times(record: Any, console: Console) -> None:
    print_whole(console, table_of(record["records"]))


def compared(record: Any, console: Console) -> None:
    rows, _ = compare.compare(*[compare.times("bench merge", record)] * 2)
    print_whole(console, compare._table("bench merge", rows, "first.json", "second.json"))


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
@pytest.mark.parametrize(
    ("name", "show"),
    [
        ("pingpong", times),
        ("peers", times),
        ("sweep", sweep.show),
        ("sweep", long_sweep),
        ("scale", scale.show),
        ("links_fanout", links.show),
        ("simulate", simulate.show),
        ("dask/merge", printed.print_record),
        ("dask/fetch", printed.print_record),
        ("demo", printed.print_record),
        ("dask/merge", compared),
    ],
)
def test_no_cell_is_cut_off(name: str, show: Any, width: int, *, terminal: bool) -> None:
    record = json.loads((RECORDS / f"{name}.json").read_text())
    file = io.StringIO()
    show(record, Console(file=file, width=width, force_terminal=terminal, color_system=None))
    assert len(file.getvalue().splitlines()) > 5
    assert "\N{HORIZONTAL ELLIPSIS}" not in file.getvalue()
