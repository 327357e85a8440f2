# SPDX-License-Identifier: BSD-3-Clause
"""Dask's work in one chart: of several records, what ucx:// takes of tcp://'s time, workload by workload.

A ratio's axis is logarithmic: half and double are the same step. What one record shows is in ``charts``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from weft._units import format_ratio, format_seconds
from weft.bench.charts.page import BLUE, GREY, INK, RED, rc, under
from weft.bench.common.stats import Ratio
from weft.bench.dask.report import comparisons

_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Row(NamedTuple):
    """One workload: the wall clocks' medians over both protocols, and their ratio.

    `communication` is the ratio of the times in which workers received, `p2p` that of single transfers' rates.
    """

    name: str
    tcp_s: float
    ucx_s: float
    wall: Ratio
    communication: float | None
    p2p: float | None


def rows_of(record: Mapping[str, Any], variant: str = "") -> list[Row]:
    """Read the rows of a record of tcp and ucx; `variant` stands behind the workloads' names."""
    found = {(e["name"], e["protocol"]): e for e in record["workloads"]}
    rows = []
    for c in comparisons(record):
        tcp, ucx = found[c.name, c.below], found[c.name, c.above]
        communication = [statistics.median(e.get("communication_s", [0])) for e in (ucx, tcp)]
        rows.append(
            Row(
                _name(tcp, variant),
                statistics.median(tcp["wall_s"]),
                statistics.median(ucx["wall_s"]),
                Ratio(c.ratio["wall"], *c.ratio["wall_range"]),
                communication[0] / communication[1] if communication[1] else None,
                c.ratio["p2p"],
            )
        )
    return rows


def _name(e: Mapping[str, Any], variant: str) -> str:
    name = str(e["name"])
    if e["parameters"].get("Arrays"):
        name += f", {e['parameters']['Arrays']} times"
    if e.get("tasks"):
        name = f"{e['tasks']:,} tiny tasks"
    if name == "transpose-sum":
        name = "x + x.T summed"
    return f"{name}, {variant}" if variant else name


def chart(rows: Sequence[Row], record: Mapping[str, Any]) -> Figure:
    """Draw `rows`; `record` is one of those that they come from, whose machine and versions are told."""
    with mpl.rc_context(rc()):
        figure = Figure(figsize=(8.6, 1.0 + 0.31 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for y, row in enumerate(rows):
            colour = BLUE if row.wall.high < 1 else RED if row.wall.low > 1 else GREY
            axes.plot(
                [row.wall.low, row.wall.high], [y, y], color=colour, alpha=0.4, linewidth=6, solid_capstyle="round"
            )
            axes.plot(row.wall.value, y, "o", color=colour, ms=7)
            text = f"{format_seconds(row.tcp_s)} → {format_seconds(row.ucx_s)}"
            axes.annotate(text, (1.02, y), xycoords=axes.get_yaxis_transform(), va="center", fontsize=10)
            axes.annotate(
                format_ratio(row.wall.value),
                (row.wall.high, y),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=10,
                color=colour,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        axes.axvline(1, color=INK, linewidth=1.2, zorder=0.5)
        axes.set_xscale("log")
        axes.set_xlim(min(row.wall.low for row in rows) / 1.3, max(1.6, 1.9 * max(row.wall.high for row in rows)))
        axes.xaxis.set_major_locator(FixedLocator(_TICKS))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value != 1 else "1 = tcp"))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_title("Wall clock over ucx://, of tcp://'s: left of 1 is faster", loc="left")
        figure.suptitle(under(record), x=0.01, ha="left", fontsize=9, color="#586273")
    return figure
