# SPDX-License-Identifier: BSD-3-Clause
"""What all charts are drawn with: colours, panels, rows, labels, and how a figure becomes SVG or a file.

What a chart shows is in ``pingpong``, ``sweep``, ``scale`` and ``dask``, a function for each figure.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

import matplotlib as mpl
from matplotlib import figure as figures
from matplotlib.ticker import FuncFormatter, NullLocator

INK = "#1f2630"
# A grey, and Okabe and Ito's: colour-blind readers tell them apart, and so does a grey printer.
GREY, RED, BLUE = "#8a94a3", "#d55e00", "#0072b2"
#: Inches: what a page on GitHub shows without shrinking it.
WIDTH = 8.6
#: Of what is not the subject of a sentence or a chart.
SOFT = "#586273"
FONT = "system-ui, sans-serif"

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "weft",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa4b2",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#e6eaf0",
    "axes.axisbelow": True,
}
#: Matplotlib knows the types of its methods in part only.
Axes: TypeAlias = Any
Figure: TypeAlias = Any
_matplotlib: Any = mpl

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate what makes or writes a figure: matplotlib looks at its settings at both times."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with _matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


def new(width: float, height: float, record: Mapping[str, Any] | None = None) -> Figure:
    """Make an empty figure of so many inches; above it stands where `record` was taken, if one is given."""
    figure: Figure = figures.Figure(figsize=(width, height), layout="constrained")
    if record is not None:
        figure.suptitle(under(record), x=0.01, ha="left", fontsize=9, color=SOFT)
    return figure


def panels(figure: Figure, count: int, *, share_rows: bool = False) -> list[Axes]:
    """Lay `count` panels out, two beside each other."""
    grid = figure.subplots(-(-count // 2), min(2, count), squeeze=False, sharey=share_rows)
    every: list[Axes] = list(grid.flat)
    for axes in every[count:]:
        axes.remove()
    return every[:count]


def ticks(axis: Any, text: Callable[[float], str], *, locator: Any = None) -> None:
    """Write the ticks of an x or y axis as `text` does, where `locator` puts them, and none between."""

    def written(value: float, _position: int) -> str:
        return text(value)

    if locator is not None:
        axis.set_major_locator(locator)
        axis.set_minor_locator(NullLocator())
    formatter: Any = FuncFormatter
    axis.set_major_formatter(formatter(written))


def rows(axes: Axes, names: Sequence[str]) -> None:
    """Make the y axis one of rows, the first on top."""
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def label(axes: Axes, text: str, x: float, y: float, **style: Any) -> None:
    """Write `text` to the right of a point."""
    axes.annotate(text, (x, y), xytext=(7, 0), textcoords="offset points", va="center", **style)


@styled
def save(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`, in the format that its ending names."""
    figure.savefig(path, dpi=130)


def under(record: Mapping[str, Any]) -> str:
    """Say under what the figures were taken: a picture travels without its record."""
    e = record["environment"]
    ucx = e["ucx"]["version"] if e["ucx"] else "?"
    rounds = record.get("rounds") or max((r["rounds"] for r in record.get("records", ())), default=1)
    times = f"{rounds} round{'s' if rounds != 1 else ''}"
    return f"weft {e['weft']}, UCX {ucx}, {e['cpu_model']}, {e['cores_usable']} cores, {times}, {e['date_utc'][:10]}"


@styled
def svg(figure: Figure, name: str) -> str:
    """Write `figure` as an ``<svg>`` element that can stand beside others in one document."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Identifiers are global in a page: two charts would otherwise share clip paths and markers. The name of
    # the font is matplotlib's own, which readers lack.
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(r"'DejaVu Sans'[^;\"]*", FONT, text)


def picture(figure: Figure) -> str:
    """Write `figure` as an SVG file for pages that others render; its ground is white, so it can be read on any."""
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg(figure, "figure")}'
