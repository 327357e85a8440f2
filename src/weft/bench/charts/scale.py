# SPDX-License-Identifier: BSD-3-Clause
"""The charts of ``weft bench scale``, and its page, drawn from the JSON record and nothing else.

A panel for each measure, over the number of workers. Both axes are logarithmic: a straight line is a power, and what
grows with the square of the workers is twice as steep as what grows with them. An amount that may be 0 has a linear
axis. The band is what the rounds lie within; a cross on top is a cluster that did not come up.
"""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, MultipleLocator

from weft.bench.charts import drawing
from weft.bench.charts.dask import colour
from weft.bench.charts.drawing import GREY, Axes, Figure, styled, svg
from weft.bench.charts.page import document, environment, table
from weft.bench.scale import table as scale_table
from weft.bench.scale.table import MEASURES, Measure

_HEIGHT = 2.4  # inches
#: All that there are: the close is in the table.
SHOWN = tuple(measure for measure in MEASURES if measure.key != "close_s")


@styled
def chart(record: Mapping[str, Any]) -> Figure:
    """Draw a panel for each measure, a line in it for each protocol."""
    figure = drawing.new(drawing.WIDTH, _HEIGHT * -(-len(SHOWN) // 2) + 0.7, record)
    for axes, measure in zip(drawing.panels(figure, len(SHOWN)), SHOWN, strict=True):
        _panel(axes, record, measure)
    keys = [
        Line2D([], [], color=colour(record["protocols"], p), linewidth=2.5, marker="o", label=f"{p}://")
        for p in record["protocols"]
    ]
    if any("start_s" not in run for entry in record["records"] for run in entry["runs"]):
        keys.append(Line2D([], [], color=GREY, marker="x", linestyle="", label=scale_table.MISSING))
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False)
    return figure


def _panel(axes: Axes, record: Mapping[str, Any], measure: Measure) -> None:
    every: list[float] = []
    ends: list[tuple[float, int, str]] = []
    for protocol in record["protocols"]:
        shade = colour(record["protocols"], protocol)
        line = {n: scale_table.values(scale_table.entry_of(record, protocol, n), measure) for n in record["workers"]}
        found = {n: values for n, values in sorted(line.items()) if values}
        every += [value for values in found.values() for value in values]
        if gone := [n for n in line if n not in found]:
            axes.plot(gone, [0.97] * len(gone), "x", color=shade, transform=axes.get_xaxis_transform())
        if not found:
            continue
        middle = [statistics.median(values) for values in found.values()]
        axes.plot(list(found), middle, "o-", color=shade, ms=4, label=protocol)
        low, high = [min(values) for values in found.values()], [max(values) for values in found.values()]
        axes.fill_between(list(found), low, high, color=shade, alpha=0.15, linewidth=0)
        ends.append((middle[-1], list(found)[-1], shade))
    _label(axes, measure, ends)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(record["workers"]) / 1.15, max(record["workers"]) * 1.75)
    drawing.ticks(axes.xaxis, lambda n: f"{n:g}", locator=FixedLocator(sorted(record["workers"])))
    _scale_y(axes, measure, every)
    axes.set_title(measure.title, loc="left")
    axes.set_xlabel("workers" if measure in SHOWN[-2:] else "")
    axes.grid(which="major")


def _label(axes: Axes, measure: Measure, ends: Sequence[tuple[float, int, str]]) -> None:
    """Write the value at the end of each line, the larger above the smaller."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
    for i, (value, workers, shade) in enumerate(sorted(ends)):
        up = 10 * (i - (len(ends) - 1) / 2)
        style = {"textcoords": "offset points", "va": "center", "fontsize": 9, "color": shade, "bbox": ground}
        axes.annotate(measure.text(value), (workers, value), xytext=(7, up), **style)


def _scale_y(axes: Axes, measure: Measure, every: Sequence[float]) -> None:
    """Choose the axis: logarithmic where everything is above 0."""
    if not every or min(every) <= 0:
        top = max(every, default=0) or 1
        axes.set_ylim(min(0, *every, 0) - 0.12 * top, 1.15 * top)
        step = 2 ** math.floor(math.log2(top / 2)) if _binary(measure) else None
        drawing.ticks(axes.yaxis, measure.text, locator=MultipleLocator(step) if step else MaxNLocator(3))
        return
    low, high = min(every) / 1.3, max(every) * 1.3
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    drawing.ticks(axes.yaxis, measure.text, locator=FixedLocator(round_values(low, high, binary=_binary(measure))))


def _binary(measure: Measure) -> bool:
    return measure.key.endswith("_nbytes")


def round_values(low: float, high: float, *, binary: bool) -> list[float]:
    """List round values from `low` to `high`.

    Powers of two, or of four, for bytes; else powers of ten, with 2 and 5 times each where there are less than three.
    """
    if binary:
        twos = [2.0**e for e in range(64) if low <= 2.0**e <= high]
        return twos if len(twos) <= 6 else twos[::2]
    ones = [10.0**e for e in range(-9, 16) if low <= 10.0**e <= high]
    if len(ones) > 2:
        return ones
    return [k * 10.0**e for e in range(-9, 16) for k in (1, 2, 5) if low <= k * 10.0**e <= high]


def page(record: Mapping[str, Any]) -> str:
    """Make one HTML document of charts and table, without references to anything outside it."""
    title = "weft bench scale"
    rounds = f"{record['rounds']} round{'s' if record['rounds'] != 1 else ''}"
    head, rows = scale_table.rows(record)
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="note">A Dask cluster with a growing number of workers; {rounds}, protocols in turns. Lines are '
        "medians, bands the range of the rounds; a cross marks a cluster that did not start. Less is better.</p>",
        *(f"<p>{html.escape(line)}</p>" for line in scale_table.failures(record)),
        *(f'<p class="note">{html.escape(note)}</p>' for note in scale_table.notes(record)),
        svg(chart(record), "scale"),
        table(head, rows, range(1, len(head))),
        f'<p class="note">{html.escape("; ".join(f"{m.title}: {m.note}" for m in MEASURES))}.</p>',
        *environment(record),
    ]
    return document(title, parts)
