# SPDX-License-Identifier: BSD-3-Clause
"""The charts of ``weft bench sweep``, and its page, drawn from the JSON record and nothing else.

Both axes are logarithmic: sizes and figures span six powers of ten. Colour is the transport, the same in every
chart; a full line blocks, a dashed one awaits; the mark is the memory. The band is what the rounds lie within.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from weft.bench import sweep_table
from weft.bench.options import size_text
from weft.bench.page import document, flat, rc, svg, table
from weft.bench.sweep_table import FIGURES

# Okabe and Ito's: colour-blind readers tell them apart. What a machine usually has keeps its colour.
_COLOURS = {"posix": "#0072b2", "sysv": "#009e73", "cma": "#cc79a7", "tcp": "#d55e00", "all": "#1f2630"}
_OTHERS = ("#e69f00", "#56b4e9", "#8a94a3")
_DASHES = {"block": "-", "await": (0, (4, 2))}
_MARKS = {"reused": "o", "fresh": "s", "pooled": "^", "cuda": "D"}


def _colours(record: Mapping[str, Any]) -> dict[str, str]:
    names = list(dict.fromkeys(r["transport"] for r in record["records"]))
    others = [name for name in names if name not in _COLOURS]
    return _COLOURS | {name: _OTHERS[i % len(_OTHERS)] for i, name in enumerate(others)}


def chart(record: Mapping[str, Any], names: list[str] | None = None) -> Figure:
    """Draw a panel for each figure, a line in it for each transport, wait and memory.

    Parameters
    ----------
    record : mapping
        As in the file that ``weft bench sweep --json`` writes.
    names : list of str, optional
        From ``FIGURES``; those of the record without it.
    """
    names = names or record["measures"]
    wide = min(2, len(names))
    high = -(-len(names) // wide)
    with mpl.rc_context(rc()):
        figure = Figure(figsize=(6.2 * wide, 4.2 * high + 0.9), layout="constrained")
        panels = figure.subplots(high, wide, squeeze=False).flat
        for axes, name in zip(panels, names, strict=False):
            _panel(axes, record, name)
        for axes in list(figure.axes)[len(names) :]:
            axes.remove()
        figure.suptitle(_under(record), x=0.01, ha="left", fontsize=9, color="#586273")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        columns = min(len(labels), 2 * wide) or 1
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)
    return figure


def _under(record: Mapping[str, Any]) -> str:
    """Say under what the figures were taken: a picture travels without its record."""
    e = record["environment"]
    ucx = (e["ucx"] or {}).get("version", "?")
    rounds = f"{record['rounds']} round{'s' if record['rounds'] != 1 else ''}"
    return f"weft {e['weft']}, UCX {ucx}, {e['cpu_model']}, {e['cores_usable']} cores, {rounds}, {e['date_utc'][:10]}"


def _panel(axes: Axes, record: Mapping[str, Any], name: str) -> None:
    figure, colours = FIGURES[name], _colours(record)
    one_memory = len({r["memory"] for r in record["records"]}) == 1
    for (transport, wait, memory), sizes in sweep_table.lines_of(record, name).items():
        nbytes = sorted(sizes)
        colour = colours[transport]
        values = [figure.value(sizes[n]) for n in nbytes]
        label = f"{transport}, {wait}" if one_memory else f"{transport}, {wait}, {memory}"
        axes.plot(nbytes, values, color=colour, linestyle=_DASHES[wait], marker=_MARKS[memory], ms=4.5, label=label)
        low, high = zip(*(_range(figure, sizes[n]) for n in nbytes), strict=True)
        axes.fill_between(nbytes, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    measured = sorted({r["nbytes"] for r in record["records"]})
    shown = measured[:: -(-len(measured) // 8)]
    axes.set_xticks(shown, [size_text(n) for n in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_title(f"{figure.title}, {figure.unit}", loc="left")
    axes.set_xlabel("size of the message")
    axes.grid(which="major")


def _range(figure: sweep_table.Figure, r: Mapping[str, Any]) -> tuple[float, float]:
    """Return what the rounds' medians lie within, in the figure's unit."""
    middle, medians = r["seconds"]["median"], r["seconds"]["round_medians"]
    value = figure.value(r)
    ends = [value * (m / middle if figure.measure == "latency" else middle / m) for m in (min(medians), max(medians))]
    return min(ends), max(ends)


def save(record: Mapping[str, Any], path: Path) -> None:
    """Write the charts to `path`, in the format that its ending names."""
    with mpl.rc_context(rc()):
        chart(record).savefig(path, dpi=130)


def page(record: Mapping[str, Any]) -> str:
    """Make one HTML document of charts and tables, without references to anything outside it."""
    title = "weft bench sweep"
    rounds = f"{record['rounds']} round{'s' if record['rounds'] != 1 else ''}"
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="note">Two pinned processes on one machine, {rounds}, {record["seconds_per_cell"]} s for each '
        "point. Colour: transport. Full line: blocking; dashed: await. Band: what the rounds lie within.</p>",
        *(f'<p class="note">{html.escape(note)}</p>' for note in sweep_table.notes(record)),
    ]
    for name in record["measures"]:
        figure = FIGURES[name]
        parts += [f"<h2>{figure.title}</h2>", f'<p class="note">In {figure.unit}; the loop of {figure.osu}.</p>']
        with mpl.rc_context(rc()):
            parts += [svg(chart(record, [name]), name), _figures(record, name)]
    parts += ["<h2>Environment</h2>", table([], [[key, value] for key, value in flat(record["environment"])])]
    return document(title, parts)


def _figures(record: Mapping[str, Any], name: str) -> str:
    figure, lines = FIGURES[name], sweep_table.lines_of(record, name)
    nbytes = sorted({n for sizes in lines.values() for n in sizes})
    rows = []
    for n in nbytes:
        cells = [sizes.get(n) for sizes in lines.values()]
        rows.append([size_text(n), *(sweep_table.number(figure.value(r)) if r else "-" for r in cells)])
    return table(["size", *(", ".join(line) for line in lines)], rows, range(1, len(lines) + 1))
