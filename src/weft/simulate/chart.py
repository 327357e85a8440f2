# SPDX-License-Identifier: BSD-3-Clause
"""The charts of ``weft simulate``, drawn from its record: one for each family of networks, one for the lab."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from weft._units import format_ratio, format_seconds
from weft.bench.charts import drawing
from weft.bench.charts.drawing import BLUE, GREY, INK, SOFT, Axes, Figure, picture, styled
from weft.bench.charts.scale import round_values
from weft.simulate import table

__all__ = ["figures", "picture"]

_SHADES = {"stock": GREY, "learned": BLUE}
_ROW, _MARGINS = 0.34, 1.1  # inches


def figures(record: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Yield a name and a figure for each family in the record, and for the lab."""
    for family in dict.fromkeys(entry["family"] for entry in record["records"]):
        yield f"simulate-{family}", _family([entry for entry in record["records"] if entry["family"] == family])
    if record["lab"]:
        yield "simulate-lab", _lab(record["lab"])


@styled
def _family(entries: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a panel for each network: a row for each graph, its seconds with Dask's and with learned decisions."""
    titles = list(dict.fromkeys(entry["title"] for entry in entries))
    of = {title: [entry for entry in entries if entry["title"] == title] for title in titles}
    heights = [len(each) + 1.6 for each in of.values()]
    figure = drawing.new(drawing.WIDTH, _ROW * sum(heights) + _MARGINS)
    every = figure.subplots(len(titles), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, title in zip(every.flat, titles, strict=True):
        _panel(axes, title, of[title])
    every.flat[-1].set_xlabel("simulated time; the numbers are learned / stock")
    _legend(figure, {way: _SHADES[way] for way in _SHADES if way in entries[0]["ways"]})
    return figure


def _panel(axes: Axes, title: str, entries: Sequence[Mapping[str, Any]]) -> None:
    drawing.rows(axes, [entry["graph"] for entry in entries])
    for row, entry in enumerate(entries):
        seconds = {way: found["seconds"] for way, found in entry["ways"].items()}
        axes.plot(list(seconds.values()), [row] * len(seconds), color="#c5ccd6", linewidth=2, zorder=1)
        for way in _SHADES:
            if way in seconds:
                axes.plot(seconds[way], row, "o", color=_SHADES[way], ms=7 if way == "stock" else 5, zorder=2)
        ratio = table.ratio(entry)
        text = format_seconds(max(seconds.values())) if ratio is None else format_ratio(ratio)
        drawing.label(axes, text, max(seconds.values()), row, fontsize=9, color=INK)
    axes.set_title(title, loc="left")
    _seconds(axes, [found["seconds"] for entry in entries for found in entry["ways"].values()])


def _seconds(axes: Axes, every: Sequence[float]) -> None:
    low, high = min(every) / 1.4, max(every) * 2.5
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    drawing.ticks(axes.xaxis, format_seconds, locator=FixedLocator(round_values(low, high, binary=False)))


def _legend(figure: Figure, shades: Mapping[str, str]) -> None:
    keys = [Line2D([], [], color=shade, marker="o", linestyle="", label=name) for name, shade in shades.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False)


@styled
def _lab(entries: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the measured and the simulated time of each job; the band is 10 %."""
    figure = drawing.new(drawing.WIDTH, _ROW * (len(entries) + 1.6) + _MARGINS)
    axes = figure.subplots()
    drawing.rows(axes, [f"{entry['title']}: {entry['job']}, {entry['way']}" for entry in entries])
    for row, entry in enumerate(entries):
        measured, simulated = entry["measured_s"], entry["simulated_s"]
        axes.plot([0.9 * measured, 1.1 * measured], [row, row], color="#c5ccd6", linewidth=7, zorder=1)
        axes.plot(measured, row, "o", color=GREY, ms=7, zorder=2)
        axes.plot(simulated, row, "o", color=BLUE, ms=5, zorder=3)
        off = f"{table.off(entry)}{', fitted' if entry['fitted'] else ''}"
        drawing.label(axes, off, max(1.1 * measured, simulated), row, fontsize=9, color=SOFT)
    _seconds(axes, [entry[which] for entry in entries for which in ("measured_s", "simulated_s")])
    axes.set_xlabel("time; the numbers are by how much the simulated one is off")
    _legend(figure, {"measured, and 10 % to both sides": GREY, "simulated": BLUE})
    return figure
