#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Run Dask jobs over ``ucx://`` while workers are killed at random, and compare every result with NumPy's and pandas'.

A nanny starts each killed worker again. What a worker held is lost with it, so the jobs must come back from that; none
may hang, and none may give anything but the right result.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import dask
import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

from weft.bench.common import environment

#: Seconds that one job may take, with what its workers' deaths cost it.
HUNG_S = 60
CONFIG = {
    "distributed.scheduler.allowed-failures": 10_000,  # a task that was there when its worker died is not to blame
    "distributed.comm.timeouts.connect": "10s",
    "distributed.deploy.lost-worker-timeout": "1h",  # a cluster gives up who is down again just then
    "distributed.logging.distributed": "critical",
}


class Killer(threading.Thread):
    """Kills a random worker process every now and then, once all of them are there."""

    def __init__(self, cluster: LocalCluster, every_s: float, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.cluster, self.every_s, self.dice = cluster, every_s, dice
        self.kills = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(self.dice.uniform(0.2, 1.8) * self.every_s):
            nannies = list(self.cluster.workers.values())
            if len(self.cluster.scheduler.workers) < len(nannies):  # it would never get anything done
                continue
            pid = self.dice.choice(nannies).pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                self.kills += 1


def transpose_sum(client: Client, seed: int) -> None:
    x = np.random.default_rng(seed).random((3000, 3000))
    chunked = dask.array.from_array(x, chunks=750)
    got = client.compute((chunked + chunked.T).sum(axis=0)).result(timeout=HUNG_S)
    np.testing.assert_allclose(got, (x + x.T).sum(axis=0))


def merge(client: Client, seed: int) -> None:
    rng = np.random.default_rng(seed)
    left = pd.DataFrame({"key": rng.integers(0, 5000, 200_000), "x": rng.random(200_000)})
    right = pd.DataFrame({"key": np.arange(5000), "y": rng.random(5000)})
    merged = dask.dataframe.from_pandas(left, npartitions=8).merge(
        dask.dataframe.from_pandas(right, npartitions=4), on="key", shuffle_method="tasks"
    )
    order = ["key", "x"]
    got = client.compute(merged).result(timeout=HUNG_S).sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(
        got[["key", "x", "y"]], left.merge(right, on="key").sort_values(order, ignore_index=True)
    )


def hand_round(client: Client, seed: int) -> None:
    """An array that goes through many tasks, wherever they run."""
    x = dask.delayed(np.full)(1_000_000, float(seed))
    for _ in range(20):
        x = dask.delayed(np.add)(x, 1)
    got = client.compute(x).result(timeout=HUNG_S)
    np.testing.assert_array_equal(got, np.full(1_000_000, seed + 20.0))


JOBS = (transpose_sum, merge, hand_round)


def work(client: Client, seconds: float, dice: random.Random, killer: Killer) -> tuple[dict[str, int], float]:
    """Do jobs for so long; return how many of each, and the seconds that the longest took."""
    done, longest = dict.fromkeys((job.__name__ for job in JOBS), 0), 0.0
    began = said = time.monotonic()
    while time.monotonic() - began < seconds:
        job = dice.choice(JOBS)
        start = time.monotonic()
        job(client, dice.randrange(2**31))
        longest = max(longest, time.monotonic() - start)
        done[job.__name__] += 1
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"{said - began:.0f} s: {done}, {killer.kills} kills", flush=True)
    return done, longest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kill-every", type=float, default=4, help="seconds between two kills, on average about")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--protocol", default="ucx")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the record")
    options = parser.parse_args()
    dice = random.Random(options.seed)  # noqa: S311
    surroundings = environment.collect()
    config = dask.config.set(CONFIG)
    with (
        config,
        LocalCluster(
            protocol=options.protocol, n_workers=options.workers, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        killer = Killer(cluster, options.kill_every, dice)
        killer.start()
        try:
            done, longest = work(client, options.seconds, dice, killer)
        finally:
            killer.over.set()
            killer.join()
    print(f"{options.protocol}: {done}, all right; {killer.kills} workers killed; the longest job took {longest:.1f} s")
    if options.json:
        counted = {"jobs": done, "kills": killer.kills, "longest_s": longest, "seconds": options.seconds}
        record = {**counted, "protocol": options.protocol, "workers": options.workers, "environment": surroundings}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
