# SPDX-License-Identifier: BSD-3-Clause
"""The dashboard page's contents about pairs of workers: cells, heading, table of lanes. Nothing here needs bokeh."""

from __future__ import annotations

import html
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft._units import format_nbytes, format_rate
from weft.dask.observe.pairs import Pair, format_lent

#: More workers than this make the cells too small; then those with the most bytes are shown.
MOST_WORKERS = 64
LENT, SMALL, NONE = "#f3c98b", "#dfe3e8", "#f6f7f9"
_ITSELF = "rgba(0, 0, 0, 0)"
_SWATCH = '<span style="display:inline-block;width:11px;height:11px;background:{};margin:0 4px 0 14px"></span>{}'
_TABLE = "font-size:13px;margin-top:8px"
_CELL = "padding:2px 16px 2px 0;text-align:left"
_LANE_COLUMNS = ("lanes", "pairs", "messages", "bytes", "median bandwidth")


@dataclass(frozen=True)
class Scale:
    """Colours for bandwidths: a palette over whole decades, in GB/s."""

    palette: Sequence[str]
    low: float
    high: float

    @classmethod
    def over(cls, palette: Sequence[str], pairs: Iterable[Pair]) -> Scale:
        """Make a scale that covers all bandwidths of `pairs`."""
        rates = [p.bandwidth_Bps / 1e9 for p in pairs if p.bandwidth_Bps]
        if not rates:
            return cls(palette, 0.1, 10.0)
        low = math.floor(math.log10(min(rates)))
        return cls(palette, 10.0**low, 10.0 ** max(low + 1, math.ceil(math.log10(max(rates)))))

    @property
    def ticks(self) -> list[float]:
        """The decades, with steps in between if there is only one decade."""
        n_decades = round(math.log10(self.high / self.low))
        steps = (1, 2, 5) if n_decades == 1 else (1,)
        return [*(self.low * 10**i * step for i in range(n_decades) for step in steps), self.high]

    def shade(self, rate: float) -> int:
        """Return the index of a bandwidth's colour."""
        at = math.log10(rate / self.low) / math.log10(self.high / self.low)
        return min(len(self.palette) - 1, max(0, int(at * len(self.palette))))


@dataclass(frozen=True)
class Cell:
    """One cell, and its tooltip."""

    source: str
    destination: str
    colour: str
    figure: str = ""
    ink: str = "black"
    bandwidth: str = "nothing sent"
    messages: str = "0"
    nbytes: str = "0 B"
    lent: str = "0 B in 0"
    lanes: str = "-"
    dask: str = "-"
    errors: str = "0"


def cell(pair: Pair, scale: Scale, dask: float | None, *, roomy: bool) -> Cell:
    """Describe a pair; `dask` is the bandwidth that Dask measured, `roomy` means that two lines fit in a cell."""
    colour, figure, ink = _face(pair, scale, roomy)
    return Cell(
        pair.source,
        pair.destination,
        colour,
        figure,
        ink,
        format_rate(pair.bandwidth_Bps) if pair.bandwidth_Bps else "no transfer that moved 1 MiB",
        f"{pair.messages:,}",
        format_nbytes(pair.nbytes),
        format_lent(pair),
        ", ".join(pair.lanes),
        format_rate(dask),
        str(pair.errors),
    )


def empty_cell(source: str, destination: str) -> Cell:
    """Describe two workers without traffic between them."""
    return Cell(source, destination, _ITSELF if source == destination else NONE)


def _face(pair: Pair, scale: Scale, roomy: bool) -> tuple[str, str, str]:
    """Choose colour, text and the text's colour, by what carried most of the bytes."""
    if pair.lent_nbytes and 2 * pair.lent_nbytes >= pair.nbytes:
        return LENT, f"lent\n{short_nbytes(pair.lent_nbytes)}" if roomy else "lent", "black"
    if not pair.bandwidth_Bps:
        return SMALL, "", "black"
    rate = pair.bandwidth_Bps / 1e9
    shade = scale.shade(rate)
    return scale.palette[shade], short(rate), "black" if shade > 0.55 * len(scale.palette) else "white"


def short(rate: float) -> str:
    """Write a number with two significant digits."""
    digits = 0 if rate >= 9.95 else 1 if rate >= 0.995 else 2
    return f"{rate:.{digits}f}" if rate >= 0.0995 else f"{rate:.2g}"


def short_nbytes(nbytes: int) -> str:
    """Write a size that fits into a cell."""
    size, unit = next(
        (nbytes / n, u) for n, u in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1, "")) if nbytes >= n or n == 1
    )
    return f"{short(size)} {unit}" if unit else f"{math.ceil(nbytes / 2**20)} MiB"


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that sorts 2 before 10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def busiest(names: Iterable[str], pairs: Iterable[Pair]) -> list[str]:
    """Return the names of the busiest workers, at most :data:`MOST_WORKERS`, in natural order."""
    nbytes = Counter(dict.fromkeys(names, 0))
    for pair in pairs:
        nbytes[pair.source] += pair.nbytes
        nbytes[pair.destination] += pair.nbytes
    return sorted((name for name, _ in nbytes.most_common(MOST_WORKERS)), key=natural)


def heading(n_workers: int, pairs: Sequence[Pair]) -> str:
    """Write the heading: what the numbers are, or why there are none, and the colours that are not on the bar."""
    title = "<b style='font-size:15px'>Bandwidth between workers, GB/s</b><br>"
    if not n_workers:
        return f"{title}No worker has reported yet: the figures come with the workers' heartbeats."
    text = "Median of each pair's latest transfers that moved 1 MiB or more, by the sender's clock."
    if not any(p.bandwidth_Bps or p.lent_nbytes for p in pairs):
        text = "No transfer of 1 MiB or more between workers yet."
    if n_workers > MOST_WORKERS:
        text += f" The {MOST_WORKERS} of {n_workers} workers with the most bytes."
    if any(p.lent_nbytes for p in pairs):
        text += _SWATCH.format(LENT, "lent: mapped by the receiver, not moved")
    if any(not p.bandwidth_Bps and not p.lent_nbytes for p in pairs):
        text += _SWATCH.format(SMALL, "smaller messages only")
    return title + text


def lanes_table(pairs: Sequence[Pair]) -> str:
    """Sum the pairs by lanes; lent memory is a lane of its own."""
    if not pairs:
        return ""
    by_lanes: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_lanes[", ".join(lane for lane in pair.lanes if lane != "lent")].append(pair)
    rows = [(lanes, *_sums(some)) for lanes, some in sorted(by_lanes.items())]
    lenders = [p for p in pairs if p.lent_nbytes]
    if lenders:
        lent = sum(p.lent_messages for p in lenders), sum(p.lent_nbytes for p in lenders)
        rows.append(("lent", str(len(lenders)), f"{lent[0]:,}", format_nbytes(lent[1]), ""))
    head = "".join(f"<th style='{_CELL}'>{name}</th>" for name in _LANE_COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td style='{_CELL}'>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows
    )
    return f"<table style='{_TABLE}'><tr>{head}</tr>{body}</table>"


def _sums(pairs: Sequence[Pair]) -> tuple[str, str, str, str]:
    rates = [p.bandwidth_Bps for p in pairs if p.bandwidth_Bps]
    return (
        str(len(pairs)),
        f"{sum(p.messages for p in pairs):,}",
        format_nbytes(sum(p.nbytes - p.lent_nbytes for p in pairs)),
        format_rate(statistics.median(rates) if rates else None),
    )
