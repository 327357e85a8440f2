# SPDX-License-Identifier: BSD-3-Clause
"""What ucx:// takes of tcp://'s time, workload by workload, of several records of ``weft bench``. Runs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.ticker import FixedLocator

from weft._units import format_ratio, format_seconds
from weft.bench.charts import drawing
from weft.bench.charts.drawing import BLUE, GREY, INK, RED, Figure, styled
from weft.bench.common.stats import Ratio
from weft.bench.dask import report

_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_WIDE_TICKS = (0.001, 0.01, 0.1, 1, 10)  # labels of the others would touch


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
    """Read the rows of ucx beside tcp, whatever else was measured; `variant` stands behind the workloads' names."""
    found = {(e["name"], e["protocol"]): e for e in record["workloads"]}
    rows: list[Row] = []
    for c in (c for c in report.comparisons(record) if c.above == "ucx"):
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


@styled
def overview(rows: Sequence[Row], record: Mapping[str, Any]) -> Figure:
    """Draw the ratio of ucx://'s time to tcp://'s, on a logarithmic axis.

    `record` is one of those that `rows` come from, whose machine and versions are told.
    """
    figure = drawing.new(drawing.WIDTH, 1.0 + 0.31 * len(rows), record)
    axes = figure.subplots()
    for y, row in enumerate(rows):
        colour = BLUE if row.wall.high < 1 else RED if row.wall.low > 1 else GREY
        axes.plot([row.wall.low, row.wall.high], [y, y], color=colour, alpha=0.4, linewidth=6, solid_capstyle="round")
        axes.plot(row.wall.value, y, "o", color=colour, ms=7)
        text = f"{format_seconds(row.tcp_s)} → {format_seconds(row.ucx_s)}"
        axes.annotate(text, (1.02, y), xycoords=axes.get_yaxis_transform(), va="center", fontsize=10)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        drawing.label(axes, format_ratio(row.wall.value), row.wall.high, y, fontsize=10, color=colour, bbox=ground)
    axes.axvline(1, color=INK, linewidth=1.2, zorder=0.5)
    axes.set_xscale("log")
    low = min(row.wall.low for row in rows) / 1.3
    axes.set_xlim(low, max(1.6, 1.9 * max(row.wall.high for row in rows)))
    locator = FixedLocator(_TICKS if low > _TICKS[0] else _WIDE_TICKS)
    drawing.ticks(axes.xaxis, lambda value: f"{value:g}" if value != 1 else "1 = tcp", locator=locator)
    drawing.rows(axes, [row.name for row in rows])
    axes.set_title("Wall clock, ucx:// / tcp:// (below 1: ucx:// is faster)", loc="left")
    return figure
