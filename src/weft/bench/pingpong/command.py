# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench pingpong``: a message back and forth between two processes, over weft and what it is beside.

weft is measured as programs use it, by ``Peer.send`` and ``recv`` over a connection of ``weft.connect``, and by UCP's
tags. Beside it stand the C loop on the same libucp (``weft-pingpong``, the floor), blocking TCP sockets and asyncio
streams. All run the same loop over buffers that are faulted in before and used again: *send, wait for the send, post
the receive, wait for it*. The receive is posted while the message travels, so that posting it costs no latency. Only
Peer and streams bring the memory for what they receive; it is their nature.

Every measurement has a fresh pair of processes: no other library's worker spins or holds memory meanwhile,
and the spread between rounds shows what differs from start to start. Rounds interleave the libraries. This
process sleeps while a pair is measured, and draws its progress bar only between pairs.

The clock is read once for each round trip, in C as in Python; up to 8 KiB once for ten of them, because reading
it takes 35 ns in C and 80 ns in Python with the store (2-core Xeon, KVM guest, CPython 3.11). The p99 of small
messages is thus one of means of ten.

What the children and this process say to each other is at the head of ``c_loop.cpp``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import _native, _options
from weft._units import format_size
from weft.bench.common import environment, options, outcome, stats
from weft.bench.common.child import LENT_LEAST_NBYTES, trips_of
from weft.bench.common.children import children, two_cores
from weft.bench.common.errors import BenchError, UsageError
from weft.bench.common.rounds import progress, sampled
from weft.bench.pingpong.loops import CELLS, Cell
from weft.bench.pingpong.table import OWN, losses, table_of

DESCRIPTION = """
Send one message back and forth between two pinned processes, over weft, and beside it over the C loop on the same UCX,
TCP sockets and asyncio streams; print latency and bandwidth of each.
"""
EXAMPLES = (
    "weft bench pingpong --sizes 8,1MiB",
    "weft bench pingpong --libraries peer,tcp --wait await --json peer.json",
)
LIMIT_S = 30.0
BANDWIDTHS = {"median": "median", "q1": "q3", "q3": "q1"}
CHILD = "import sys; from weft.bench.pingpong.loops import child; child(sys.argv[1:])"

#: What the command line may ask for.
LIBRARIES = tuple(dict.fromkeys(cell.library for cell in CELLS))


def command_of(cell: Cell, tls: str) -> tuple[list[str], list[str]]:
    """Return what starts a child of this cell, and its settings."""
    if cell.library != "c":
        return [sys.executable, "-c", CHILD, *cell], [tls]
    from weft.config import DEFAULTS, ucx_library

    # As weft does: what the user set stands before weft's defaults, the transports before either.
    defaults = {name: DEFAULTS[name] for name in DEFAULTS if f"UCX_{name}" not in os.environ}
    settings = [f"{name}={value}" for name, value in (defaults | {"TLS": tls}).items()]
    return [str(_c_loop()), str(ucx_library().path)], settings


def _c_loop() -> Path:
    """Find the C loop: it was built and installed with the native module."""
    path = Path(_native.__file__).parent / "bench" / "pingpong" / "weft-pingpong"
    if path.is_file():
        return path
    raise BenchError("weft-pingpong is not installed beside weft.bench; --libraries peer,... leaves it out")


def measure(
    command: Sequence[str], settings: Sequence[str], nbytes: int, args: argparse.Namespace, cores: Sequence[int]
) -> tuple[str, list[float]]:
    """Measure once what `command` starts; return its transport and its one-way latencies in seconds."""
    # Ample: streams take 0.5 s for a round trip of 128 MiB, spinners that share one core 8 ms for any.
    limit_s = LIMIT_S + 20 * args.seconds_per_cell + nbytes / 10e6
    with children(command, settings, nbytes=nbytes, limit_s=limit_s, cores=cores) as both:
        transport = both.connect()
        stamps = sampled(both.exchange, seconds=args.seconds_per_cell, iterations=args.iterations)
        both.close()
    return transport, [stamp / 2 / trips_of(nbytes) for stamp in stamps]


def entry(cell: Cell, transport: str, nbytes: int, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Make the JSON record of one cell at one size from the latencies of its rounds."""
    latency = stats.summarise([sample for samples in rounds for sample in samples])
    medians = [statistics.median(samples) for samples in rounds]
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


def has(cell: Cell, nbytes: int) -> bool:
    """Tell whether a library can be measured at a size: smaller messages than the pool's blocks are not lent."""
    return cell.library != "lent" or nbytes >= LENT_LEAST_NBYTES


def interleaved(
    name: str,
    cells: Sequence[Cell],
    args: argparse.Namespace,
    measure: Callable[[Cell, int], tuple[str, list[float]]],
    missing: dict[Cell, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Measure every cell, size by size, its rounds interleaved with the others'; yield their records.

    A cell that fails ends it all. With `missing`, it is left out from then on, and the reason put there.
    """
    with progress(
        name, args.rounds * sum(has(cell, nbytes) for cell in cells for nbytes in args.sizes), args.color
    ) as step:
        for nbytes in args.sizes:
            taken: dict[Cell, list[tuple[str, list[float]]]] = {cell: [] for cell in cells if has(cell, nbytes)}
            for _, cell in itertools.product(range(args.rounds), taken):
                step(label := f"{format_size(nbytes)} {cell.library} {cell.mode}")
                try:
                    if missing is None or cell not in missing:
                        taken[cell].append(measure(cell, nbytes))
                except BenchError as error:
                    if missing is None:
                        raise BenchError(f"{label}: {error}") from error
                    missing[cell] = error.last or str(error)
            for cell, results in taken.items():
                if len(results) == args.rounds:
                    yield entry(cell, results[0][0], nbytes, [samples for _, samples in results])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    options.add_sizes(parser, "8,1KiB,1MiB,128MiB")
    options.add_wait(parser, "how to wait for a message: block, await; the C loop only blocks")
    options.add_libraries(parser, LIBRARIES)
    options.add_rounds(parser, 3)
    options.add_seconds_per_cell(parser, 0.5)
    options.add_iterations(parser)
    options.add_transports(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON; return 1 if a child is missing, died or hung, else 0."""
    return outcome.reported("weft bench pingpong", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    cells = [c for c in CELLS if c.library in args.libraries and (c.mode in args.wait or c.library == "c")]
    cores = two_cores()
    surroundings = environment.collect() | {"cores_pinned": cores}
    if not any(has(cell, nbytes) for cell in cells for nbytes in args.sizes):
        raise UsageError("nothing to measure: none of --libraries has these --sizes and this --wait")
    if any(cell.library == "lent" for cell in cells):
        outcome.refuse_missing("numpy")
    outcome.refuse_files(args.json)
    outcome.refuse_sizes(args.sizes)

    def once(cell: Cell, nbytes: int) -> tuple[str, list[float]]:
        return measure(*command_of(cell, args.transports), nbytes, args, cores)

    records = list(interleaved("pingpong", cells, args, once))
    with outcome.written(args.json, {"records": records, "environment": surroundings}) as text:
        if text:
            _show(records, surroundings, args)
    return 0


def _show(records: Sequence[dict[str, Any]], surroundings: Mapping[str, Any], args: argparse.Namespace) -> None:
    console = _options.console(args.color)
    _options.print_whole(console, table_of(records))
    if not OWN.isdisjoint(args.libraries) and not OWN.issuperset(args.libraries):
        console.print("\n".join(losses(records)) or "weft loses nowhere here.", highlight=False)
    for remark in environment.remarks(surroundings, 2):
        console.print(remark, highlight=False)
