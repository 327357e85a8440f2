# SPDX-License-Identifier: BSD-3-Clause
"""What a broadcast costs a host, and what Dask counts: python scripts/measure_broadcast.py.

Every worker maps and reads all of an array that one of them made. Counted are the workers' shares of physical memory
(Pss: each page divided by those that have it), what Dask's workers take for theirs, and their resident memory. Links
between the workers are made beforehand, unless it is run with --links.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from weft.bench.common import environment, outcome
from weft.bench.common.options import add_json

MIB = 1 << 20


def look(dask_worker: Any) -> dict[str, int]:
    """Return the figures of one worker, in bytes."""
    (pss,) = [
        line.split()[1] for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if "Pss:" in line[:4]
    ]
    counted = dask_worker.monitor.get_process_memory()
    return {"physical": int(pss) << 10, "counted": counted, "resident": dask_worker.monitor.proc.memory_info().rss}


def total(client: Client) -> dict[str, int]:
    """Sum the figures over the workers."""
    states = client.run(look).values()
    return {name: sum(state[name] for state in states) for name in ("physical", "counted", "resident")}


def spread(client: Client, nbytes: int) -> Any:
    """Have an array of this size on all workers, each of which reads it."""
    workers = sorted(client.nthreads())
    array = client.submit(np.ones, nbytes // 8, workers=workers[:1], pure=False)
    client.replicate(array)
    client.gather([client.submit(np.sum, array, workers=[worker], pure=False) for worker in workers])
    return array


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--links", action="store_true", help="count what the links between the workers cost, too")
    add_json(parser)
    options = parser.parse_args()
    surroundings = environment.collect()
    with (
        LocalCluster(
            n_workers=options.workers, threads_per_worker=1, protocol="ucx", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(options.workers, timeout=60)
        client.amm.stop()
        if not options.links:
            for _ in range(3 * options.workers):
                spread(client, 1 << 20)
        before = total(client)
        kept = spread(client, options.mib * MIB)
        after = total(client)
        rises = {name: nbytes - before[name] for name, nbytes in after.items()}
        for name, rise in rises.items():
            print(f"{name:9} {rise / MIB:7.1f} MiB  {rise / MIB / options.mib:5.2f} copies")
        del kept
    record = {"nbytes": options.mib * MIB, "workers": options.workers, "links": options.links, "rises": rises}
    outcome.write_record(options.json, record | {"environment": surroundings})


if __name__ == "__main__":
    main()
