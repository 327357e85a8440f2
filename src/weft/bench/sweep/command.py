# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench sweep``: latency, bandwidth both ways and message rate over sizes, transports, waits and memories.

Here live the options, the order of things and the record. The loops are in ``loops``, what is printed in
``table``, the charts in ``charts.sweep``; both read the record and nothing else.

A *line* is what a chart draws as one: a transport, a way to wait and a kind of memory. Each round starts a fresh
pair of pinned processes for every line, which measures all sizes; the rounds are interleaved, so that a mood of the
machine meets every line. A line whose transport does not connect is reported as missing and not tried again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft import _options, lab
from weft._options import timeout
from weft._units import format_size
from weft.bench.charts import command as plot
from weft.bench.common import environment, lab_hosts, options, outcome, stats
from weft.bench.common.child import LENT_LEAST_NBYTES, trips_of
from weft.bench.common.children import Children, children, two_cores
from weft.bench.common.errors import BenchError, UsageError
from weft.bench.common.rounds import progress, sampled
from weft.bench.sweep import table as sweep_table
from weft.bench.sweep import transports
from weft.bench.sweep.loops import LENT, MAPPED, MEASURES, MEMORIES, SELF_MEASURES
from weft.lab.command import ended_by_signals

DESCRIPTION = """
Measure latency, bandwidth in one and both directions, and message rate between two pinned processes, over message sizes
and UCX transports. Transports that do not connect are reported as missing.
"""
EXAMPLES = ("weft bench sweep --quick", "weft bench sweep --transports tcp,all --sizes 8:1MiB:4 --html sweep.html")
LIMIT_S = 30.0
#: A window shrinks for large messages, so that it holds no more than this (OSU's does not).
WINDOW_NBYTES = 64 * 2**20
ITERATIONS = 20_000
CHILD = "import sys; from weft.bench.sweep.loops import child; child(sys.argv[1:])"
#: Only where both processes are on one host.
NEAR = ("self", *LENT)
QUICK: dict[str, Any] = {"sizes": "1:1MiB:16", "rounds": 1, "seconds_per_cell": 0.05, "limit": 40.0, "window": 64}
FULL: dict[str, Any] = {"sizes": "1:4MiB:4", "rounds": 3, "seconds_per_cell": 0.1, "limit": 3600.0, "window": 64}


class Line(NamedTuple):
    """What a chart draws as one line."""

    transport: str
    wait: str
    memory: str


class Cell(NamedTuple):
    """One measure at one size of one line."""

    line: Line
    measure: str
    nbytes: int


class Taken(NamedTuple):
    """What one round of a cell gave: the lanes, and the seconds of each message."""

    lanes: str
    seconds: list[float]


