# SPDX-License-Identifier: BSD-3-Clause
"""One self-contained HTML page for ``weft demo``, drawn from the JSON record and nothing else.

Charts are inline SVG from matplotlib, whose text stays text in the reader's own font; styles are inline.
Nothing is fetched, so the page can be mailed or kept with the record. What is printed in a terminal is in
``report``.
"""

from __future__ import annotations

import html
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from weft.bench import report

# A grey and Okabe and Ito's vermilion: colour-blind readers tell them apart, and so does a grey printer.
_COLOURS = ("#8a94a3", "#d55e00")
_INK = "#1f2630"
_FONT = "system-ui, sans-serif"
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1f2630;background:#fff;max-width:60rem;margin:2rem
auto;padding:0 1rem} h1{font-size:1.7rem;margin-bottom:.2rem} h2{font-size:1.15rem;margin:2.2rem 0 .5rem}
p.note{color:#586273;font-size:.9rem;margin:.3rem 0} p.wrong{color:#fff;background:#b3261e;padding:.5rem
.8rem} ul.verdict{padding-left:1.2rem} svg{max-width:100%;height:auto}
table{border-collapse:collapse;font-size:.92rem;width:100%} .wide{overflow-x:auto}
th{text-align:left;font-weight:600;border-bottom:2px solid #c9d0da} td{border-bottom:1px solid #e6eaf0}
th,td{padding:.3rem .8rem .3rem 0;vertical-align:top} .n{text-align:right;font-variant-numeric:tabular-nums}
td.k{color:#586273;white-space:nowrap;width:14rem} code{font-size:.9em}
"""


def page(record: Mapping[str, Any]) -> str:
    """Draw the page.

    Parameters
    ----------
    record : mapping
        As in the file that ``weft demo --json`` writes.

    Returns
    -------
    str
        One HTML document without references to anything outside it.
    """
    protocols = record["protocols"]
    title = "weft demo: the same work over " + " and ".join(f"{p}://" for p in protocols)
    wrong = not all(e["correct"] for e in record["workloads"])
    rounds = f"{record['rounds']} round{'s' if record['rounds'] != 1 else ''}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="note">Dask, two worker processes on one machine, {rounds} each, alternating.</p>',
        f"<p{' class=wrong' if wrong else ''}>{html.escape(report.correctness(record))}</p>",
        '<ul class="verdict">',
        *(f"<li>{html.escape(line)}</li>" for line in report.verdicts(record)),
        "</ul>",
        _comparison(record),
        "<h2>Wall clock</h2>",
        '<p class="note">Bars are medians, dots the single rounds. Less is better.</p>',
        _wall_chart(record),
        "<h2>Bandwidth between the workers</h2>",
        f'<p class="note">{html.escape(_p2p_note(record))} More is better.</p>',
        _p2p_chart(record),
        _pairs(record),
        "<h2>Idle cluster</h2>",
        _idle(record),
        "<h2>Environment</h2>",
        _table([], [[key, value] for key, value in _flat(record["environment"])]),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _colour(record: Mapping[str, Any], protocol: str) -> str:
    # The protocol that ratios are taken to is grey, the other stands out.
    both = report.sides(record["protocols"])
    return _COLOURS[both is not None and protocol == both[0]]


def _names(record: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(e["name"] for e in record["workloads"]))


def _entry(record: Mapping[str, Any], name: str, protocol: str) -> Mapping[str, Any]:
    return next(e for e in record["workloads"] if (e["name"], e["protocol"]) == (name, protocol))


# --- charts -------------------------------------------------------------------------------------------------


def _wall_chart(record: Mapping[str, Any]) -> str:
    """Draw a panel per workload, each with its own scale: the workloads are not to be compared."""
    names, protocols = _names(record), record["protocols"]
    with mpl.rc_context(_rc()):
        figure = Figure(figsize=(3 * len(names), 3.1), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            for x, protocol in enumerate(protocols):
                wall = _entry(record, name, protocol)["wall_s"]
                median = statistics.median(wall)
                axes.bar(x, median, width=0.62, color=_colour(record, protocol), alpha=0.85)
                axes.plot(_apart(x, len(wall)), wall, "o", markersize=5, color=_INK, markeredgecolor="white")
                axes.annotate(
                    f"{median:.3g} s",
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
        return _svg(figure, "wall")


def _apart(x: float, count: int) -> list[float]:
    # Rounds from left to right in the order that they ran, so that a drift shows.
    return [x + 0.1 * (i - (count - 1) / 2) * min(1, 5 / count) for i in range(count)]


def _p2p_chart(record: Mapping[str, Any]) -> str:
    """Draw one line per workload and protocol: 25 % to 75 % as a bar, the median as a mark."""
    rows = [
        (name, protocol, _entry(record, name, protocol)["p2p_Bps"])
        for name in _names(record)
        for protocol in record["protocols"]
    ]
    with mpl.rc_context(_rc()):
        figure = Figure(figsize=(9, 0.8 + 0.42 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for y, (_, protocol, p2p) in enumerate(rows):
            if p2p["q50"] is None:
                axes.annotate("nothing moved", (0, y), xytext=(6, 0), textcoords="offset points", va="center")
                continue
            low, middle, high = (p2p[q] / 2**20 for q in ("q25", "q50", "q75"))
            axes.barh(y, high - low, left=low, height=0.5, color=_colour(record, protocol), alpha=0.85)
            axes.plot([middle, middle], [y - 0.34, y + 0.34], color=_INK, linewidth=2.5)
            axes.annotate(
                f"{middle:,.0f}",
                (max(high, middle), y),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontweight="bold",
            )
        axes.set_yticks(range(len(rows)), [f"{name}, {protocol}://" for name, protocol, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        rates = [p2p["q75"] / 2**20 for *_, p2p in rows if p2p["q75"] is not None]
        axes.set_xlim(0, 1.12 * max(rates, default=1.0))
        axes.set_xlabel("MiB/s")
        axes.grid(axis="x")
        return _svg(figure, "p2p")


def _rc() -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "weft",
        "font.size": 11,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#9aa4b2",
        "axes.labelcolor": _INK,
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": "#e6eaf0",
        "axes.axisbelow": True,
    }


def _svg(figure: Figure, name: str) -> str:
    """Write `figure` as an ``<svg>`` element that can stand beside others in one document."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Identifiers are global in a page: two charts would otherwise share clip paths and markers. The name of
    # the font is matplotlib's own, which readers lack.
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(r"'DejaVu Sans'[^;\"]*", _FONT, text)


# --- tables -------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    def cell(tag: str, i: int, text: str) -> str:
        kind = ' class="n"' if i in numbers else ' class="k"' if i == 0 and not head else ""
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    lines = [f"<tr>{''.join(cell('th', i, text) for i, text in enumerate(head))}</tr>"] if head else []
    lines += [f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _comparison(record: Mapping[str, Any]) -> str:
    both = report.sides(record["protocols"])
    head = ["workload", *(f"{p}:// wall clock, throughput" for p in record["protocols"])]
    if both is not None:
        head += [f"wall, {both[0]}/{both[1]}", f"bandwidth, {both[0]}/{both[1]}"]
    rows = []
    for name in _names(record):
        row = [name]
        for protocol in record["protocols"]:
            e = _entry(record, name, protocol)
            wall, throughput = statistics.median(e["wall_s"]), statistics.median(e["throughput_Bps"])
            row.append(f"{wall:.3f} s, {report.format_rate(throughput)}")
        if both is not None:
            row += [_ratio(record["ratios"][name], key) for key in ("wall", "p2p")]
        rows.append(row)
    return _table(head, rows, range(1, len(head)))


def _ratio(ratio: Mapping[str, Any], key: str) -> str:
    if ratio[key] is None:
        return "-"
    low, high = ratio[f"{key}_range"]
    return f"{ratio[key]:.2f} ({low:.2f} to {high:.2f})"


def _pairs(record: Mapping[str, Any]) -> str:
    head = ["workload", "(w1,w2)", "25 %", "50 %", "75 %", "moved", "lanes"]
    rows = []
    for e in record["workloads"]:
        for p in e["pairs"]:
            rates = [report.format_rate(p[q]) for q in ("q25", "q50", "q75")]
            lanes = ", ".join(p["lanes"]) or "not reported"
            pair = f"({p['w1']},{p['w2']})"
            rows.append([f"{e['name']}, {e['protocol']}://", pair, *rates, report.format_nbytes(p["nbytes"]), lanes])
    note = f'<p class="note">Worker w1 received from worker w2. {_lent(record)}</p>'
    return note + _table(head, rows, range(2, 6))


def _lent(record: Mapping[str, Any]) -> str:
    parts = []
    for e in record["workloads"]:
        if any(e["lent_nbytes"]):
            lent, moved = (statistics.median(e[key]) for key in ("lent_nbytes", "moved_nbytes"))
            parts.append(f"{e['name']} {report.format_nbytes(lent)} of {report.format_nbytes(moved)}")
    return f"Lent without a copy, per round: {', '.join(parts)}." if parts else ""


def _p2p_note(record: Mapping[str, Any]) -> str:
    text = "The middle half of all transfers, the mark is the median, as the receiving worker's log has them"
    least = {e["p2p_min_nbytes"] for e in record["workloads"]}
    if least == {0}:
        return f"{text}; none was as large as {report.format_nbytes(report.P2P_MIN_NBYTES)}, so all count."
    text = f"{text}; from {report.format_nbytes(max(least))} on"
    return f"{text}, or all where none was that large." if 0 in least else f"{text}."


def _idle(record: Mapping[str, Any]) -> str:
    by_process = record["idle_cpu_percent_by_process"]
    head = ["percent of one core", *(f"{p}://" for p in record["protocols"])]
    parts = list(dict.fromkeys(part for used in by_process.values() for part in used))
    rows = [[part, *(f"{by_process[p].get(part, 0):.1f}" for p in record["protocols"])] for part in parts]
    rows.append(["together", *(f"{record['idle_cpu_percent'][p]:.1f}" for p in record["protocols"])])
    return _table(head, rows, range(1, len(head)))


def _flat(value: object, name: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [row for key, inner in value.items() for row in _flat(inner, f"{name}.{key}" if name else str(key))]
    if isinstance(value, Mapping):
        return [(name, "none")]
    if isinstance(value, list | tuple):
        return [(name, ", ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in value) or "none")]
    return [(name, "-" if value is None else str(value))]
