# SPDX-License-Identifier: BSD-3-Clause
"""The protocol and lane for each message size: UCX's own tables, parsed from its text, after weft's own decisions.

The text is meant for people and differs between versions: from 1.22 on a table has a title of two lines and names its
columns; before, the title is one line of two cells. Rows that cannot be parsed are left out and shown as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weft import _frames
from weft._native import Channel

UNKNOWN = "unknown"
_EAGER = "active message by ucp_am_send* from host memory"
_RENDEZVOUS = "active message by ucp_am_send*(rndv) from host memory"
_HANDED = "descriptor over a Unix socket"
_RANGE = re.compile(r"(\d+)([KMGTPE]?)(?:\.\.(?:(\d+)([KMGTPE]?)|(inf)))?")
_ESTIMATED = "(?) "  # how UCX marks a choice that the receiver has yet to confirm
_LANE = re.compile(r"lane\[(\d+)\]:\s+\d+:([^\s/]+/\S+?)\.(\d+) .*-> .* seg \d+(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One range of sizes in a table of UCX's; `last` is None where there is no end."""

    first: int
    last: int | None
    protocol: str
    lanes: str
    estimated: bool


@dataclass(frozen=True, slots=True)
class Table:
    """What UCX chose for one operation of an endpoint; `name` is the endpoint's, as ``weft intra-node cfg#0``."""

    name: str
    operation: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """A wire between the two workers, and its roles in UCX's words (``am``, ``rma_bw#0``, ...)."""

    transport: str
    device: str
    roles: str


@dataclass(frozen=True, slots=True)
class Size:
    """The protocol of messages between `first` and `last` bytes, and whether weft or UCX decides it."""

    operation: str
    first: int
    last: int | None
    protocol: str
    lanes: str
    layer: str


def tables(text: str) -> list[Table]:
    """Read the tables in what ``ucp_ep_print_info`` prints, in their order; other lines are skipped."""
    found: list[tuple[str, str, list[Row]]] = []
    for line in text.splitlines():
        line = line.removeprefix("#").strip()
        if not (line.startswith("|") and line.endswith("|")):
            continue
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if "cfg#" in cells[0]:
            found.append((cells[0], cells[1] if len(cells) == 2 else "", []))
        elif found and len(cells) == 1 and not found[-1][1]:
            found[-1] = (found[-1][0], cells[0], found[-1][2])
        elif found and len(cells) == 3 and (row := _row(*cells)) is not None:
            found[-1][2].append(row)
    return [Table(name, operation, tuple(rows)) for name, operation, rows in found]


def _row(sizes: str, description: str, lanes: str) -> Row | None:
    match = _RANGE.fullmatch(sizes)
    if match is None:
        return None
    first = _nbytes(match[1], match[2])
    last = None if match[5] else _nbytes(match[3], match[4]) if match[3] else first
    return Row(first, last, description.removeprefix(_ESTIMATED), lanes, description.startswith(_ESTIMATED))


def _nbytes(number: str, unit: str) -> int:
    return int(number) << 10 * (" KMGTPE".index(unit) if unit else 0)


def lanes(text: str, transports: Sequence[str]) -> list[Lane]:
    """List the lanes, which are `transports` (from ``ucp_ep_query``), with the roles that the text gives to each."""
    roles: dict[str, list[str]] = {}
    for _, name, _, told in _LANE.findall(text):
        roles.setdefault(name, []).extend(told.split())
    return [
        Lane(transport, device, " ".join(dict.fromkeys(roles.get(name, []))) or UNKNOWN)
        for name in transports
        for transport, _, device in [name.partition("/")]
    ]


def scope(found: Sequence[Table]) -> str:
    """Return how UCX names the endpoint's configuration: ``intra-node cfg#0``."""
    for table in found:
        match = re.search(r"\b(self|intra-node|inter-node) cfg#\d+", table.name)
        if match:
            return match[0]
    return UNKNOWN


def by_weft(*, lends: bool) -> list[Size]:
    """List weft's own decisions; memory can be lent if `lends`, which is to a process on this host."""
    large, lend, stage = _frames.LARGE_NBYTES, Channel.lend_nbytes, Channel.stage_nbytes
    rows = [
        Size("send_frames", 0, large - 1, "copied into the message's first segment", "", "weft"),
        Size("send_frames", large, None, "a segment of its own, sent from where it lies", "", "weft"),
    ]
    if not lends:
        return [*rows, Size("lend", 0, None, "sent, as by send: to another host", "", "weft")]
    return [
        *rows,
        Size("lend", 0, lend - 1, "sent, as by send", "", "weft"),
        Size("lend", lend, None, "in weft's pool: the pages are handed over", _HANDED, "weft"),
        Size("stage", stage, Channel.stage_limit_nbytes, "copied into weft's pool, then handed over", _HANDED, "weft"),
    ]


def sizes(found: Sequence[Table], *, lends: bool) -> list[Size]:
    """List the protocols of a connection that UCX carries, by message size.

    Parameters
    ----------
    found : sequence of Table
        Of the connection's endpoint.
    lends : bool
        The peer is on this host, so memory can be lent to it.

    Returns
    -------
    list of Size
        In bytes of the message; UCX also counts weft's header. weft's own rules come first.
    """
    eager = _of(found, _EAGER)
    rows = [*by_weft(lends=lends), *_part(eager, 0, Channel.rendezvous_nbytes - 1)]
    asked = _of(found, _RENDEZVOUS)
    if not asked:  # no such message was sent yet: UCX's own choice
        asked = [row for row in eager if "rendezvous" in row.protocol]
        asked = [Row(0, None, asked[-1].protocol, asked[-1].lanes, True)] if asked else []
    return rows + _part(asked, Channel.rendezvous_nbytes, None)


def _of(found: Sequence[Table], operation: str) -> list[Row]:
    return [row for table in found if table.operation == operation for row in table.rows]


def _part(rows: Sequence[Row], first: int, last: int | None) -> list[Size]:
    """Cut `rows` to the messages from `first` to `last` bytes; sizes that they do not cover are unknown."""
    header = Channel.header_nbytes
    cut: list[Size] = []
    at: int | None = first
    for row in sorted(rows, key=lambda row: row.first):
        begin = max(row.first - header, first)
        end = _least(None if row.last is None else row.last - header, last)
        if at is None or begin != at or (end is not None and end < begin):
            continue
        protocol = row.protocol + (" (expected)" if row.estimated else "")
        cut.append(Size("send", begin, end, protocol, row.lanes or UNKNOWN, "UCX"))
        at = None if end is None or end == last else end + 1
    if at is not None:
        cut.append(Size("send", at, last, UNKNOWN, UNKNOWN, "UCX"))
    return cut


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
