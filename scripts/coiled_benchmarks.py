#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Run Coiled's public benchmark functions, unchanged, over tcp, over ucx, and in one process where nothing moves.

    git clone https://github.com/coiled/benchmarks
    python scripts/coiled_benchmarks.py --source benchmarks --list
    python scripts/coiled_benchmarks.py --source benchmarks --rows 'vorticity|join_big' --json record.json
    python scripts/coiled_benchmarks.py --source benchmarks --rows spilling --days half,killed,shm --json days.json

TPC-H's queries read tables that tpchgen-cli makes (``pip install tpchgen-cli``), of ``--scale``.

Each run has a fresh cluster on this machine, which TPC-H's queries share. Rounds take turns: tcp, ucx, inproc, tcp and
so on. inproc is one process with as many threads as all workers have together: what a job takes there, it would take if
moving cost nothing. The functions size their data by the memory of the cluster, ``--memory``, the same for each number
of workers.

It prints a line for each run and a table at the end. The status is 1 if a run failed or results differ.

The functions are Coiled's (BSD-3-Clause) and none of their text is here.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whole_jobs import days, run, table, tpch
from whole_jobs.asked import Asked

from weft._options import protocols
from weft.bench.common import environment, options, outcome
from weft.bench.common.errors import BenchError

FILES = tuple(
    f"tests/benchmarks/test_{name}.py"
    for name in ("array", "rechunk", "join", "dataframe", "spill", "futures", "work_stealing", "custom")
)
TPCH = "tests/tpch/test_dask.py"
#: Coiled's options for TPC-H, and what its cluster there is configured with.
TPCH_OPTIONS = ("--local", "--no-restart")
TPCH_CONFIG = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf"}

#: Functions that are run only if --rows names them, and why.
LEFT_OUT = {
    r"uber_lyft": "reads a public bucket of Amazon's",
    r"basic_sum\[slow": "sleeps for half a second in each task",
    r"memory_efficient": "sleeps for two seconds in each of 100 chains of tasks",
    r"jobqueue": "sleeps",
    r"work_stealing_on": "sleeps, in clusters of its own or for many minutes",
}


def name_of(node: str) -> str:
    """Shorten pytest's id: ``tests/benchmarks/test_join.py::test_join_big[1]`` is ``join: join_big[1]``."""
    path, _, function = node.partition("::")
    kind = "tpch" if path == TPCH else Path(path).stem.removeprefix("test_")
    return f"{kind}: {function.removeprefix('test_')}"


def chosen(nodes: list[str], pattern: str | None) -> dict[str, str]:
    """Return the ids of the rows to run by their names."""
    named = {name_of(node): node for node in nodes}
    if pattern is None:
        return {name: node for name, node in named.items() if not any(re.search(out, name) for out in LEFT_OUT)}
    return {name: node for name, node in named.items() if re.search(pattern, name)}


