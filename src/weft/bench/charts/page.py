# SPDX-License-Identifier: BSD-3-Clause
"""What the HTML pages of the benchmarks have in common: their look, tables, the environment.

Charts are inline SVG from matplotlib, whose text stays text in the reader's own font; styles are inline.
Nothing is fetched, so a page can be mailed or kept with its record.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, cast

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
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        rows = [row for key, inner in items for row in flat(inner, f"{name}.{key}" if name else str(key))]
        return rows or [(name, "none")]
    if isinstance(value, list | tuple):
        each = cast("Sequence[object]", value)
        return [(name, ", ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in each) or "none")]
    return [(name, "-" if value is None else str(value))]


def environment(record: Mapping[str, Any]) -> list[str]:
    """Say at the end of a page where and how its record was taken."""
    return ["<h2>Environment</h2>", table([], flat(record["environment"]))]
