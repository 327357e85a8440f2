#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measure every figure of the README and the docs on this machine, and write them there.

python scripts/benchmarks.py                          # measure (an hour, an idle machine), then draw and write
python scripts/benchmarks.py --only pingpong,dask/merge
python scripts/benchmarks.py --long                   # kills, fuzzing, soaks, tests of others: hours, however busy
python scripts/benchmarks.py --redraw                 # from the records as they are
python scripts/benchmarks.py --quick --into FOLDER    # tiny runs, to see that all of it works; the repository stays

Records go to ``docs/benchmarks/*.json`` and the folders ``dask`` and ``long`` in there, charts beside them, and tables
into the pages, between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``; NAME is one of ``FIGURES``. What
stands there comes from the records alone, so that drawing twice gives the same. Commands and texts of what is no
measurement of speed are in `long_figures.py`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import long_figures
import losses
from overview import Row, overview, rows_of
from whole_jobs import table as whole_jobs_table

from weft._units import format_rate, format_seconds, format_size
from weft.bench.common import environment, stats
from weft.bench.links import table as links_table
from weft.bench.pingpong import table as pingpong_table
from weft.bench.scale import table as scale_table
from weft.bench.sweep import table as sweep_table
from weft.simulate import table as simulate_table

ROOT = Path(__file__).parents[1]
_PAGES = ("benchmarks", "benchmarks/dask", "security", "faults", "dask", "compat-ucx-py", "compatibility")
_PAGES += ("dask-conformance", "rdma", "whole-jobs", "runs-on-it", "compat-ucxx", "simulate", "links", "gpu")
PAGES = ("README.md", *(f"docs/{name}.md" for name in _PAGES))
RECORDS = Path("docs/benchmarks")
Records = Mapping[str, Mapping[str, Any]]

#: Beside both protocols, one process with as many threads, in which nothing moves.
_FLOOR = "--protocol tcp,ucx,inproc"
#: What each record is measured by: the command of weft, or the script, and what makes it tiny.
MEASURED = {
    "pingpong": ("bench pingpong --rounds 5", "--rounds 1 --sizes 8,1MiB --seconds-per-cell 0.02"),
    "peers": ("bench peers --rounds 3 --sizes 8,1MiB,128MiB", "--rounds 1 --sizes 8,1MiB --seconds-per-cell 0.02"),
    "drop_in": (
        "bench peers --rounds 5 --sizes 8,1KiB,64KiB,1MiB,16MiB --libraries tcp,drop-in,ucxx",
        "--rounds 1 --sizes 8,1MiB --seconds-per-cell 0.02",
    ),
    "sweep": ("bench sweep --rounds 3 --sizes 1:64MiB:4", "--rounds 1 --sizes 8,64KiB,1MiB --seconds-per-cell 0.01"),
    "operations": ("scripts/measure_operations.py --rounds 3", "--rounds 1 --only put"),
    "lend": ("scripts/measure_lend.py --rounds 5", "--rounds 1"),
    "tls": ("scripts/measure_tls.py --rounds 3", "--rounds 1 --sizes 8"),
    "start": ("scripts/measure_start.py --rounds 5", "--rounds 1"),
    "memory": ("scripts/measure_broadcast.py --mib 100 --workers 4", "--mib 10 --workers 2"),
    "demo": ("demo --rounds 5", "--rounds 1 --quick"),
    "scale": ("bench scale --rounds 5", "--rounds 1 --workers 2 --idle 0.5"),
    "links_routes": ("bench links route,flows --rounds 1", "--ways learned"),
    "links_fanout": ("bench links fanout,pairs,kill,copies --rounds 1", "--ways learned"),
    "links_reduce": ("bench links reduce --rounds 1", "--ways learned"),
    "links_islands": ("bench links islands --rounds 3 --times 2", "--rounds 1 --ways learned"),
    "links_uniform": ("bench links uniform,one --rounds 3 --times 9", "--rounds 1 --ways learned"),
    "links_tiny": ("bench links tiny --rounds 3", "--rounds 1 --ways learned"),
    "scale_limited": ("bench scale --rounds 1 --workers 16 --ulimit 256", "--workers 2 --idle 0.5"),
    "scale_many": (
        "bench scale --rounds 1 --workers 128 --no-nanny --ulimit 1024 --later 2",
        "--workers 2 --idle 0.5",
    ),
    "scale_lab": ("bench scale --rounds 3 --workers 4,8,16 --lab 16", "--rounds 1 --workers 2 --idle 0.5"),
    "simulate": (
        "simulate dgx1,nd40rs,h100,islands,tree1000,tree10000 "
        "--lab docs/benchmarks/links_fanout.json docs/benchmarks/links_islands.json",
        "--graphs svd --ways stock",
    ),
    "dask/fetch": ("bench fetch --runs 5", "--runs 1 --sizes 1KiB,1MiB"),
    "dask/broadcast": ("bench broadcast --runs 5", "--runs 1 --sizes 1KiB,1MiB"),
    "dask/scatter": ("bench scatter --runs 5", "--runs 1 --sizes 1KiB,1MiB"),
    "dask/gather": ("bench gather --runs 5", "--runs 1 --sizes 1KiB,1MiB"),
    "dask/busy_python": ("bench busy --runs 5", "--runs 1 --sizes 1MiB"),
    "dask/busy_numpy": ("bench busy --runs 5 --beside numpy", "--runs 1 --sizes 1MiB"),
    "dask/tasks": ("bench tasks --runs 2", "--runs 1 --count 100"),
    "dask/shuffle": (f"bench shuffle {_FLOOR} --runs 5", "--runs 1 --partition-size 1MiB"),
    "dask/groupby": (f"bench groupby {_FLOOR} --runs 5", "--runs 1 -c 10_000"),
    "dask/merge": (f"bench merge {_FLOOR} --runs 5", "--runs 1 -c 10_000"),
    "dask/transpose": (f"bench transpose {_FLOOR} --runs 5", "--runs 1 -s 1_000 -c 500"),
    "dask/dot": (f"bench dot {_FLOOR} --runs 5", "--runs 1 -s 1_000 -c 500"),
    "dask/svd": (f"bench svd {_FLOOR} --runs 5", "--runs 1 -s 10_000 -c 2_500"),
}
#: What needs --sources.
_COILED = "uv run --no-sync --with tpchgen-cli python scripts/coiled_benchmarks.py --source SOURCES/benchmarks"
#: Of each kind of Coiled's functions those that move most, and all queries: all of them take hours.
_ROWS = "|".join(
    [
        "query_",
        "dataframe_align",
        "single_future",
        "trivial_workload",
        r"vorticity\[uncompressible",
        r"spilling\[uncompressible-release",
        r"join_big\[0.1",
        r"join_big_small\[1-p2p",
        r"set_index\[0.1-True",
        r"(tiles_to_rows|adjacent_groups|swap_axes_in_memory)\[8.5.MiB-tasks",
        r"swap_axes_out_of_core\[p2p",
    ]
)
#: Those of them that workers of 1 GiB can complete, and that take some seconds.
_ROWS_OF_FOUR = "|".join(
    [
        r"join_big\[0.1",
        r"join_big_small\[1-p2p",
        r"set_index\[0.1-True",
        "dataframe_align",
        r"(adjacent_groups|swap_axes_in_memory)\[8.5.MiB-tasks",
    ]
)
#: Those of them that are run on bad days.
_BAD_DAYS = r"join_big\[0.1|join_big_small\[1-p2p|set_index\[0.1-True|swap_axes_in_memory\[8.5.MiB-tasks"
_TINY = "--rounds 1 --rows query_06 --scale 0.01 --memory 2GiB"
MEASURED |= {
    "whole_jobs": (f"{_COILED} --no-check --rounds 3 --workers 2 --rows {_ROWS}", _TINY),
    "whole_jobs_four": (f"{_COILED} --no-check --rounds 3 --workers 4 --rows {_ROWS_OF_FOUR}", _TINY),
    "whole_jobs_days": (
        f"{_COILED} --protocols tcp,ucx --memory 6GiB --days half,killed,shm --rows {_BAD_DAYS}",
        f"{_TINY} --days shm",
    ),
    "simulate_estee": ("uv run --no-sync python scripts/estee_check.py --source SOURCES/estee", ""),
}
#: What needs a GPU and CuPy, and is measured if it is named.
ON_A_GPU = {"gpu": ("scripts/measure_gpu.py --rounds 3", "--rounds 1")}
COMMANDS = MEASURED | long_figures.MEASURED | ON_A_GPU
MARK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


# --- tables -------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table of Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


def machine(record: Mapping[str, Any]) -> str:
    """Say where and when a record was taken."""
    e = record["environment"]
    dask = (e["packages"] or {}).get("dask")
    named = [e["cpu_model"], f"{e['cores_usable']} cores", f"{e['memory_bytes'] / 2**30:.0f} GiB", e["kernel"]]
    named += [e["python"], *([f"weft {e['weft']}"] if e["weft"] else [])]
    named += [f"UCX {e['ucx']['version']}"] if e["ucx"] else []
    named += [record["gpu"]] if "gpu" in record else []
    named += [f"dask {dask}"] if dask and {"workloads", "nannies", "left_out"} & record.keys() else []
    named += [f"{name}={value}" for name, value in e["ucx_variables"].items()]
    taken = ", ".join([e["date_utc"][:10], *_commits([record]), f"load before {e['load_average'][0]:.1f}"])
    return f"{', '.join(map(str, named))}; {taken}."


def _commits(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name the commits that records were taken of; those of before 2026-11-23 do not say."""
    found = dict.fromkeys(record["environment"].get("commit") for record in records)
    return [f"commit{'s' * (len(found) > 1)} {', '.join(found)}"] if all(found) else []


def machines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say on which machines several records were taken, each once, from when to when, and of which commits."""
    for where, taken in by_machine(records).items():
        days = [record["environment"]["date_utc"][:10] for record in taken]
        yield f"{where}; {', '.join([' to '.join(dict.fromkeys((min(days), max(days)))), *_commits(taken)])}."


def by_machine(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the records of each machine; the kernel's build and Dask's version do not make it another one."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        where = re.sub(r"(Linux [\d.]+)\S*(?=,)|, dask [\d.]+", r"\1", machine(record).partition(";")[0])
        found.setdefault(where, []).append(record)
    return found


def latencies(record: Mapping[str, Any]) -> str:
    """Set the libraries of pingpong or peers below each other: times below 64 KiB, above it GB/s."""
    sizes = list(dict.fromkeys(r["nbytes"] for r in record["records"]))
    found = {(pingpong_table.named(r), r["nbytes"]): r for r in record["records"]}

    def cell(r: Mapping[str, Any] | None) -> str:
        if r is None:
            return "-"
        if r["nbytes"] < 1 << 16 or pingpong_table.named(r).endswith("lent"):  # nothing is moved: no rate
            return stats.format_rounds(r["latency_s"]["round_medians"], median=r["latency_s"]["median"])
        low, high = min(r["latency_s"]["round_medians"]), max(r["latency_s"]["round_medians"])
        gbps = [r["nbytes"] / seconds / 1e9 for seconds in (r["latency_s"]["median"], high, low)]
        return f"{gbps[0]:.3g} GB/s ({gbps[1]:.3g}-{gbps[2]:.3g})"

    names = list(dict.fromkeys(name for name, _ in found))
    rows = [[name, *(cell(found.get((name, nbytes))) for nbytes in sizes)] for name in names]
    gone = [f"Missing: {pingpong_table.named(r)} ({r['reason']})." for r in record.get("missing", ())]
    return "\n".join([table(["", *map(format_size, sizes)], rows), "", " ".join([machine(record), *gone])])


def drop_in(record: Mapping[str, Any]) -> str:
    """Set weft's ucxx beside UCXX: how long a message takes one way, and how many times as long UCXX takes."""
    found = {(r["library"], r["nbytes"]): r["latency_s"] for r in record["records"]}
    sizes = list(dict.fromkeys(nbytes for _, nbytes in found))
    names = [name for name in ("drop-in", "ucxx", "tcp") if any(library == name for library, _ in found)]

    def cell(name: str, nbytes: int) -> str:
        latency = found.get((name, nbytes))
        return "-" if latency is None else stats.format_rounds(latency["round_medians"], median=latency["median"])

    def times(nbytes: int) -> str:
        sides = [found.get((name, nbytes)) for name in ("ucxx", "drop-in")]
        return str(stats.ratio(*(each["round_medians"] for each in sides if each))) if all(sides) else "-"

    rows = [[format_size(nbytes), *(cell(name, nbytes) for name in names), times(nbytes)] for nbytes in sizes]
    head = [pingpong_table.named({"library": name, "mode": ""}) for name in names]
    versions = [f"{name} {version}." for name, version in record["versions"].items()]
    gone = [f"Missing: {pingpong_table.named(r)} ({r['reason']})." for r in record.get("missing", ())]
    table_ = table(["", *head, "UCXX's time / weft's"], rows)
    varied = [
        spread(found, name, whose) for name, whose in (("ucxx", "UCXX's"), ("drop-in", "weft's")) if name in names
    ]
    told = f"Within one size, {', '.join(varied)}."
    return "\n".join([table_, "", told, "", " ".join([*versions, machine(record), *gone])])


def spread(found: Mapping[tuple[str, int], Mapping[str, Any]], library: str, whose: str) -> str:
    """Say for which size a library's rounds differ most, and how many times as long the slowest takes."""
    rounds = {nbytes: latency["round_medians"] for (name, nbytes), latency in found.items() if name == library}
    times, most = max((max(taken) / min(taken), nbytes) for nbytes, taken in rounds.items())
    return f"{whose} slowest round takes up to {times:.2g} times as long as the fastest ({format_size(most)})"


def lost(records: Records) -> str:
    """List where weft takes longer than what it is beside, by more than the rounds differ."""
    rows = losses.rows(records, dask_rows(records))
    return table(["", "weft", "beside", "weft's time / theirs"], rows) if rows else "Nowhere in these records."


def of_dask(records: Records) -> Records:
    """Return the records of Dask's page: those of its own processor."""
    return {n: record for n, record in records.items() if n.startswith("dask/") and not n.endswith("-xeon")}


def dask_rows(records: Records) -> list[Row]:
    """Read all of Dask's records, the greatest gain first; what stands behind a name's hyphen is how it was run."""
    rows = [
        row
        for name, record in of_dask(records).items()
        for row in rows_of(record, name.partition("-")[2].replace("-", " "))
    ]
    return sorted(rows, key=lambda row: (row.wall.value, row.name))


def dask(records: Records) -> str:
    """Set Dask's workloads over both protocols beside each other."""

    def part(ratio: float | None, text: str) -> str:
        return "" if ratio is None else text.format(ratio)

    rows = [
        [
            row.name,
            format_seconds(row.tcp_s),
            format_seconds(row.ucx_s),
            losses.within(row),
            part(row.communication, "{:.2g}"),
            part(row.p2p, "{:.2g}x" if (row.p2p or 0) < 100 else "{:.0f}x"),
        ]
        for row in dask_rows(records)
    ]
    head = ["", "wall clock, tcp", "ucx", "ucx/tcp", "workers receiving, ucx/tcp", "single transfers, ucx/tcp"]
    return "\n".join([table(head, rows), "", *dask_machines(records)])


def walls(rows: Sequence[Row]) -> str:
    """Set the wall clocks of Dask's workloads beside each other."""
    return table(["", "tcp://", "ucx://", "ucx/tcp"], [wall(row) for row in rows])


def wall(row: Row) -> list[str]:
    """Write the wall clocks of one workload."""
    return [row.name, format_seconds(row.tcp_s), format_seconds(row.ucx_s), losses.within(row)]


def dask_machines(records: Records) -> Iterator[str]:
    """Say where Dask's records were taken, how long clusters took to start, and what they use while idle."""
    taken = of_dask(records)
    yield from machines(taken.values())
    for key, name, unit in (
        ("cluster_start_s", "Start of a cluster", "s"),
        ("idle_cpu_percent", "Idle", "% of a core"),
    ):
        parts = []
        for protocol in ("tcp", "ucx"):
            values = [record[key][protocol] for record in taken.values()]
            parts.append(f"{min(values):.2g}-{max(values):.2g} {unit} over {protocol}")
        yield f"{name}: {', '.join(parts)}."
    yield (
        "Every result was checked."
        if all(e["correct"] for record in taken.values() for e in record["workloads"])
        else "**Some results were wrong.**"
    )


def sweep(record: Mapping[str, Any]) -> str:
    """Write the sweep's latency and bandwidth, blocking, a column for each transport; on docs/benchmarks.md only."""
    parts = ["![Latency and bandwidth over sizes, a line for each transport](benchmarks/sweep.svg)", ""]
    for name in ("latency", "bandwidth"):
        figure = sweep_table.FIGURES[name]
        lines = {line: sizes for line, sizes in sweep_table.lines_of(record, name).items() if line[1] == "block"}
        shown = sorted({nbytes for sizes in lines.values() for nbytes in sizes})
        cells = [[format_size(n), *(sweep_table.cell(figure, sizes.get(n)) for sizes in lines.values())] for n in shown]
        heads = [transport for transport, *_ in lines]
        parts += [f"{figure.title} in {figure.unit}, blocking:", "", table(["", *heads], cells), ""]
    return "\n".join([*parts, *(f"- {note}" for note in sweep_table.notes(record)), "", machine(record)])


def scale(record: Mapping[str, Any]) -> str:
    """Set the protocols beside each other, a row for each number of workers, and say which clusters did not come up."""
    parts: list[str] = []
    for amount in (False, True):
        measures = [m for m in scale_table.MEASURES if m.amount == amount]
        head = ["workers", *(f"{m.title}, {' / '.join(record['protocols'])}" for m in measures)]
        parts += [table(head, [[str(n), *(scaled(record, m, n) for m in measures)] for n in record["workers"]]), ""]
    told = [*scale_table.failures(record), *scale_table.notes(record)]
    return "\n".join([*parts, *(f"- {line}" for line in told), "", machine(record)])


def scale_chart(record: Mapping[str, Any]) -> str:
    """Put the chart above the table; on docs/benchmarks.md only."""
    return f"![A cluster's times, memory and descriptors over its workers](benchmarks/scale.svg)\n\n{scale(record)}"


def whole_jobs(record: Mapping[str, Any]) -> str:
    """Set whole jobs over tcp, over ucx and in one process beside each other, those that ucx loses first."""
    told = "\n".join(f"- {note}" for note in whole_jobs_table.notes(record))
    return "\n\n".join([table(*whole_jobs_table.rows(record)), told, machine(record)])


def whole_jobs_days(record: Mapping[str, Any]) -> str:
    """Say how whole jobs fared with half the memory, with a worker killed, and with a small ``/dev/shm``."""
    rows = table(*whole_jobs_table.bad_days(record))
    return f"{rows}\n\n{whole_jobs_table.commits(record)}; {machine(record)}"


#: What the README shows of scale: a measure's name there, its key, and how many of its unit make one.
_SCALE_SHORT = {
    "first all-to-all, ms": ("first_s", 1e3),
    "later ones, ms": ("later_s", 1e3),
    "memory, MiB": ("pss_nbytes", 1 / (1 << 20)),
    "descriptors": ("descriptors", 1),
    "/dev/shm, KiB": ("shm_nbytes", 1 / (1 << 10)),  # noqa: S108 - a name
}


def scale_short(record: Mapping[str, Any]) -> str:
    """Set the medians of both protocols beside each other, a column for each number of workers."""
    measures = {measure.key: measure for measure in scale_table.MEASURES}

    def cell(key: str, times: float, workers: int) -> str:
        found = [scale_table.values(scale_table.entry_of(record, p, workers), measures[key]) for p in ("tcp", "ucx")]
        return "/".join(f"{statistics.median(each) * times:.0f}" if each else "-" for each in found)

    counts = record["workers"]
    rows = [[name, *(cell(*what, n) for n in counts)] for name, what in _SCALE_SHORT.items()]
    return table(["tcp/ucx", f"{counts[0]} workers", *map(str, counts[1:])], rows)


def scaled(record: Mapping[str, Any], measure: scale_table.Measure, workers: int) -> str:
    """Write one measure of all protocols, and how much more the others take, or how many times as much."""
    taken = " / ".join(scale_table.cell(scale_table.entry_of(record, p, workers), measure) for p in record["protocols"])
    beside = [
        scale_table.difference(record, measure, workers, *pair)
        if measure.amount
        else str(scale_table.ratio(record, measure, workers, *pair) or "-")
        for pair in scale_table.others(record)
    ]
    return f"{taken}: {', '.join(beside)}" if beside else taken


def sides(record: Mapping[str, Any]) -> str:
    """Set the times of a script's rows beside each other, and the first over the second; of what is large, the rate."""
    names = list(dict.fromkeys(name for row in record["rows"].values() for name in row))

    def cell(row: str, name: str) -> str:
        seconds, nbytes = record["rows"][row].get(name), record.get("nbytes", {}).get(row, 0)
        if not seconds:
            return "-"
        rate = f", {format_rate(nbytes / statistics.median(seconds))}" if nbytes >= 1 << 20 else ""
        return stats.format_rounds(seconds) + rate

    def ratio(row: Mapping[str, Any]) -> str:
        if len(row) < 2:
            return "-"
        return str(stats.ratio(*(row[name] for name in names[:2])))

    rows = [[row, *(cell(row, name) for name in names), ratio(record["rows"][row])] for row in record["rows"]]
    return "\n".join([table(["", *names, "/".join(names[:2])], rows), "", machine(record)])


def messages_on_a_gpu(record: Mapping[str, Any]) -> str:
    """Set messages between device memories beside each other, and weft's time, awaited or not, over each."""
    sizes = record["messages"]

    def over(taken: Mapping[str, Sequence[float]], name: str) -> str:
        mine = "weft, asyncio" if name.endswith("asyncio") else "weft"
        return "-" if name == mine else str(stats.ratio(taken[mine], taken[name]))

    rows = [
        [name, *(text for taken in sizes.values() for text in (stats.format_rounds(taken[name]), over(taken, name)))]
        for name in next(iter(sizes.values()))
    ]
    head = ["", *(text for size in sizes for text in (size, "weft / row"))]
    return "\n".join([table(head, rows), "", machine(record)])


def dask_on_a_gpu(record: Mapping[str, Any]) -> str:
    """Set Dask's work on arrays in device memory over both protocols, and in one process, beside each other."""
    return sides({**record, "rows": record["dask"], "nbytes": {}})


def lent(record: Mapping[str, Any]) -> str:
    """Say what handing 128 MiB over takes, beside what a copy takes."""
    (taken,) = record["rows"].values()
    lend, send, copy = (stats.format_rounds(taken[name]) for name in ("lend", "send", "a copy in one process"))
    return (
        f"128 MiB are lent, and answered, in {lend}; sent, in {send}; a copy within one process takes {copy}.\n"
        f"({machine(record)})"
    )


#: The README's rows of whole jobs, and the kinds of Coiled's benchmarks that each has.
_WHOLE_JOBS = {
    "whole jobs on arrays": ("array", "rechunk", "spill"),
    "whole jobs on tables": ("join", "dataframe"),
    "queries of TPC-H": ("tpch",),
}


def _five(records: Records, of: str = "") -> Iterator[tuple[str, str, list[str]]]:
    """Yield what each of the README's rows is about, its record and its cells; `of` names a processor.

    Of another processor, those whole jobs count that ended on the first one, too.
    """
    if found := records.get(f"whole_jobs{of}"):
        here = {_job(row) for row in records.get("whole_jobs", found)["rows"] if whole_jobs_table.ratio(row)}
        of_kinds = dict(whole_jobs_table.of_kinds({**found, "rows": [r for r in found["rows"] if _job(r) in here]}))
        for told, kinds in _WHOLE_JOBS.items():
            if jobs := [job for kind in kinds for job in of_kinds.get(kind, ())]:
                tcp_s, ucx_s, ratio = whole_jobs_table.total(jobs)
                yield told, "whole_jobs", [f"{len(jobs)} {told}", f"{tcp_s:.1f} s", f"{ucx_s:.1f} s", str(ratio)]
    for row in rows_of(records[f"dask/tasks{of}"]) if f"dask/tasks{of}" in records else ():
        yield row.name, "dask/tasks", wall(row)
    if found := records.get(f"peers{of}"):
        of_size = {pingpong_table.named(r): r for r in found["records"] if r["nbytes"] == 1 << 20}
        others, ours = (of_size.get(name, {}).get("latency_s") for name in ("TCP socket", "weft.Peer, .wait()"))
        if others and ours:
            times = [stats.format_rounds(one["round_medians"], median=one["median"]) for one in (others, ours)]
            ratio = stats.ratio(ours["round_medians"], others["round_medians"])
            yield "1 MiB", "peers", ["1 MiB, one way, beside a TCP socket", *times, str(ratio)]


def _job(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["name"], row["workers"]


def five(records: Records) -> str:
    """Set the README's figures below each other, those whose records are there, and say which machine each is of.

    The last column has the ratios of the same records of another processor, whose names end in ``-xeon``.
    """
    rows = list(_five(records))
    named = dict.fromkeys([*(name for _, name, _ in rows), *({"scale"} & records.keys())])  # scale's table is beside it
    used = [records[name] for name in named]
    where, lines = list(by_machine(used)), list(machines(used))
    if len(where) > 1:
        for _, name, cells in rows:
            cells[-1] += "¹²³⁴"[where.index(*by_machine([records[name]]))]
        lines = [*map("".join, zip("¹²³⁴", lines, strict=False))]
    head = ["", "tcp:// or TCP", "weft", "ratio"]
    if beside := list(_five(records, "-xeon")):
        head.append("ratio on a Xeon")
        ratios = {told: cells[-1] for told, _, cells in beside}
        rows = [(told, name, [*cells, ratios.get(told, "-")]) for told, name, cells in rows]
        other = dict.fromkeys(f"{name}-xeon" for _, name, _ in beside)
        taken = [line.partition("; ") for line in machines(records[name] for name in other)]
        lines += [f"Last column: {where.partition(',')[0]}; {when}" for where, _, when in taken]
    return "\n\n".join([table(head, [cells for *_, cells in rows]), *lines])


def floor(records: Records) -> str:
    """Set one process, in which nothing moves, beside two over each protocol; the greatest gain over it first."""
    rows: list[tuple[stats.Ratio, list[str]]] = []
    for record in (records[name] for name, (command, _) in MEASURED.items() if _FLOOR in command):
        walls = {e["protocol"]: e["wall_s"] for e in record["workloads"]}
        (name,) = (row.name for row in rows_of(record))
        times = [stats.ratio(walls["ucx"], walls["inproc"]), stats.ratio(walls["inproc"], walls["tcp"])]
        rows.append(
            (times[0], [name, *(stats.format_rounds(walls[p]) for p in ("tcp", "ucx", "inproc")), *map(str, times)])
        )
    head = ["", "tcp", "ucx", "one process", "ucx / one process", "one process / tcp"]
    return table(head, [row for _, row in sorted(rows)])


def start(record: Mapping[str, Any]) -> str:
    """List what comes before the first message."""
    lines = [f"- {name}: {stats.format_rounds(row['weft'])}" for name, row in record["rows"].items()]
    each = (
        f"{record['descriptors_per_process']:.0f} descriptors, {record['resident_nbytes_per_process'] / 2**20:.1f} MiB"
    )
    return "\n".join([*lines, f"- each further process: {each}", "", machine(record)])


def simulated(record: Mapping[str, Any]) -> str:
    """Set each graph's simulated times beside each other, below a title for each network."""
    parts: dict[str, list[list[str]]] = {}
    for title, *row in simulate_table.rows(record):
        parts.setdefault(title, []).append(row)
    return "\n\n".join(f"**{title}**\n\n{table(simulate_table.HEAD[1:], rows)}" for title, rows in parts.items())


def links(record: Mapping[str, Any]) -> str:
    """Set the times of both ways to decide beside each other, and say what failed."""
    cells = [*links_table.rows(record)]
    before = ["", *(row[0] for row in cells)]
    rows = [["" if title == row[0] else row[0], *row[1:]] for title, row in zip(before, cells, strict=False)]
    return "\n\n".join([table(links_table.HEAD, rows), *links_table.failures(record)])


def with_machine(needed: str, make: Callable[[Mapping[str, Any]], str], records: Records) -> str:
    """Write what one record gives, and below it where and when it was taken."""
    return f"{make(records[needed])}\n\n{machine(records[needed])}"


#: What pages may name, and the record that it needs.
FIGURES: dict[str, tuple[str, Callable[[Records], str]]] = {
    "pingpong": ("pingpong", lambda records: latencies(records["pingpong"])),
    "peers": ("peers", lambda records: latencies(records["peers"])),
    "peers-xeon": ("peers-xeon", lambda records: latencies(records["peers-xeon"])),
    "drop-in": ("drop_in", lambda records: drop_in(records["drop_in"])),
    "sweep": ("sweep", lambda records: sweep(records["sweep"])),
    "dask": ("dask/merge", dask),
    "dask-short": ("dask/merge", lambda records: walls(dask_rows(records))),
    "demo": ("demo", lambda records: f"{walls(rows_of(records['demo']))}\n\n{machine(records['demo'])}"),
    "losses": ("pingpong", lost),
    "operations": ("operations", lambda records: sides(records["operations"])),
    "tls": ("tls", lambda records: sides(records["tls"])),
    "gpu-messages": ("gpu", lambda records: messages_on_a_gpu(records["gpu"])),
    "gpu-dask": ("gpu", lambda records: dask_on_a_gpu(records["gpu"])),
    "lend": ("lend", lambda records: lent(records["lend"])),
    "five": ("peers", five),
    "floor": ("dask/merge", floor),
    "simulate": ("simulate", lambda records: simulated(records["simulate"])),
    "simulate-lab": (
        "simulate",
        lambda records: table(simulate_table.LAB_HEAD, [*simulate_table.lab_rows(records["simulate"])]),
    ),
    "start": ("start", lambda records: start(records["start"])),
    "scale": ("scale", lambda records: scale_chart(records["scale"])),
    "scale-short": ("scale", lambda records: scale_short(records["scale"])),
    "scale-table": ("scale", lambda records: scale(records["scale"])),
    "scale-xeon": ("scale-xeon", lambda records: scale(records["scale-xeon"])),
    "scale-limited": ("scale_limited", lambda records: scale(records["scale_limited"])),
    "scale-many": ("scale_many", lambda records: scale(records["scale_many"])),
    "whole-jobs": ("whole_jobs", lambda records: whole_jobs(records["whole_jobs"])),
    "whole-jobs-xeon": ("whole_jobs-xeon", lambda records: whole_jobs(records["whole_jobs-xeon"])),
    "whole-jobs-four": ("whole_jobs_four", lambda records: whole_jobs(records["whole_jobs_four"])),
    "whole-jobs-days": ("whole_jobs_days", lambda records: whole_jobs_days(records["whole_jobs_days"])),
    "whole-jobs-details": (
        "whole_jobs-xeon",
        lambda records: table(*whole_jobs_table.details(records["whole_jobs-xeon"])),
    ),
    "scale-lab": ("scale_lab", lambda records: scale(records["scale_lab"])),
}
for _name in ("links_fanout", "links_reduce", "links_islands", "links_uniform", "links_tiny", "links_routes"):
    FIGURES[_name.replace("_", "-")] = (_name, functools.partial(with_machine, _name, links))
for _name, (_needed, _make) in long_figures.FIGURES.items():
    FIGURES[_name] = (_needed, functools.partial(with_machine, _needed, _make))


def fill(page: str, records: Records) -> str:
    """Return `page` with the tables that its marks name; raise KeyError for a name that there is not."""

    def filled(match: re.Match[str]) -> str:
        needed, make = FIGURES[match[2]]
        text = make(records) if needed in records else "Not measured yet."
        return f"{match[1]}{text}\n{match[3]}"

    return MARK.sub(filled, page)


# --- what is done -------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the records below `folder`, by their path in it without ``.json``."""
    files = [path for pattern in ("*.json", "dask/*.json", "long/*.json") for path in sorted(folder.glob(pattern))]
    return {str(path.relative_to(folder).with_suffix("")): json.loads(path.read_text()) for path in files}


def charts(records: Records) -> Iterator[tuple[str, str]]:
    """Draw every chart of the pages: its name, and its SVG."""
    from weft.bench.charts import pingpong
    from weft.bench.charts import scale as scales
    from weft.bench.charts import sweep as swept
    from weft.bench.charts.drawing import picture
    from weft.simulate import chart as simulations

    for name in ("pingpong", "peers"):
        if name in records:
            yield name, picture(pingpong.chart(records[name]))
    if "sweep" in records:
        kept = [r for r in records["sweep"]["records"] if r["wait"] == "block"]
        yield "sweep", picture(swept.chart({**records["sweep"], "records": kept}, ["latency", "bandwidth"]))
    if "scale" in records:
        yield "scale", picture(scales.chart(records["scale"]))
    if "simulate" in records:
        for name, figure in simulations.figures(records["simulate"]):
            yield name, picture(figure)
    if rows := dask_rows(records):
        yield "dask", picture(overview(rows, records["dask/merge"]))


def write(root: Path) -> None:
    """Draw the charts and fill the pages under `root` from its records."""
    records = read(root / RECORDS)
    for name, text in charts(records):
        (root / RECORDS / f"{name}.svg").write_text(text, encoding="utf-8")
    for page in PAGES:
        path = root / page
        path.write_text(fill(path.read_text(encoding="utf-8"), records), encoding="utf-8")


def measure(
    names: Sequence[str], root: Path, *, quick: bool, wait: bool = False, sources: Path | None = None
) -> list[str]:
    """Take the records of `names`, one after the other; return those that failed.

    The old record of a benchmark that failed stays, and what it wrote lies beside, as NAME.failed: where one run of an
    hour of jobs failed, the rest may be wanted. What a long run finds is published, good or bad.
    """
    failed = []
    for name in names:
        command, tiny = COMMANDS[name]
        taken = root / RECORDS / f"{name}.new"
        taken.parent.mkdir(parents=True, exist_ok=True)
        taken.with_suffix(".failed").unlink(missing_ok=True)
        words = [*command.split(), *(tiny.split() if quick else [])]
        words = [word.replace("SOURCES", str(sources and sources.absolute())) for word in words]
        program = [] if words[0].endswith((".py", "uv")) else ["-m", "weft"]
        print(f"{name}: {'weft ' if program else ''}{' '.join(words)}", flush=True)
        argv = [*([] if words[0] == "uv" else [sys.executable]), *program, *words, "--json", str(taken.absolute())]
        if name in MEASURED and wait:
            _let_load_fall()
        status = subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
        if status or not taken.exists():
            failed.append(name)
        if taken.exists() and (status == 0 or name in long_figures.MEASURED):
            _name_commit(taken)
            taken.replace(taken.with_suffix(".json"))
        if taken.exists():
            taken.replace(taken.with_suffix(".failed"))
    return failed


def _let_load_fall() -> None:
    """Wait until the load of the benchmark before has passed: 128 workers leave 75, which takes four minutes."""
    for _ in range(120):
        if os.getloadavg()[0] <= len(os.sched_getaffinity(0)):
            return
        time.sleep(5)


def _name_commit(taken: Path) -> None:
    """Write this checkout's commit into a record that an installed weft took: it was built from here."""
    record = json.loads(taken.read_text(encoding="utf-8"))
    if "environment" in record and record["environment"].get("commit") is None:
        record["environment"]["commit"] = environment.commit(ROOT / "src")
        taken.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    parser.add_argument("--only", metavar="NAMES", help=f"measure these of {','.join(COMMANDS)}")
    parser.add_argument("--long", action="store_true", help="measure what is named long/ there, and no more")
    parser.add_argument(
        "--sources",
        type=Path,
        metavar="FOLDER",
        help="has checkouts of ucx-py, ucxx, xoscar, hoplite, distributed and benchmarks (Coiled's)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny runs, whose figures mean nothing; with --into")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="leave the repository as it is, and write there")
    parser.add_argument("--busy", action="store_true", help="measure on a busy machine, too")
    args = parser.parse_args(argv)
    names = args.only.split(",") if args.only else list(long_figures.MEASURED if args.long else MEASURED)
    if unknown := [name for name in names if name not in COMMANDS]:
        parser.error(f"--only: no {', '.join(unknown)}")
    if not args.sources and (without := [name for name in names if "SOURCES" in COMMANDS[name][0]]):
        names = [name for name in names if name not in without]
        print(f"left as they are without --sources FOLDER: {', '.join(without)}", file=sys.stderr)
    if args.quick and not args.into:
        parser.error("--quick: its figures mean nothing, give --into FOLDER")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    speed = any(name in MEASURED for name in names)
    if speed and load > cores / 2 and not (args.redraw or args.quick or args.busy):
        parser.error(f"the machine is busy (load {load:.1f} on {cores} cores): wait, or give --busy")
    root = args.into or ROOT
    if args.into:
        if not (root / RECORDS).exists():  # a second run into the folder adds to the first
            shutil.copytree(ROOT / RECORDS, root / RECORDS)
        for page in PAGES:
            shutil.copy(ROOT / page, root / page)
    wait = not (args.quick or args.busy)
    failed = [] if args.redraw else measure(names, root, quick=args.quick, wait=wait, sources=args.sources)
    write(root)
    if failed:
        print(f"failed (the old record stays; NAME.failed has what it wrote): {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
