# SPDX-License-Identifier: BSD-3-Clause
"""The charts of ``weft bench pingpong`` and ``weft bench peers``, and their page, from the JSON record alone.

A panel for each size, in it a row for each library: a dot at the median, a line over what the rounds lie within. The
axis is logarithmic, and a bar on such an axis has no length to compare; so there are none.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from matplotlib.ticker import LogLocator

from weft._units import format_seconds, format_size
from weft.bench.charts import drawing
from weft.bench.charts.drawing import BLUE, GREY, INK, Axes, Figure, styled, svg
from weft.bench.charts.page import document, environment, table
from weft.bench.pingpong.table import OWN, losses, named, spread

_ROW = 0.26


@styled
def chart(record: Mapping[str, Any]) -> Figure:
    """Draw a panel for each size of the record."""
    records = record["records"]
    sizes = list(dict.fromkeys(r["nbytes"] for r in records))
    names = list(dict.fromkeys(named(r) for r in records))
    figure = drawing.new(drawing.WIDTH, -(-len(sizes) // 2) * (0.95 + _ROW * len(names)) + 0.3, record)
    for axes, nbytes in zip(drawing.panels(figure, len(sizes), share_rows=True), sizes, strict=True):
        _panel(axes, [r for r in records if r["nbytes"] == nbytes], names)
        axes.set_title(f"{format_size(nbytes)}, one way", loc="left")
    return figure


def _panel(axes: Axes, records: list[Mapping[str, Any]], names: list[str]) -> None:
    for r in records:
        y, latency = names.index(named(r)), r["latency_s"]
        colour = BLUE if r["library"] in OWN else GREY
        low, high = min(latency["round_medians"]), max(latency["round_medians"])
        axes.plot([low, high], [y, y], color=colour, alpha=0.4, linewidth=5, solid_capstyle="round")
        axes.plot(latency["median"], y, "o", color=colour, ms=6)
        # behind the dot, unless there is no room to the right of it
        drawing.label(axes, format_seconds(latency["median"]), high, y, fontsize=9)
    every = [end for r in records for end in r["latency_s"]["round_medians"]]
    axes.set_xscale("log")
    axes.set_xlim(min(every) / 1.6, max(every) * 6)
    drawing.ticks(axes.xaxis, format_seconds, locator=LogLocator(numticks=6))
    drawing.rows(axes, names)
    for text in axes.get_yticklabels():
        text.set_color(BLUE if text.get_text().startswith("weft") else INK)


def page(record: Mapping[str, Any]) -> str:
    """Make one HTML document of charts and table, without references to anything outside it."""
    records = record["records"]
    rows = [
        [
            format_size(r["nbytes"]),
            named(r),
            r["transport"],
            format_seconds(r["latency_s"]["median"]),
            format_seconds(r["latency_s"]["p99"]),
            spread(r["latency_s"]),
            f"{r['bandwidth_Bps']['median'] / 1e9:#.3g}",
        ]
        for r in records
    ]
    parts = [
        "<h1>One-way latency</h1>",
        '<p class="note">Half a round trip between two pinned processes. Dot: median of all rounds; line: range of '
        "the rounds. Less is better.</p>",
        svg(chart(record), "latencies"),
        table(["size", "library", "over", "median", "p99", "spread", "GB/s"], rows, range(3, 7)),
        '<ul class="verdict">',
        *(f"<li>{html.escape(line)}</li>" for line in losses(records)),
        "</ul>",
        *environment(record),
    ]
    return document("One-way latency", parts)
