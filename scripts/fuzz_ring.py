#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fuzz the links of one host: a peer that writes anything into the pages that it shares with this process.

Each case makes a link whose other side is nobody but this script. It maps the ring and the doorbell as a peer would,
and mixes good traffic with records, cursors, doorbells and socket messages that are spoiled. This side's worker must
end the link with a named error or ignore what came; each operation must end, and another link of the same worker goes
on. Payload is all `A`: whatever else arrives was read outside. `tests/ring/fuzz.cpp` does the ring alone. No Python of
weft's is in it, so the sanitizers see all that runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import fcntl
import gc
import json
import mmap
import os
import random
import re
import resource
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import weft
from weft import _native
from weft.bench.common import environment

PAGE = mmap.PAGESIZE
RING, AREA = 16 << 10, 256 << 10
CURSOR = 128  # bytes of the ring before its first record
CAPACITY = RING - CURSOR
MESSAGE, BEGIN, ANNOUNCE, ANSWER, REFUSE, PIECE, ROOM = range(1, 8)
DATA, CREDIT, GOODBYE, ACKNOWLEDGE, ABORT, BARE, PLACED = range(1, 8)
INLINE = 1  # the note of a piece whose bytes lie in the ring
MAGIC = 0x74666577
WIRE = struct.Struct("<IHHQQQ")
WORD, AREA_PIECE, OPENING = struct.Struct("<Q"), struct.Struct("<QII"), struct.Struct("<QQ")
ADDRESS = struct.Struct("<9Q")  # version, process, link, ring and its bytes, bits, state, area and its bytes
LENT_BIT, STAGED_BIT = 1 << 63, 1 << 62
REMOTE = 7
#: A hundred cases that take longer than this hang; a machine that others share may stand still for minutes.
HUNG_S = 1200
#: Resident memory may grow by so much from the first tenth to the last.
SLACK_KIB = 4096

LENGTHS = (0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 48, 100, 4000, 4104, 8000, 8001, 8016, 8017, CAPACITY - 73, CAPACITY - 72)
BIG = (1 << 20, 1 << 45, 1 << 60, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1)
TOTALS = (0, 1, 8, 4095, 8192, 100_000, 262_143, 262_144, *BIG)
WORDS = (0, 1, 8, 16, (1 << 20) + 1, 1 << 31, 1 << 32, (1 << 32) - 1, 1 << 62, (1 << 64) - 8, *BIG)

Outcome = str


class FindingError(Exception):
    """A case did what none may do."""


def record_nbytes(payload_nbytes: int) -> int:
    return 8 + payload_nbytes + 63 & ~63


def memory(name: str, nbytes: int) -> tuple[int, mmap.mmap]:
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.truncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd, mmap.mmap(fd, nbytes)


class Bystander:
    """A link of the victim's worker to another worker, both turned here: it must go on whatever the others do."""

    def __init__(self, victim: weft.Worker) -> None:
        self.other = weft.Worker(None, links_only=True)  # type: ignore[arg-type]
        sockets = socket.socketpair()
        links = [_native.prepare_link(worker, True, "bystander") for worker in (victim, self.other)]
        for link, sock in zip(links, sockets, strict=True):
            link.offer(sock.fileno())
        for link, other, sock in zip(links, reversed(links), sockets, strict=True):
            link.join(other.address, sock.detach())
        self.here, self.there = links[0].open(1, 2, "bystander"), links[1].open(2, 1, "bystander")
        self.victim, self.links, self.rounds = victim, links, 0

    def goes_on(self) -> None:
        for one, other in ((self.here, self.there), (self.there, self.here)):
            self.rounds += 1
            said = self.rounds.to_bytes(8, "little") * (1, 1000, 40_000)[self.rounds % 3]
            sent, got = one.send(said), other.recv()
            for _ in range(2000):
                self.victim.progress()
                self.other.progress()
                if got.done() and sent.done():
                    break
            else:
                raise FindingError("the other link stands still")
            if got.result() != said:
                raise FindingError("the other link delivers something else")


