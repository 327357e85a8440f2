# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench pingpong``: a message back and forth between two processes, over weft and what it is beside.

Beside weft stand the C loop on the same libucp (``weft-pingpong``, the floor), blocking TCP sockets and
asyncio streams. All run the same loop over buffers that are faulted in before and used again: *send, wait for
the send, post the receive, wait for it*. The receive is posted while the message travels, so that posting it
costs no latency. Only streams allocate for what they receive; it is their nature.

Every measurement has a fresh pair of processes: no other library's worker spins or holds memory meanwhile,
and the spread between rounds shows what differs from start to start. Rounds interleave the libraries. This
process sleeps while a pair is measured, and draws its progress bar only between pairs.

The clock is read once for each round trip, in C as in Python; up to 8 KiB once for ten of them, because reading
it takes 35 ns in C and 80 ns in Python with the store (2-core Xeon, KVM guest, CPython 3.11). The p99 of small
messages is thus one of means of ten.

What the children and this process say to each other is at the head of ``src/native/pingpong.cpp``.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import functools
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from weft import _native
from weft.bench import environment, stats
from weft.bench.pingpong_loops import CELLS, CLOSE_S, Cell, PairError, trips_of
from weft.bench.pingpong_table import UNITS, losses, size_text, table_of

if TYPE_CHECKING:
    pass

LIMIT_S = 30.0
BANDWIDTHS = {"median": "median", "q1": "q3", "q3": "q1"}
CHILD = "import sys; from weft.bench.pingpong_loops import child; child(sys.argv[1:])"

Number = TypeVar("Number", int, float)

#: What the command line may ask for.
LIBRARIES = tuple(dict.fromkeys(cell.library for cell in CELLS))


