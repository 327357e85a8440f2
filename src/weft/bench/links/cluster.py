# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler and the client of one run, in a process on the first host of the lab; workers are started by ``run``.

It is sent one line of JSON, `Asked`, and says in such lines the scheduler's address, that a job is under way
(``started``), and the seconds of each.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NamedTuple

from distributed import Client, LocalCluster

from weft.bench.links.jobs import JOBS


class Asked(NamedTuple):
    """What this process is to do: each job `times` times after `warm` times, with `workers` that come."""

    host: str
    workers: int
    jobs: tuple[str, ...]
    nbytes: int
    warm: int
    times: int


def main() -> None:
    """Start a scheduler, run the jobs."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        told.write(json.dumps(what) + "\n")
        told.flush()

    asked = Asked(**json.loads(sys.stdin.readline()))
    with _cluster(asked.host) as cluster, Client(cluster) as client:
        say(scheduler=cluster.scheduler_address)
        client.wait_for_workers(asked.workers, timeout=100)
        by_name = {worker["name"]: address for address, worker in client.scheduler_info(-1)["workers"].items()}
        workers = [by_name[name] for name in sorted(by_name, key=_number)]
        seed = 0
        for job in asked.jobs:
            for turn in range(asked.warm + asked.times):
                seed += 1
                seconds = JOBS[job](client, workers, asked.nbytes, seed, lambda job=job: say(started=job))
                if turn >= asked.warm:
                    say(job=job, seconds=seconds)
        say(done=True)
        sys.stdin.readline()


def _cluster(host: str) -> Any:
    """Start a scheduler without workers."""
    options: dict[str, Any] = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    return LocalCluster(n_workers=0, protocol="ucx", host=host, **options)


def _number(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in str(name).split("."))
