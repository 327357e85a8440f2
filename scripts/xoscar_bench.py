# SPDX-License-Identifier: BSD-3-Clause
"""Time calls between two xoscar actors in processes of their own, over its sockets and over its UCX channel on weft.

    python scripts/xoscar_bench.py [--sizes 8,1048576] [--rounds N] [--json FILE]

in the environment of ``scripts/xoscar_tests.py``. One actor calls the other with an array, which answers with it. The
channels take turns: ``unix`` is what xoscar takes within a pool by itself, ``tcp`` and ``ucx`` what it takes between
pools, all on this host. ``ucx`` takes a hop more: xoscar's client drops the scheme of the address that it keeps, takes
the destination for a proxy because of that, and wraps each call in one to forward, which the target then calls
itself with. ``ucx, mended`` is the same with the scheme kept.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import compat
from weft._units import format_seconds, format_size
from weft.bench.common import environment
from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record

compat.install_ucxx()  # here, and in the processes of xoscar's pools
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(compat.PATH), os.environ.get("PYTHONPATH"))))

import xoscar  # noqa: E402
from xoscar.backends.communication.ucx import UCXClient  # noqa: E402

#: The scheme of the pool's addresses, and whether it may take a socket of its own beside them.
CHANNELS = {"unix": (None, True), "tcp": (None, False), "ucx": ("ucx", False), "ucx, mended": ("ucx", False)}
WARM_UP = 5
LIMIT_S = 300.0


_connect = UCXClient.connect


async def _connect_and_keep_the_scheme(dest_address: str, local_address: str | None = None, **kwargs: Any) -> UCXClient:
    client = await _connect(dest_address, local_address, **kwargs)
    client.dest_address = dest_address
    return client


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


async def measure(channel: str, sizes: Sequence[int], count: int) -> list[list[float]]:
    """Make a pool of two processes and an actor in each; return the seconds of the calls with each size."""
    scheme, internal = CHANNELS[channel]
    # The caller is in this process, as the first of a pool's is.
    UCXClient.connect = staticmethod(_connect_and_keep_the_scheme if channel.endswith("mended") else _connect)
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
        return [await asyncio.wait_for(caller.time(echo, nbytes, count), LIMIT_S) for nbytes in sizes]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="8,65536,1048576,16777216", help="bytes (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=100, help="of each size in each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    add_json(parser)
    told = parser.parse_args()
    surroundings = environment.collect()
    medians: dict[int, dict[str, list[float]]] = {}
    sizes = [int(size) for size in told.sizes.split(",")]
    for channel in [*CHANNELS] * told.rounds:
        for nbytes, taken in zip(sizes, asyncio.run(measure(channel, sizes, told.calls)), strict=True):
            medians.setdefault(nbytes, {}).setdefault(channel, []).append(statistics.median(taken))
    for nbytes, each in medians.items():
        told_of = ", ".join(f"{channel} {format_seconds(statistics.median(s))}" for channel, s in each.items())
        print(f"{format_size(nbytes):>8}  {told_of}")
    rows = [{"nbytes": nbytes, "round_trip_s": each} for nbytes, each in medians.items()]
    write_record(told.json, {"xoscar": importlib.metadata.version("xoscar"), "rows": rows, "environment": surroundings})
    return 0


if __name__ == "__main__":
    sys.exit(main())
