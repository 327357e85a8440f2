# SPDX-License-Identifier: BSD-3-Clause
"""An explanation: its contents, and its forms as JSON, as two lines and as tables."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from weft._units import format_deviation, format_rate, format_seconds, format_size
from weft.explain.protocols import Lane, Size
from weft.explain.reasons import Setting, Verdict

#: The scope of a connection that the ring carries, in UCX's words.
WITHIN_HOST = "intra-node"
_WIDTH = 120
#: Columns of a terminal that has room for all columns of the tables with their words whole.
_WIDE = 80
#: Characters; a longer name, such as a path, is folded.
_LONGEST_WORD = 14


@dataclass(frozen=True, slots=True)
class Time:
    """The one-way time of a message of `nbytes`: as UCX expects it, and as measured; None if there is none."""

    nbytes: int
    predicted_s: float | None
    observed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """What workers of a cluster found that a link between two hosts delivers.

    Attributes
    ----------
    cluster : str
        Its name, or the file.
    source, destination : str
        Addresses of the hosts.
    memory : str
        Type of memory, ``host`` or ``cuda``.
    latency_s : float
        Seconds for a message of any size.
    bandwidth_Bps : float or None
        Bytes per second; None if all bytes were lent, so that the time does not depend on the size.
    nbytes, predicted_s : int, float
        A size, and the seconds that so many bytes are expected to take.
    spread : float
        Standard deviation of the bandwidth's logarithm: 0.1 is 10 %, 2 is a guess.
    samples : float
        Transfers that count where the figures come from, old ones less.
    known_from : str
        Where that is: these ``hosts``, the ``kind`` of link, or ``assumed``.
    """

    cluster: str
    source: str
    destination: str
    memory: str
    latency_s: float
    bandwidth_Bps: float | None  # noqa: N815 - the unit
    nbytes: int
    predicted_s: float
    spread: float
    samples: float
    known_from: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which wire carries a connection's messages, and why others do not. ``print`` it, or call :meth:`json`.

    Attributes
    ----------
    peer, local_address : str
        ``host:port`` of the two ends; the caller's port is 0 where a Unix socket joins processes of one host.
    same_host : bool
        Whether the other process has proved that it is on this host.
    apart : str
        If not: the known reason.
    why_ucx : str
        Why UCX and not weft's own ring carries the messages within this host; empty if the ring does, and across the
        network.
    ucx : str
        The libucp in use; empty if the ring carries the messages, which needs none.
    endpoint : str
        The ``ucp_ep_h``, in hexadecimal; empty if the ring carries the messages.
    scope : str
        UCX's name for the endpoint's configuration, e.g. ``intra-node cfg#0``, or ``unknown``; ``intra-node`` for the
        ring.
    settings : dict of str to Setting
        Settings that limit the choice, and who set them.
    lanes : list of Lane
    sizes : list of Size
        The protocol and lane for each range of sizes.
    times : list of Time
    transports : list of Verdict
        The ring and all transports of UCX, each with the reason why it is used or not.
    learned : list of Learned
        What clusters have learned of the link, from their files; only ``weft explain`` looks for these.
    """

    peer: str
    local_address: str
    same_host: bool
    apart: str
    why_ucx: str
    ucx: str
    endpoint: str
    scope: str
    settings: dict[str, Setting]
    lanes: list[Lane]
    sizes: list[Size]
    times: list[Time]
    transports: list[Verdict]
    learned: list[Learned] = field(default_factory=list[Learned])

    def json(self) -> dict[str, Any]:
        """Return the explanation as JSON-able values."""
        return {**asdict(self), "lines": list(self.lines)}

    @property
    def lines(self) -> tuple[str, str]:
        """The two lines that ``WEFT_EXPLAIN=1`` prints: ``UCX_TLS=...``, and the endpoint with its lanes."""
        names = [f"{lane.transport}/{lane.device}" for lane in self.lanes]
        if not self.endpoint:
            return lines_of_ring(names)
        return lines(self.settings, self.endpoint, self.scope, names, self.why_ucx)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield _tables(self, options.max_width)

    def __str__(self) -> str:
        return self.text("utf-8")

    def text(self, encoding: str) -> str:
        """Draw the tables with characters that `encoding` has."""
        stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace")
        Console(file=stream, width=_WIDTH, highlight=False, markup=False, color_system=None).print(self)
        stream.seek(0)
        return "\n".join(line.rstrip() for line in stream.read().splitlines())


