# SPDX-License-Identifier: BSD-3-Clause
"""What the dashboard's page says of transfers, predicted beside observed. Nothing of bokeh here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft._units import format_nbytes, format_ratio, format_seconds
from weft.dask.learn.collect import Timed

#: What a point may be, and its colour.
ALONE, SHARED, GUESSED = "port to itself", "port shared", "first guess"
COLOURS = {ALONE: "#31688e", SHARED: "#f3a35c", GUESSED: "#c3c8ce"}
#: With fewer flows than this, on average, a transfer had its ports for itself.
_ALONE = 1.2


@dataclass(frozen=True)
class Point:
    """One transfer, and what a pointer over it shows."""

    predicted_s: float
    observed_s: float
    kind: str
    colour: str
    source: str
    destination: str
    nbytes: str
    predicted: str
    observed: str
    known_from: str


def points(timed: Iterable[Timed], names: Mapping[str, str]) -> list[Point]:
    """Describe the transfers between workers that are here, by their names; what is drawn over others comes last."""
    found = [_point(each, names) for each in timed if each.source in names and each.destination in names]
    order = list(reversed(COLOURS))
    return sorted(found, key=lambda point: order.index(point.kind))


def _point(timed: Timed, names: Mapping[str, str]) -> Point:
    kind = GUESSED if timed.known_from == "assumed" else ALONE if timed.flows < _ALONE else SHARED
    return Point(
        timed.predicted_s,
        timed.observed_s,
        kind,
        COLOURS[kind],
        names[timed.source],
        names[timed.destination],
        format_nbytes(timed.nbytes),
        format_seconds(timed.predicted_s),
        format_seconds(timed.observed_s),
        timed.known_from,
    )


def decades(shown: Sequence[Point]) -> list[float]:
    """Return the powers of ten, in seconds, between the first and last of which all points lie."""
    seconds = [s for point in shown for s in (point.predicted_s, point.observed_s)] or [1e-3, 1.0]
    first, last = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def heading(shown: Sequence[Point]) -> str:
    """Say what the points are, and how far off the predictions were."""
    title = "<b style='font-size:15px'>Transfers: predicted and observed time</b><br>"
    if not shown:
        return f"{title}No transfer has been timed yet; lent memory and transfers below 64 KiB are not timed."
    off = [abs(math.log(p.observed_s / p.predicted_s)) for p in shown if p.kind == ALONE]
    text = f"The latest {len(shown)}, as their receivers timed them. Between the dotted lines: less than a factor of 2."
    if off:
        factor = format_ratio(math.exp(statistics.median(off)))
        text += f" Median error of those with a port to themselves: a factor of {factor}."
    return title + text
