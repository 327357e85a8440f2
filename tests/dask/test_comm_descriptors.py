# SPDX-License-Identifier: BSD-3-Clause
"""Connections and event loops, one after another, leave no descriptors open."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.comm.core import Comm
from tests.dask.ends import LOOPBACK, second_loop

pytestmark = pytest.mark.usefixtures("no_comms_left")


@pytest.mark.parametrize("leave", ["close", "abort", "drop"])
async def test_connections_in_turn_leave_descriptors_flat(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], leave: str
) -> None:
    counts = []

    async def echo(comm: Comm) -> None:
        with contextlib.suppress(CommClosedError):
            while True:
                await comm.write(await comm.read())

    with second_loop(loop_factory) as loop:

        async def start() -> Any:
            return await listen(LOOPBACK, echo)

        listener = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), loop))
        for number in range(200):
            comm = await connect(listener.contact_address)
            await comm.write(number)
            assert await comm.read() == number
            if leave == "close":
                await comm.close()
            elif leave == "abort":
                comm.abort()
            del comm
            counts.append(len(os.listdir("/proc/self/fd")))
        loop.call_soon_threadsafe(listener.stop)
    # Both sides' sockets of a bootstrap may still be on their way out when they are counted.
    assert max(counts[-20:]) <= max(counts[3:20]) + 2


async def talk(*, close: bool) -> None:
    """Listen, connect and exchange a message; leave the comms to the loop's end, or close them."""
    served: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

    async def handler(comm: Comm) -> None:
        served.set_result(comm)

    async with listen(LOOPBACK, handler) as listener:
        comm = await connect(listener.contact_address)
        other = await served
    await comm.write("x")
    assert await other.read() == "x"
    if close:
        await comm.close()
        await other.close()


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("close", [True, False], ids=["closed", "left open"])
@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "abrupt"])
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_event_loops_in_turn_leave_descriptors_flat(kind: str, orderly: bool, close: bool, count: int) -> None:
    """Orderly as ``asyncio.run`` ends a loop; abrupt as old programs do, which just close it."""
    new_event_loop = pytest.importorskip(kind).new_event_loop
    counts = []
    for _ in range(count):
        loop = new_event_loop()
        loop.run_until_complete(talk(close=close))
        if orderly:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[2]