def _commit(folder: Path) -> str | None:
    """Return the commit of a checkout; None if it is none."""
    git = shutil.which("git") or "git"
    done = subprocess.run([git, "-C", str(folder), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or None


def _taken(path: Path, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that a record of the same kind of runs has."""
    if not path.is_file():
        return []
    record = json.loads(path.read_text())
    alike = ("protocols", "threads", "memory", "scale", "commits")
    differing = [name for name in alike if record[name] != asked[name]]
    if differing:
        raise BenchError(f"{path} has rows of other runs: {', '.join(differing)} differ")
    asked["rounds"] = max(asked["rounds"], record["rounds"])
    return list(record["rows"])


class Rounds:
    """Runs of all rows, and the record of them."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder, self._arguments = folder, arguments
        self.record: dict[str, Any] = {
            name: getattr(arguments, name) for name in ("protocols", "rounds", "threads", "memory", "scale")
        }
        self.record |= {"rows": [], "left_out": LEFT_OUT, "environment": environment.collect()}
        self.record["commits"] = {
            "weft": _commit(Path(__file__).parent),
            "coiled/benchmarks": _commit(arguments.source),
        }
        if arguments.add:
            self.record["rows"] = _taken(arguments.json, self.record)

    def rows(self, named: dict[str, str], workers: int) -> None:
        """Run functions in turns, one after the other on one cluster: what the record lacks of them."""
        rows = {name: self._row(name, workers, days.PLAIN) for name in named}
        for number in range(self._arguments.rounds):
            for protocol in self._arguments.protocols:
                lacking = [name for name in rows if len(rows[name]["runs"][protocol]) <= number]
                ran = self._run([named[name] for name in lacking], Asked(protocol, workers)) if lacking else {}
                for name in lacking:
                    found = ran[named[name]]
                    print(table.line(name, protocol, number + 1, found), flush=True)
                    if "skipped" in found:
                        self.record["rows"].remove(rows.pop(name))
                    else:
                        rows[name]["runs"][protocol].append(found)
                self._write()
        if not self._arguments.no_check:
            for row in rows.values():
                self._check(row, named[row["name"]])

    def _check(self, row: dict[str, Any], node: str) -> None:
        """Compare in one more run what the rounds did not look at."""
        lacking = [protocol for protocol in self._arguments.protocols if protocol not in row["checks"]]
        if not any(found.get("unchecked") for found in table.runs(row)):
            return
        for protocol in lacking:
            row["checks"][protocol] = self._run([node], Asked(protocol, row["workers"], check=True))[node]
            print(table.line(row["name"], protocol, 0, row["checks"][protocol]), flush=True)
            self._write()

    def bad_days(self, named: dict[str, str], workers: int) -> None:
        """Run functions on a plain day, whose results count, and on bad ones."""
        for protocol in self._arguments.protocols:
            every: dict[str, dict[str, Any]] = {}
            for day in (days.PLAIN, *self._arguments.days):
                rows = {name: self._row(name, workers, day) for name in named}
                every = rows if day == days.PLAIN else every
                if all(protocol in row["checks"] for row in rows.values()):
                    continue
                if day == days.KILLED and protocol == table.FLOOR:
                    continue  # it has no other process
                # in mid-job: half of what it had done at its end on the plain day
                before = [row["checks"].get(protocol, {}).get("ended_tasks", 0) for row in every.values()]
                after = max(before, default=0) // 2 if day == days.KILLED else 0
                ran = self._run(list(named.values()), Asked(protocol, workers, check=True, day=day, kill_after=after))
                for name, row in rows.items():
                    row["checks"][protocol] = ran[named[name]]
                    print(table.line(f"{name} {day}", protocol, 0, row["checks"][protocol]), flush=True)
                self._write()

    def _row(self, name: str, workers: int, day: str) -> dict[str, Any]:
        """Find a row in the record, or add it."""
        rows: list[dict[str, Any]] = self.record["rows"]
        key: dict[str, Any] = {"name": name, "workers": workers, "day": day}
        for row in rows:
            if all(row[name] == value for name, value in key.items()):
                return row
        row = key | {"runs": {protocol: [] for protocol in self._arguments.protocols}, "checks": {}}
        rows.append(row)
        return row

    def _write(self) -> None:
        for row in self.record["rows"]:
            row["difference"] = table.difference(row)
        outcome.write_record(self._arguments.json, self.record)

    def _run(self, nodes: list[str], asked: Asked) -> dict[str, dict[str, Any]]:
        a = self._arguments
        asked = replace(asked, threads=a.threads, memory_nbytes=a.memory, outcome=str(self._folder / "outcome.json"))
        if not nodes[0].startswith(TPCH):
            return run.measure(self._folder, nodes, asked, a.timeout)
        asked = replace(asked, tpch=str(self._tables()), scale=a.scale)
        return run.measure(self._folder, nodes, asked, a.timeout, TPCH_OPTIONS, TPCH_CONFIG)

    def _tables(self) -> Path:
        """Return the folder with TPC-H's tables."""
        return tpch.generated((self._arguments.data or self._folder / "tpch").resolve(), self._arguments.scale)


def together(rows: dict[str, str]) -> list[dict[str, str]]:
    """Return the rows that share a cluster: each has its own, but TPC-H's queries share one, as Coiled's do."""
    queries = {name: node for name, node in rows.items() if node.startswith(TPCH)}
    return [*({name: node} for name, node in rows.items() if name not in queries), *([queries] if queries else [])]


def _numbers(text: str) -> list[int]:
    return [options.whole(each) for each in text.split(",")]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a checkout of coiled/benchmarks")
    parser.add_argument("--rows", metavar="PATTERN", help="only rows whose name has this regular expression")
    parser.add_argument("--list", action="store_true", help="print the rows' names and stop")
    parser.add_argument("--protocols", type=protocols, default="tcp,ucx,inproc", help="(default: %(default)s)")
    parser.add_argument("--workers", type=_numbers, default="2", metavar="N,...", help="(%(default)s)")
    parser.add_argument("--threads", type=options.whole, default=1, metavar="N", help="of each worker (%(default)s)")
    text = "of all workers together; the data is made to fit (%(default)s)"
    parser.add_argument("--memory", type=options.size, default="4GiB", help=text)
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H's tables; 1 is about 1 GB (%(default)g)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep TPC-H's tables there, or use those that are")
    text = f"no rounds: one plain day's run, not timed, and one each of {', '.join(days.DAYS)}, given with commas"
    parser.add_argument("--days", type=days.days, default=[], metavar="DAYS", help=text)
    parser.add_argument("--no-check", action="store_true", help="do not run again to check what is thrown away")
    options.add_rounds(parser, 3)
    options.add_timeout(parser, 600, "seconds for any one run")
    options.add_json(parser)
    parser.add_argument("--add", action="store_true", help="add to the record of --json what it lacks")
    return parser.parse_args(argv)


def main() -> int:
    arguments = parse()
    # also where a shell started this in the background and so has it ignore the first
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if arguments.add and not arguments.json:
        raise BenchError("--add needs a record: --json FILE")
    outcome.refuse_files(arguments.json)
    with run.checkout(arguments.source) as folder:
        nodes = [*run.collect(folder, FILES), *run.collect(folder, [TPCH], TPCH_OPTIONS)]
        rows = chosen(nodes, arguments.rows)
        if not rows:
            raise BenchError(f"no row has {arguments.rows!r} in its name: see --list")
        if arguments.list:
            print("\n".join(rows))
            return 0
        rounds = Rounds(folder, arguments)
        for workers in arguments.workers:
            for named in together(rows):
                (rounds.bad_days if arguments.days else rounds.rows)(named, workers)
    print(f"\n{table.text(rounds.record)}")
    return 1 if table.wrong(rounds.record) else 0


if __name__ == "__main__":
    sys.exit(outcome.reported("coiled_benchmarks.py", main))
