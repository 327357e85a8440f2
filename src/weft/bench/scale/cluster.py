# SPDX-License-Identifier: BSD-3-Clause
"""The cluster of one run, from within: client, scheduler and nannies live in this process, as with ``LocalCluster``.

``run`` starts this process, tells it what to do and reads what all processes hold. Both talk in lines of JSON. This
process is sent what `Asked` holds, and says the scheduler's address, the time of the start and of each all-to-all; at
``"look"`` it says what `links` returns, at ``"close"`` it closes. At the end of its input it kills its process group:
then the other has died.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dask.base import annotate
from dask.delayed import delayed
from distributed import Client, wait

from weft.bench.common.errors import BenchError
from weft.bench.dask import clusters
from weft.bench.dask.moves import checksum, payload

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What ``run`` starts.
PROGRAM = "from weft.bench.scale.cluster import main; main()"


class Asked(NamedTuple):
    """What this process is to do.

    `nannies` is false where the one that started this process starts the workers. `interface` is the network device
    to listen on, `nbytes` the size of each array, and `later` counts the all-to-alls after the first.
    """

    protocol: str
    workers: int
    nannies: bool
    interface: str | None
    nbytes: int
    later: int
    timeout_s: float


def main() -> None:
    """Start a cluster, move arrays, stay idle until told to close it."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints, does so into the log

    def say(**what: Any) -> None:
        told.write(json.dumps(what) + "\n")
        told.flush()

    orders = _orders(sys.stdin)
    asked = Asked(**orders.get())
    begin = time.perf_counter()
    with _cluster(asked) as cluster, Client(cluster, timeout=asked.timeout_s) as client:
        say(scheduler=cluster.scheduler_address)
        client.wait_for_workers(asked.workers, timeout=asked.timeout_s)
        say(start_s=time.perf_counter() - begin)
        workers = list(client.nthreads())
        for turn in range(1 + asked.later):
            say(seconds=all_to_all(client, workers, asked.nbytes, turn, asked.timeout_s))
        for order in iter(orders.get, "close"):
            if order == "look":
                say(**links(client, asked.protocol))


def _orders(lines: IO[str]) -> queue.SimpleQueue[Any]:
    """Pass on what is told to this process, and end it and its children if there is nobody to tell it more."""
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            orders.put(json.loads(line))
        os.killpg(os.getpgrp(), signal.SIGTERM)  # not SIGKILL: multiprocessing's resource tracker is to clean up

    threading.Thread(target=read, daemon=True).start()
    return orders


def _cluster(asked: Asked) -> Any:
    """Start scheduler and nannies."""
    deployment = clusters.Deployment(workers=asked.workers if asked.nannies else 0, interface=asked.interface)
    return clusters.on_cpus(deployment, asked.protocol, asked.timeout_s)


def all_to_all(client: Client, workers: Sequence[str], nbytes: int, turn: int, timeout: float) -> float:
    """Have every worker fetch one array from every other, and return the seconds from the order to the last result.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of str
        Their addresses.
    nbytes : int
        Of one array.
    turn : int
        Makes the arrays' bytes differ from those of other turns.
    timeout : float
        Seconds for each step.

    Raises
    ------
    BenchError
        A worker received other bytes than were sent.
    """
    seeds = {worker: turn * len(workers) + i for i, worker in enumerate(workers)}
    arrays = {
        worker: client.submit(payload, seed, nbytes, workers=[worker], pure=False) for worker, seed in seeds.items()
    }
    wait(list(arrays.values()), timeout=timeout)
    begin = time.perf_counter()
    wait(_on_each(client, total_nbytes, arrays), timeout=timeout)
    seconds = time.perf_counter() - begin
    made = {worker: checksum(payload(seed, nbytes)) for worker, seed in seeds.items()}
    for worker, found in zip(workers, client.gather(_on_each(client, checksums, arrays)), strict=True):
        if found != [value for other, value in made.items() if other != worker]:
            raise BenchError(f"{worker} received other bytes than were sent")
    return seconds


def _on_each(client: Client, function: Any, arrays: Mapping[str, Any]) -> list[Any]:
    """Have each worker call `function` with the arrays of all others.

    In one graph: then all are told of an array's worker before any other has a copy, and each array is fetched from
    where it was made. Of tasks that come one by one, the later ones fetch from any worker that has fetched already.
    """
    tasks: list[Any] = []
    for worker in arrays:
        with annotate(workers=[worker], allow_other_workers=False):
            tasks.append(delayed(function, pure=False)(*(array for other, array in arrays.items() if other != worker)))
    futures: list[Any] = client.compute(tasks)
    return futures


def total_nbytes(*arrays: Any) -> int:
    """Return the size of all arrays; what brings them to the worker that is asked."""
    return sum(array.nbytes for array in arrays)


def checksums(*arrays: Any) -> list[int]:
    """Return the CRC-32 of each array."""
    return [checksum(array) for array in arrays]


def links(client: Client, protocol: str) -> dict[str, Any]:
    """Ask the workers which others they have fetched from, and over which lanes.

    Returns
    -------
    dict
        ``pairs``: of workers, the receiver and the sender. ``connections``: those that workers opened to ask for
        arrays. ``lanes``: of how many pairs, by the lane.
    """
    found = client.run(read_links, protocol)
    lanes = Counter(
        lane
        for worker, each in found.items()
        for peer, used in each["lanes"].items()
        if peer in found and peer != worker
        for lane in used
    )
    return {
        "pairs": sum(len(each["fetched_from"]) for each in found.values()),
        "connections": sum(each["connections"] for each in found.values()),
        "lanes": dict(sorted(lanes.items())),
    }


def read_links(protocol: str, dask_worker: Any) -> dict[str, Any]:
    """Return what `links` adds up, of one worker; runs in the worker."""
    return {
        "fetched_from": sorted({e["who"] for e in dask_worker.transfer_incoming_log}),
        "connections": dask_worker.rpc.open,
        "lanes": clusters.read_lanes() if protocol == "ucx" else {},
    }
