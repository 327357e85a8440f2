#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time CuPy arrays that move from one process to another on one GPU: single messages, and Dask.

python scripts/measure_gpu.py [--rounds 3] [--json FILE]

It needs a GPU and CuPy. Messages go back and forth between two processes, and a figure is half of a round trip: of
weft and of UCXX by their send_recv programs, which are the same loop (UCXX is left out where it is not installed), and
of ``ucx_perftest``. A copy of as many bytes within one process says what the device could do. Dask fetches an array
from one worker to another, where a task reads its ends, and adds a matrix to its transpose; in one process nothing
moves. All of it takes turns, round by round.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from distributed import Client, LocalCluster, wait

import weft
from weft.bench.common import environment, outcome, stats
from weft.bench.common.options import add_json, add_rounds
from weft.bench.peers import programs

MESSAGES = {"1 MiB": 1 << 20, "100 MB": 10**8}
FETCHES = {"1 MiB": 1 << 20, "100 MiB": 100 << 20, "1 GiB": 1 << 30}
#: Of the matrix, whose items have 8 B, and of its blocks.
SIDE, BLOCK = 16_000, 4_000
TRIPS = 100
FETCHED = 5
LIMIT_S = 60


def send_recv(module: str, nbytes: int, *options: str) -> float:
    """Run a program that prints its median as ucx-py's send_recv does; return it in seconds."""
    words = ["-o", "cupy", "--reuse-alloc", "-n", str(nbytes), "--n-iter", str(TRIPS), "--no-detailed-report"]
    command = [sys.executable, "-m", *module.split(), *words, *options]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    found = re.search(r"Latency \(median\) +\| (\d+) ns", printed)
    if found is None:
        raise RuntimeError(f"{module} printed no figures: {printed[-300:]}")
    return int(found[1]) * 1e-9


def perftest(nbytes: int) -> float:
    """Run UCX's own ping-pong on device memory; it spins."""
    arguments = ["-t", "tag_lat", "-m", "cuda", "-s", str(nbytes), "-n", str(TRIPS)]
    printed = programs.ucx_perftest(weft.ucx_library().path, arguments, cores=[], settings={}, limit_s=LIMIT_S)
    return programs.figure_of(printed, "50.0_percentile_lat")


def copy(nbytes: int) -> float:
    """Copy within this process, on the device; the median as a clock of the host sees it, to the end of the copy."""
    import cupy

    a, b = cupy.ones(nbytes, "u1"), cupy.empty(nbytes, "u1")
    times = []
    for _ in range(TRIPS):
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        b[...] = a
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def messages() -> dict[str, Callable[[int], float]]:
    """Return what is measured for each size, by name: first weft, then what it is compared with."""
    ours, theirs = "weft bench send-recv", "ucxx.benchmarks.send_recv"
    measures: dict[str, Callable[[int], float]] = {
        "weft": lambda nbytes: send_recv(ours, nbytes, "-l", "weft-core"),
        "ucx_perftest": perftest,
        "weft, asyncio": lambda nbytes: send_recv(ours, nbytes, "-l", "weft-async"),
    }
    if importlib.util.find_spec("ucxx") is not None:
        # of its modes the fastest here; its default for asyncio is a thread
        polling = ("--progress-mode", "polling")
        measures["UCXX"] = lambda nbytes: send_recv(theirs, nbytes, "-l", "ucxx-core", *polling)
        measures["UCXX, asyncio"] = lambda nbytes: send_recv(theirs, nbytes, "-l", "ucxx-async", *polling)
    return measures | {"a copy in one process": copy}


def make(nbytes: int, value: int) -> Any:
    """Make an array on the device."""
    import cupy

    return cupy.full(nbytes, value, "u1")


def ends(x: Any) -> int:
    """Read an array's ends."""
    return int(x[0]) + int(x[-1])


def fetch(client: Client, nbytes: int) -> float:
    """Have one worker fetch an array of the other's, if there are two; return the median of some seconds."""
    workers = sorted(client.scheduler_info()["workers"])
    times = []
    for value in range(FETCHED):
        there = client.submit(make, nbytes, value, workers=workers[:1], pure=False)
        wait(there)
        begin = time.perf_counter()
        if client.submit(ends, there, workers=workers[-1:], pure=False).result(LIMIT_S) != 2 * value:
            raise RuntimeError("an array came with other bytes")
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def transpose(client: Client) -> float:
    """Add a matrix on the device to its transpose; return the seconds."""
    import cupy
    import dask.array

    rng = dask.array.random.default_rng(cupy.random.default_rng(1))
    x = client.persist(rng.random((SIDE, SIDE), chunks=(BLOCK, BLOCK)))
    wait(x)
    begin = time.perf_counter()
    total = float(client.compute((x + x.T).sum()).result(LIMIT_S))
    seconds = time.perf_counter() - begin
    if not 0.99 < total / SIDE**2 < 1.01:
        raise RuntimeError(f"the sum is {total}")
    return seconds


def works() -> dict[str, Callable[[Client], float]]:
    """Return what Dask does, by name."""
    fetches = {f"fetch of {row}": functools.partial(fetch, nbytes=nbytes) for row, nbytes in FETCHES.items()}
    return {**fetches, "x + x.T": transpose}


@contextlib.contextmanager
def cluster(protocol: str) -> Iterator[Client]:
    """Start two workers with a thread each, or one process with two threads."""
    inside = protocol == "one process"
    shape: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    if not inside:
        shape = {"protocol": protocol, "n_workers": 2, "threads_per_worker": 1}
    with LocalCluster(**shape, memory_limit=0, dashboard_address=":0") as made, Client(made) as client:
        yield client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_rounds(parser, 3)
    add_json(parser)
    args = parser.parse_args()
    import cupy

    surroundings = environment.collect()
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    driver = cupy.cuda.runtime.driverGetVersion()
    ucxx = importlib.metadata.packages_distributions().get("ucxx", ())
    record: dict[str, Any] = {
        "messages": {},
        "dask": {},
        "nbytes": MESSAGES | {f"fetch of {row}": nbytes for row, nbytes in FETCHES.items()},
        "gpu": f"{device}, CUDA {driver // 1000}.{driver % 1000 // 10}",
        "versions": {name: importlib.metadata.version(name) for name in ucxx},
        "environment": surroundings,
    }
    with contextlib.ExitStack() as stack:
        clients = {name: stack.enter_context(cluster(name)) for name in ("ucx", "tcp", "one process")}
        for work in works().values():
            for client in clients.values():
                work(client)  # connects the workers
        for _ in range(args.rounds):
            for row, nbytes in MESSAGES.items():
                for name, measure in messages().items():
                    record["messages"].setdefault(row, {}).setdefault(name, []).append(measure(nbytes))
            for row, work in works().items():
                for name, client in clients.items():
                    record["dask"].setdefault(row, {}).setdefault(name, []).append(work(client))
            outcome.write_record(args.json, record)  # of the rounds so far
    for taken in (record["messages"], record["dask"]):
        for row, sides in taken.items():
            for name, rounds in sides.items():
                print(f"{row:18} {name:22} {stats.format_rounds(rounds)}")


if __name__ == "__main__":
    sys.exit(main())
