#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Connect, transfer and close, many times, and watch whether anything stays: descriptors, mappings, memory, files.

Two processes. In turn, a cycle runs in an event loop of its own (new workers and a new link in both processes) and,
blocking, on this thread's worker (a new connection on the link that is there). With ``--handovers``, one process lends
so many arrays to the other, of several sizes, and each of both holds some for a while. With ``--kills``, processes are
killed while they make workers, to see what UCX leaves in ``/dev/shm`` then.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import ctypes
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np

import weft
from weft import memory
from weft.bench.common import environment, outcome
from weft.bench.common.options import add_json

#: Eager, a rendezvous, and one that goes into whole pages of the pool.
SIZES = (8, 300_000, 3 << 20)
#: What either process may gain from the first quarter to the end. Its own memory: heaps fragment. Shared memory:
#: by chance, one more of the largest blocks is alive at once, and 3 MiB lie on up to three huge pages.
SLACK_KIB = {"resident_kib": 1024, "shared_kib": 6144}
TIMEOUT_S = 30
#: For the other side to have heard that a connection is over, on a busy machine.
SETTLED_S = 5
#: Of what is lent: the least that can be, one that ends within a page, one of many pages.
LENT = (65_536, 100_001, 3 << 20, 70_000, 65_537)


class Held(NamedTuple):
    """What a process holds."""

    descriptors: int
    mappings: int
    resident_kib: int
    shared_kib: int


def held(pid: int) -> Held:
    """Count what the process holds; ``resident_kib`` is without the shared memory: rings, and what it uses of pools."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/status") as status:
        kib = {
            name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in status) if "Rss" in name
        }
        mappings = sum(1 for _ in maps)
    return Held(len(os.listdir(f"/proc/{pid}/fd")), mappings, kib["RssAnon"] + kib["RssFile"], kib["RssShmem"])


def opened(pid: int) -> dict[str, str]:
    """Say what the process's descriptors are, by number."""
    names = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            names[number] = os.readlink(f"/proc/{pid}/fd/{number}")
    return names


def serve(to_parent: Connection) -> None:
    """Echo, until the parent is gone."""

    async def echo(peer: weft.Peer) -> None:
        kept: collections.deque[memoryview] = collections.deque(maxlen=8)
        with contextlib.suppress(weft.PeerClosedError):
            while True:
                kept.append(await peer.recv())
                await peer.lend(kept[-1])

    async def main() -> None:
        async with weft.listen("127.0.0.1:0", echo) as listener:
            to_parent.send(listener.address)
            await asyncio.to_thread(to_parent.poll, None)

    asyncio.run(main())


async def cycle(address: str) -> None:
    async with weft.connect(address) as peer:
        for nbytes in SIZES:
            sent = peer.send(bytes(nbytes))
            assert (await peer.recv()).nbytes == nbytes
            await sent


def cycle_blocking(address: str) -> None:
    with weft.connect(address) as peer:
        for nbytes in SIZES:
            sent = peer.send(bytes(nbytes))
            assert peer.recv().wait(TIMEOUT_S).nbytes == nbytes
            sent.wait(TIMEOUT_S)


async def hand_over(address: str, numbers: range) -> None:
    """Lend arrays, and borrow them again from who has them; the last few stay alive on both sides."""
    kept: collections.deque[np.ndarray] = collections.deque(maxlen=8)
    with weft.arrays_in_pool():
        async with weft.connect(address) as peer:
            for number in numbers:
                array = np.full(LENT[number % len(LENT)], number % 251, "u1")
                lent = peer.lend(array)
                back = np.frombuffer(await peer.recv(), "u1")
                await lent
                assert back.size == array.size
                assert back[0] == back[-1] == number % 251
                kept.append(back)


async def call(address: str) -> None:
    async with weft.connect(address):
        pass


def settled(address: str, pid: int, descriptors: int) -> Held:
    """Return what the process holds, once the last connection is gone there too, or after a while.

    A connection that lent something ends with the last loan: when that comes back later, the process's next operation
    hears of it. So both processes are given one.
    """
    until = time.monotonic() + SETTLED_S
    while (now := held(pid)).descriptors > descriptors and time.monotonic() < until:
        asyncio.run(asyncio.wait_for(call(address), TIMEOUT_S))
        time.sleep(0.01)
    return now


def cycles(address: str, numbers: range) -> None:
    for number in numbers:
        if number % 2:
            asyncio.run(asyncio.wait_for(cycle(address), TIMEOUT_S))
        else:
            cycle_blocking(address)


