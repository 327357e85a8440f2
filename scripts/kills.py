#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Kill processes at random moments of what they do, and see that the one that survives is told, soon and rightly.

This process survives. It talks with a few others at a time, which are killed (SIGKILL) while they connect, send small
or large messages, lend memory, or wait; half of them listened, half connected; half are reaped at once, half stay
zombies until the survivor has its error. All that arrived carries a checksum, and what arrived last is looked at again
when its sender is dead. A steady connection goes on meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
import zlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

import weft
from weft import memory
from weft.bench.common import environment, outcome
from weft.bench.common.options import add_json

PHASES = ("connecting", "idle", "eager", "pieces", "rendezvous", "lent")
#: Bytes of a message, at least and at most.
SIZES = {
    "eager": (1, 4_000),
    "pieces": (5_000, 250_000),
    "rendezvous": (300_000, 4_000_000),
    "lent": (100_000, 4_000_000),
}
#: Seconds within which the survivor must have its error, and after which it counts as hung.
SOON_S, HUNG_S = 1.0, 20.0
#: How many arrivals each side holds.
KEPT = 5
#: The most seconds that a process lives after it is ready.
LIFE_S = 0.1


class Case(NamedTuple):
    """How one process is to die; all of it follows from the number."""

    number: int
    phase: str
    listens: bool
    reaped: bool
    after_s: float

    @staticmethod
    def of(number: int, seed: int, phases: Sequence[str]) -> Case:
        dice = random.Random(f"{seed}.{number}")  # noqa: S311
        phase, listens, reaped = dice.choice(phases), dice.random() < 0.5, dice.random() < 0.5
        return Case(number, phase, listens, reaped, dice.uniform(0, LIFE_S))


class Outcome(NamedTuple):
    case: Case
    error: str
    told_after_s: float


