# SPDX-License-Identifier: BSD-3-Clause
"""The charts of Dask work over several protocols, and its page, drawn from the JSON record and nothing else.

What is printed in a terminal is in ``dask.printed``.
"""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft._units import format_nbytes, format_rate, format_seconds
from weft.bench.charts import drawing
from weft.bench.charts.drawing import BLUE, GREY, INK, RED, Figure, styled, svg
from weft.bench.charts.page import document, environment, table
from weft.bench.dask import report

_COLOURS = (BLUE, RED, "#009e73", "#e69f00")
_WALL_HEIGHT = 3.1  # inches


def page(record: Mapping[str, Any]) -> str:
    """Draw the page.

    Parameters
    ----------
    record : mapping
        As in the file that ``--json`` writes.

    Returns
    -------
    str
        One HTML document without references to anything outside it.
    """
    protocols = record["protocols"]
    title = f"{record['command']}: the same work over " + " and ".join(f"{p}://" for p in protocols)
    wrong = not all(e["correct"] for e in record["workloads"])
    workers = len(record["workloads"][0]["workers"])
    rounds = f"{record['rounds']} round{'s' if record['rounds'] != 1 else ''}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="note">Dask, {workers} worker processes, {rounds} for each protocol, in turns.</p>',
        f"<p{' class=wrong' if wrong else ''}>{html.escape(report.correctness(record))}</p>",
        '<ul class="verdict">',
        *(f"<li>{html.escape(line)}</li>" for line in report.verdicts(record)),
        "</ul>",
        _comparison(record),
        "<h2>Wall clock</h2>",
        '<p class="note">Bars are medians, dots are single rounds. Less is better.</p>',
        _svg(_draw_wall, record, 3 * len(_names(record)), _WALL_HEIGHT),
        "<h2>Bandwidth between the workers</h2>",
        f'<p class="note">{html.escape(_p2p_note(record))} More is better.</p>',
        _svg(_draw_p2p, record, 9, _p2p_height(record)),
        _pairs(record),
        "<h2>Idle cluster</h2>",
        _idle(record),
        *environment(record),
    ]
    return document(title, parts)


def colour(protocols: Sequence[str], protocol: str) -> str:
    """Return the colour of a protocol: grey for the one that ratios are taken to, so that the others stand out."""
    below = report.baseline(protocols)
    others = [p for p in protocols if p != below]
    return GREY if protocol == below else _COLOURS[others.index(protocol) % len(_COLOURS)]


def _names(record: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(e["name"] for e in record["workloads"]))


def _entry(record: Mapping[str, Any], name: str, protocol: str) -> Mapping[str, Any]:
    return next(e for e in record["workloads"] if (e["name"], e["protocol"]) == (name, protocol))


# --- charts -------------------------------------------------------------------------------------------------


@styled
def chart(record: Mapping[str, Any]) -> Figure:
    """Draw the wall clocks, and below them the bandwidths."""
    figure = drawing.new(9, _WALL_HEIGHT + _p2p_height(record))
    halves = figure.subfigures(2, 1, squeeze=False, height_ratios=[_WALL_HEIGHT, _p2p_height(record)])
    for draw, half in zip((_draw_wall, _draw_p2p), halves.flat, strict=True):
        draw(half, record)
    return figure


@styled
def _svg(
    draw: Callable[[Figure, Mapping[str, Any]], None], record: Mapping[str, Any], width: float, height: float
) -> str:
    figure = drawing.new(width, height)
    draw(figure, record)
    return svg(figure, draw.__name__.removeprefix("_draw_"))


def _p2p_height(record: Mapping[str, Any]) -> float:
    return 0.8 + 0.42 * len(record["workloads"])


def _draw_wall(figure: Figure, record: Mapping[str, Any]) -> None:
    """Draw a panel per workload, each with its own scale: the workloads are not to be compared."""
    names, protocols = _names(record), record["protocols"]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for x, protocol in enumerate(protocols):
            wall = _entry(record, name, protocol)["wall_s"]
            median = statistics.median(wall)
            axes.bar(x, median, width=0.62, color=colour(record["protocols"], protocol), alpha=0.85)
            axes.plot(_apart(x, len(wall)), wall, "o", markersize=5, color=INK, markeredgecolor="white")
            axes.annotate(
                format_seconds(median),
                (x, max(wall)),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontweight="bold",
            )
        axes.set_xticks(range(len(protocols)), [f"{p}://" for p in protocols])
        axes.set_xlim(-0.6, len(protocols) - 0.4)
        axes.set_ylim(0, 1.18 * max(max(_entry(record, name, p)["wall_s"]) for p in protocols))
        axes.set_title(name, loc="left")
        axes.set_ylabel("seconds" if name == names[0] else "")
        axes.grid(axis="y")


