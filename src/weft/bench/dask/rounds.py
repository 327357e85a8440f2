# SPDX-License-Identifier: BSD-3-Clause
"""Rounds of Dask work over several protocols in turns, every result checked, and the record of them.

Here live the order and the clock. The work is in ``workloads``, the worker processes in ``clusters``, what is printed
in ``report``; the options are those of ``demo`` and ``loads``.

One cluster per protocol is started at the beginning and stays until the end, so that rounds can alternate within a
second and all protocols meet the same state of the machine. The price: while one cluster works the others idle
beside it, with whatever CPU time that costs (the report shows it).
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from weft import _distribution, _open_files
from weft.bench.common import outcome
from weft.bench.common.environment import collect
from weft.bench.common.errors import BenchError
from weft.bench.dask import report
from weft.bench.dask.clusters import Cluster, Deployment, idle_cpu, named, refuse_address, refuse_unknown, running

if TYPE_CHECKING:
    from weft.bench.dask.workloads import Workload


#: What tables take, besides what arrays do.
TABLES = ("pandas", "pyarrow")
#: What brings the packages that a GPU's work takes; ``weft-ucx[demo]`` brings all others.
WHEELS = {"cupy": "cupy-cuda12x", "cudf": "cudf-cu12", "dask_cudf": "dask-cudf-cu12"}


class Schedule(NamedTuple):
    """How often and how long: `timeout_s` is for any one step, transfers below `ignore_nbytes` do not count."""

    rounds: int
    warm_ups: int
    timeout_s: float
    idle_s: float
    ignore_nbytes: int = report.P2P_MIN_NBYTES


def measure(
    build: Callable[[int], list[Workload]], deployments: Mapping[str, Deployment], schedule: Schedule, console: Console
) -> dict[str, Any]:
    """Run everything under a progress bar and return the record.

    Parameters
    ----------
    build : callable
        Makes the workloads for a number of workers.
    deployments : mapping of str to Deployment
        By protocol, in the order to take turns in.
    schedule : Schedule
    console : rich.console.Console
        For the progress bar, which is shown in a terminal only.

    Returns
    -------
    dict
        Ready for JSON but for what the command adds.

    Raises
    ------
    UsageError
        Dask does not know a protocol.
    BenchError
        A step failed, or did not end in time.
    """
    refuse_unknown(deployments)
    for deployment in deployments.values():
        if deployment.address:
            refuse_address(deployment.address)
    environment = collect()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar as progress, contextlib.ExitStack() as stack:
        task = progress.add_task("idle, no cluster yet", total=None)
        done = itertools.count()

        def step(description: str) -> None:
            progress.update(task, description=description, completed=next(done))

        alone = idle_cpu(schedule.idle_s)
        clusters: list[Cluster] = []
        expected: list[tuple[Workload, Any]] = []
        rounds: dict[tuple[str, str], list[report.Round]] = {}
        for protocol, deployment in deployments.items():
            step(f"{protocol}://: starting")
            cluster = stack.enter_context(running(protocol, schedule.timeout_s, deployment))
            clusters.append(cluster)
            if not expected:
                workloads = build(len(cluster.workers))
                each = 1 + len(deployments) * (schedule.warm_ups + schedule.rounds)
                progress.update(task, total=len(workloads) * each + 2 * len(deployments) + 1)
                for workload in workloads:
                    step(f"{workload.name}: what must come out")
                    expected.append((workload, workload.reference()))
            for workload, value in expected:
                taken = rounds[workload.name, protocol] = []
                for _ in range(schedule.warm_ups):
                    step(f"{workload.name} over {protocol}://, warm-up")
                    taken.append(one_round(cluster, workload, value, schedule.timeout_s))
            step(f"{protocol}://: idle")
            with named(f"{protocol}://: idle CPU time not measured", schedule.timeout_s):
                alone = cluster.measure_idle(alone, schedule.idle_s)
        for workload, value in expected:
            for i, cluster in itertools.product(range(schedule.rounds), clusters):
                step(f"{workload.name} over {cluster.protocol}://, round {i + 1}")
                rounds[workload.name, cluster.protocol].append(one_round(cluster, workload, value, schedule.timeout_s))
        entries = [
            report.entry(
                workload,
                cluster.protocol,
                rounds=rounds[workload.name, cluster.protocol][schedule.warm_ups :],
                warm_ups=rounds[workload.name, cluster.protocol][: schedule.warm_ups],
                workers=cluster.workers,
                threads=cluster.threads,
                lanes=cluster.lanes(schedule.timeout_s),
                ignore_nbytes=schedule.ignore_nbytes,
            )
            for workload, _ in expected
            for cluster in clusters
        ]
        step("stopping the clusters")
    return {
        "rounds": schedule.rounds,
        "protocols": list(deployments),
        "here": all(deployment.here for deployment in deployments.values()),
        "workloads": entries,
        "idle_cpu_percent": {c.protocol: sum(c.idle_cpu.values()) for c in clusters},
        "idle_cpu_percent_by_process": {c.protocol: c.idle_cpu for c in clusters},
        "cluster_start_s": {c.protocol: c.start_s for c in clusters},
        "environment": environment,
    }


def one_round(cluster: Cluster, workload: Workload, expected: Any, timeout_s: float) -> report.Round:
    """Do `workload` once on fresh inputs and compare its result."""
    client, where = cluster.client, f"{workload.name} over {cluster.protocol}://"
    with named(f"{where}: inputs not ready", timeout_s):
        inputs = workload.prepare(client, cluster.workers, timeout_s)
        before = cluster.read()
    with named(f"{where} did not finish", timeout_s):
        begin = time.perf_counter()
        computed = workload.compute(client, inputs, timeout_s)
        wall_s = time.perf_counter() - begin
        after = cluster.read()
        result = workload.result(client, computed, timeout_s)
    index = {address: i for i, address in enumerate(cluster.workers)}
    return report.Round(
        wall_s,
        [
            report.Transfer(receiver, index[t["who"]], t["nbytes"], t["duration_s"], t["start_s"])
            for receiver, worker in enumerate(after.workers)
            for t in worker["transfers"]
        ],
        workload.difference(result, expected),
        int(after.total("borrowed_nbytes") - before.total("borrowed_nbytes")),
        after.total("cpu_s") - before.total("cpu_s"),
        after.rest_cpu_s - before.rest_cpu_s,
    )


def refuse(packages: Iterable[str], *paths: Path | None) -> None:
    """Raise for packages that Dask's arrays, and `packages` besides, would miss, and for files that cannot be written.

    Before anything starts: a missing matplotlib must not cost the newcomer the minute that the rounds took.
    """
    needed = ["numpy", "dask", "distributed", *packages]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        wheels = " ".join(WHEELS[name] for name in missing if name in WHEELS)
        ours = set(missing) - set(WHEELS)
        own = [_distribution.install("demo" if ours & set(packages) else "dask")] if ours else []
        others = [f"pip install {wheels} (with CUDA 13: {wheels.replace('12', '13')})"] if wheels else []
        raise BenchError(f"{', '.join(missing)} not installed: {'; '.join([*own, *others])}")
    outcome.refuse_files(*paths)


def reported(command: str, work: Callable[[], dict[str, Any] | int]) -> int:
    """Do `work`, which returns a record, or the status of who reported already, and say on stderr what went wrong.

    Returns
    -------
    int
        0: every result was right. 1: one was not, or a step failed; the reason is the last line on stderr. 130:
        interrupted. The clusters are gone in each case.
    """
    errors = outcome.notes()
    _open_files.raise_limit()  # a cluster's processes inherit it

    def status() -> int:
        record = work()
        if isinstance(record, int):
            return record
        wrong = [e for e in record["workloads"] if not e["correct"]]
        for e in wrong:
            errors.print(f"{command}: wrong result: {e['name']} over {e['protocol']}://: {e['difference']}")
        return 1 if wrong else 0

    return outcome.reported(command, status)
