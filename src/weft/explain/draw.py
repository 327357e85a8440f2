# SPDX-License-Identifier: BSD-3-Clause
"""An explanation as tables for people."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from weft.explain import Explanation
    from weft.explain.protocols import Size

_WIDTH = 120


def text(told: Explanation) -> str:
    """Return `told` as plain text, 120 columns wide."""
    stream = io.StringIO()
    Console(file=stream, width=_WIDTH, highlight=False, markup=False, color_system=None).print(explanation(told))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def explanation(told: Explanation) -> Group:
    """Arrange `told` for a rich console."""
    where = "on this host" if told.same_host else f"across the network ({told.apart})"
    head = [
        f"{told.local_address} -> {told.peer}, {where}",
        told.ucx,
        *(f"UCX_{name}={setting.value}, set by {setting.by}" for name, setting in told.settings.items()),
        told.lines[1],
    ]
    lanes = _table("lane", "UCX uses it for")
    for lane in told.lanes:
        lanes.add_row(f"{lane.transport}/{lane.device}", lane.roles)
    sizes = _table("operation", "bytes", "protocol", "lanes", "decided by")
    for size in told.sizes:
        sizes.add_row(size.operation, _range(size), size.protocol, size.lanes, size.layer)
    times = _table("bytes, one way", "UCX expects", "measured")
    for time in told.times:
        times.add_row(nbytes(time.nbytes), seconds(time.predicted_s), seconds(time.observed_s))
    transports = _table("transport", "", "why", "read from")
    for (used, *why), alike in itertools.groupby(told.transports, lambda v: (v.chosen, v.reason, v.evidence)):
        transports.add_row(", ".join(v.transport for v in alike), "used" if used else "-", *why)
    gap = Text()
    return Group(*map(Text, head), gap, lanes, gap, sizes, gap, times, gap, transports)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _range(size: Size) -> str:
    if size.last is None:
        return f"{nbytes(size.first)} and up"
    return f"{nbytes(size.first)} - {nbytes(size.last)}"


def nbytes(number: int) -> str:
    """Write a size: ``64 KiB`` where it is a multiple, else as it is."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number and number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number}"


def seconds(duration_s: float | None) -> str:
    """Write a duration in the unit that suits it; ``-`` where there is none."""
    if duration_s is None:
        return "-"
    for unit_s, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if duration_s >= unit_s:
            return f"{duration_s / unit_s:.3g} {name}"
    return f"{duration_s / 1e-9:.3g} ns"
