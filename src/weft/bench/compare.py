# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench compare``: two records of the same benchmark, row by row.

A row's figure is a time, so that a ratio above 1 is slower, in every benchmark; what scale reads of memory and
descriptors is left out. The two records come from different
runs, at different times or on different machines: no round of one has a neighbour in the other. So a ratio lies
between the best of B over the worst of A and the reverse, and is told apart from 1 only where every round of one was
on the same side of every round of the other. One round tells nothing of that: then there is the ratio alone.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from weft import _options
from weft._options import positive
from weft._units import format_ratio, format_seconds, format_size
from weft.bench.common import options, outcome
from weft.bench.common.errors import UsageError
from weft.bench.common.stats import Ratio
from weft.bench.scale import table as scale_table

DESCRIPTION = """
Compare two records of the same benchmark row by row: B's times over A's. A row counts as slower or faster only where
every round of one was on the same side of every round of the other.
"""
EXAMPLES = ("weft bench compare before.json after.json", "weft bench compare before.json after.json --fail-above 1.2")

#: What two runs should share before their ratio means anything.
SURROUNDINGS = ("cpu_model", "cores_usable", "cores_pinned", "kernel", "python", "weft", "ucx", "ucx_variables")
#: What a row is told by, of each kind of record; all others are of Dask's work.
NAMES = {
    "bench sweep": ("measure", "over", "wait", "memory", "size"),
    "bench pingpong": ("library", "mode", "over", "size"),
    "bench scale": ("measure", "workers", "protocol"),
}


class Row(NamedTuple):
    """One row of a comparison: what was measured, and B's times over A's."""

    key: tuple[str, ...]
    a_s: float
    b_s: float
    ratio: Ratio
    rounds: int

    def slower(self, above: float) -> bool:
        """Tell whether B takes more than `above` times as long, and no round of B was as fast as one of A."""
        return self.ratio.value > above and self.ratio.low > 1

    def verdict(self) -> str:
        """Say who is faster, where the rounds can tell."""
        if self.rounds == 1:
            return ""
        return "slower" if self.ratio.low > 1 else "faster" if self.ratio.high < 1 else ""

    def within(self) -> str:
        """Write what the ratio lies within."""
        return f"{format_ratio(self.ratio.low)}-{format_ratio(self.ratio.high)}" if self.rounds > 1 else "one round"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    parser.add_argument("a", type=Path, metavar="A", help="the earlier record, the base of the ratios")
    parser.add_argument("b", type=Path, metavar="B", help="the later record")
    above = "exit with 1 if a row of B takes more than RATIO times as long as A's, and all its rounds are slower"
    parser.add_argument("--fail-above", type=functools.partial(positive, float), metavar="RATIO", help=above)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Compare two records; return 1 if that cannot be done, or if a row is slower than asked for."""
    return outcome.reported("weft bench compare", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    notes = outcome.notes()
    (kind, a, times_a), (other, b, times_b) = _read(args.a), _read(args.b)
    if kind != other:
        raise UsageError(f"{args.a.name} is of weft {kind}, {args.b.name} of weft {other}: nothing to compare")
    rows, alone = compare(times_a, times_b)
    if not rows:
        raise UsageError(f"{args.a.name} and {args.b.name} have no row in common")
    remarks = [*_remarks(a, b, rows, alone, args.a.name, args.b.name)]
    with outcome.written(args.json, _record(kind, rows, remarks)) as text:
        if text:
            console = _options.console(args.color)
            _options.print_whole(console, _table(kind, rows, args.a.name, args.b.name))
            for line in remarks:
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    slower = [row for row in rows if args.fail_above is not None and row.slower(args.fail_above)]
    for row in slower:
        ratio = f"{format_ratio(row.ratio.value)} ({row.within()})"
        notes.print(f"slower than {args.fail_above:g} times: {' '.join(row.key)}: {ratio}")
    return 1 if slower else 0


def _read(path: Path) -> tuple[str, dict[str, Any], dict[tuple[str, ...], list[float]]]:
    """Read a record, and tell whose it is and its times."""
    with outcome.of_a_benchmark(path, "compared"):
        kind, record = read(path)
        record["environment"].keys()  # all benchmarks' records have it
        return kind, record, times(kind, record)


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """Read a record and tell whose it is: ``"demo"``, ``"bench merge"``, ``"bench sweep"``, ``"bench pingpong"``..."""
    record = outcome.read_record(path)
    if "workloads" in record:
        return str(record.get("command", "weft demo")).removeprefix("weft "), record
    first = outcome.first_row(record)
    if "measure" in first:
        return "bench sweep", record
    if "latency_s" in first:
        return "bench pingpong", record
    if "runs" in first:
        return "bench scale", record
    raise UsageError(f"{path} is not a record of Dask's work, bench sweep, pingpong or scale, or has no rows")


def times(kind: str, record: Mapping[str, Any]) -> dict[tuple[str, ...], list[float]]:
    """List a record's times in seconds, one for each round, by what was measured."""
    if "workloads" in record:
        return {(e["name"], f"{e['protocol']}://"): e["wall_s"] for e in record["workloads"]}
    if kind == "bench scale":
        return scale_table.times(record)
    names = ("library", "mode", "transport") if kind == "bench pingpong" else ("measure", "transport", "wait", "memory")
    summary = "latency_s" if kind == "bench pingpong" else "seconds"
    return {
        (*(r[name] for name in names), format_size(r["nbytes"])): r[summary]["round_medians"] for r in record["records"]
    }


