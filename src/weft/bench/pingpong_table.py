# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft bench pingpong`` shows of its records: the table, and where weft loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.bench import stats
from weft.bench.options import size_text

if TYPE_CHECKING:
    from rich.table import Table

CAPTION = "spread: of the rounds' medians; (low-high): what the rounds' ratios lay within"


def _ratio(record: dict[str, Any], other: dict[str, Any]) -> stats.Ratio:
    return stats.ratio(record["latency_s"]["round_medians"], other["latency_s"]["round_medians"])


def _interval(ratio: stats.Ratio) -> str:
    value, low, high = (f"{bound:.2f}" if bound < 10 else f"{bound:.0f}" for bound in ratio)
    return f"{value} ({low}-{high})"


def _us(seconds: float) -> str:
    us = 1e6 * seconds
    return f"{us:,.0f}" if us >= 100 else f"{us:#.3g}"


def table_of(records: Sequence[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title="one-way latency in us", caption=CAPTION, box=box.SIMPLE_HEAD, padding=0)
    for heading in ("size", "library", "over"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median", "p99", "spread", "GB/s", "to c"):
        table.add_column(heading, justify="right", no_wrap=True)
    for nbytes in dict.fromkeys(record["nbytes"] for record in records):
        table.add_section()
        rows = [record for record in records if record["nbytes"] == nbytes]
        floor = rows[0] if rows[0]["library"] == "c" else None
        for row in rows:
            library = row["library"] if row["library"] != "weft" else f"weft {row['mode']}"
            latency, bandwidth = row["latency_s"], row["bandwidth_Bps"]["median"] / 1e9
            table.add_row(
                size_text(nbytes),
                library,
                row["transport"],
                _us(latency["median"]),
                _us(latency["p99"]),
                f"{latency['spread'] / latency['median']:.0%}",
                f"{bandwidth:.2f}" if bandwidth >= 0.01 else "<0.01",
                _interval(_ratio(row, floor)) if floor and floor is not row else "",
            )
    return table


def losses(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say where weft takes longer than another library, by more than the rounds differ."""
    for mine in (record for record in records if record["library"] == "weft"):
        for other in (record for record in records if record["nbytes"] == mine["nbytes"]):
            ratio = _ratio(mine, other)
            if other["library"] != "weft" and ratio.low > 1:
                where = f"{size_text(mine['nbytes'])}, {mine['mode']}, against {other['library']}"
                yield f"weft loses at {where}: {_interval(ratio)} times its latency"
