# SPDX-License-Identifier: BSD-3-Clause
"""What the HTML pages of the benchmarks have in common: their look, inline SVG, and tables.

Charts are inline SVG from matplotlib, whose text stays text in the reader's own font; styles are inline.
Nothing is fetched, so a page can be mailed or kept with its record.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

INK = "#1f2630"
# A grey, and Okabe and Ito's: colour-blind readers tell them apart, and so does a grey printer.
GREY, RED, BLUE = "#8a94a3", "#d55e00", "#0072b2"
FONT = "system-ui, sans-serif"
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1f2630;background:#fff;max-width:60rem;margin:2rem
auto;padding:0 1rem} h1{font-size:1.7rem;margin-bottom:.2rem} h2{font-size:1.15rem;margin:2.2rem 0 .5rem}
p.note{color:#586273;font-size:.9rem;margin:.3rem 0} p.wrong{color:#fff;background:#b3261e;padding:.5rem
.8rem} ul.verdict{padding-left:1.2rem} svg{max-width:100%;height:auto}
table{border-collapse:collapse;font-size:.92rem;width:100%} .wide{overflow-x:auto}
th{text-align:left;font-weight:600;border-bottom:2px solid #c9d0da} td{border-bottom:1px solid #e6eaf0}
th,td{padding:.3rem .8rem .3rem 0;vertical-align:top} .n{text-align:right;font-variant-numeric:tabular-nums}
td:first-child,.n{white-space:nowrap} td.k{color:#586273;width:14rem} code{font-size:.9em} .wide+.wide{margin-top:1rem}
@media (prefers-color-scheme:dark){body{color:#d9dee6;background:#121212} p.note,td.k{color:#96a0af}
th{border-color:#46505f} td{border-color:#2a313b} svg{filter:invert(.93) hue-rotate(180deg)}}
"""


def document(title: str, parts: Sequence[str]) -> str:
    """Make one HTML document of `parts` (HTML), without references to anything outside it."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def rc() -> dict[str, Any]:
    """Return matplotlib's settings for every chart."""
    return {
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


def under(record: Mapping[str, Any]) -> str:
    """Say under what the figures were taken: a picture travels without its record."""
    e = record["environment"]
    ucx = (e["ucx"] or {}).get("version", "?")
    rounds = record.get("rounds") or max((r["rounds"] for r in record.get("records", ())), default=1)
    times = f"{rounds} round{'s' if rounds != 1 else ''}"
    return f"weft {e['weft']}, UCX {ucx}, {e['cpu_model']}, {e['cores_usable']} cores, {times}, {e['date_utc'][:10]}"


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


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Make a table; `numbers` are the columns to align right, and no `head` makes one of keys and values."""

    def cell(tag: str, i: int, text: str) -> str:
        kind = ' class="n"' if i in numbers else ' class="k"' if i == 0 and not head else ""
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    lines = [f"<tr>{''.join(cell('th', i, text) for i, text in enumerate(head))}</tr>"] if head else []
    lines += [f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def flat(value: object, name: str = "") -> list[tuple[str, str]]:
    """List what a JSON value holds, the path to each with dots."""
    if isinstance(value, Mapping) and value:
        return [row for key, inner in value.items() for row in flat(inner, f"{name}.{key}" if name else str(key))]
    if isinstance(value, Mapping):
        return [(name, "none")]
    if isinstance(value, list | tuple):
        return [(name, ", ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in value) or "none")]
    return [(name, "-" if value is None else str(value))]
