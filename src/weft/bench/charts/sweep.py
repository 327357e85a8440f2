# SPDX-License-Identifier: BSD-3-Clause
"""The charts of ``weft bench sweep``, and its page, drawn from the JSON record and nothing else.

Both axes are logarithmic: sizes and figures span six powers of ten. Colour is the transport, the same in every
chart; a full line blocks, a dashed one awaits; the mark is the memory. The band is what the rounds lie within.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from weft._units import format_size
from weft.bench.charts import drawing
from weft.bench.charts.drawing import GREY, Axes, Figure, styled, svg
from weft.bench.charts.page import document, environment, table
from weft.bench.sweep import table as sweep_table
from weft.bench.sweep.loops import MAPPED
from weft.bench.sweep.table import FIGURES

# Okabe and Ito's: colour-blind readers tell them apart. What a machine usually has keeps its colour.
_COLOURS = {
    "posix": "#0072b2",
    "sysv": "#009e73",
    "cma": "#cc79a7",
    "tcp": "#d55e00",
    "all": "#1f2630",
    "lent": "#e69f00",
    "lent-read": "#7a5200",
    "self": "#8a94a3",
}
_OTHERS = ("#56b4e9", "#7d4fa3", "#5b3a1e")
_DASHES: dict[str, Any] = {"block": "-", "await": (0, (4, 2))}
_MARKS = {"reused": "o", "fresh": "s", "pooled": "^", "cuda": "D", MAPPED: "v"}


def _colours(record: Mapping[str, Any]) -> dict[str, str]:
    names = list(dict.fromkeys(r["transport"] for r in record["records"]))
    others = [name for name in names if name not in _COLOURS]
    return _COLOURS | {name: _OTHERS[i % len(_OTHERS)] for i, name in enumerate(others)}


@styled
def chart(record: Mapping[str, Any], only: Sequence[str] = ()) -> Figure:
    """Draw a panel for each figure, a line in it for each transport, wait and memory.

    Parameters
    ----------
    record : mapping
        As in the file that ``weft bench sweep --json`` writes.
    only : sequence of str
        From ``FIGURES``; empty: those of the record.
    """
    names: Sequence[str] = only or record["measures"]
    height = (3.4 if len(names) > 1 else 4.2) * -(-len(names) // 2) + 0.9
    figure = drawing.new(drawing.WIDTH, height, record)
    for axes, name in zip(drawing.panels(figure, len(names)), names, strict=True):
        _panel(axes, record, name)
    keys = _keys(record, names)
    figure.legend(handles=keys, loc="outside lower center", ncols=min(len(keys), 6), frameon=False, handlelength=2.4)
    return figure


def _keys(record: Mapping[str, Any], names: Sequence[str]) -> list[Line2D]:
    """Make the legend: a colour for each transport, then the kinds of lines and marks, where there are several."""
    lines = list(dict.fromkeys(line for name in names for line in sweep_table.lines_of(record, name)))
    transports, waits, memories = (list(dict.fromkeys(column)) for column in zip(*lines, strict=True))
    colours = _colours(record)
    keys = [Line2D([], [], color=colours[name], linewidth=2.5, label=name) for name in transports]
    if len(waits) > 1:
        keys += [Line2D([], [], color=GREY, linestyle=_DASHES[wait], label=wait) for wait in waits]
    if len(kinds := [memory for memory in memories if memory != MAPPED]) > 1:
        keys += [Line2D([], [], color=GREY, linestyle="", marker=_MARKS[kind], label=kind) for kind in kinds]
    return keys


def _panel(axes: Axes, record: Mapping[str, Any], name: str) -> None:
    figure, colours = FIGURES[name], _colours(record)
    one_wait = len({r["wait"] for r in record["records"]}) == 1
    one_memory = len({r["memory"] for r in record["records"]} - {MAPPED}) <= 1
    for (transport, wait, memory), sizes in sweep_table.lines_of(record, name).items():
        nbytes = sorted(sizes)
        colour = colours[transport]
        values = [figure.value(sizes[n]) for n in nbytes]
        label = ", ".join([transport, *([] if one_wait else [wait]), *([] if one_memory else [memory])])
        axes.plot(nbytes, values, color=colour, linestyle=_DASHES[wait], marker=_MARKS[memory], ms=4, label=label)
        low, high = zip(*(_range(figure, sizes[n]) for n in nbytes), strict=True)
        axes.fill_between(nbytes, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    measured = sorted({r["nbytes"] for r in record["records"]})
    shown = _ticks(measured)
    axes.set_xticks(shown, [format_size(n) for n in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    drawing.ticks(axes.yaxis, lambda value: f"{value:,.10g}")
    axes.set_title(f"{figure.title}, {figure.unit}", loc="left")
    axes.set_xlabel("size of the message")
    axes.grid(which="major")


def _ticks(sizes: Sequence[int], most: int = 5) -> list[int]:
    """Choose sizes whose names do not run into each other on a logarithmic axis, the smallest first."""
    apart = (math.log2(sizes[-1] / sizes[0]) or 1) / most
    shown = [sizes[0]]
    for nbytes in sizes:
        if math.log2(nbytes / shown[-1]) >= apart:
            shown.append(nbytes)
    return shown


def _range(figure: sweep_table.Figure, r: Mapping[str, Any]) -> tuple[float, float]:
    """Return what the rounds' medians lie within, in the figure's unit."""
    middle, medians = r["seconds"]["median"], r["seconds"]["round_medians"]
    value = figure.value(r)
    ends = [value * (m / middle if figure.measure == "latency" else middle / m) for m in (min(medians), max(medians))]
    return min(ends), max(ends)


def page(record: Mapping[str, Any]) -> str:
    """Make one HTML document of charts and tables, without references to anything outside it."""
    title = "weft bench sweep"
    rounds = f"{record['rounds']} round{'s' if record['rounds'] != 1 else ''}"
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="note">Two pinned processes on one machine, {rounds}, {record["seconds_per_cell"]} s for each '
        "point. Colour: transport. Full line: blocking; dashed: await. Band: range of the rounds. Tables: "
        "medians, of latencies also p99 in brackets.</p>",
        *(f'<p class="note">{html.escape(note)}</p>' for note in sweep_table.notes(record)),
    ]
    for name in record["measures"]:
        figure = FIGURES[name]
        parts += [f"<h2>{figure.title}</h2>", f'<p class="note">In {figure.unit}; the loop of {figure.osu}.</p>']
        parts += [svg(chart(record, [name]), name), _figures(record, name)]
    return document(title, [*parts, *environment(record)])


def _figures(record: Mapping[str, Any], name: str) -> str:
    """Make a table for each way to wait: all lines in one would be wider than a page."""
    figure, lines = FIGURES[name], sweep_table.lines_of(record, name)
    nbytes = sorted({n for sizes in lines.values() for n in sizes})
    parts: list[str] = []
    for wait in dict.fromkeys(wait for _, wait, _ in lines):
        shown = {(line[0], line[2]): sizes for line, sizes in lines.items() if line[1] == wait}
        one_memory = len({memory for _, memory in shown if memory != MAPPED}) <= 1
        heads = [transport if one_memory else f"{transport}, {memory}" for transport, memory in shown]
        rows = [[format_size(n), *(_cell(name, figure, sizes.get(n)) for sizes in shown.values())] for n in nbytes]
        parts.append(table([wait, *heads], rows, range(1, len(shown) + 1)))
    return "\n".join(parts)


def _cell(name: str, figure: sweep_table.Figure, r: Mapping[str, Any] | None) -> str:
    if r is None:
        return "-"
    p99 = f" ({sweep_table.number(1e6 * r['seconds']['p99'])})" if name == "latency" else ""
    return f"{sweep_table.number(figure.value(r))}{p99}"