class Room:
    """The victim, its bystander, and the pages of the hostile side, which all cases share."""

    def __init__(self) -> None:
        self.worker = weft.Worker(None, links_only=True)  # type: ignore[arg-type]
        self.bystander = Bystander(self.worker)
        self.fd, self.pages = memory("hostile", RING + 2 * PAGE + AREA)
        self.bits, self.state, self.area = RING, RING + PAGE, RING + 2 * PAGE
        self.arena = -1  # the victim's
        self.doorbell: mmap.mmap | None = None
        self.pages[self.area :] = b"A" * AREA

    def close(self) -> None:
        self.worker.close()
        self.bystander.other.close()
        if self.doorbell is not None:
            self.doorbell.close()
        self.pages.close()
        for fd in (self.fd, self.arena):
            if fd >= 0:
                os.close(fd)


class Case:
    """One link, and both its sides."""

    def __init__(self, room: Room, number: int, r: random.Random) -> None:
        self.room, self.r, self.local = room, r, number + 100
        self.strict = r.random() < 0.7  # nothing random is written into the ring itself
        self.position = self.sequence = 0
        self.ids = self.ids_there = 0
        self.announced: list[int] = []  # by the victim
        self.requests: list[Any] = []
        room.pages[: room.area] = bytes(room.area)
        mine, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.link = _native.prepare_link(room.worker, True, "hostile")
        theirs = ADDRESS.unpack(self.link.address)
        if room.arena < 0:
            self.link.offer(mine.fileno())
            _, (room.arena,), _, _ = socket.recv_fds(self.sock, 1, 1)
            room.doorbell = mmap.mmap(room.arena, PAGE, offset=theirs[5])
        self.index = theirs[2]
        self.ring = mmap.mmap(room.arena, RING, offset=theirs[3])
        socket.send_fds(self.sock, [b"\0"], [room.fd])
        address = ADDRESS.pack(2, 99, r.randrange(32768), 0, RING, room.bits, room.state, room.area, AREA)
        self.link.join(address, mine.detach())
        self.channel = self.link.open(self.local, REMOTE, "hostile")

    # ---- good traffic ----

    def put(self, at: int, data: bytes) -> None:
        before = min(len(data), CAPACITY - at)
        self.ring[CURSOR + at : CURSOR + at + before] = data[:before]
        self.ring[CURSOR : CURSOR + len(data) - before] = data[before:]

    def record(self, kind: int, payload: bytes, note: int = 0, said: int | None = None) -> None:
        """Write a record as a writer does, but that its word may say another length."""
        self.put((self.position + 8) % CAPACITY, payload)
        after = (self.position + record_nbytes(len(payload))) % CAPACITY
        self.put(after, bytes(8))
        nbytes = len(payload) if said is None else said
        self.put(self.position, WORD.pack((note & 0xFFFFFF) << 40 | (kind & 0xFF) << 32 | nbytes & 0xFFFF_FFFF))
        self.position = after

    def wire(self, kind: int = DATA, large: int = 0, number: int | None = None, consumed: int = 0) -> bytes:
        if number is None:
            number = self.sequence
            self.sequence += kind in (DATA, BARE, PLACED)
        return WIRE.pack(MAGIC, kind, large, self.local, number, consumed)

    def message(self) -> None:
        header = self.wire()
        self.record(MESSAGE, header + b"A" * self.r.choice((0, 1, 8, 100, 3000)), len(header))
        if self.r.random() < 0.7:
            self.receive()

    def segments(self) -> None:
        count, nbytes = self.r.randrange(1, 9), self.r.randrange(100)
        header = self.wire(large=count) + struct.pack(f"<{count}Q", *([nbytes] * count))
        self.record(MESSAGE, header + b"A" * (nbytes * count + self.r.randrange(50)), len(header))
        self.receive()

    def pieces(self, name: int, total: int, *, part: bool = False) -> None:
        while total > 0 and not (part and self.r.random() < 0.3):
            nbytes = min(total, self.r.choice((8, 100, 4096) if self.r.random() < 0.3 else (8192, 65536)))
            total -= nbytes
            if nbytes <= 4096 and self.r.random() < 0.5:
                self.record(PIECE, WORD.pack(name) + b"A" * nbytes, INLINE)
            else:
                offset = self.r.choice((0, AREA - nbytes, self.r.randrange(AREA - nbytes + 1)))
                self.record(PIECE, AREA_PIECE.pack(name, offset, nbytes))
            if self.r.random() < 0.3:
                self.progress()

    def stream(self) -> None:
        name, total = self.name(), self.r.choice((1, 5000, 100_000, 262_143))
        self.record(BEGIN, OPENING.pack(name, total) + self.wire())
        self.receive()
        self.pieces(name, total, part=self.r.random() < 0.4)

    def announce(self) -> None:
        name, total = self.name(), self.r.choice((1, 262_144, 600_000))
        placed = self.r.random() < 0.2
        header = self.wire(PLACED) + WORD.pack(self.r.choice((0, 0, 1, 2))) if placed else self.wire()
        self.record(ANNOUNCE, OPENING.pack(name, total) + header)
        if placed:
            with contextlib.suppress(weft.Error):
                self.requests.append(self.channel.recv_placed(self.r.choice((0, 0, 1)), bytearray(total)))
        else:
            self.receive()
        self.progress()
        self.pieces(name, total, part=self.r.random() < 0.4)

    def control(self) -> None:
        kind = self.r.choice((CREDIT, GOODBYE, ACKNOWLEDGE, ABORT))
        header = self.wire(kind, number=self.r.choice((0, self.sequence, *WORDS)), consumed=self.r.choice(WORDS))
        self.record(MESSAGE, header, len(header))

    def answer(self) -> None:
        if self.announced:
            self.record(self.r.choice((ANSWER, ANSWER, REFUSE)), WORD.pack(self.announced.pop()))

    # ---- spoiled ----

    def name(self) -> int:
        self.ids += 1
        return self.ids

    def bad_word(self) -> None:
        kind = self.r.choice((0, 8, 255, *range(1, 8)))
        said = self.r.choice((*LENGTHS, CAPACITY - 71, CAPACITY, 1 << 31, (1 << 32) - 1))
        self.record(kind, b"A" * self.r.choice((0, 8, 64)), self.r.choice((0, 1, 32, 40, (1 << 24) - 1)), said)

    def bad_header(self) -> None:
        header = bytearray(self.wire(self.r.choice((*range(10), 65535)), self.r.choice((0, 0, 1, 3, 512, 513, 65535))))
        if self.r.random() < 0.5:
            at = self.r.randrange(len(header))
            header[at] ^= 1 << self.r.randrange(8)
        sizes = b"".join(
            WORD.pack(self.r.choice((0, 1, 100, *WORDS)) | self.r.choice((0, 0, LENT_BIT, LENT_BIT | STAGED_BIT)))
            for _ in range(self.r.randrange(5))
        )
        header += sizes + self.r.randbytes(self.r.choice((0, 0, 8, 24, 24 * 3)))
        note = self.r.choice((len(header), len(header), 0, 8, len(header) + 8, (1 << 24) - 1))
        payload = bytes(header) + b"A" * self.r.choice((0, 100, 1000))
        if self.r.random() < 0.6:
            self.record(MESSAGE, payload, note)
        else:
            opening = OPENING.pack(self.name(), self.r.choice(TOTALS))
            self.record(self.r.choice((BEGIN, ANNOUNCE)), opening + bytes(header))
        self.receive()

    def bad_opening(self) -> None:
        name = self.r.choice((self.name(), self.ids, max(self.ids - 1, 0), *WORDS))
        payload = (OPENING.pack(name, self.r.choice(TOTALS)) + self.wire())[
            : self.r.choice((0, 8, 15, 16, 20, 48, 48, 48, 48))
        ]
        self.record(self.r.choice((BEGIN, ANNOUNCE)), payload + bytes(self.r.choice((0, 0, 0, 8, 8000))))
        if self.r.random() < 0.6:
            self.receive()

    def bad_piece(self) -> None:
        name = self.r.choice((self.ids, self.ids, self.ids + 1, 0, *WORDS))
        nbytes = self.r.choice((0, 1, 8, 8192, AREA, AREA + 1, (1 << 32) - 1))
        offset = self.r.choice((0, 8, AREA - 8192, AREA - 8191, AREA - 1, AREA, AREA + 1, (1 << 32) - 1, (1 << 32) - 8))
        if self.r.random() < 0.7:
            piece = AREA_PIECE.pack(name, offset, nbytes)
            self.record(
                PIECE, piece[: self.r.choice((16, 16, 16, 16, 0, 7, 8, 15))] + b"A" * self.r.choice((0, 0, 0, 8))
            )
        else:
            self.record(PIECE, WORD.pack(name) + b"A" * self.r.choice((0, 1, 100, 4096, 9000)), INLINE)

    def bad_answer(self) -> None:
        name = WORD.pack(self.r.choice((0, 1, 2, 3, *WORDS)))
        self.record(
            self.r.choice((ANSWER, REFUSE)), name[: self.r.choice((8, 8, 8, 0, 4))] + bytes(self.r.choice((0, 0, 0, 8)))
        )

    def bad_cursor(self) -> None:
        seen = WORD.unpack_from(self.room.pages, 0)[0]
        value = self.r.choice((0, seen + 8, seen - 8, seen + 3, *WORDS)) & ((1 << 64) - 1)
        WORD.pack_into(self.room.pages if self.r.random() < 0.7 else self.ring, 0, value)

    def bad_bits(self) -> None:
        assert self.room.doorbell is not None
        bits = self.r.choice((bytes(8), b"\xff" * 8, self.r.randbytes(8)))
        at = self.r.choice((0, 0, 8, PAGE - 8))
        self.room.doorbell[at : at + 8] = bits
        WORD.pack_into(self.room.pages, self.room.state, self.r.getrandbits(64))

    def bad_socket(self) -> None:
        records = [(self.r.choice((*range(9), 1 << 40)), self.r.choice(WORDS)) for _ in range(self.r.randrange(1, 5))]
        said = b"".join(struct.pack("<QQ", *record) for record in records)
        with contextlib.suppress(OSError):
            self.sock.send(said[: self.r.choice((len(said), len(said), len(said) - 1))])
        self.look()

    def bad_bytes(self) -> None:
        """Whatever comes to hand, wherever, if the case allows it."""
        if self.strict:
            return self.bad_word()
        match self.r.randrange(4):
            case 0:
                at = self.r.randrange(RING)
                self.ring[at] ^= 1 << self.r.randrange(8)
            case 1:
                at, nbytes = self.r.randrange(RING - 64), self.r.choice((1, 8, 64))
                self.ring[at : at + nbytes] = self.r.randbytes(nbytes)
            case 2:
                self.put(self.position, self.r.randbytes(self.r.choice((8, 8, 16, 4000))))
            case _:
                words = [self.r.randrange(1, 8) << 32 | self.r.choice(LENGTHS) | self.r.choice((0, 32, 40)) << 40]
                self.ring[CURSOR:] = struct.pack(f"<{CAPACITY // 8}Q", *words * (CAPACITY // 8))
        return None

    # ---- the victim ----

    def receive(self) -> None:
        if len(self.requests) < 50:
            with contextlib.suppress(weft.Error):
                self.requests.append(self.channel.recv())

    def send(self) -> None:
        data = b"B" * self.r.choice((0, 8, 4000, 5000, 100_000, 300_000))
        with contextlib.suppress(weft.Error):
            placed = self.r.random() < 0.2
            if placed:
                self.requests += self.channel.send_placed(b"table", [], False, False, [b"B" * 5000])
            else:
                self.requests.append(self.channel.send(data))
            self.ids_there += placed or len(data) > 4096
            if placed or len(data) >= 262_144:
                self.announced.append(self.ids_there)

    def consume(self) -> None:
        """Be a reader, as far as the cursor: all that was written is read."""
        at, position = 0, 0
        while at < CAPACITY * 4:
            word = WORD.unpack_from(self.room.pages, CURSOR + position)[0]
            if not word or word >> 32 & 0xFF == ROOM:
                break
            taken = record_nbytes(word & 0xFFFF_FFFF)
            at, position = at + taken, (position + taken) % CAPACITY
        WORD.pack_into(self.room.pages, 0, at)

    def cancel(self) -> None:
        if self.requests:
            with contextlib.suppress(weft.Error):
                self.r.choice(self.requests).cancel()

    def say_goodbye(self) -> None:
        with contextlib.suppress(weft.Error):
            self.requests.append(self.channel.close())

    def progress(self) -> None:
        for _ in range(self.r.choice((1, 1, 1, 5))):
            self.room.worker.progress()

    def look(self) -> None:
        """Have the worker look at its sockets, as in a loop."""
        self.room.worker._turn()  # type: ignore[attr-defined]

    def arm(self) -> None:
        self.room.worker.arm()

    GOOD = (message, message, segments, stream, stream, announce, announce, control, answer)
    BAD = (bad_word, bad_header, bad_header, bad_opening, bad_piece, bad_piece, bad_answer, bad_cursor, bad_bits)
    BAD += (bad_bytes, bad_socket)
    VICTIM = (receive, send, send, consume, consume, cancel, say_goodbye, arm, progress, progress, progress)

    def run(self) -> Outcome:
        chance = self.r.random()
        for _ in range(self.r.randrange(2, 14)):
            steps: Sequence[Callable[[Case], None]] = self.r.choices(
                (self.GOOD, self.BAD, self.VICTIM), (1, chance, 1)
            )[0]
            self.r.choice(steps)(self)
            if self.r.random() < 0.5:
                self.progress()
        for _ in range(5):
            self.room.worker.progress()
        if self.r.random() < 0.1:
            self.look()
        return self.outcome()

    def outcome(self) -> Outcome:
        for request in self.requests:
            if request.done():
                with contextlib.suppress(asyncio.CancelledError, weft.CanceledError, weft.ClosedError):
                    try:
                        self.check(request.result())
                    except (weft.PeerLostError, weft.NoMemoryError, weft.TruncatedError) as e:
                        return named(e)
        return "lost" if self.link.lost else "goes on"

    def check(self, got: Any) -> None:
        if not self.strict or not isinstance(got, memoryview | tuple):
            return
        for part in got if isinstance(got, tuple) else (got,):
            if bytes(part).strip(b"A"):
                raise FindingError(f"{bytes(part).strip(b'A')[:40]!r} came, which nobody sent")

    def close(self) -> None:
        """End the link; whatever is under way ends with it."""
        self.link.close()
        for _ in range(3):
            self.room.worker.progress()
        self.channel.abort()
        self.room.worker.progress()
        self.ring.close()
        self.sock.close()
        for request in self.requests:
            if not request.done():
                raise FindingError(f"a {request!r} does not end")
            with contextlib.suppress(weft.Error, asyncio.CancelledError):
                request.result()


def named(error: weft.Error) -> Outcome:
    """Say which error, and why, without what differs from case to case."""
    why = re.sub(r"\d+", "n", str(error).partition("hostile): ")[2])
    if not why:
        raise FindingError(f"{type(error).__name__} says nothing: {error}")
    return f"{type(error).__name__}: {why}"


def write_for_ever(arena: int, offset: mmap.mmap, pages: mmap.mmap, seed: int) -> None:
    """Write words, good and bad, into the ring that `offset` tells of and into the hostile side's own pages."""
    r = random.Random(seed)  # noqa: S311
    ring, known = pages, -1
    while True:
        told = WORD.unpack_from(offset, 0)[0]
        if told != known:
            ring, known = mmap.mmap(arena, RING, offset=told), told
        for _ in range(50):
            word = r.randrange(8) << 32 | r.choice(LENGTHS) | r.choice((0, 1, 32, 40)) << 40
            at = CURSOR + 8 * r.choice((0, r.randrange(CAPACITY // 8)))
            WORD.pack_into(ring, at, r.choice((word, word, r.choice(WORDS), 0)))
        WORD.pack_into(pages, 8 * r.choice((0, r.randrange(RING // 8))), r.choice(WORDS))
        if r.random() < 0.05:
            WORD.pack_into(pages, RING + PAGE, r.getrandbits(64))


def at_any_time(links: int, seed: int) -> Counter[Outcome]:
    """Have another process write while this one reads; return how the links ended."""
    room = Room()
    outcomes: Counter[Outcome] = Counter()
    offset = mmap.mmap(-1, PAGE)  # told to the process: it is a child
    Case(room, 0, random.Random(seed)).close()  # noqa: S311
    if not (hostile := os.fork()):
        with contextlib.suppress(BaseException):
            write_for_ever(room.arena, offset, room.pages, seed)
        os._exit(1)
    try:
        for number in range(links):
            faulthandler.dump_traceback_later(HUNG_S, exit=True)
            with contextlib.closing(Case(room, number + 1, random.Random(f"{seed} {number}"))) as case:  # noqa: S311
                case.strict = False
                WORD.pack_into(offset, 0, ADDRESS.unpack(case.link.address)[3])
                for turn in range(300):
                    case.r.choice((case.receive, case.send, case.progress, case.message, case.stream))()
                    case.progress()
                    if turn % 50 == 0:
                        room.bystander.goes_on()
                    if case.link.lost:
                        break
                outcomes[case.outcome()] += 1
        if os.waitpid(hostile, os.WNOHANG) != (0, 0):
            raise FindingError("the hostile process has ended")
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.kill(hostile, signal.SIGKILL)
        os.waitpid(hostile, 0)
        offset.close()
        room.close()
    return outcomes


def resident_kib() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() // 1024


def allocated_kib(fd: int) -> int:
    """What the kernel has for the victim's arena."""
    return os.fstat(fd).st_blocks // 2


def fuzz(
    count: int, seed: int, only: int | None = None, *, marks: list[dict[str, float]] | None = None
) -> Counter[Outcome]:
    """Run `count` cases of this seed (or one of them); return how often each outcome came.

    A list for `marks` is filled after each tenth, printed, and judged.

    Raises
    ------
    FindingError
        With the seed and number of the case.
    """
    room = Room()
    outcomes: Counter[Outcome] = Counter()
    began = time.process_time()  # as the rest of the machine may be busy
    try:
        for number in range(count) if only is None else [only]:
            if number % 100 == 0 or only is not None:
                faulthandler.dump_traceback_later(HUNG_S, exit=True)
            try:
                case = Case(room, number, random.Random(f"{seed} {number}"))  # noqa: S311
                with contextlib.closing(case):
                    outcomes[case.run()] += 1
                if number % 10 == 0:
                    room.bystander.goes_on()
            except Exception as e:
                raise FindingError(f"seed {seed}, case {number}: {type(e).__name__}: {e}") from e
            if marks is not None and (number + 1) % max(count // 10, 1) == 0:
                gc.collect()
                marks.append({"cases": number + 1, "cpu_seconds": time.process_time() - began})
                marks[-1] |= {"descriptors": len(os.listdir("/proc/self/fd")), "resident_kib": resident_kib()}
                marks[-1] |= {"arena_kib": allocated_kib(room.arena)}
                print(marks[-1], flush=True)
    finally:
        faulthandler.cancel_dump_traceback_later()
        room.close()
    # AddressSanitizer keeps what is freed; of the arena some chunks may be in use.
    resident = () if "libasan" in os.environ.get("LD_PRELOAD", "") else (("resident_kib", SLACK_KIB),)
    for what, slack in (("descriptors", 0), ("arena_kib", 3 << 10), *resident):
        if marks and marks[-1][what] > marks[0][what] + slack:
            raise FindingError(f"{what} went from {marks[0][what]} to {marks[-1][what]}")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this case alone")
    parser.add_argument("--json", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    surroundings, marks = environment.collect(), list[dict[str, float]]()
    try:
        outcomes = fuzz(arguments.count, arguments.seed, arguments.only, marks=marks)
        beside = at_any_time(arguments.count // 1000, arguments.seed)
    except FindingError as e:
        print(f"FOUND: {e}", file=sys.stderr)
        return 1
    for outcome, times in outcomes.most_common():
        print(f"{times:>9} {outcome}")
    print("by another process, at any time:", *beside.items(), sep="\n          ")
    print("nothing but named errors; descriptors and memory flat")
    if arguments.json:
        record = {"outcomes": outcomes, "at_any_time": beside, "marks": marks, "environment": surroundings}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
