#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Hold weft's simulator against Estee, the published simulator of task schedulers, on uniform links.

    python scripts/estee_check.py --source DIR [--rev REV] [--python PYTHON] [--json FILE]

DIR is a checkout of Estee (https://github.com/spirali/estee) or a bare git directory, of which REV is taken. It runs in
an environment of its own, which uv makes: NumPy before 1.24, simpy and deap; or in that of PYTHON.

- *Flows*: transfers between workers that begin at random times. Both share ports max-min fair, so each should end at
  the same time.
- *Placed*: graphs whose tasks run where, and are ordered as, weft's stock policy had them, in both; values come from
  the worker that made them. Makespans should agree within a few percent. Estee's worker is given Dask's limits.
- *Decided*: the same graphs, each decided by the simulator's own: stock here; work stealing, b-level and random there.

Neither side charges anything for messages or schedulers. Status: 0 if flows and placed graphs agree within 3 %, else 1.
Estee is MIT-licensed; none of it is here.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import drop_in

from weft._units import format_seconds
from weft.bench.common import environment
from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record
from weft.simulate.cluster import Cluster, Costs
from weft.simulate.engine import Engine
from weft.simulate.graphs import GRAPHS, Size
from weft.simulate.network import switched
from weft.simulate.policy import Policy
from weft.simulate.tasks import Task, WorkerState
from weft.simulate.worker import Worker

WORKERS, BANDWIDTH_BPS = 8, 125e6
SIZE = Size(32 << 20, 1e9)
DECIDED = ("tree reduce", "shuffle", "x + x.T", "svd", "stencil")
SEEDS = range(5)
AGREE = 0.03
MiB = 1 << 20
NETWORK = switched("uniform", {f"h{i}": 1 for i in range(WORKERS)}, BANDWIDTH_BPS, latency_s=0.0, lent_s=0.0)

#: What runs with Estee: cases by standard input, seconds by standard output.
ESTEE = """
import json, random, sys
import numpy as np
import simpy
np.float = float  # NumPy had it when Estee was written
from estee.common import TaskGraph
from estee.schedulers import BlevelGtScheduler, RandomScheduler, SchedulerBase, WorkStealingScheduler
from estee.simulator import MaxMinFlowNetModel, Simulator, Worker

class Placed(SchedulerBase):
    "Each task where it was said, as soon as all that it needs is there, as Dask does."
    def __init__(self, places):
        super().__init__("placed", "0")
        self.places = places
    def schedule(self, update):
        for task in update.new_ready_tasks:
            self.assign(self.workers[self.places[task.id]], task, len(self.places) - task.id)

NAMED = {"ws": WorkStealingScheduler, "blevel-gt": BlevelGtScheduler, "random": RandomScheduler}

def makespan(case):
    random.seed(case["seed"])
    np.random.seed(case["seed"])
    graph = TaskGraph()
    tasks = []
    for number, (size, seconds, needs, _) in enumerate(case["tasks"]):
        task = graph.new_task(str(number), duration=seconds, expected_duration=seconds, output_size=size)
        task.add_inputs([tasks[i].output for i in needs])
        tasks.append(task)
    scheduler = NAMED[case["scheduler"]]() if case["scheduler"] else Placed([place for *_, place in case["tasks"]])
    limits = {} if case["scheduler"] else {"max_downloads": 50, "max_downloads_per_worker": 1}
    workers = [Worker(**limits) for _ in range(case["workers"])]
    return Simulator(graph, workers, scheduler, MaxMinFlowNetModel(case["bandwidth"])).run()

def flows(case):
    env = simpy.Environment()
    workers = [Worker() for _ in range(case["workers"])]
    for number, worker in enumerate(workers):
        worker.id = number
    network = MaxMinFlowNetModel(case["bandwidth"])
    network.init(env, workers)
    ended = [0.0] * len(case["flows"])
    def one(number, since, source, target, size):
        yield env.timeout(since)
        yield network.download(workers[source], workers[target], size)
        ended[number] = env.now
    for number, flow in enumerate(case["flows"]):
        env.process(one(number, *flow))
    env.run(until=case["until"])
    return ended

print(json.dumps([flows(case) if "flows" in case else makespan(case) for case in json.load(sys.stdin)]))
"""


class FromMaker(Policy):
    """Values come from the worker that made them, as Estee's do; copies of them are nobody's source."""

    def holders(self, worker: Worker, key: Task) -> Iterable[WorkerState]:
        del worker
        return list(key.who_has)[:1]


def graph_of(name: str) -> list[Task]:
    """Make one of the simulator's graphs; what lies on workers there is made by tasks here."""
    job = GRAPHS[name](list(NETWORK.places), SIZE)
    for value in job.values:
        value.seconds, value.kind = SIZE.seconds(value.nbytes), "make"
    return [*job.values, *job.tasks]


def simulated(tasks: list[Task], policy: Policy, seed: int = 0) -> float:
    """Return the makespan of a graph here."""
    return Cluster(NETWORK, policy, costs=Costs(0.0, 0.0, 0.0), seed=seed).compute_all(tasks)


def case_of(tasks: list[Task], places: dict[str, str | None], scheduler: str, seed: int) -> dict[str, Any]:
    """Describe a graph for Estee, in MiB."""
    number, names = {task: i for i, task in enumerate(tasks)}, list(NETWORK.places)
    rows = [
        [
            task.nbytes / MiB,
            task.seconds,
            [number[dep] for dep in task.dependencies],
            names.index(place) if (place := places[task.key]) else None,
        ]
        for task in tasks
    ]
    return {
        "tasks": rows,
        "scheduler": scheduler,
        "seed": seed,
        "workers": WORKERS,
        "bandwidth": BANDWIDTH_BPS / MiB,
    }


def some_flows(seed: int, count: int = 40) -> list[tuple[float, int, int, float]]:
    """Draw transfers: when, from which worker to which, of how many MiB; one for each pair."""
    rng = random.Random(seed)  # noqa: S311 - a simulation
    pairs = rng.sample([(a, b) for a in range(WORKERS) for b in range(WORKERS) if a != b], count)
    return [(rng.uniform(0, 5), a, b, rng.uniform(1, 100)) for a, b in pairs]


def flows_here(flows: list[tuple[float, int, int, float]]) -> list[float]:
    """Return when each ends here."""
    engine = Engine([BANDWIDTH_BPS / MiB] * 2 * WORKERS)
    ended = [0.0] * len(flows)

    def begin(i: int, a: int, b: int, amount: float) -> None:
        engine.move((a, WORKERS + b), amount, lambda: ended.__setitem__(i, engine.now_s))

    for i, (since, a, b, amount) in enumerate(flows):
        engine.after(since, begin, i, a, b, amount)
    engine.run()
    return ended


@contextmanager
def python_with_what_estee_needs(python: Path | None) -> Iterator[Path]:
    """Give a Python that has it."""
    if python is not None:
        yield python
        return
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin/python"
        subprocess.run(["uv", "venv", "-q", "--clear", "--python", "3.11", folder], check=True)
        needs = ["simpy", "numpy<1.24", "deap"]
        subprocess.run(["uv", "pip", "install", "-q", "--python", str(python), *needs], check=True)
        yield python


def ask(python: Path, folder: Path, cases: list[dict[str, Any]]) -> list[Any]:
    """Run cases with Estee."""
    command = [str(python), "-c", ESTEE]
    told = subprocess.run(command, input=json.dumps(cases), cwd=folder, capture_output=True, text=True, timeout=1800)
    if told.returncode:
        raise SystemExit(f"Estee: {told.stderr[-2000:]}")
    return list(json.loads(told.stdout.splitlines()[-1]))


def compare(python: Path, folder: Path) -> dict[str, Any]:
    """Run everything on both sides."""
    rows: list[tuple[str, str, str, Any]] = []
    cases: list[dict[str, Any]] = []
    for seed in SEEDS:
        flows = some_flows(seed)
        cases.append({"flows": flows, "until": 1e4, "workers": WORKERS, "bandwidth": BANDWIDTH_BPS / MiB})
        rows.append(("flows", str(seed), "", flows_here(flows)))
    for name in GRAPHS:
        stock = graph_of(name)
        seconds = simulated(stock, Policy())
        if name in DECIDED:
            rows.append(("decided", name, "stock", seconds))
            cases.append({})
        places = {task.key: next(iter(task.who_has)).address for task in stock}
        again = graph_of(name)
        for task in again:
            task.worker = places[task.key]
        rows.append(("placed", name, "", simulated(again, FromMaker())))
        cases.append(case_of(again, dict(places), "", 0))
        for scheduler in ("ws", "blevel-gt", "random") if name in DECIDED else ():
            for seed in SEEDS:
                rows.append(("decided", name, scheduler, None))
                cases.append(case_of(graph_of(name), dict.fromkeys(places), scheduler, seed))
    answers = iter(ask(python, folder, [case for case in cases if case]))
    found = [(*row, next(answers) if case else None) for row, case in zip(rows, cases, strict=True)]
    return {
        "flows": [
            {
                "seed": int(seed),
                "count": len(here),
                "most_off": max(off(a, b) for a, b in zip(here, there, strict=True)),
            }
            for what, seed, _, here, there in found
            if what == "flows"
        ],
        "placed": {name: {"weft_s": a, "estee_s": b} for what, name, _, a, b in found if what == "placed"},
        "decided": decided(found),
    }


def decided(found: list[tuple[str, str, str, Any, Any]]) -> dict[str, dict[str, list[float]]]:
    """Gather the makespans of graphs, by what decided them: of each seed one."""
    by: dict[str, dict[str, list[float]]] = {}
    for what, name, scheduler, here, there in found:
        if what == "decided":
            by.setdefault(name, {}).setdefault(scheduler, []).append(here if there is None else there)
    return by


def off(here: float, there: float) -> float:
    """Return by which share two differ."""
    return abs(here / there - 1)


def show(record: dict[str, Any]) -> None:
    """Print it as tables of a page."""
    print(f"flows: {max(each['most_off'] for each in record['flows']):.2g} off at most\n")
    print("| graph, placed | weft | Estee | weft/Estee |\n|---|---|---|---|")
    for name, row in record["placed"].items():
        here, there = row["weft_s"], row["estee_s"]
        print(f"| {name} | {format_seconds(here)} | {format_seconds(there)} | {here / there:.3f} |")
    schedulers = ("stock", "ws", "blevel-gt", "random")
    print(f"\n| graph, decided | {' | '.join(schedulers)} |\n|{'---|' * 5}")
    for name, by in record["decided"].items():
        cells = [format_seconds(statistics.median(by[scheduler])) for scheduler in schedulers]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> int:
    """Compare; return 1 if the two do not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a checkout or git directory of Estee")
    parser.add_argument("--rev", default="HEAD", help="what to take of a git directory (default: %(default)s)")
    parser.add_argument("--python", type=Path, help="one with NumPy < 1.24, simpy and deap (default: uv makes it)")
    add_json(parser)
    told = parser.parse_args()
    with (
        drop_in.checkout(told.source, told.rev, ["estee"]) as folder,
        python_with_what_estee_needs(told.python) as python,
    ):
        record = compare(python, folder)
    show(record)
    write_record(told.json, record | {"environment": environment.collect()})
    agree = [each["most_off"] for each in record["flows"]]
    agree += [off(row["weft_s"], row["estee_s"]) for row in record["placed"].values()]
    return int(max(agree) > AGREE)


if __name__ == "__main__":
    sys.exit(main())