def message(dice: random.Random, phase: str) -> list[bytes | np.ndarray]:
    array = np.frombuffer(dice.randbytes(1000) * (dice.randint(*SIZES[phase]) // 1000 + 1), "u1").copy()
    return [zlib.crc32(array).to_bytes(4, "little"), array]


def check(crc: memoryview, array: memoryview) -> None:
    if zlib.crc32(array).to_bytes(4, "little") != bytes(crc):
        raise AssertionError("what arrived is not what was sent")


async def talk(peer: weft.Peer, phase: str, number: int) -> None:
    """Send and receive without end; an error ends it."""
    dice = random.Random(number)  # noqa: S311
    if phase in ("idle", "connecting"):
        await peer.recv()
        raise AssertionError("a message that nobody sent")
    arrived: collections.deque[list[memoryview]] = collections.deque(maxlen=KEPT)
    try:
        with weft.arrays_in_pool() if phase == "lent" else contextlib.nullcontext():
            while True:
                sending = peer.send_frames(message(dice, phase), lend=phase == "lent")
                arrived.append(await peer.recv_frames())
                check(*arrived[-1])
                await sending
    finally:
        for crc, array in arrived:  # the memory of a dead process, where it was lent
            check(crc, array)


async def connect_on_and_on(address: str, number: int) -> None:
    while True:
        peer = await weft.connect(address, info={"case": number})
        peer.abort()


def victim(case: Case, address: str, pipe: Connection) -> None:
    """Be killed in mid-life."""

    async def main() -> None:
        if case.listens:

            async def handler(peer: weft.Peer) -> None:
                pipe.send("connected")
                with contextlib.suppress(weft.Error):
                    await talk(peer, case.phase, case.number)

            async with weft.listen("127.0.0.1:0", handler) as listener:
                pipe.send(listener.address)
                await asyncio.sleep(HUNG_S * 2)
        elif case.phase == "connecting":
            pipe.send("connected")
            await connect_on_and_on(address, case.number)
        else:
            peer = await weft.connect(address, info={"case": case.number})
            pipe.send("connected")
            await talk(peer, case.phase, case.number)

    asyncio.run(main())


class Survivor:
    """The listener, and who waits for which case's connection."""

    def __init__(self) -> None:
        self.awaited: dict[int, asyncio.Future[weft.Peer]] = {}
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["numpy", "weft", "asyncio"])
        self.address = ""

    async def on_peer(self, peer: weft.Peer) -> None:
        waiting = self.awaited.get(peer.remote.get("case", -1))
        if waiting is None or waiting.done():  # of a case that only connects
            with contextlib.suppress(weft.Error):
                await peer.recv()
            return
        waiting.set_result(peer)
        await asyncio.Event().wait()  # whoever took it ends it

    async def run(self, case: Case) -> Outcome:
        here, there = self.processes.Pipe()
        process = self.processes.Process(target=victim, args=(case, self.address, there), daemon=True)
        loop = asyncio.get_running_loop()
        accepted = self.awaited[case.number] = loop.create_future()
        if case.phase == "connecting":
            accepted.cancel()
        await asyncio.to_thread(process.start)
        there.close()
        killed_at = 0.0

        def kill() -> None:
            nonlocal killed_at
            killed_at = time.monotonic()
            process.kill()
            if case.reaped:
                loop.run_in_executor(None, process.join)

        async def life() -> None:
            first = await asyncio.to_thread(here.recv)
            if case.listens and case.phase == "connecting":
                loop.call_later(case.after_s, kill)
                await connect_on_and_on(first, case.number)
            if case.phase == "connecting":  # nothing is to be told but that it goes on
                loop.call_later(case.after_s, kill)
                await asyncio.sleep(case.after_s + 0.01)
                raise weft.PeerLostError("none is due")
            peer = await (weft.connect(first) if case.listens else accepted)
            try:
                if case.listens:
                    await asyncio.to_thread(here.recv)
                loop.call_later(case.after_s, kill)
                await talk(peer, case.phase, -case.number)
            finally:
                peer.abort()

        error = "hung"
        try:
            async with asyncio.timeout(HUNG_S):
                await life()
        except TimeoutError:
            pass
        except Exception as e:  # noqa: BLE001 - which one is the result
            error = type(e).__name__
        told_at = time.monotonic()
        process.kill()
        await asyncio.to_thread(process.join)
        here.close()
        del self.awaited[case.number]
        return Outcome(case, error, told_at - (killed_at or told_at))


class Held(NamedTuple):
    """What the survivor holds: descriptors, mappings of rings, KiB of its own rings and in all."""

    descriptors: int
    rings_mapped: int
    rings_kib: int
    resident_kib: int


def held() -> Held:
    rings_kib = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "weft-rings" in os.readlink(f"/proc/self/fd/{name}"):
                rings_kib = os.stat(f"/proc/self/fd/{name}").st_blocks // 2
    with open("/proc/self/maps") as maps, open("/proc/self/smaps_rollup") as rollup:
        mapped = sum("weft-rings" in line for line in maps)
        resident = next(int(line.split()[1]) for line in rollup if line.startswith("Rss:"))
    return Held(len(os.listdir("/proc/self/fd")), mapped, rings_kib, resident)


def named_rightly(outcome: Outcome) -> bool:
    if outcome.case.phase == "connecting" and outcome.case.listens:
        allowed = {"PeerLostError", "UnreachableError", "HandshakeError"}
    else:
        allowed = {"PeerLostError"}
    return outcome.error in allowed


def growth(marks: Sequence[Held]) -> list[str]:
    """Say what there is more of at the end, with nobody left to kill, than there was at most in the first half."""
    early = marks[: max(len(marks) // 2, 1)]
    grown = []
    for kind, slack in (("descriptors", 0), ("rings_mapped", 0), ("rings_kib", 1024), ("resident_kib", 2048)):
        most, last = max(getattr(mark, kind) for mark in early), getattr(marks[-1], kind)
        if last > most + slack:
            grown.append(f"{kind}: {most} to {last}")
    return grown


def right(outcome: Outcome) -> bool:
    return named_rightly(outcome) and outcome.told_after_s <= SOON_S


async def steady(address: str, stop: asyncio.Event) -> int:
    """Echo with a process that nobody kills; count the rounds."""
    rounds = 0
    async with weft.connect(address) as peer:
        while not stop.is_set():
            sending = peer.send(rounds.to_bytes(8, "little") * 40_000)
            assert bytes((await peer.recv())[:8]) == rounds.to_bytes(8, "little")
            await sending
            rounds += 1
            await asyncio.sleep(0.01)
    return rounds


def echo(pipe: Connection) -> None:
    async def handler(peer: weft.Peer) -> None:
        with contextlib.suppress(weft.Error):
            while True:
                await peer.send(await peer.recv())

    async def main() -> None:
        async with weft.listen("127.0.0.1:0", handler) as listener:
            pipe.send(listener.address)
            await asyncio.to_thread(pipe.poll, None)

    asyncio.run(main())


async def main(count: int, seed: int, at_once: int, phases: Sequence[str]) -> tuple[list[Outcome], dict[str, Any]]:
    """Kill so many; return how each ended, and what was seen beside them."""
    survivor = Survivor()
    here, there = survivor.processes.Pipe()
    other = survivor.processes.Process(target=echo, args=(there,), daemon=True)
    other.start()
    outcomes: list[Outcome] = []
    marks: dict[int, Held] = {}
    cases = iter([Case.of(number, seed, phases) for number in range(count)])
    began = time.monotonic()

    async def work() -> None:
        for case in cases:
            outcome = await survivor.run(case)
            outcomes.append(outcome)
            if not right(outcome):
                print(f"wrong: {outcome}", flush=True)
            if len(outcomes) % 100 == 0:
                now = marks[len(outcomes)] = held()
                print(f"{len(outcomes)} kills, {time.monotonic() - began:.0f} s, {now}", flush=True)

    async with weft.listen("127.0.0.1:0", survivor.on_peer) as listener:
        survivor.address = listener.address
        stop = asyncio.Event()
        beside = asyncio.create_task(steady(here.recv(), stop))
        await asyncio.gather(*(work() for _ in range(at_once)))
        stop.set()
        rounds = await beside
        print(f"the steady connection made {rounds} rounds")
    marks[len(outcomes)] = held()
    other.kill()
    other.join()
    seen: dict[str, Any] = {"steady_rounds": rounds, "seconds": time.monotonic() - began}
    seen["grown"] = growth(list(marks.values()))
    for kind in Held._fields:
        seen[kind] = {number: getattr(now, kind) for number, now in marks.items()}
    return outcomes, seen


def report(outcomes: list[Outcome], files_before: int) -> dict[str, Any]:
    """Print how soon the survivor was told; return it for the record."""
    told: dict[str, list[float]] = {}
    for phase in PHASES:
        times = [o.told_after_s for o in outcomes if o.case.phase == phase]
        if times:
            median, most = statistics.median(times) * 1000, max(times) * 1000
            print(f"{phase:>12}: {len(times)} kills, noticed after {median:.1f} ms, at most {most:.1f}")
            told[phase] = [round(seconds, 6) for seconds in sorted(times)]
    wrong = sum(not right(outcome) for outcome in outcomes)
    left = len(memory.orphans()) - files_before
    print(f"{len(outcomes)} kills, {wrong} of them not told rightly within {SOON_S} s; {left} files more in /dev/shm")
    other = sum(not named_rightly(outcome) for outcome in outcomes)
    return {"told_after_s": told, "other_errors": other, "wrong": wrong, "soon_s": SOON_S, "files_left": left}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES, help="what is going on")
    add_json(parser)
    options = parser.parse_args()
    surroundings, files = environment.collect(), len(memory.orphans())
    ended, beside = asyncio.run(main(options.count, options.seed, options.at_once, options.phases))
    record = {**report(ended, files), **beside, "environment": surroundings}
    outcome.write(options.json, json.dumps(record) + "\n")  # thousands of figures: in one line
    print("grown: " + "; ".join(record["grown"]) if record["grown"] else "nothing grew")
    sys.exit(1 if record["wrong"] or record["grown"] else 0)
