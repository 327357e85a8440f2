# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft bench links`` says of its record. Runs nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weft._options import print_whole
from weft._units import format_ratio, format_seconds
from weft.bench.common import stats
from weft.bench.common.environment import remarks

if TYPE_CHECKING:
    from rich.console import Console

HEAD = ["", "job", "stock", "learned", "learned/stock", "of one port's time"]


def times(entry: Mapping[str, Any], way: str, job: str) -> list[float]:
    """Return the median of a job for each round that has one."""
    found = [run["seconds"].get(job) for run in entry["runs"].get(way, ())]
    return [statistics.median(each) for each in found if each]


def rows(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each job, and one for the geometric mean where a scenario has several."""
    for entry in record["records"]:
        jobs = list(dict.fromkeys(job for runs in entry["runs"].values() for run in runs for job in run["seconds"]))
        ratios: list[float] = []
        for job in jobs:
            stock, learned = (times(entry, way, job) for way in ("stock", "learned"))
            row = [entry["title"], job, *(format_seconds(statistics.median(t)) if t else "-" for t in (stock, learned))]
            if stock and len(stock) == len(learned):
                ratio = stats.ratio(learned, stock)
                ratios.append(ratio.value)
                row.append(str(ratio))
            else:
                row.append("-")
            port = entry["port_s"] if job.startswith(("fan-out", "reduce", "replicate", "fetch", "by relay")) else 0
            of = [format_ratio(statistics.median(t) / port) if t and port else "-" for t in (stock, learned)]
            yield [*row, " -> ".join(of) if port else ""]
        if len(ratios) > 2:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            yield [entry["title"], "geometric mean", "", "", format_ratio(mean), ""]


def failures(record: Mapping[str, Any]) -> Iterator[str]:
    """Say of each run that failed, why."""
    for entry in record["records"]:
        for way, runs in entry["runs"].items():
            for number, run in enumerate(runs, 1):
                if "failed" in run:
                    yield f"{entry['scenario']}, {way}, round {number}: {run['failed']}"


def show(record: Mapping[str, Any], console: Console) -> None:
    """Print the table, what failed, and the notes."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(HEAD):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=i > 0)
    before = ""
    for row in rows(record):
        table.add_row("" if row[0] == before else row[0], *row[1:])
        before = row[0]
    print_whole(console, table)
    for line in (*failures(record), *remarks(record["environment"], 10)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