def handovers(address: str, numbers: range) -> None:
    asyncio.run(hand_over(address, numbers))


def soak(what: Callable[[str, range], None], count: int, marks: int = 20) -> list[tuple[Held, Held]]:
    """Do that so many times; return what both processes held at each mark."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(there,), daemon=True)
    child.start()
    there.close()
    seen: list[tuple[Held, Held]] = []
    began = time.monotonic()
    try:
        address = here.recv()
        assert child.pid is not None
        pids = {"connector": os.getpid(), "listener": child.pid}
        least = dict.fromkeys(pids, 2**31)
        before: dict[str, dict[str, str]] = {}
        for mark in range(marks):
            numbers = range(mark * count // marks, (mark + 1) * count // marks)
            what(address, numbers)
            ctypes.CDLL(None).malloc_trim(0)  # the heap keeps 3 MiB or not, by its layout, after the last was freed
            now = {name: settled(address, pid, least[name]) for name, pid in pids.items()}
            least = {name: min(least[name], now[name].descriptors) for name in pids}
            seen.append((now["connector"], now["listener"]))
            print(
                f"{numbers.stop:>7} {what.__name__}, {(time.monotonic() - began) / numbers.stop * 1e3:.1f} ms each:",
                *seen[-1],
            )
            files = {name: opened(pid) for name, pid in pids.items()}
            for name in before:
                if len(files[name]) > len(before[name]):
                    more = sorted(f"{number} {link}" for number, link in files[name].items() - before[name].items())
                    print(f"        new in the {name}: {', '.join(more)}")
            before = files
    finally:
        end(child)
        here.close()
    return seen


def end(child: BaseProcess) -> None:
    child.terminate()
    child.join(10)


def verdict(seen: list[tuple[Held, Held]]) -> list[str]:
    """Say what has grown."""
    faults = []
    for name, marks in zip(("connector", "listener"), zip(*seen, strict=True), strict=True):
        early, last = marks[len(marks) // 4], marks[-1]
        # as many as the segments that something is held of: one more or less at each mark
        most = max(mark.descriptors for mark in marks[len(marks) // 4 : -1])
        if last.descriptors > most:
            faults.append(f"{name}: {most} to {last.descriptors} descriptors")
        if last.mappings > early.mappings * 1.1:
            faults.append(f"{name}: {early.mappings} to {last.mappings} mappings")
        for kind, slack in SLACK_KIB.items():
            before, after = getattr(early, kind), getattr(last, kind)
            if after > before + slack:
                faults.append(f"{name}: {kind} {before} to {after}")
    return faults


def make_workers(ready: Connection) -> None:
    context = weft.Context({"TLS": "posix,self"})
    ready.send(None)
    while True:
        weft.Worker(context).close()


def kill_in_start_up(count: int, seed: int) -> int:
    """Kill processes that make workers, at random moments; return how many files they left."""
    context = multiprocessing.get_context("spawn")
    moments = random.Random(seed)  # noqa: S311
    left = 0
    for _ in range(count):
        here, there = context.Pipe()
        child = context.Process(target=make_workers, args=(there,), daemon=True)
        child.start()
        here.recv()
        time.sleep(moments.uniform(0, 0.05))
        child.kill()
        child.join(10)
        here.close()
        there.close()
        left += len(memory.remove_orphans())
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="cycles")
    parser.add_argument("--handovers", type=int, default=0, help="arrays that are lent")
    parser.add_argument("--kills", type=int, default=0, help="processes to kill in their start-up")
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser)
    arguments = parser.parse_args()
    surroundings = environment.collect()
    swept = len(memory.remove_orphans())
    faults: list[str] = []
    marks: dict[str, Any] = {}
    for what, count in ((cycles, arguments.count), (handovers, arguments.handovers)):
        if count:
            seen = soak(what, count)
            faults += verdict(seen)
            marks[what.__name__] = {"count": count, "connector_and_listener": seen}
    if left := memory.remove_orphans():
        faults.append(f"{len(left)} files in /dev/shm")
    print(f"in /dev/shm: {swept} files without a user before, {len(left)} after")
    record = {**marks, "files_left": len(left), "faults": faults, "environment": surroundings}
    if arguments.kills:
        files = kill_in_start_up(arguments.kills, arguments.seed)
        print(f"{arguments.kills} processes killed while they made workers left {files} files in /dev/shm; removed")
        record["start_up"] = {"kills": arguments.kills, "files": files}
    print("NOT FLAT: " + "; ".join(faults) if faults else "flat")
    outcome.write(arguments.json, json.dumps(record) + "\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