def _apart(x: float, count: int) -> list[float]:
    # Rounds from left to right in the order that they ran, so that a drift shows.
    return [x + 0.1 * (i - (count - 1) / 2) * min(1, 5 / count) for i in range(count)]


def _draw_p2p(figure: Figure, record: Mapping[str, Any]) -> None:
    """Draw one line per workload and protocol: 25 % to 75 % as a bar, the median as a mark."""
    rows = [
        (name, protocol, _entry(record, name, protocol)["p2p_Bps"])
        for name in _names(record)
        for protocol in record["protocols"]
    ]
    axes = figure.subplots()
    for y, (_, protocol, p2p) in enumerate(rows):
        if p2p["q50"] is None:
            drawing.label(axes, report.NOT_LOGGED, 0, y)
            continue
        low, middle, high = (p2p[q] / 1e6 for q in ("q25", "q50", "q75"))
        axes.barh(y, high - low, left=low, height=0.5, color=colour(record["protocols"], protocol), alpha=0.85)
        axes.plot([middle, middle], [y - 0.34, y + 0.34], color=INK, linewidth=2.5)
        drawing.label(axes, f"{middle:,.0f}", max(high, middle), y, fontweight="bold")
    axes.set_yticks(range(len(rows)), [f"{name}, {protocol}://" for name, protocol, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    rates = [p2p["q75"] / 1e6 for *_, p2p in rows if p2p["q75"] is not None]
    axes.set_xlim(0, 1.12 * max(rates, default=1.0))
    axes.set_xlabel("MB/s")
    axes.grid(axis="x")


# --- tables -------------------------------------------------------------------------------------------------


def _comparison(record: Mapping[str, Any]) -> str:
    compared = report.comparisons(record)
    head = ["workload", *(f"{p}:// wall clock, throughput" for p in record["protocols"])]
    for above, below in dict.fromkeys((c.above, c.below) for c in compared):
        head += [f"wall, {above}/{below}", f"bandwidth, {above}/{below}"]
    rows: list[list[str]] = []
    for name in _names(record):
        row = [name]
        for protocol in record["protocols"]:
            e = _entry(record, name, protocol)
            wall, throughput = statistics.median(e["wall_s"]), statistics.median(e["throughput_Bps"])
            row.append(f"{format_seconds(wall)}, {format_rate(throughput)}")
        row += [
            str(report.ratio_of(c.ratio, key) or "-") for c in compared if c.name == name for key in ("wall", "p2p")
        ]
        rows.append(row)
    return table(head, rows, range(1, len(head)))


def _pairs(record: Mapping[str, Any]) -> str:
    head = ["workload", "(w1,w2)", "25 %", "50 %", "75 %", "moved", "lanes"]
    rows: list[list[str]] = []
    for e in record["workloads"]:
        for p in e["pairs"]:
            rates = [format_rate(p[q]) for q in ("q25", "q50", "q75")]
            lanes = ", ".join(p["lanes"]) or "not reported"
            pair = f"({p['w1']},{p['w2']})"
            rows.append([f"{e['name']}, {e['protocol']}://", pair, *rates, format_nbytes(p["nbytes"]), lanes])
    note = f'<p class="note">Worker w1 received from worker w2. {_lent(record)}</p>'
    return note + table(head, rows, range(2, 6))


def _lent(record: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for e in record["workloads"]:
        if any(e["lent_nbytes"]):
            lent, moved = (statistics.median(e[key]) for key in ("lent_nbytes", "moved_nbytes"))
            parts.append(f"{e['name']} {format_nbytes(lent)} of {format_nbytes(moved)}")
    return f"Lent without a copy, per round: {', '.join(parts)}." if parts else ""


def _p2p_note(record: Mapping[str, Any]) -> str:
    text = "Bars: the middle half of all transfers, as logged by the receiving worker; mark: the median"
    least = {e["p2p_min_nbytes"] for e in record["workloads"]}
    if least == {0}:
        return f"{text}; none had {format_nbytes(report.P2P_MIN_NBYTES)}, so all count."
    text = f"{text}; transfers of {format_nbytes(max(least))} and more"
    return f"{text}, or all if none was that large." if 0 in least else f"{text}."


def _idle(record: Mapping[str, Any]) -> str:
    by_process = record["idle_cpu_percent_by_process"]
    head = ["percent of one core", *(f"{p}://" for p in record["protocols"])]
    parts = list(dict.fromkeys(part for used in by_process.values() for part in used))
    rows = [[part, *(f"{by_process[p].get(part, 0):.1f}" for p in record["protocols"])] for part in parts]
    rows.append(["together", *(f"{record['idle_cpu_percent'][p]:.1f}" for p in record["protocols"])])
    return table(head, rows, range(1, len(head)))
