# SPDX-License-Identifier: BSD-3-Clause
"""The tables of ``weft simulate``, from its record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft._options import print_whole
from weft._units import format_nbytes, format_ratio, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

HEAD = ("", "graph", "stock", "learned", "learned/stock", "moved")
LAB_HEAD = ("lab", "job", "decided", "measured", "simulated", "off by", "")


def ratio(entry: Mapping[str, Any]) -> float | None:
    """Return the learned decisions' time divided by Dask's."""
    ways = entry["ways"]
    return ways["learned"]["seconds"] / ways["stock"]["seconds"] if len(ways) == 2 else None


def rows(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each graph on each network, and one with the geometric mean for each network."""
    for title in dict.fromkeys(entry["title"] for entry in record["records"]):
        found = [entry for entry in record["records"] if entry["title"] == title]
        for entry in found:
            ways = entry["ways"]
            moved = " -> ".join(dict.fromkeys(format_nbytes(ways[way]["moved_nbytes"]) for way in ways))
            relayed = ways.get("learned", {}).get("relayed_nbytes")
            yield [
                title,
                entry["graph"],
                *(format_seconds(ways[way]["seconds"]) if way in ways else "-" for way in ("stock", "learned")),
                "-" if (known := ratio(entry)) is None else format_ratio(known),
                f"{moved}, {format_nbytes(relayed)} relayed" if relayed else moved,
            ]
        ratios = [known for entry in found if (known := ratio(entry)) is not None]
        if len(ratios) > 2:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            yield [title, "geometric mean", "", "", format_ratio(mean), ""]


def lab_rows(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each job that was also measured in a lab."""
    for row in record["lab"]:
        times = [format_seconds(row[which]) for which in ("measured_s", "simulated_s")]
        yield [
            row["title"],
            row["job"],
            row["way"],
            *times,
            off(row),
            "fitted" if row["fitted"] else "",
        ]


def off(row: Mapping[str, Any]) -> str:
    """Write the relative error of a simulated time."""
    return f"{round(100 * row['off']):+d} %".replace("+0", "0")


def show(record: Mapping[str, Any], console: Console) -> None:
    """Print the tables that are not empty."""
    if record["records"]:
        _print(console, HEAD, rows(record))
    if record["lab"]:
        _print(console, LAB_HEAD, lab_rows(record))


def _print(console: Console, head: Sequence[str], body: Iterator[list[str]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(head):
        table.add_column(
            name, justify="left" if i < 2 else "right", no_wrap=1 < i < 5, min_width=(9, 11)[i] if i < 2 else 0
        )
    before = ""
    for row in body:
        table.add_row("" if row[0] == before else row[0], *row[1:])
        before = row[0]
    print_whole(console, table)
