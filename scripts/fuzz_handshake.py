#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Feed both sides of the handshake what nobody should say, and look for anything but a named error.

A case takes the words of a good handshake, spoils up to three things in them, and drives one side with the result.
The sockets are real (the side door too), UCX is not: paper links stand in for it, because a worker address is UCX's to
parse, and it believes every byte. A case is given again by its seed and number alone (``--only``).

Findings: another exception than weft's own, a read of more than a handshake message may have, a handshake that does
not end, a link that is left half made, descriptors or memory that stay.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import resource
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import weft
from weft._connect import handshake, links, local, message
from weft._connect.admission import SameHostListener
from weft._connect.encryption import POLICIES, EncryptionPolicy
from weft._connect.route import Route
from weft.bench.common import environment

STEPS_MAX = 40
READ_MAX = 1 << 16
#: Memory that the process may gain after the first tenth of the cases, for a heap that fragments.
SLACK_KIB = 1024
LOW, HIGH = "0" * 32, "f" * 32

Outcome = str


class FindingError(Exception):
    """What must not happen, happened."""


# ---- in place of UCX ------------------------------------------------------------------------------------------


class PaperLink:
    """What `weft._native.Link` is to a handshake. Like that one it owns the descriptor once it has joined."""

    def __init__(self) -> None:
        self.address = bytes(range(64))
        self.lost = False
        self._fd = -1

    def offer(self, fd: int) -> None:
        pass

    memory = 0

    def join(self, address: bytes, fd: int, memory: int = -1) -> None:
        if len(address) < 8:
            raise FindingError(f"UCX is given an address of {len(address)} B")
        if address[0] == 0xFF:
            raise weft.UnreachableError("no usable transport to the worker's address")
        self._fd = fd

    def open(self, local: int, remote: int, name: str) -> Any:
        if not (0 <= local < 1 << 64 and 0 <= remote < 1 << 64):
            raise FindingError(f"a channel id beyond 64 bits: {local:x}, {remote:x}")
        return SimpleNamespace(abort=lambda: None)

    def close(self) -> None:
        self.lost = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


PAPER = SimpleNamespace(
    Worker=lambda context, links_only: SimpleNamespace(closed=False, flush=lambda: None, address=bytes(range(64))),
    prepare_link=lambda worker, same_host, name: PaperLink(),
)


class PaperWorkers:
    """What a loop or thread has: one worker, with the id that a case wants. A listener names it at once, if `named`."""

    def __init__(self, worker_id: str, *, named: bool = False) -> None:
        self.named = named
        self.made = links.ConnectionWorker(None, same_host=True)
        self.made.id = worker_id
        self.made.check_way_back = lambda address, what: None  # type: ignore[method-assign]
        self.listens: set[str] = set()
        self.calls: dict[str, links.Call] = {}

    def worker(self, route: Route, *, same_host: bool) -> links.ConnectionWorker:
        self.made.same_host = same_host
        return self.made

    def known_worker(self, route: Route) -> links.ConnectionWorker | None:
        return self.worker(route, same_host=False) if self.named else None

    def ring_worker(self) -> links.ConnectionWorker:
        self.made.same_host = True
        return self.made

    def know(self, remote_id: str, sock: socket.socket, *, settled: bool) -> None:
        """Have a link to that worker: a settled one, or one that another handshake is making, over `sock`."""
        link, _ = next_value(self.made.decide(remote_id, sock))
        link.prepare(sock, "known")
        if settled:
            link.settle()

    def close(self) -> None:
        for link in self.made.links.values():
            if link._native is not None:
                link._native.close()


def next_value(generator: Generator[Any, None, Any]) -> Any:
    """Run a generator that need not wait, and return its value."""
    try:
        next(generator)
    except StopIteration as stop:
        return stop.value
    raise FindingError("a decision waited for nobody")


# ---- good words -----------------------------------------------------------------------------------------------

Side = str  # "client" or "server"; the short way's are "near client" and "near server"


