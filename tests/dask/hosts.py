# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler and workers over ``ucx://`` in this process, at addresses that Dask takes for several hosts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import dask
import numpy as np
from distributed import Client, Scheduler, Worker, wait

from weft.dask.learn import chains

MiB = 1 << 20
NBYTES = 16 * MiB


class Hosts:
    """The client, the scheduler and the workers."""

    def __init__(self, client: Any, scheduler: Scheduler, workers: list[Worker]) -> None:
        self.client, self.scheduler, self.workers = client, scheduler, workers

    async def made(self, nbytes: int = NBYTES) -> Any:
        """Have the first worker make an array."""
        future = self.client.submit(np.arange, nbytes // 8, workers=[self.workers[0].address], pure=False)
        await wait(future)
        return future

    async def summed(self, future: Any, *numbers: int, nbytes: int = NBYTES) -> None:
        """Have workers sum it, and check what they say."""
        sums = [self.client.submit(total, future, i, workers=[self.workers[i].address], pure=False) for i in numbers]
        expected = (nbytes // 8) * (nbytes // 8 - 1) // 2
        assert await self.client.gather(sums) == [expected] * len(numbers)

    def count(self, what: str) -> list[int]:
        """Return what each worker has counted."""
        return [0 if (part := chains.of.get(worker)) is None else part.counts[what] for worker in self.workers]

    def part(self, number: int) -> Any:
        """Return a worker's part in chains."""
        return chains.of[self.workers[number]]


def total(array: Any, _: int) -> int:
    return int(array.sum())


@contextlib.asynccontextmanager
async def hosts(count: int, mode: str = "learn", *, each: int = 2) -> AsyncIterator[Hosts]:
    """Start so many workers, `each` of them to a host."""
    with dask.config.set({"weft.links": mode, "distributed.admin.system-monitor.gil.enabled": False}):
        async with (
            Scheduler(protocol="ucx", host="127.0.0.1", dashboard_address=":0") as scheduler,
            contextlib.AsyncExitStack() as stack,
        ):
            workers = [
                await stack.enter_async_context(
                    Worker(scheduler.address, host=f"127.0.0.{2 + i // each}", nthreads=1, dashboard_address=":0")
                )
                for i in range(count)
            ]
            async with Client(scheduler.address, asynchronous=True) as client:
                yield Hosts(client, scheduler, workers)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in a loop of its own, within a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(bounded())
    gc.collect()
