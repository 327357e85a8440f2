# SPDX-License-Identifier: BSD-3-Clause
"""The two ranks of mpi4py's ping-pong; rank 0 prints one line of JSON. Needs nothing of weft but this benchmark."""

from __future__ import annotations

import array
import importlib
import itertools
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from weft.bench.common.child import FILL, pages, trips_of
from weft.bench.common.errors import BenchError
from weft.bench.common.rounds import sampled


def rank(arguments: Sequence[str]) -> None:
    """Run one rank; `arguments` are nbytes, seconds, iterations and the two cores as JSON."""
    mpi: Any = importlib.import_module("mpi4py.MPI")

    nbytes, seconds, iterations = int(arguments[0]), float(arguments[1]), int(arguments[2])
    signal.alarm(int(120 + 20 * seconds + nbytes / 10e6))
    world, trips = mpi.COMM_WORLD, trips_of(nbytes)
    me = world.Get_rank()
    cores = json.loads(arguments[3])
    if cores:
        os.sched_setaffinity(0, {cores[1 - me]})
    out, into = pages(nbytes), pages(nbytes)
    out[:] = bytes([FILL]) * nbytes

    def exchange(count: int) -> list[float]:
        world.bcast(count)
        stamps = array.array("q", [0]) * (count + 1)
        for i in range(count + 1):
            for _ in range(trips):
                world.Send(out, 1)
                world.Recv(into, 1)
            stamps[i] = time.perf_counter_ns()
        return [(b - a) / 1e9 for a, b in itertools.pairwise(stamps)]

    if me == 0:
        stamps = sampled(exchange, seconds=seconds, iterations=iterations)
        world.bcast(0)
        if into[-1] != FILL:
            raise BenchError("the message that arrived is not the one that was sent")
        print(json.dumps({"transport": "default", "latencies": [stamp / 2 / trips for stamp in stamps]}))
        return
    while count := world.bcast(None):
        for _ in range((count + 1) * trips):
            world.Recv(into, 0)
            world.Send(out, 0)