class Room:
    """The sockets that all cases share."""

    def __init__(self) -> None:
        self.sock, self._other = socket.socketpair()
        self.same_host = SameHostListener()

    def steps(
        self, side: Side, workers: PaperWorkers, policy: EncryptionPolicy | None = None
    ) -> handshake.Steps | local.LocalSteps:
        if side == "near client":
            return local.client(workers, "fuzz", local.Reached(self.sock, "near", "::1", 1), {"pid": 1})  # type: ignore[arg-type]
        if side == "near server":
            return local.server(workers, "fuzz", self.sock, {"pid": 1}, 1)  # type: ignore[arg-type]
        route = Route("127.0.0.1")
        if side == "client":
            return handshake.client(workers, route, "fuzz", self.sock, {"pid": 1}, policy)  # type: ignore[arg-type]
        same_host = self.same_host
        return handshake.server(workers, route, "fuzz", self.sock, {"pid": 1}, same_host, policy)  # type: ignore[arg-type]

    def close(self) -> None:
        self.sock.close()
        self._other.close()
        self.same_host.close()


def near_transcript(room: Room, *, known: bool) -> dict[Side, list[bytes]]:
    """Run a good handshake the short way, with a link that only the listener's side knows, or without."""
    caller, listener = PaperWorkers(LOW), PaperWorkers(HIGH)
    if known:
        for workers, remote_id in ((caller, HIGH), (listener, LOW)):
            workers.know(remote_id, room.sock, settled=True)
            workers.made.links[remote_id].id = "known"
    near = {"near client": room.steps("near client", caller), "near server": room.steps("near server", listener)}
    words: dict[Side, list[bytes]] = {side: [] for side in near}
    asked: dict[Side, Any] = {side: steps.send(None) for side, steps in near.items()}
    heard: dict[Side, list[bytes]] = {side: [] for side in near}
    while asked:
        for side, other in (("near client", "near server"), ("near server", "near client")):
            while side in asked:
                answer = None
                if isinstance(asked[side], local.Packet):
                    heard[other].append(asked[side].data)
                    words[other].append(asked[side].data[message.HEAD.size :])
                elif heard[side]:
                    answer = heard[side].pop(0), -1
                else:
                    break
                try:
                    asked[side] = near[side].send(answer)
                except StopIteration:
                    del asked[side]
    caller.close()
    listener.close()
    return words


def transcript(room: Room, client_id: str, server_id: str, *, named: bool = False) -> dict[Side, list[bytes]]:
    """Run a good handshake; return the messages that each side heard, without their heads."""
    workers_of = {"client": PaperWorkers(client_id), "server": PaperWorkers(server_id, named=named)}
    steps = {side: room.steps(side, workers) for side, workers in workers_of.items()}
    heard: dict[Side, bytearray] = {"client": bytearray(), "server": bytearray()}
    words: dict[Side, list[bytes]] = {"client": [], "server": []}
    at = dict.fromkeys(steps, 0)
    asked: dict[Side, Any] = {side: generator.send(None) for side, generator in steps.items()}
    while asked:
        for side, other in (("client", "server"), ("server", "client")):
            while side in asked:
                answer = None
                if isinstance(asked[side], bytes):
                    heard[other] += asked[side]
                    words[other].append(asked[side][message.HEAD.size :])
                elif isinstance(asked[side], handshake.Attend):
                    pass
                elif at[side] + asked[side] <= len(heard[side]):
                    answer = heard[side][at[side] : at[side] + asked[side]]
                    at[side] += asked[side]
                else:
                    break
                try:
                    asked[side] = steps[side].send(answer)
                except StopIteration:
                    del asked[side]
    for workers in workers_of.values():
        workers.close()
    return words


# ---- bad words ------------------------------------------------------------------------------------------------

NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1 << 64, 1e308, [], {}, [[]], {"id": 1, "new": 1}, {"id": "", "new": True}),
    *("", "0", "x" * 60_000, "\0", "\ud800", "zz", "-1", "0x_1", "f" * 50_000, "00", LOW, HIGH, "host", "network"),
]
RAW = [
    *(b"", b"null", b"[" * 60_000, b"{" * 9, b'{"a":' * 9_000, b"9" * 60_000, b"NaN", b"\xff\xfe", b"\xef\xbb\xbf{}"),
    *(b'{"worker":1e999}', b"{} {}", b'{"error":"no"}', b'{"error":[]}', b"[]", b'"x"', b"\0" * 100),
]


