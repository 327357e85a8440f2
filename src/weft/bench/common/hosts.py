# SPDX-License-Identifier: BSD-3-Clause
"""Dask clusters on the hosts of a lab, and the benchmark beside them: ``weft bench merge --lab two.toml``.

No route leads into a lab, so the benchmark itself runs there: this process builds the lab, starts a scheduler for
each protocol on the first host and workers on all, and starts the benchmark on the first host with the schedulers'
files. It has the same terminal and the same files. What a lab is, is in ``weft.lab``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import lab
from weft.bench.dask.clusters import ClusterError, Place
from weft.errors import InvalidParamError
from weft.lab.command import ended_by_signals

POLL_S = 0.05


def joining(plan: lab.Network) -> int:
    """Return the link that all hosts of `plan` are on, as each worker must reach each other one.

    Raises
    ------
    InvalidParamError
        There are fewer than two hosts, or no such link.
    """
    names = {host.name for host in plan.hosts}
    for i, link in enumerate(plan.cables):
        if len(names) > 1 and set(link.between) == names:
            return i
    raise InvalidParamError(f"--lab: {', '.join(sorted(names))}: there must be two hosts, and one link between all")


def run(args: argparse.Namespace, protocols: Sequence[str], place: Place, child: str) -> int:
    """Build the lab of ``args.lab``, start clusters there, and run the benchmark on the first host.

    Parameters
    ----------
    args : argparse.Namespace
        Of the benchmark; `child` is given it.
    protocols : sequence of str
        One cluster for each.
    place : Place
        How many workers on each host, and of what size.
    child : str
        Python code that calls :func:`given` and then measures.

    Returns
    -------
    int
        The benchmark's status.

    Raises
    ------
    InvalidParamError
        The file describes no lab, or none whose hosts all share a link.
    UnsupportedError
        This is not root, or the kernel permits no lab.
    ClusterError
        A scheduler did not start.
    """
    plan = lab.read(args.lab)
    link = joining(plan)
    first = plan.hosts[0].name
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="weft-") as folder, lab.Lab(plan) as standing:
        files = {protocol: Path(folder, f"{protocol}.json") for protocol in protocols}
        for protocol, file in files.items():
            scheduler = _scheduler(protocol, plan.address(first, cable=link), file)
            _written(file, _start(standing, first, scheduler, file.with_suffix(".log")), args.timeout)
            for host, i in itertools.product(plan.hosts, range(place.workers)):
                name = f"{host.name}-{i}"
                worker = _worker(place, name, plan.address(host.name, cable=link), file)
                _start(standing, host.name, worker, Path(folder, f"{protocol}-{name}.log"))
        where = {p: json.loads(file.read_text())["address"] for p, file in files.items()}
        bench = standing.start(first, [sys.executable, "-c", child], stdin=subprocess.PIPE)
        assert bench.stdin is not None
        with bench.stdin:
            pickle.dump((args, where, len(plan.hosts) * place.workers), bench.stdin)
        return bench.wait()


def given() -> tuple[argparse.Namespace, dict[str, Place]]:
    """Return, in the benchmark's process, what :func:`run` gave it, once all workers are there."""
    from distributed import Client

    args, where, workers = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent
    for protocol, address in where.items():
        try:
            with Client(address, timeout=args.timeout) as client:
                client.wait_for_workers(workers, timeout=args.timeout)
        except (OSError, TimeoutError) as error:
            raise ClusterError(f"{protocol}://: not {workers} workers within {args.timeout:g} s: {error}") from error
    return args, {protocol: Place(address=address) for protocol, address in where.items()}


def described(plan: lab.Network) -> dict[str, Any]:
    """Say for the record what the lab was: each host with its CPUs, each link with its rate and delay."""
    return {
        "hosts": {host.name: {"cpus": host.cpus} for host in plan.hosts},
        "links": [{"between": list(i.between), "rate": i.rate, "delay": i.delay} for i in plan.cables],
    }


def told(record: Mapping[str, Any]) -> str:
    """Say in one line what the lab of a record was; empty if there was none."""
    if not record.get("lab"):
        return ""
    link = next(i for i in record["lab"]["links"] if len(i["between"]) == len(record["lab"]["hosts"]))
    rate, delay = link["rate"] or "no limit of rate", f", {link['delay']} one way" if link["delay"] else ""
    return f"Hosts {', '.join(record['lab']['hosts'])}: namespaces of one machine, joined by a cable ({rate}{delay})"


def _scheduler(protocol: str, address: str, file: Path) -> list[str]:
    where = ["--protocol", protocol, "--host", address, "--port", "0", "--scheduler-file", str(file)]
    return ["distributed.cli.dask_scheduler", *where, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]


def _worker(place: Place, name: str, address: str, file: Path) -> list[str]:
    each = ["--nthreads", str(place.threads), "--memory-limit", str(place.memory_nbytes), "--name", name]
    where = ["--scheduler-file", str(file), "--host", address]
    return ["distributed.cli.dask_worker", *where, *each, "--no-nanny", "--no-dashboard"]


def _start(standing: lab.Lab, host: str, command: Sequence[str], log: Path) -> subprocess.Popen[Any]:
    """Start a process of Dask's, which says only errors, and those into `log`: the screen belongs to the report."""
    quiet = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "error"}
    with log.open("wb") as out:
        # away from the terminal's Ctrl-C: it ends with the lab
        return standing.start(
            host,
            [sys.executable, "-m", *command],
            env=quiet,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def _written(file: Path, scheduler: subprocess.Popen[Any], timeout: float) -> None:
    until = time.monotonic() + timeout
    while not file.exists():
        if scheduler.poll() is not None or time.monotonic() > until:
            last = file.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-1:]
            raise ClusterError(f"the scheduler of {file.stem}:// did not start: {''.join(last)}")
        time.sleep(POLL_S)
