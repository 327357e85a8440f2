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

from weft.bench.links import table as links_table
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
#: Bytes per second of random numbers that NumPy makes on one core.
_MAKE_BPS = 1e9
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


def possible() -> list[str]:
    """List the scenarios with jobs that can be simulated."""
    return [name for name, each in SCENARIOS.items() if each.rate and not _JOBS.keys().isdisjoint(each.jobs)]


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
        for way in entry["runs"]:
            simulated = [simulate(name, way, seed=seed) for seed in range(seeds)]
            for job in simulated[0]:
                measured = links_table.times(entry, way, job)
                if measured:
                    found = statistics.median(each[job] for each in simulated)
                    yield Compared(
                        entry["title"], job, way, statistics.median(measured), found, fitted=name == "fanout"
                    )


def _seconds(nbytes: float) -> float:
    return nbytes / _COMPUTE_BPS


def _making(nbytes: float) -> float:
    return nbytes / _MAKE_BPS


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


def _there(blocks: Sequence[Task], places: Sequence[str], cluster: Cluster) -> None:
    """Place blocks that are made before the clock starts."""
    for block, place in zip(blocks, places, strict=True):
        block.worker = place
    cluster.put(blocks)


def _in_turn(count: int, workers: Sequence[str]) -> list[str]:
    return [workers[i % len(workers)] for i in range(count)]


def _matrix(scenario: Scenario) -> list[Task]:
    """Make the blocks of a matrix, rows first."""
    side = int((scenario.nbytes // 8) ** 0.5) // 4
    nbytes = side * side * 8
    return [Task(f"x-{i}-{j}", nbytes, _making(nbytes), kind="x") for i in range(4) for j in range(4)]


def _with_transposed(blocks: Sequence[Task]) -> list[Task]:
    nbytes = blocks[0].nbytes
    pairs = [(blocks[4 * i + j], blocks[4 * j + i]) for i in range(4) for j in range(4)]
    return [Task(f"add-{i}", nbytes, _seconds(3 * nbytes), pair, kind="add") for i, pair in enumerate(pairs)]


def _transpose(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    """Make a matrix, in the order in which Dask does: both blocks of a pair follow each other."""
    del workers
    blocks = _matrix(scenario)
    tasks = _with_transposed(blocks)
    order = dict.fromkeys(block for task in tasks for block in task.dependencies)
    return cluster.compute_all([*order, *tasks])


def _transpose_there(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    blocks, places = _matrix(scenario), _in_turn(16, workers)
    cluster.random.shuffle(places)  # tasks without dependencies go to any idle worker
    _there(blocks, places, cluster)
    return cluster.compute_all(_with_transposed(blocks))


def _leaves(scenario: Scenario) -> list[Task]:
    nbytes = scenario.nbytes // 8
    return [Task(f"leaf-{i}", nbytes, _making(nbytes), kind="leaf") for i in range(16)]


def _sums(level: list[Task]) -> list[Task]:
    """Add arrays in pairs, and the sums in pairs."""
    nbytes, tasks = level[0].nbytes, list[Task]()
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        add = _seconds(3 * nbytes)
        level = [Task(f"add-{len(level)}-{i}", nbytes, add, pair, kind="add") for i, pair in enumerate(pairs)]
        tasks += level
    return tasks


def _tree_reduce(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    del workers
    leaves = _leaves(scenario)
    return cluster.compute_all([*leaves, *_sums(leaves)])


def _tree_reduce_there(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    leaves = _leaves(scenario)
    _there(leaves, _in_turn(16, workers), cluster)
    return cluster.compute_all(_sums(leaves))


def _row(scenario: Scenario) -> tuple[Task, list[Task]]:
    """Make what all share, and a row of arrays."""
    shared, each = scenario.nbytes // 8, scenario.nbytes // 16
    row = [Task(f"row-{i}", each, _making(each), kind="noise") for i in range(16)]
    return Task("shared", shared, _making(shared), kind="noise"), row


def _smoothed(shared: Task, row: list[Task], last: int) -> list[Task]:
    """Smooth a row four times, add what is shared, and reduce `last` arrays at a time."""
    each, count = row[0].nbytes, len(row)
    tasks: list[Task] = []
    for step in range(4):
        row = [
            Task(f"smooth-{step}-{i}", each, _seconds(6 * each), row[max(0, i - 1) : i + 2], kind="_smooth")
            for i in range(count)
        ]
        tasks += row
    row = [Task(f"scale-{i}", each, _seconds(2 * each), [x, shared], kind="_scale") for i, x in enumerate(row)]
    tasks += row
    while len(row) > 1:
        groups = [row[i : i + last] for i in range(0, len(row), last)]
        row = [
            Task(f"reduce-{len(row)}-{i}", each, _seconds(len(group) * each), group, kind="_smooth")
            for i, group in enumerate(groups)
        ]
        tasks += row
    return tasks


def _mixed(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    del workers
    shared, row = _row(scenario)
    return cluster.compute_all([*row, shared, *_smoothed(shared, row, last=4)])


def _mixed_there(cluster: Cluster, workers: Sequence[str], scenario: Scenario) -> float:
    shared, row = _row(scenario)
    _there([shared, *row], [workers[0], *(workers[i * len(workers) // 16] for i in range(16))], cluster)
    return cluster.compute_all(_smoothed(shared, row, last=16))


_JOBS: dict[str, Callable[[Cluster, Sequence[str], Scenario], float]] = {
    "fan-out": _fan_out,
    "fan-out, kill": _fan_out_kill,
    "replicate": _replicate,
    "x + x.T": _transpose,
    "tree reduce": _tree_reduce,
    "mixed": _mixed,
    "x + x.T, data there": _transpose_there,
    "tree reduce, data there": _tree_reduce_there,
    "mixed, data there": _mixed_there,
}