def spoil_field(words: list[bytes], r: random.Random) -> None:
    at = r.randrange(len(words))
    try:
        said = json.loads(words[at])
    except (ValueError, RecursionError):
        return
    if not isinstance(said, dict) or not said:
        return
    key = r.choice(
        [*said, "link", "address", "channel", "worker", "unix", "nonce", "spaces", "info", "error", "payload"]
    )
    if r.random() < 0.2:
        said.pop(key, None)
    elif isinstance(said.get(key), dict) and r.random() < 0.5:
        said[key][r.choice([*said[key], "new", "id"])] = r.choice(NASTY)
    else:
        said[key] = r.choice(NASTY)
    words[at] = json.dumps(said).encode()


def spoil_order(words: list[bytes], r: random.Random) -> None:
    one, other = r.randrange(len(words)), r.randrange(len(words))
    match r.randrange(3):
        case 0:
            words[one], words[other] = words[other], words[one]
        case 1:
            words.insert(one, words[other])
        case _:
            if len(words) > 1:
                del words[one]


def spoil_message(words: list[bytes], r: random.Random) -> None:
    words[r.randrange(len(words))] = r.choice(RAW)


def spoil_bytes(stream: bytearray, r: random.Random) -> None:
    at, nbytes = r.randrange(len(stream) + 1), min(r.choice((1, 1, 2, 9, 1000)), 1 + r.randrange(1000))
    match r.randrange(5):
        case 0:
            stream[at : at + 1] = bytes([r.randrange(256)])
        case 1:
            del stream[at:]
        case 2:
            del stream[at : at + nbytes]
        case 3:
            stream[at:at] = r.randbytes(nbytes)
        case _:
            stream[:10] = struct.pack(
                "<4sHI", b"WEFT", r.choice((message.VERSION, message.VERSION, 0, 1, 65535)), r.getrandbits(32)
            )


def stream_of(words: list[bytes], r: random.Random) -> list[bytes]:
    """Return the messages, each with its head. Up to three things are wrong with them; sometimes none."""
    words = list(words)
    spoils: list[Callable[[list[bytes], random.Random], None]] = [spoil_field, spoil_field, spoil_order, spoil_message]
    count = r.randrange(4)
    bytewise = r.random() < 0.3
    for _ in range(count - bytewise):
        r.choice(spoils)(words, r)
    messages = [message.HEAD.pack(b"WEFT", message.VERSION, len(w)) + w for w in words]
    if count and bytewise and messages:
        at = r.randrange(len(messages))
        spoiled = bytearray(messages[at])
        spoil_bytes(spoiled, r)
        messages[at] = bytes(spoiled)
    return messages


# ---- one case -------------------------------------------------------------------------------------------------


def knock(said: bytes, r: random.Random) -> socket.socket:
    """Do, or do not, what a caller does at the side door when it has read the listener's hello."""
    hello = json.loads(said[message.HEAD.size :])
    nonce = bytes.fromhex(hello["nonce"])
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    how = r.randrange(10)
    if how > 0:
        caller.connect(b"\0" + hello["unix"].encode())
    if how > 1:
        caller.send({2: nonce[:7], 3: r.randbytes(16), 4: nonce + b"!"}.get(how, nonce))
    if how == 5:
        caller.close()
    return caller


def endings(r: random.Random) -> BaseException:
    """What the stepper throws when the words are over."""
    return r.choice((weft.HandshakeError("cut"), weft.TimedOutError("late"), asyncio.CancelledError(), GeneratorExit()))


