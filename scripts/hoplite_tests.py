# SPDX-License-Identifier: BSD-3-Clause
"""Run Hoplite's collectives for Dask, unchanged, over tcp and over weft, on a lab of nine hosts.

    python scripts/hoplite_tests.py --source DIR [--rev REV] [--sizes 2097152] [--rounds N] [--json FILE]

DIR is a checkout of Hoplite (``git clone https://github.com/suquark/hoplite``), or a bare git directory, of which REV
is taken. Of it ``dask_benchmark.py`` is run: multicast, gather, reduce and allreduce of one array for each worker. It
connects to 127.0.0.1:8786; which protocol that is, Dask's configuration says (``distributed.comm.default-scheme``).

The first host has the scheduler and the program, each of the others a worker; see ``weft.lab`` for what that takes. In
each round every protocol has a cluster of its own, in turn, so that a change of the machine's speed meets both.

Sizes from 2 MiB fit two cores: of an array of at most 1 MiB Hoplite multicasts 1300, that is 10,400 tasks, which take
more than 100 s of CPU time whatever the protocol; of a larger one, 130 up to 16 MiB, and 20 above.

The status is 1 if the program fails once, 2 if nothing could be run. It is Hoplite's (Apache-2.0); none of it is here.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import drop_in

import weft
from weft import lab
from weft._units import format_seconds, format_size
from weft.bench.common import environment, lab_hosts
from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record
from weft.lab.command import ended_by_signals

PROGRAM = "microbenchmarks/dask-python/dask_benchmark.py"
COLLECTIVES = ("multicast", "gather", "reduce", "allreduce")
START_S = 120.0
CELL_S = 600.0
PORT = 8786


@dataclasses.dataclass
class Outcome:
    """What came of all cells: by cell and protocol, the seconds of each round, and why it failed."""

    seconds: dict[str, dict[str, list[float]]] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


def network(workers: int, rate: str | None) -> lab.Network:
    """Describe the lab: a host for the scheduler, and one for each worker, on one switch."""
    names = [f"h{i}" for i in range(workers + 1)]
    cable: dict[str, Any] = {"between": names} | ({"rate": rate} if rate else {})
    return lab.parse({"hosts": {name: {} for name in names}, "links": [cable]})


def start_cluster(standing: lab.Lab, protocol: str, workers: int, folder: Path) -> dict[str, str]:
    """Start Dask on the lab, which ends it, too; return the environment for its client."""
    env = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "error", "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": protocol}

    def start(host: str, *command: str) -> None:
        argv = [sys.executable, "-m", *command, "--no-dashboard"]
        with (folder / f"{protocol}-{host}.log").open("wb") as log:
            standing.start(host, argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    start("h0", "distributed.cli.dask_scheduler", "--protocol", protocol, "--port", str(PORT))
    where = f"{protocol}://{standing.address('h0')}:{PORT}"
    for i in range(workers):
        host = f"h{i + 1}"
        options = ["--name", f"Dask-{i}", "--host", standing.address(host), "--nthreads", "1", "--no-nanny"]
        start(host, "distributed.cli.dask_worker", where, *options, "--death-timeout", str(START_S))
    wait = f"from distributed import Client; Client('127.0.0.1:{PORT}').wait_for_workers({workers}, {START_S})"
    ready = standing.start("h0", [sys.executable, "-c", wait], env=env, stderr=subprocess.PIPE, text=True)
    _, said = _end(ready, START_S + 60)
    if ready.returncode:
        raise weft.UnreachableError(f"not {workers} workers within {START_S:g} s: {said[-500:]!r}")
    return env


def measure(standing: lab.Lab, program: Path, env: dict[str, str], *arguments: str) -> float:
    """Run Hoplite's program on the first host; return the seconds that it prints.

    Raises
    ------
    TimedOutError
        It did not end within `CELL_S`.
    ChildProcessError
        It failed; the error has what it said last.
    """
    argv = [sys.executable, str(program), *arguments]
    process = standing.start("h0", argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, said = _end(process, CELL_S)
    if process.returncode:
        raise ChildProcessError(said.strip()[-400:])
    return float(out.split()[-1])


def _end(process: subprocess.Popen[Any], seconds: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise weft.TimedOutError(f"timed out: no end within {seconds:g} s") from None


def take_turn(
    described: lab.Network, protocol: str, program: Path, cells: Sequence[tuple[str, int]], came_to: Outcome
) -> None:
    """Run each cell, a collective and a size, over `protocol` on one cluster.

    What ran out of time may go on in the cluster: the cells after it get another. Without a cluster, they are left.
    """
    left, workers = list(cells), len(described.hosts) - 1
    while left:
        cell = "start"
        try:
            with tempfile.TemporaryDirectory() as logs, lab.Lab(described) as standing:
                env = start_cluster(standing, protocol, workers, Path(logs))
                while left:
                    collective, size = left.pop(0)
                    cell = f"{collective} {size}"
                    try:
                        took = measure(standing, program, env, collective, "-n", str(workers), "-s", str(size))
                    except ChildProcessError as e:
                        came_to.failed[f"{cell}, {protocol}"] = str(e)
                    else:
                        came_to.seconds.setdefault(cell, {}).setdefault(protocol, []).append(took)
        except (weft.TimedOutError, weft.UnreachableError) as e:
            came_to.failed[f"{cell}, {protocol}"] = str(e)
            if cell == "start":
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a checkout or git directory of Hoplite")
    parser.add_argument("--rev", default="HEAD", help="what to take of a git directory (default: %(default)s)")
    parser.add_argument("--protocols", default="tcp,ucx", help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=8, help="each on a host of its own (default: %(default)s)")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES), help="(default: %(default)s)")
    parser.add_argument("--sizes", default="2097152,33554432", help="of each array, bytes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--rate", help="of each cable, each way, as 1gbit (default: no limit)")
    add_json(parser)
    told = parser.parse_args()
    surroundings = environment.collect()
    protocols, sizes = told.protocols.split(","), [int(size) for size in told.sizes.split(",")]
    cells = [(collective, size) for collective in told.collectives.split(",") for size in sizes]
    came_to = Outcome()
    described = network(told.workers, told.rate)
    try:
        with drop_in.checkout(told.source, told.rev, [PROGRAM]) as folder, ended_by_signals():
            for round_, protocol in ((r, p) for r in range(told.rounds) for p in protocols):
                began = time.monotonic()
                take_turn(described, protocol, folder / PROGRAM, cells, came_to)
                print(f"round {round_ + 1}, {protocol}://: {time.monotonic() - began:.0f} s", flush=True)
    except weft.UnsupportedError as e:
        print(e)
        return 2
    finally:  # what was measured stays, if this is ended before the last round
        if came_to.seconds or came_to.failed:
            record = {"workers": told.workers, **dataclasses.asdict(came_to), "lab": lab_hosts.described(described)}
            write_record(told.json, record | {"environment": surroundings})
    for cell, each in came_to.seconds.items():
        collective, size = cell.split()
        medians = ", ".join(f"{p}:// {format_seconds(statistics.median(taken))}" for p, taken in each.items())
        print(f"{collective:10} {format_size(int(size)):>8}  {medians}")
    for cell, why in came_to.failed.items():
        print(f"FAILED {cell}: {why}")
    return 1 if came_to.failed else 0 if came_to.seconds else 2


if __name__ == "__main__":
    sys.exit(main())
