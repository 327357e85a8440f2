# SPDX-License-Identifier: BSD-3-Clause
"""Time calls between two xoscar actors in processes of their own, over its sockets and over its UCX channel on weft.

    python scripts/xoscar_bench.py [--sizes 8,1048576] [--rounds N] [--json FILE]

in the environment of ``scripts/xoscar_tests.py``. One actor calls the other with an array, which answers with it. The
channels take turns: ``unix`` is what xoscar takes within a pool by itself, ``tcp`` and ``ucx`` what it takes between
pools, all on this host.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import statistics
import sys
import time

import numpy as np

from weft import compat
from weft._units import format_seconds, format_size
from weft.bench.common import environment
from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record

compat.install_ucxx()  # here, and in the processes of xoscar's pools
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(compat.PATH), os.environ.get("PYTHONPATH"))))

import xoscar  # noqa: E402

#: The scheme of the pool's addresses, and whether it may take a socket of its own beside them.
CHANNELS = {"unix": (None, True), "tcp": (None, False), "ucx": ("ucx", False)}
WARM_UP = 5
LIMIT_S = 300.0


class Echo(xoscar.Actor):  # type: ignore[misc]
    """Answers with what it was called with."""

    async def echo(self, payload: np.ndarray) -> np.ndarray:
        """Return `payload`."""
        return payload


class Caller(xoscar.Actor):  # type: ignore[misc]
    """Calls, and takes the time."""

    async def time(self, other: xoscar.ActorRef, nbytes: int, count: int) -> list[float]:
        """Return the seconds of each call, there and back."""
        payload, taken = np.zeros(nbytes, "u1"), []
        for _ in range(WARM_UP + count):
            begin = time.perf_counter()
            answer = await other.echo(payload)
            taken.append(time.perf_counter() - begin)
            assert answer.nbytes == nbytes
        return taken[WARM_UP:]


async def measure(channel: str, nbytes: int, count: int) -> list[float]:
    """Make a pool of two processes and an actor in each; return the seconds of the calls."""
    scheme, internal = CHANNELS[channel]
    pool = await xoscar.create_actor_pool(
        "127.0.0.1", n_process=2, external_address_schemes=[scheme] * 3, enable_internal_addresses=[internal] * 3
    )
    async with pool:
        where = pool.external_address
        echo = await xoscar.create_actor(
            Echo, address=where, allocate_strategy=xoscar.allocate_strategy.ProcessIndex(1)
        )
        caller = await xoscar.create_actor(
            Caller, address=where, allocate_strategy=xoscar.allocate_strategy.ProcessIndex(0)
        )
        taken: list[float] = await asyncio.wait_for(caller.time(echo, nbytes, count), LIMIT_S)
        return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="8,65536,1048576,16777216", help="bytes (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=300, help="of each size in each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    add_json(parser)
    told = parser.parse_args()
    surroundings = environment.collect()
    medians: dict[int, dict[str, list[float]]] = {}
    for _ in range(told.rounds):
        for nbytes in map(int, told.sizes.split(",")):
            for channel in CHANNELS:
                taken = asyncio.run(measure(channel, nbytes, told.calls))
                medians.setdefault(nbytes, {}).setdefault(channel, []).append(statistics.median(taken))
    for nbytes, each in medians.items():
        told_of = ", ".join(f"{channel} {format_seconds(statistics.median(s))}" for channel, s in each.items())
        print(f"{format_size(nbytes):>8}  {told_of}")
    rows = [{"nbytes": nbytes, "round_trip_s": each} for nbytes, each in medians.items()]
    write_record(told.json, {"xoscar": importlib.metadata.version("xoscar"), "rows": rows, "environment": surroundings})
    return 0


if __name__ == "__main__":
    sys.exit(main())