def run(
    steps: handshake.Steps | local.LocalSteps, messages: list[bytes], r: random.Random, stack: contextlib.ExitStack
) -> Outcome:
    """Run one side with `messages`; it must end with a connection or a named error."""
    stream, packets = b"".join(messages), [each for each in messages if each]
    at, answer, ending = 0, None, None
    for _ in range(STEPS_MAX):
        try:
            step = steps.throw(ending) if ending is not None else steps.send(answer)
        except StopIteration:
            return "connected"
        except weft.Error as e:
            str(e).encode("utf-8", "backslashreplace")
            return type(e).__name__
        except (asyncio.CancelledError, GeneratorExit) as e:
            if e is not ending:
                raise FindingError(f"{e!r} from nowhere") from e
            return type(e).__name__
        except Exception as e:
            raise FindingError(f"{type(e).__name__}: {e}"[:300]) from e
        answer = ending = None
        if isinstance(step, local.Packet):
            if r.random() < 0.02:
                ending = endings(r)
        elif isinstance(step, local.Receive):
            if packets:
                answer = packets.pop(0), os.open(os.devnull, os.O_RDONLY) if r.random() < 0.5 else -1
            else:
                ending = endings(r)
        elif isinstance(step, handshake.Attend):
            continue
        elif isinstance(step, bytes):
            if b'"unix"' in step:
                stack.enter_context(knock(step, r))
            elif r.random() < 0.02:
                ending = endings(r)
        elif isinstance(step, links.OtherHandshake | handshake.UpTo) or at + step > len(stream):
            ending = endings(r)
        else:
            if step > READ_MAX:
                raise FindingError(f"it wants {step} B at once")
            answer = bytearray(stream[at : at + step])
            at += step
    raise FindingError("it does not end")


def case(room: Room, good: list[dict[Side, list[bytes]]], r: random.Random) -> Outcome:
    side: Side = r.choice(("client", "server", "near client", "near server"))
    own, other = r.choice(((LOW, HIGH), (HIGH, LOW), (LOW, LOW)))
    workers = PaperWorkers(own, named=r.random() < 0.5)
    known = r.choice((None, None, True, False))
    if known is not None:
        workers.know(other, room.sock, settled=known)
        if side.startswith("near") and r.random() < 0.5:
            workers.made.links[other].id = "known"
            workers.made.remember("near", other)
    if r.random() < 0.1:
        workers.listens.add("near")
    before = set(workers.made.links.values())
    steps = room.steps(side, workers, r.choice((None, None, *POLICIES)))
    with contextlib.ExitStack() as stack:
        stack.callback(workers.close)
        stack.callback(steps.close)
        outcome = run(steps, stream_of(r.choice([words for words in good if side in words])[side], r), r, stack)
        left = [link for link in workers.made.links.values() if link not in before and not link.settled]
    if left:
        raise FindingError(f"a link was left half made after {outcome}")
    return f"{side}: {outcome}"


# ---- all cases ------------------------------------------------------------------------------------------------


def resident_kib() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() // 1024


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


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
    native = links._native
    links._native = local._native = PAPER  # type: ignore[assignment]
    room = Room()
    outcomes: Counter[Outcome] = Counter()
    began = time.monotonic()
    try:
        both = ((LOW, HIGH), (HIGH, LOW))
        good = [transcript(room, *ids, named=named) for named in (False, True) for ids in both]
        good += [near_transcript(room, known=known) for known in (False, True)]
        for number in range(count) if only is None else [only]:
            try:
                outcomes[case(room, good, random.Random(f"{seed} {number}"))] += 1  # noqa: S311
            except FindingError as e:
                raise FindingError(f"seed {seed}, case {number}: {e}") from e
            if marks is not None and (number + 1) % max(count // 10, 1) == 0:
                room.same_host.accept(b"")  # the last callers hung up: let go of them before counting
                gc.collect()  # CPython 3.14's leaves cycles for longer, a MiB of them
                marks.append({"cases": number + 1, "seconds": time.monotonic() - began, "descriptors": descriptors()})
                marks[-1] |= {"resident_kib": resident_kib(), "blocks": sys.getallocatedblocks()}
                print(marks[-1], flush=True)
    finally:
        room.close()
        links._native = local._native = native
    for what, slack in (("descriptors", 0), ("resident_kib", SLACK_KIB)):
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
    except FindingError as e:
        print(f"FOUND: {e}", file=sys.stderr)
        return 1
    for outcome, times in sorted(outcomes.items()):
        print(f"{times:>9} {outcome}")
    print("nothing but named errors; descriptors and memory flat")
    if arguments.json:
        record = {"outcomes": outcomes, "marks": marks, "environment": surroundings}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
