# SPDX-License-Identifier: BSD-3-Clause
"""The charts of ``weft bench pingpong`` and ``weft bench peers``, and their page, from the JSON record alone.

A panel for each size, in it a row for each library: a dot at the median, a line over what the rounds lie within. The
axis is logarithmic, and a bar on such an axis has no length to compare; so there are none.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from weft._units import format_seconds, format_size
from weft.bench.charts.page import BLUE, GREY, INK, document, flat, rc, svg, table, under
from weft.bench.pingpong.table import losses, named

_WIDTH = 8.6  # inches: what a page on GitHub shows without shrinking it
_ROW = 0.26


def chart(record: Mapping[str, Any]) -> Figure:
    """Draw a panel for each size of the record."""
    records = record["records"]
    sizes = list(dict.fromkeys(r["nbytes"] for r in records))
    rows = list(dict.fromkeys(named(r) for r in records))
    high = -(-len(sizes) // 2)
    with mpl.rc_context(rc()):
        figure = Figure(figsize=(_WIDTH, high * (0.95 + _ROW * len(rows)) + 0.3), layout="constrained")
        panels = list(figure.subplots(high, min(2, len(sizes)), squeeze=False, sharey=True).flat)
        for axes, nbytes in zip(panels, sizes, strict=False):
            _panel(axes, [r for r in records if r["nbytes"] == nbytes], rows)
            axes.set_title(f"{format_size(nbytes)}, one way", loc="left")
        for axes in panels[len(sizes) :]:
            axes.remove()
        figure.suptitle(under(record), x=0.01, ha="left", fontsize=9, color="#586273")
    return figure


def _panel(axes: Axes, records: list[Mapping[str, Any]], rows: list[str]) -> None:
    for r in records:
        y, latency = rows.index(named(r)), r["latency_s"]
        colour = BLUE if r["library"] in ("weft", "lent") else GREY
        low, high = min(latency["round_medians"]), max(latency["round_medians"])
        axes.plot([low, high], [y, y], color=colour, alpha=0.4, linewidth=5, solid_capstyle="round")
        axes.plot(latency["median"], y, "o", color=colour, ms=6)
        # behind the dot, unless there is no room to the right of it
        axes.annotate(
            format_seconds(latency["median"]),
            (high, y),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    every = [end for r in records for end in r["latency_s"]["round_medians"]]
    axes.set_xscale("log")
    axes.set_xlim(min(every) / 1.6, max(every) * 6)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.grid(axis="x")
    for label in axes.get_yticklabels():
        label.set_color(BLUE if label.get_text().startswith("weft") else INK)


def save(record: Mapping[str, Any], path: Path) -> None:
    """Write the charts to `path`, in the format that its ending names."""
    with mpl.rc_context(rc()):
        chart(record).savefig(path, dpi=130)


def page(record: Mapping[str, Any]) -> str:
    """Make one HTML document of charts and table, without references to anything outside it."""
    records = record["records"]
    with mpl.rc_context(rc()):
        drawn = svg(chart(record), "latencies")
    rows = [
        [
            format_size(r["nbytes"]),
            named(r),
            r["transport"],
            format_seconds(r["latency_s"]["median"]),
            format_seconds(r["latency_s"]["p99"]),
            f"{r['latency_s']['spread'] / r['latency_s']['median']:.0%}",
            f"{r['bandwidth_Bps']['median'] / 1e9:#.3g}",
        ]
        for r in records
    ]
    parts = [
        "<h1>One-way latency</h1>",
        '<p class="note">Half a round trip between two pinned processes. Dot: median of all rounds; line: what the '
        "rounds lie within. Less is better.</p>",
        drawn,
        table(["size", "library", "over", "median", "p99", "spread", "GB/s"], rows, range(3, 7)),
        '<ul class="verdict">',
        *(f"<li>{html.escape(line)}</li>" for line in losses(records)),
        "</ul>",
        "<h2>Environment</h2>",
        table([], [[key, value] for key, value in flat(record["environment"])]),
    ]
    return document("One-way latency", parts)