class Child(NamedTuple):
    """A running child, the parent's end of its control socket, and the file that it prints to."""

    role: str
    process: subprocess.Popen[bytes]
    control: socket.socket
    log: IO[bytes]

    def state(self) -> str:
        """Say how the child stands and the last that it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0.5)
        code = self.process.returncode
        ended = f"died of signal {-code}" if (code or 0) < 0 else f"ended with status {code}"
        how = f"{self.role} runs" if code is None else f"{self.role} {ended}"
        self.log.seek(0)
        printed = self.log.read().decode(errors="replace").strip()[-1000:]
        return f"{how}: {printed}" if printed else how


@contextlib.contextmanager
def _started(command: list[str], settings: list[str], role: str, *, core: int | None) -> Iterator[Child]:
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as log:
        with theirs:
            before = os.sched_getaffinity(0)
            # Inherited, not set afterwards: UCX's own threads are pinned with it.
            os.sched_setaffinity(0, before if core is None else {core})
            try:
                # In a session of its own, Ctrl-C reaches this process only, which ends them in order.
                process = subprocess.Popen(
                    [*command, str(theirs.fileno()), *settings],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            finally:
                os.sched_setaffinity(0, before)
        try:
            yield Child(role, process, ours, log)
        finally:
            process.kill()
            process.wait()


class Pair(NamedTuple):
    """The two children of one measurement, and when (``time.monotonic``) their time is up."""

    pong: Child
    ping: Child
    deadline: float

    def connect(self) -> str:
        """Exchange their addresses; return the transports of the lanes between them, such as ``"posix"``."""
        pong, ping = self._line(self.pong), self._line(self.ping)
        self.ping.control.sendall(pong)
        self.pong.control.sendall(ping)
        self._line(self.pong)
        lanes = self._line(self.ping).decode().strip().split(",")
        return "+".join(dict.fromkeys(lane.partition("/")[0] for lane in lanes))

    def exchange(self, count: int, trips: int) -> list[float]:
        """Take `count` stamps of `trips` round trips each; return the one-way latencies in seconds."""
        for each in (self.pong, self.ping):
            each.control.sendall(b"%d\n" % count)
        durations = array.array("q", self._hear(self.ping, lambda heard: len(heard) == 8 * count))
        return [duration / 2e9 / trips for duration in durations]

    def close(self) -> None:
        """Let both close at once, as peers do, and see that they can."""
        for each in (self.pong, self.ping):
            each.control.shutdown(socket.SHUT_WR)
        for each in (self.pong, self.ping):
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(CLOSE_S)
        if self.pong.process.returncode != 0 or self.ping.process.returncode != 0:
            raise self._failure("the pair did not close")

    def _line(self, speaker: Child) -> bytes:
        return self._hear(speaker, lambda heard: heard.endswith(b"\n"))

    def _hear(self, speaker: Child, complete: Callable[[bytearray], bool]) -> bytes:
        poll = select.poll()
        for each in (self.pong, self.ping):
            poll.register(each.control, select.POLLRDHUP | (select.POLLIN if each is speaker else 0))
        heard = bytearray()
        while not complete(heard):
            ready = dict(poll.poll(max(0.0, self.deadline - time.monotonic()) * 1e3))
            if not ready:
                raise self._failure("the pair hangs")
            chunk = speaker.control.recv(2**20) if list(ready) == [speaker.control.fileno()] else b""
            if not chunk:
                raise self._failure("the pair broke")
            heard += chunk
        return bytes(heard)

    def _failure(self, what: str) -> PairError:
        return PairError(f"{what}; {self.pong.state()}; {self.ping.state()}")


@contextlib.contextmanager
def _pair(cell: Cell, nbytes: int, tls: str, *, limit_s: float, cores: Sequence[int]) -> Iterator[Pair]:
    if cell.library == "c":
        from weft.config import DEFAULTS, ucx_library

        command = [str(_c_loop()), str(ucx_library().path)]
        # As weft does: what the user set stands before weft's defaults, the transports before either.
        defaults = {name: DEFAULTS[name] for name in DEFAULTS if f"UCX_{name}" not in os.environ}
        settings = [f"{name}={value}" for name, value in (defaults | {"TLS": tls}).items()]
    else:
        command, settings = [sys.executable, "-c", CHILD, *cell], [tls]
    with contextlib.ExitStack() as stack:
        sides = []
        for role, core in zip(("pong", "ping"), cores or (None, None), strict=False):
            arguments = [*command, role, str(nbytes), str(int(limit_s) + 5)]
            sides.append(stack.enter_context(_started(arguments, settings, role, core=core)))
        yield Pair(sides[0], sides[1], time.monotonic() + limit_s)


def _c_loop() -> Path:
    """Find the C loop: it was built and installed with the native module."""
    path = Path(_native.__file__).parent / "bench" / "weft-pingpong"
    if path.is_file():
        return path
    raise PairError("weft-pingpong is not installed beside weft.bench; --libraries weft,... leaves it out")


def _measure(cell: Cell, nbytes: int, args: argparse.Namespace, cores: Sequence[int]) -> tuple[str, list[float]]:
    """Measure one cell once; return its transport and its one-way latencies in seconds."""
    # Ample: streams take 0.5 s for a round trip of 128 MiB, spinners that share one core 8 ms for any.
    limit_s = LIMIT_S + 20 * args.seconds_per_cell + nbytes / 10e6
    with _pair(cell, nbytes, args.tls, limit_s=limit_s, cores=cores) as pair:
        transport = pair.connect()
        trips = trips_of(nbytes)
        count, warm = 1, pair.exchange(1, trips)
        while 2 * trips * sum(warm) < args.seconds_per_cell / 10 and count < args.iterations:
            count = min(2 * count, args.iterations)
            warm = pair.exchange(count, trips)
        latest, samples, left_s = warm, list[float](), args.seconds_per_cell
        # A batch is as long as the one before it predicts; the little that it then leaves over is left.
        while len(samples) < args.iterations and left_s > args.seconds_per_cell / 10:
            count = max(3, int(left_s / 2 / trips / (sum(latest) / len(latest))))
            latest = pair.exchange(min(count, args.iterations - len(samples)), trips)
            samples += latest
            left_s -= 2 * trips * sum(latest)
        pair.close()
    return transport, samples


def _record(cell: Cell, transport: str, nbytes: int, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Make the JSON record of one cell at one size from the latencies of its rounds."""
    latency = stats.summarise([sample for samples in rounds for sample in samples])
    medians = [stats.quantile(samples, 0.5) for samples in rounds]
    return {
        "library": cell.library,
        "mode": cell.mode,
        "transport": transport,
        "nbytes": nbytes,
        "latency_s": latency._asdict() | {"round_medians": medians, "spread": stats.spread(medians)},
        "bandwidth_Bps": {name: nbytes / getattr(latency, of) for name, of in BANDWIDTHS.items()},
        "iterations": sum(map(len, rounds)),
        "rounds": len(rounds),
    }


