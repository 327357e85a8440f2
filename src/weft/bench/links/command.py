# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench links``: fan-outs, islands and uniform links in a lab, decided by Dask alone and by what links deliver.

Here live options, turns and record. What is run is in ``scenarios`` and ``jobs``, one run in ``run`` and ``cluster``,
what is printed in ``table``.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

from weft import _options
from weft.bench.common import environment, options, outcome
from weft.bench.common.rounds import progress
from weft.bench.dask.rounds import TABLES, refuse
from weft.bench.links import run as one_run
from weft.bench.links import table
from weft.bench.links.scenarios import SCENARIOS, WAYS
from weft.lab import Lab
from weft.lab.command import ended_by_signals

DESCRIPTION = """
Run Dask jobs in emulated networks whose links differ or are shared, with Dask's own decisions and with learned ones
(weft.links: learn) in turns, and print the times. The networks are labs, which need root (see weft lab --help).

NAMES are: fanout, eight hosts want what one has; pairs, with two workers on each host; kill, with one host killed;
copies, by Dask's replicate; reduce, a sum of what each host has; route, a slow link beside two fast ones; flows, a
limit for each TCP connection; islands, two hosts of four workers; there, the same with data that is already on the
workers; uniform, two hosts without a limit; one, a single host; tiny, tiny tasks.
"""
EXAMPLES = (
    "weft bench links fanout --rounds 1",
    "weft bench links --json links.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    allowed, every = functools.partial(options.some_of, tuple(SCENARIOS)), ",".join(SCENARIOS)
    ways = functools.partial(options.some_of, tuple(WAYS))
    add, shown = parser.add_argument, "(default: %(default)s)"
    add(
        "scenarios",
        type=allowed,
        nargs="?",
        default=every,
        metavar="NAMES",
        help="what to run, comma-separated (default: all)",
    )
    options.add_rounds(parser, 3)
    add(
        "--ways",
        type=ways,
        default=",".join(WAYS),
        metavar="NAMES",
        help=f"whose decisions, in turns: Dask's own (stock), weft's (learned) {shown}",
    )
    add("--times", type=_options.whole, default=1, metavar="N", help=f"runs of each job in each cluster {shown}")
    options.add_output(parser, SCENARIOS)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; return 1 if a run failed, else 0."""
    return outcome.reported("weft bench links", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    refuse(TABLES, args.json)
    surroundings = environment.collect()
    with ended_by_signals():
        records = _measure(args)
    record = {
        "command": "weft bench links",
        "rounds": args.rounds,
        "times": args.times,
        "records": records,
        "environment": surroundings,
    }
    with outcome.written(args.json, record) as text:
        if text:
            table.show(record, _options.console(args.color))
    return int(any("failed" in run for entry in records for runs in entry["runs"].values() for run in runs))


def _measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Take turns between the ways to decide, each in a cluster of its own, on one lab for each scenario."""
    entries: list[dict[str, Any]] = []
    with progress("links", len(args.scenarios) * args.rounds * len(args.ways), args.color) as step:
        for name in args.scenarios:
            scenario = SCENARIOS[name]
            runs: dict[str, list[Any]] = {way: [] for way in args.ways}
            with Lab(scenario.network) as lab:
                for number in range(args.rounds):
                    for way in args.ways if number % 2 == 0 else reversed(args.ways):
                        step(f"{name}, {way}, round {number + 1}")
                        runs[way].append(one_run.measure(lab, scenario, way, times=args.times))
            entries.append({"scenario": name, "title": scenario.title, "port_s": scenario.port_s, "runs": runs})
    return entries