def compare(
    a: Mapping[tuple[str, ...], Sequence[float]], b: Mapping[tuple[str, ...], Sequence[float]]
) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Divide B's times by A's where both have a row; return those rows, and the keys that only one has."""
    rows: list[Row] = []
    for key in a:
        if key in b:
            middle_a, middle_b = statistics.median(a[key]), statistics.median(b[key])
            ratio = Ratio(middle_b / middle_a, min(b[key]) / max(a[key]), max(b[key]) / min(a[key]))
            rows.append(Row(key, middle_a, middle_b, ratio, min(len(a[key]), len(b[key]))))
    return rows, [key for key in (*a, *b) if (key in a) != (key in b)]


def _record(kind: str, rows: Sequence[Row], remarks: Sequence[str]) -> dict[str, Any]:
    names = NAMES.get(kind, ("workload", "protocol"))
    written = [
        {
            **dict(zip(names, row.key, strict=True)),
            "a_s": row.a_s,
            "b_s": row.b_s,
            "rounds": row.rounds,
            "verdict": row.verdict(),
            "ratio": row.ratio._asdict(),
        }
        for row in rows
    ]
    return {"command": "weft bench compare", "benchmark": f"weft {kind}", "rows": written, "remarks": list(remarks)}


def _table(kind: str, rows: Sequence[Row], a: str, b: str) -> Table:
    # what all rows share is said once
    names = NAMES.get(kind, ("workload", "protocol"))
    shown = [i for i in range(len(names)) if len(rows) == 1 or len({row.key[i] for row in rows}) > 1]
    shared = [rows[0].key[i] for i in range(len(names)) if i not in shown]
    title = f"weft {kind}{''.join(f', {value}' for value in shared)}: A is {a}, B is {b}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i in shown:
        table.add_column(names[i], overflow="fold", justify="right" if names[i] == "size" else "left")
    for heading in ("A", "B", "B/A", "within"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("B is", no_wrap=True)
    for row in rows:
        times = format_seconds(row.a_s), format_seconds(row.b_s)
        ratio = format_ratio(row.ratio.value), row.within(), row.verdict()
        table.add_row(*(row.key[i] for i in shown), *times, *ratio)
    return table


def _remarks(
    a: Mapping[str, Any], b: Mapping[str, Any], rows: Sequence[Row], alone: Sequence[tuple[str, ...]], *names: str
) -> Iterator[str]:
    yield "Times; B/A above 1: B is slower. Within: the best round of one over the worst of the other."
    whole = statistics.geometric_mean([row.ratio.value for row in rows])
    yield f"All {len(rows)} rows together (geometric mean): {format_ratio(whole)}"
    if alone:
        shown = ", ".join(" ".join(key) for key in alone[:4])
        yield f"In one record only: {len(alone)} rows ({shown}{', ...' if len(alone) > 4 else ''})"
    others = {(each["name"], each["protocol"]): each["parameters"] for each in b.get("workloads", ())}
    unlike: dict[str, str] = {}  # once for all protocols
    for each in a.get("workloads", ()):
        mine, theirs = each["parameters"], others.get((each["name"], each["protocol"]), each["parameters"])
        if mine != theirs:
            unlike.setdefault(each["name"], f"{mine} in {names[0]}, {theirs} in {names[1]}")
    yield from (f"Not alike: {name}: {text}" for name, text in unlike.items())
    for name in SURROUNDINGS:
        mine, theirs = a["environment"].get(name), b["environment"].get(name)
        if mine != theirs:
            yield f"Not alike: {name}: {mine} in {names[0]}, {theirs} in {names[1]}"
