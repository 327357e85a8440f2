# SPDX-License-Identifier: BSD-3-Clause
"""Whether waits look for a while before they sleep."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor

import weft
from weft._connect import links

#: Where other processes have the cores, no spin pays for a while.
ENOUGH_S = 60
ECHO = """
import sys, time, weft
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    with listener.accept(100) as peer:
        while message := bytes(peer.recv().wait(100)):
            if message == b"late":
                time.sleep(0.002)
            peer.send(message).wait(100)
"""


def test_a_loop_spins_as_long_as_it_meets_something_by_it(spawn):
    child = spawn(ECHO)

    async def rounds(peer, message, enough):
        [worker] = (await links.workers_of_loop())._workers.values()
        end = time.monotonic() + ENOUGH_S
        while time.monotonic() < end:
            await peer.send(message)
            await peer.recv()
            if enough(worker.native._spin_credit):
                return True
        return False

    async def main():
        async with weft.connect(child.line()) as peer:
            assert await rounds(peer, b"late", lambda credit: credit == 0)
            assert await rounds(peer, b"soon", lambda credit: credit > 0)
            await peer.send(b"")

    asyncio.run(main())
    assert child.wait(100) == 0


def blocking_rounds(peer, message, enough):
    [worker] = links.workers_of_thread()._workers.values()
    end = time.monotonic() + ENOUGH_S
    while time.monotonic() < end:
        peer.send(message).wait(100)
        peer.recv().wait(100)
        if enough(worker.native._spin_credit):
            return True
    return False


def in_a_new_thread(function):
    """Call it where the only worker is its own."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result(100)


def test_blocking_waits_spin_as_long_as_they_meet_something_by_it(spawn):
    child = spawn(ECHO)

    def main():
        with weft.connect(child.line()) as peer:
            assert blocking_rounds(peer, b"late", lambda credit: credit == 0)
            assert blocking_rounds(peer, b"soon", lambda credit: credit > 0)
            peer.send(b"").wait(100)

    in_a_new_thread(main)
    assert child.wait(100) == 0


def test_two_blocking_processes_on_one_processor_stop_spinning(spawn):
    def main():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread, and inherited by the child
        child = spawn(ECHO)
        with weft.connect(child.line()) as peer:
            assert blocking_rounds(peer, b"soon", lambda credit: credit == 0)
            peer.send(b"").wait(100)
        assert child.wait(100) == 0

    in_a_new_thread(main)
