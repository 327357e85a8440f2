# SPDX-License-Identifier: BSD-3-Clause
"""Simulates what ``weft bench links`` runs in a lab, and compares the result with its record.

The lab's hosts share one machine, so all tasks share its cores. Two parameters were fitted, to the fan-out alone:
`GOODPUT` to Dask's star, and `HOP_S` to the chain. The latencies are guesses for a busy machine. P2P joins, and jobs
that move nothing, are not simulated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from weft.bench.links.scenarios import SCENARIOS, Scenario
from weft.simulate.cluster import Cluster, Costs
from weft.simulate.network import Network, switched
from weft.simulate.runs import WAYS
from weft.simulate.tasks import Task

#: The share of a port's bandwidth that is left for Dask's bytes.
GOODPUT = 0.955
#: Seconds until a received piece is sent on to the next host: nine hosts' processes share two cores.
HOP_S = 0.02
COSTS = Costs(message_s=2e-3, scheduler_s=3e-4, task_s=1e-3)
_LATENCY_S, _LENT_S = 8e-3, 4e-3
_CORES = 2.0
#: Bytes per second that NumPy processes on one core, read and written.
_COMPUTE_BPS = 2e9
#: Which host is killed, and when, as a fraction of the time that one port takes (``weft.bench.links.run``).
_KILLED, _KILLED_AFTER = "h4", 0.4


class Compared(NamedTuple):
    """One job, measured and simulated.

    Attributes
    ----------
    measured_s, simulated_s : float
    fitted : bool
        Whether the simulator's parameters were fitted to this job.
    """

    title: str
    job: str
    way: str
    measured_s: float
    simulated_s: float
    fitted: bool

    @property
    def off(self) -> float:
        """Return the relative error of the simulated seconds."""
        return self.simulated_s / self.measured_s - 1


def network(scenario: Scenario) -> Network:
    """Make the network of a scenario."""
    workers = {f"h{host}": scenario.workers_of(host) for host in range(scenario.hosts)}
    rate = float(scenario.rate.removesuffix("mbit")) * 1e6 / 8 * GOODPUT
    return switched(scenario.title, workers, rate, latency_s=_LATENCY_S, lent_s=_LENT_S, cores=_CORES)


def simulate(name: str, way: str, *, seed: int = 0) -> dict[str, float]:
    """Return the seconds of each job of a scenario that can be simulated."""
    scenario = SCENARIOS[name]
    if not scenario.rate:
        return {}
    policy = WAYS[way]()
    policy.hop_s = HOP_S
    cluster = Cluster(network(scenario), policy, costs=COSTS, seed=seed)
    seconds: dict[str, float] = {}
    for job in scenario.jobs:
        if job in _JOBS:
            for _ in range(scenario.warm + 1):
                seconds[job] = _JOBS[job](cluster, list(cluster.network.places), scenario)
                cluster.forget()
    return seconds


def compare(record: Mapping[str, Any], *, seeds: int = 5) -> Iterator[Compared]:
    """Yield all jobs in a record of ``weft bench links`` that can be simulated, with the median over some seeds.

    Raises
    ------
    KeyError, TypeError
        `record` is not such a record.
    """
    for entry in record["records"]:
        name = entry["scenario"]
        for way, runs in entry["runs"].items():
            simulated = [simulate(name, way, seed=seed) for seed in range(seeds)]
            for job in simulated[0]:
                measured = [seconds for run in runs for seconds in run["seconds"].get(job, ())]
                if measured:
                    found = statistics.median(each[job] for each in simulated)
                    yield Compared(
                        entry["title"], job, way, statistics.median(measured), found, fitted=name == "fanout"
                    )


def _seconds(nbytes: float) -> float:
    return nbytes / _COMPUTE_BPS


def _fan_out(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    value = Task("value", scenario.nbytes, worker=workers[0])
    cluster.put([value])
    read = _seconds(scenario.nbytes)
    return cluster.compute_all([Task(f"sum-{w}", 8, read, [value], kind="sum", worker=w) for w in workers[1:]])


def _fan_out_kill(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    for worker in workers:
        if worker.startswith(f"{_KILLED}."):
            cluster.engine.after(_KILLED_AFTER * scenario.port_s, cluster.kill, worker)
    return _fan_out(cluster, workers, scenario)


def _replicate(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    value = Task("value", scenario.nbytes, worker=workers[0])
    cluster.put([value])
    return cluster.policy.replicate(value)


def _transpose(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    side = int((scenario.nbytes // 8) ** 0.5) // 4
    nbytes = side * side * 8
    places = [workers[i % len(workers)] for i in range(16)]
    cluster.random.shuffle(places)  # tasks without dependencies go to any idle worker
    blocks = [Task(f"x-{i}", nbytes, worker=place) for i, place in enumerate(places)]
    cluster.put(blocks)
    add = _seconds(3 * nbytes)
    pairs = [(blocks[4 * i + j], blocks[4 * j + i]) for i in range(4) for j in range(4)]
    return cluster.compute_all([Task(f"add-{i}", nbytes, add, pair, kind="add") for i, pair in enumerate(pairs)])


def _tree_reduce(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    nbytes = scenario.nbytes // 8
    level = leaves = [Task(f"leaf-{i}", nbytes, worker=workers[i % len(workers)]) for i in range(16)]
    cluster.put(leaves)
    tasks: list[Task] = []
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        add = _seconds(3 * nbytes)
        level = [Task(f"add-{len(level)}-{i}", nbytes, add, pair, kind="add") for i, pair in enumerate(pairs)]
        tasks += level
    return cluster.compute_all(tasks)


def _mixed(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    each, count = scenario.nbytes // 16, 16
    shared = Task("shared", scenario.nbytes // 8, worker=workers[0])
    row = [Task(f"row-{i}", each, worker=workers[i * len(workers) // count]) for i in range(count)]
    cluster.put([shared, *row])
    tasks: list[Task] = []
    for step in range(4):
        smooth = _seconds(6 * each)
        row = [
            Task(f"smooth-{step}-{i}", each, smooth, row[max(0, i - 1) : i + 2], kind="_smooth") for i in range(count)
        ]
        tasks += row
    row = [Task(f"scale-{i}", each, _seconds(2 * each), [x, shared], kind="_scale") for i, x in enumerate(row)]
    return cluster.compute_all([*tasks, *row, Task("sums", each, _seconds(count * each), row, kind="_smooth")])


_JOBS: dict[str, Callable[[Cluster, Sequence[str], Scenario], float]] = {
    "fan-out": _fan_out,
    "fan-out, kill": _fan_out_kill,
    "replicate": _replicate,
    "transpose": _transpose,
    "tree reduce": _tree_reduce,
    "mixed": _mixed,
}
