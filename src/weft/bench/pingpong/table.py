# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft bench pingpong`` shows of its records: the table, and where weft loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft._units import format_size
from weft.bench.common import stats

if TYPE_CHECKING:
    from rich.table import Table

CAPTION = "spread: of the rounds' medians; to c: median and range of the rounds' ratios"
LENT = "lent: handed over, not copied and not read"

#: What is weft's: of older records "weft", which were its tags.
OWN = {"peer", "tags", "weft", "lent"}

#: Libraries as people call them, by name and way to wait; without either by name alone.
NAMES = {
    "c": "C loop",
    "peer block": "weft.Peer, .wait()",
    "peer await": "weft.Peer, await",
    "tags block": "weft tags, .wait()",
    "tags await": "weft tags, await",
    "weft block": "weft, .wait()",
    "weft await": "weft, await",
    "lent block": "weft, lent",
    "tcp": "TCP socket",
    "asyncio": "asyncio streams",
    "pyzmq": "pyzmq (ipc)",
    "mpi4py": "mpi4py (Open MPI)",
    "perftest": "ucx_perftest",
    "drop-in": "weft.compat.ucxx",
    "ucxx": "UCXX, asyncio",
    "ucx-py": "ucx-py, asyncio",
}


def named(record: Mapping[str, Any]) -> str:
    """Name the library of a record."""
    library = str(record["library"])
    return NAMES.get(f"{library} {record['mode']}") or NAMES.get(library, library)


def _ratio(record: dict[str, Any], other: dict[str, Any]) -> stats.Ratio:
    return stats.ratio(record["latency_s"]["round_medians"], other["latency_s"]["round_medians"])


def _us(seconds: float) -> str:
    us = 1e6 * seconds
    return f"{us:,.0f}" if us >= 100 else f"{us:#.3g}"


def spread(latency: Mapping[str, Any]) -> str:
    """Write the spread of the rounds' medians; a dash for one round."""
    return f"{latency['spread'] / latency['median']:.0%}" if len(latency["round_medians"]) > 1 else "-"


def table_of(records: Sequence[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    lent = any(record["library"] == "lent" for record in records)
    caption = f"{CAPTION}\n{LENT}" if lent else CAPTION
    table = Table(title="one-way latency in us", caption=caption, box=box.SIMPLE_HEAD, padding=0)
    for heading in ("size", "library", "over"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median", "p99", "spread", "GB/s", "to c"):
        table.add_column(heading, justify="right", no_wrap=True)
    for nbytes in dict.fromkeys(record["nbytes"] for record in records):
        table.add_section()
        rows = [record for record in records if record["nbytes"] == nbytes]
        floor = rows[0] if rows[0]["library"] == "c" else None
        for row in rows:
            library = f"{row['library']} {row['mode']}" if row["library"] in OWN - {"lent"} else row["library"]
            latency, bandwidth = row["latency_s"], row["bandwidth_Bps"]["median"] / 1e9
            table.add_row(
                format_size(nbytes),
                library,
                row["transport"],
                _us(latency["median"]),
                _us(latency["p99"]),
                spread(latency),
                f"{bandwidth:.2f}" if bandwidth >= 0.01 else "<0.01",
                str(_ratio(row, floor)) if floor and floor is not row else "",
            )
    return table


def lost(records: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """List where weft takes longer than another library, by more than the rounds differ: both, and how much."""
    for mine in (record for record in records if record["library"] in OWN - {"lent"}):
        for other in (record for record in records if record["nbytes"] == mine["nbytes"]):
            ratio = _ratio(mine, other)
            if other["library"] not in OWN and ratio.low > 1:
                yield mine, other, str(ratio)


def losses(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say the same in words."""
    for mine, other, times in lost(records):
        how = mine["mode"] if mine["library"] == "weft" else f"{mine['library']} {mine['mode']}"
        where = f"{format_size(mine['nbytes'])}, {how}, against {other['library']}"
        yield f"weft loses at {where}: {times} times its latency"