def _all(args: argparse.Namespace, cells: Sequence[Cell], cores: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Measure every cell, size by size, its rounds interleaved with the others'."""
    from rich.console import Console
    from rich.progress import Progress

    # Drawn between measurements only: a thread that redraws would take turns on the cores that are measured.
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task("pingpong", total=len(args.sizes) * args.rounds * len(cells))
        for nbytes in args.sizes:
            taken: dict[Cell, list[tuple[str, list[float]]]] = {cell: [] for cell in cells}
            for _ in range(args.rounds):
                for cell in cells:
                    label = f"{size_text(nbytes)} {cell.library} {cell.mode}"
                    progress.update(task, description=label, refresh=True)
                    try:
                        taken[cell].append(_measure(cell, nbytes, args, cores))
                    except PairError as error:
                        raise PairError(f"{label}: {error}") from error
                    progress.advance(task)
            for cell, results in taken.items():
                yield _record(cell, results[0][0], nbytes, [samples for _, samples in results])


def parse_size(text: str) -> int:
    """Read a size such as ``8``, ``1KiB`` or ``1MB``; raise what argparse shows for anything else."""
    match = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", text.strip())
    if match is None or match[2] not in UNITS or int(match[1]) == 0:
        units = ", ".join(filter(None, UNITS))
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 1KiB or 1MB (whole {units})")
    return int(match[1]) * UNITS[match[2]]


def _sizes(text: str) -> list[int]:
    return sorted({parse_size(part) for part in text.split(",")})


def _some_of(allowed: Sequence[str], text: str) -> list[str]:
    chosen = [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
    return chosen


def _positive(kind: Callable[[str], Number], text: str) -> Number:
    with contextlib.suppress(ValueError):
        if 0 < (value := kind(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    add, partial = parser.add_argument, functools.partial
    add("--sizes", type=_sizes, default="8,1KiB,1MiB,128MiB", help="of the message (%(default)s)")
    wait = "ways to wait; the C loop, which only blocks, is measured with either (%(default)s)"
    add("--wait", type=partial(_some_of, ("block", "await")), default="block,await", help=wait)
    add("--libraries", type=partial(_some_of, LIBRARIES), default=",".join(LIBRARIES), help="(%(default)s)")
    add("--rounds", type=partial(_positive, int), default=3, help="of every cell, interleaved (%(default)s)")
    seconds = "for one size of one library in one round (%(default)s)"
    add("--seconds-per-cell", type=partial(_positive, float), default=0.5, help=seconds)
    add(
        "--iterations",
        type=partial(_positive, int),
        default=100_000,
        help="at most, of the same (%(default)s)",
    )
    add("--tls", default="posix,self", help="UCX transports, for C and weft (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the record there")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON; return 1 if a child is missing, died or hung, else 0."""
    import psutil
    from rich.console import Console

    console, notes = Console(), Console(stderr=True)
    cells = [c for c in CELLS if c.library in args.libraries and (c.mode in args.wait or c.library == "c")]
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        notes.print("only one core is usable: the processes are not pinned and take turns on it")
        cores = []
    surroundings = environment.collect() | {"cores_pinned": cores}
    try:
        if not cells:
            raise PairError("nothing to measure: no library of --libraries waits in a way of --wait")
        if args.json and not args.json.parent.is_dir():
            raise PairError(f"{args.json.parent} is not a folder to write {args.json.name} to")
        if 8 * max(args.sizes) > psutil.virtual_memory().available:
            raise PairError(f"{size_text(max(args.sizes))} is too large for the memory that is free")
        records = list(_all(args, cells, cores))
    except PairError as error:
        notes.print(f"weft bench pingpong: {error}", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        notes.print("weft bench pingpong: interrupted; its processes are ended, nothing is written")
        return 130
    if args.json:
        args.json.write_text(json.dumps({"records": records, "environment": surroundings}, indent=2) + "\n")
    console.print(table_of(records))
    if "weft" in args.libraries and len(args.libraries) > 1:
        console.print("\n".join(losses(records)) or "weft loses nowhere here.", highlight=False)
    return 0