class Sweep:
    """A sweep under way: what was measured, what is missing, and when the time is up.

    Parameters
    ----------
    args : argparse.Namespace
        The command line's.
    cores : sequence of int
        To pin a pair to; empty for one core only.

    Attributes
    ----------
    apart : sequence of sequence of str
        What runs a command on the one host and on the other; nothing for this machine.
    """

    apart: Sequence[Sequence[str]] = ((), ())

    def __init__(self, args: argparse.Namespace, cores: Sequence[int]) -> None:
        self.args = args
        self.cores = cores
        self.taken: dict[Cell, list[Taken]] = {}
        self.missing: dict[Line, str] = {}
        self.left_out = 0
        self.deadline = time.monotonic() + args.limit
        # the message rate comes from the same windows as the bandwidth
        self.measures = [m for m in MEASURES if m in args.measures or (m == "bandwidth" and "rate" in args.measures)]

    def cells(self, line: Line) -> list[Cell]:
        """List what a line has of all that was asked for."""
        return [
            Cell(line, measure, size)
            for size in self.args.sizes
            for measure in self.measures
            if has(line, measure, size)
        ]

    def measure(self, line: Line, say: Callable[[str], None]) -> None:
        """Measure one round of a line: every size of every measure."""
        args, nbytes, cells = self.args, max(self.args.sizes), self.cells(line)
        if line in self.missing or not cells:
            return
        if time.monotonic() > self.deadline:
            self.left_out += len(cells)
            return
        tls = transports.setting(line.transport, line.memory)
        limit_s = LIMIT_S + len(cells) * (20 * args.seconds_per_cell + 1) + 10 * nbytes / 10e6
        command = [sys.executable, "-c", CHILD, *line]
        limit_s = min(limit_s, self.deadline - time.monotonic() + 5)
        with children(command, [tls], nbytes=nbytes, limit_s=limit_s, cores=self.cores, hosts=self.apart) as both:
            lanes = both.connect()
            if line.transport != "all" and line.transport not in lanes.split("+"):
                raise BenchError(f"UCX takes {lanes} between these processes", last=f"UCX takes {lanes} instead")
            for cell in cells:
                say(f"{' '.join(line)} {cell.measure} {format_size(cell.nbytes)}")
                if time.monotonic() > self.deadline:
                    self.left_out += 1
                else:
                    self.taken.setdefault(cell, []).append(Taken(lanes, self._seconds(cell, both)))
            both.close()

    def _seconds(self, cell: Cell, both: Children) -> list[float]:
        window = window_of(cell.nbytes, self.args.window)
        exchange = functools.partial(both.exchange, what=f"{cell.measure} {cell.nbytes} {window}")
        stamps = sampled(exchange, seconds=self.args.seconds_per_cell, iterations=ITERATIONS, at_least=1)
        messages = 2 * trips_of(cell.nbytes) if cell.measure == "latency" else window
        return [stamp / messages for stamp in stamps]

    def record(self) -> dict[str, Any]:
        """Make the JSON record."""
        args = self.args
        return {
            "command": "weft bench sweep",
            "quick": args.quick,
            "measures": args.measures,
            "rounds": args.rounds,
            "seconds_per_cell": args.seconds_per_cell,
            "records": [entry(cell, rounds, args.window) for cell, rounds in self.taken.items()],
            "missing": [line._asdict() | {"reason": reason} for line, reason in self.missing.items()],
            "cells_left_out": self.left_out,
        }


def has(line: Line, measure: str, nbytes: int) -> bool:
    """Tell whether a line has this measure at this size."""
    if line.transport in LENT:
        return nbytes >= LENT_LEAST_NBYTES
    return line.transport != "self" or measure in SELF_MEASURES


def lines_of(names: Sequence[str], waits: Sequence[str], memories: Sequence[str]) -> list[Line]:
    """List the lines to measure; what is lent has one kind of memory, the sender's."""
    lines = [
        Line(name, wait, MAPPED if name in LENT else memory)
        for name, wait, memory in itertools.product(names, waits, memories)
    ]
    return list(dict.fromkeys(lines))


