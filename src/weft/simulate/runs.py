# SPDX-License-Identifier: BSD-3-Clause
"""Runs one graph on one network, with one policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.simulate.cluster import Cluster
from weft.simulate.graphs import GRAPHS, Size
from weft.simulate.learned import Learned
from weft.simulate.policy import Policy
from weft.simulate.topologies import TOPOLOGIES

#: The policies.
WAYS: dict[str, Callable[[], Policy]] = {"stock": Policy, "learned": Learned}


def graphs_on(topology: str) -> tuple[str, ...]:
    """Return the graphs that can run on a network."""
    return TOPOLOGIES[topology].graphs or tuple(GRAPHS)


def simulate(topology: str, graph: str, way: str, *, seed: int = 0) -> dict[str, Any]:
    """Run a graph often enough to learn the links, and once more.

    Returns
    -------
    dict
        About the last run: ``seconds``, ``moved_nbytes`` (over links, so without lent bytes), ``relayed_nbytes`` of
        these, ``requests``, ``tasks`` and ``workers``.
    """
    known = TOPOLOGIES[topology]
    network = known.make()
    policy = WAYS[way]()
    cluster = Cluster(network, policy, seed=seed, resolution_s=known.resolution_s)
    workers = list(network.places)
    seconds, tasks = 0.0, 0
    for _ in range(known.warm + 1):
        job = GRAPHS[graph](workers, Size(known.nbytes, known.compute_Bps))
        cluster.forget()
        cluster.put(job.values)
        seconds, tasks = cluster.compute_all(job.tasks), len(job.tasks)
    return {
        "seconds": seconds,
        "moved_nbytes": cluster.moved_nbytes,
        "relayed_nbytes": policy.relayed_nbytes,
        "requests": cluster.requests,
        "tasks": tasks,
        "workers": len(workers),
    }
