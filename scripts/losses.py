# SPDX-License-Identifier: BSD-3-Clause
"""Where weft loses, by the records of ``benchmarks.py``. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from overview import Row, rows_of

from weft._units import format_size
from weft.bench.common import stats
from weft.bench.pingpong import table as pingpong_table
from weft.bench.scale import table as scale_table

Record = Mapping[str, Any]
_OVER_TCP = "the same over tcp"


def within(row: Row) -> str:
    """Write a ratio of wall clocks and what its rounds lay within, in bold where ucx:// loses."""
    return re.sub(r"^\S+", r"**\g<0>**", str(row.wall)) if row.wall.low > 1 else str(row.wall)


def rows(records: Mapping[str, Record], dask: Iterable[Row]) -> list[list[str]]:
    """Return what was done, by which side of weft, beside what, and how many times as long it took."""
    found = [
        [
            f"{_named(name)}, {format_size(mine['nbytes'])}",
            pingpong_table.named(mine),
            pingpong_table.named(other),
            times,
        ]
        for name, record in records.items()
        if _kind(name) in ("pingpong", "peers")
        for mine, other, times in pingpong_table.lost(record["records"])
    ]
    found += _beside(records.get("operations"), "ucx_perftest", "")
    found += _beside(records.get("tls"), "asyncio", ", TLS")
    demo = rows_of(records["demo"]) if "demo" in records else []
    for where, every in (("Dask", dask), ("`weft demo`", demo)):
        found += [[where, row.name, _OVER_TCP, within(row)] for row in every if row.wall.high >= 1]
    for name, record in records.items():
        if _kind(name) == "scale":
            found += [[_named(name), *row] for row in _scale(record)]
    return found


def _kind(name: str) -> str:
    return re.split("[-_]", name)[0]


def _named(name: str) -> str:
    """Name a record: ``peers-xeon`` is peers on xeon."""
    return name.replace("-", " on ").replace("_", " ")


def _beside(record: Record | None, other: str, how: str) -> Iterator[list[str]]:
    for name, sides in record["rows"].items() if record else ():
        if other in sides and (times := stats.ratio(sides["weft"], sides[other])).low > 1:
            yield [f"{name}{how}", "weft", other, str(times)]


def _scale(record: Record) -> Iterator[list[str]]:
    for measure in (m for m in scale_table.MEASURES if m.key.endswith("_s")):
        for workers in record["workers"]:
            ratio = scale_table.ratio(record, measure, workers, "ucx", "tcp")
            if ratio and ratio.low > 1:
                yield [f"{measure.title}, {workers} workers", _OVER_TCP, str(ratio)]