def window_of(nbytes: int, window: int) -> int:
    """Return how many messages of a size go out before any is waited for."""
    return max(1, min(window, WINDOW_NBYTES // nbytes))


def entry(cell: Cell, rounds: Sequence[Taken], window: int) -> dict[str, Any]:
    """Make the JSON record of one cell.

    ``seconds`` is the time of one message: one way in *latency*, the window's share elsewhere. In *bibandwidth* two
    messages travel in that time, one each way, and the bandwidth is that of both.
    """
    seconds = stats.summarise([sample for taken in rounds for sample in taken.seconds])
    medians = [statistics.median(taken.seconds) for taken in rounds]
    ways = 2 if cell.measure == "bibandwidth" else 1
    return {
        "measure": cell.measure,
        **cell.line._asdict(),
        "lanes": rounds[0].lanes,
        "nbytes": cell.nbytes,
        "window": 1 if cell.measure == "latency" else window_of(cell.nbytes, window),
        "seconds": seconds._asdict() | {"round_medians": medians, "spread": stats.spread(medians)},
        "bandwidth_Bps": ways * cell.nbytes / seconds.median,
        "messages_per_s": ways / seconds.median,
        "stamps": sum(len(taken.seconds) for taken in rounds),
        "rounds": len(rounds),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    add = parser.add_argument
    figures = tuple(sweep_table.FIGURES)
    options.add_sizes(parser, None, shown=FULL["sizes"])
    which = "UCX's names, all for its own choice, weft's lent and lent-read (default: what UCX finds, and those three)"
    transports = add("--transports", metavar="NAMES", help=which)
    _options.add_alias(parser, transports, "--tls")
    measures = functools.partial(options.some_of, figures)
    add(
        "--measures",
        type=measures,
        default=",".join(figures),
        metavar="NAMES",
        help="what to measure (default: %(default)s)",
    )
    options.add_wait(parser)
    memory = f"where messages are received: {', '.join(MEMORIES)} (default: %(default)s)"
    memories = functools.partial(options.some_of, MEMORIES)
    add("--memory", type=memories, default="reused", metavar="KINDS", help=memory)
    window = f"messages sent before any is waited for, at most 64 MiB of them (default: {FULL['window']})"
    add("--window", type=_options.whole, metavar="N", help=window)
    options.add_rounds(parser, None, shown=FULL["rounds"])
    options.add_seconds_per_cell(parser, None, shown=FULL["seconds_per_cell"])
    add(
        "--limit",
        type=timeout,
        metavar="S",
        help="seconds in total; what is not measured by then is left out (default: 3600)",
    )
    add("--lab", type=Path, metavar="FILE", help="measure between the first two hosts of a lab (see weft lab --help)")
    add("--quick", action="store_true", help="fewer sizes, one round: less than a minute")
    form = parser.add_mutually_exclusive_group()
    osu = "print columns like the OSU micro-benchmarks"
    form.add_argument("--osu", dest="form", action="store_const", const="osu", default="wide", help=osu)
    long = "print a row for each size, with p99 and spread"
    form.add_argument("--long", dest="form", action="store_const", const="long", help=long)
    options.add_output(parser)
    plot.add_drawing_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; return 1 if nothing could be measured, else 0."""
    return outcome.reported("weft bench sweep", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from weft.config import ucx_library

    if args.measures == ["latency"]:
        _options.refuse_unused("latency has one message on its way", window=args.window)
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, options.sizes(value) if isinstance(value, str) else value)
    cores = two_cores()
    surroundings = environment.collect() | {"cores_pinned": cores}
    refuse(args)
    names = args.transports.split(",") if args.transports else [*transports.found(ucx_library()), "all", *LENT]
    if args.lab:
        names = [name for name in names if name not in NEAR]
    sweep, lines = Sweep(args, cores), lines_of(names, args.wait, args.memory)
    if not any(map(sweep.cells, lines)):
        raise UsageError(f"nothing to measure: none of {', '.join(names)} has these --sizes and --measures")
    if any(line.transport in LENT and sweep.cells(line) for line in lines):
        outcome.refuse_missing("numpy")
    with contextlib.ExitStack() as stack:
        if args.lab:
            sweep.apart = _lab(args, stack)
        _measure(sweep, lines)
    record = sweep.record() | {"environment": surroundings}
    if args.lab:
        record["lab"] = lab_hosts.described(lab.read(args.lab))
    with outcome.written(args.json, record) as text:
        if text:
            sweep_table.show(record, _options.console(args.color), form=args.form)
    if record["records"]:
        plot.draw(record, args)
    return 0 if record["records"] else 1


def refuse(args: argparse.Namespace) -> None:
    """Raise for what would fail only after minutes of measuring."""
    plot.refuse(args)
    if options.replaces_text(args.json):
        _options.refuse_unused("JSON has no form", **{args.form: args.form != "wide"})
    if near := [name for name in NEAR if args.lab and name in (args.transports or "").split(",")]:
        raise UsageError(f"{', '.join(near)}: within one host only, not with --lab")
    outcome.refuse_files(args.json)
    outcome.refuse_sizes(args.sizes)


def _lab(args: argparse.Namespace, stack: contextlib.ExitStack) -> list[list[str]]:
    """Build the lab, which stands as long as `stack`; return what runs a command on its first host and its second."""
    network = lab.read(args.lab)
    lab_hosts.common_cable(network)
    stack.enter_context(ended_by_signals())
    standing = stack.enter_context(lab.Lab(network))
    return [standing.command(host.name, []) for host in network.hosts[:2]]


def _measure(sweep: Sweep, lines: Sequence[Line]) -> None:
    rounds = range(sweep.args.rounds)
    with progress("sweep", sum(len(sweep.cells(line)) for line in lines) * len(rounds), sweep.args.color) as step:
        for _, line in itertools.product(rounds, lines):
            try:
                sweep.measure(line, step)
            except BenchError as error:
                sweep.missing[line] = re.sub(r"^(\w+\.)+\w+: ", "", error.last) or str(error)  # without its class
