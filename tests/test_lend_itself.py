# SPDX-License-Identifier: BSD-3-Clause
"""Lending between two connections of one worker: what a scheduler gathers for the client in its own process."""

import asyncio
import gc
import os
from pathlib import Path

import numpy as np

import weft
from weft import _native

MIB = 1 << 20


def pooled(nbytes, value):
    with weft.arrays_in_pool():
        return np.full(nbytes, value, "u1")


def pinned():
    gc.collect()
    return _native.pool_statistics()["pinned_nbytes"]


def joined(use):
    """Run `use` with the two ends of a connection of this process to itself."""

    async def main():
        there = asyncio.get_running_loop().create_future()
        done = asyncio.Event()

        async def hold(peer):
            there.set_result(peer)
            await done.wait()

        async with weft.listen("127.0.0.1:0", hold) as listener, weft.connect(listener.address) as here:
            try:
                return await use(here, await there)
            finally:
                done.set()

    return asyncio.run(asyncio.wait_for(main(), 60))


async def handed(here, there, array):
    sent = here.lend(array)
    received = np.frombuffer(await there.recv(), "u1")
    await sent
    return received


def test_an_array_is_lent_and_not_copied():
    async def use(here, there):
        array = pooled(8 * MIB, 3)
        received = await handed(here, there, array)
        assert (here.lent_nbytes, there.lent_nbytes) == ((8 * MIB, 0), (0, 8 * MIB))
        assert received.sum() == 3 * array.size
        received[0] = 7  # its own page
        assert array[0] == 3
        assert pinned() >= 8 * MIB
        del received

    joined(use)
    assert pinned() == 0


def test_what_was_lent_is_lent_on():
    async def use(here, there):
        first = await handed(here, there, pooled(MIB, 1))
        second = await handed(there, here, first)
        assert there.lent_nbytes == (MIB, MIB)
        del first
        gc.collect()
        again = pooled(MIB, 9)  # not where the second still reads
        assert second.sum() == MIB
        return again

    joined(use)


def test_what_is_held_outlives_the_connection():
    held = joined(lambda here, there: handed(here, there, pooled(MIB, 5)))
    other = pooled(MIB, 6)
    assert (held.sum(), other.sum()) == (5 * MIB, 6 * MIB)
    del held, other
    joined(lambda here, there: asyncio.sleep(0))  # a later operation takes back what was given back
    assert pinned() == 0


def test_a_thousand_rounds_leave_nothing():
    async def use(here, there):
        array = pooled(MIB, 1)

        async def rounds(count):
            for _ in range(count):
                received = await handed(here, there, array)
                assert received[-1] == 1
                del received
            gc.collect()
            return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())

        before = await rounds(100)
        after = await rounds(1000)
        assert after[0] == before[0]
        assert after[1] <= before[1] + 3

    joined(use)