def lines(
    settings: Mapping[str, Setting], endpoint: str, scope: str, transports: Sequence[str], why_ucx: str = ""
) -> tuple[str, str]:
    """Write an endpoint as two lines: the setting that limits it, and its lanes after UCX's name for it.

    Where UCX carries a connection on this host, the second line ends with the reason, `why_ucx`.
    """
    tls = settings.get("TLS", Setting("all", "UCX's default"))
    instead = f", not weft's ring: {why_ucx}" if why_ucx else ""
    return f"UCX_TLS={tls.value}", f"{endpoint} {scope} tag({' '.join(transports)}){instead}"


def lines_of_ring(transports: Sequence[str]) -> tuple[str, str]:
    """Write a connection that the ring carries as two lines."""
    return "UCX is not used", f"weft {WITHIN_HOST} message({' '.join(transports)})"


def _tables(explanation: Explanation, width: int) -> Group:
    where = "on this host" if explanation.same_host else f"across the network ({explanation.apart})"
    local = explanation.local_address.removesuffix(":0")  # a connection over a Unix socket has no port of its own
    head = [
        f"{local} -> {explanation.peer}, {where}",
        explanation.ucx or explanation.lines[0],
        *(f"UCX_{name}={setting.value}, set by {setting.by}" for name, setting in explanation.settings.items()),
        explanation.lines[1],
    ]
    lanes = _table("lane", "used for")
    for lane in explanation.lanes:
        lanes.add_row(f"{lane.transport}/{lane.device}", lane.roles)
    by = ["decided by"] if width >= _WIDE else []
    sizes = _table("operation", "size", "protocol", "lanes", *by)
    for size in explanation.sizes:
        sizes.add_row(size.operation, _range(size), size.protocol, size.lanes, *[size.layer] * len(by))
    times = _table("one way", "UCX expects", "measured")
    for time in explanation.times:
        times.add_row(format_size(time.nbytes), format_seconds(time.predicted_s), format_seconds(time.observed_s))
    transports = _table("transport", "", "why", "read from")
    for (used, *why), alike in itertools.groupby(explanation.transports, lambda v: (v.chosen, v.reason, v.evidence)):
        transports.add_row(", ".join(v.transport for v in alike), "used" if used else "-", *why)
    for table in (sizes, transports):
        _keep_words(table)
    gap = Text()
    tables = [lanes, sizes, times, *([_learned(explanation.learned)] if explanation.learned else []), transports]
    return Group(*map(Text, head), *(part for table in tables for part in (gap, table)))


def _learned(rows: Sequence[Learned]) -> Table:
    takes = f"{format_size(rows[0].nbytes)} in"
    table = _table("learned by", "from", "to", "memory", "latency", "bandwidth", takes, "+-", "samples", "known from")
    for row in rows:
        table.add_row(
            row.cluster,
            row.source,
            row.destination,
            row.memory,
            format_seconds(row.latency_s),
            "lent" if row.bandwidth_Bps is None else format_rate(row.bandwidth_Bps),
            format_seconds(row.predicted_s),
            format_deviation(row.spread),
            f"{row.samples:.1f}",
            row.known_from,
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _keep_words(table: Table) -> None:
    """Let columns become no narrower than their longest word; a list of names without spaces is folded."""
    for column in table.columns:
        words = " ".join(map(str, (column.header, *column.cells))).split()
        column.min_width = min(max(map(len, words), default=0), _LONGEST_WORD)


def _range(size: Size) -> str:
    if size.last is None:
        return f"{format_size(size.first)} and up"
    return f"{format_size(size.first)} - {format_size(size.last)}"
