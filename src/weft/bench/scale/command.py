# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench scale``: what a Dask cluster takes as its workers become more, over several protocols in turns.

Here live options, rounds and record. One run is in ``run``, what its processes do in ``cluster``, what is printed in
``table``. Each run has a cluster of its own, and no other stands beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import resource
from collections.abc import Callable, Sequence
from typing import Any

from weft import _options, lab
from weft._options import protocols, timeout, whole
from weft.bench.charts import command as plot
from weft.bench.common import environment, lab_hosts, options, outcome
from weft.bench.common.errors import UsageError
from weft.bench.common.rounds import progress
from weft.bench.dask import rounds as dask_rounds
from weft.bench.dask.clusters import refuse_unknown
from weft.bench.scale import run as one_run
from weft.bench.scale import table
from weft.bench.scale.run import Place, Plan
from weft.lab.command import ended_by_signals

DESCRIPTION = """
Start Dask clusters of growing size over several protocols in turns, and print the cost of each: start, first and later
all-to-all exchange, close, memory, descriptors, idle CPU.
"""
EXAMPLES = (
    "weft bench scale --workers 4,8,16",
    "weft bench scale --workers 8 --lab 2 --json scale.json --html scale.html",
)

#: The lowest ``--ulimit``: two workers over either protocol have up to 24 descriptors open in one process.
LEAST_FILES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    add = parser.add_argument
    add(
        "--workers",
        type=counts,
        default="4,8,16,32",
        metavar="A,B",
        help="numbers of workers, comma-separated (default: %(default)s)",
    )
    add(
        "-p",
        "--protocol",
        type=protocols,
        default="tcp,ucx",
        metavar="A,B",
        help="protocols to compare, in turns (default: %(default)s)",
    )
    options.add_rounds(parser, 3)
    add("--no-nanny", dest="nannies", action="store_false", help="start workers without nannies, as a lab does")
    add(
        "--ulimit",
        type=whole,
        metavar="N",
        help="soft limit of open files of each process (default: the hard limit)",
    )
    alone = f"size of the array that workers fetch from each other (default: {Plan._field_defaults['nbytes'] >> 10}KiB)"
    add("--size", type=options.size, default=Plan._field_defaults["nbytes"], metavar="SIZE", help=alone)
    add(
        "--later",
        type=whole,
        default=Plan._field_defaults["later"],
        metavar="N",
        help="all-to-alls after the first (default: %(default)s)",
    )
    add(
        "--idle",
        type=timeout,
        default=Plan._field_defaults["idle_s"],
        metavar="S",
        help="seconds to measure the idle cluster (default: %(default)g)",
    )
    add(
        "--timeout",
        type=timeout,
        metavar="S",
        help="seconds for each step of a run (default: 60, and 2 for each worker)",
    )
    where = "run on a lab (see weft lab --help), or on one of N hosts and one link; the scheduler is on its first host"
    add("--lab", metavar="FILE|N", help=where)
    options.add_output(parser)
    plot.add_drawing_arguments(parser)


def counts(text: str) -> list[int]:
    """Read numbers of workers with commas between them, each two or more, each once."""
    found = [whole(part.strip()) for part in text.split(",")]
    if min(found) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: one worker has no other to fetch from")
    return list(dict.fromkeys(found))


def network(text: str) -> lab.Network:
    """Read the file of a lab, or make one of so many hosts that share a link."""
    if not text.isdecimal():
        return lab.read(text)
    names = [f"h{i}" for i in range(1, int(text) + 1)]
    return lab.parse({"hosts": {name: {} for name in names}, "links": [{"between": names}]})


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; return 1 if no cluster came up at all, else 0."""
    return outcome.reported("weft bench scale", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    refuse(args)
    surroundings, hosts = environment.collect(), network(args.lab) if args.lab else None
    with ended_by_signals(), contextlib.ExitStack() as stack:
        place = _lab(hosts, stack) if hosts else Place(one_run.here)
        entries = _measure(args, place)
    record = {
        "command": "weft bench scale",
        "rounds": args.rounds,
        "protocols": args.protocol,
        "workers": args.workers,
        "nannies": args.nannies and not args.lab,
        "limit": args.ulimit,
        "nbytes": args.size,
        "idle_s": args.idle,
        "records": entries,
        "environment": surroundings,
    }
    if hosts:
        record["lab"] = lab_hosts.described(hosts)
    with outcome.written(args.json, record) as text:
        if text:
            table.show(record, _options.console(args.color))
    if not any(table.values(entry, table.MEASURES[0]) for entry in entries):
        return 1
    plot.draw(record, args)
    return 0


def refuse(args: argparse.Namespace) -> None:
    """Raise for what would fail only after minutes of measuring."""
    dask_rounds.refuse((), args.json)
    plot.refuse(args)
    refuse_unknown(args.protocol)
    if args.lab:
        _options.refuse_unused("a lab has no nannies", no_nanny=not args.nannies)
    if args.ulimit and args.ulimit < LEAST_FILES:
        raise UsageError(
            f"--ulimit {args.ulimit}: no process of a cluster starts with less than {LEAST_FILES} open files"
        )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if args.ulimit and hard != resource.RLIM_INFINITY and args.ulimit > hard:
        raise UsageError(f"--ulimit {args.ulimit}: the hard limit of open files is {hard}")


def plan_of(args: argparse.Namespace, workers: int, protocol: str) -> Plan:
    """Say what is run for one number of workers over one protocol."""
    return Plan(
        protocol,
        workers,
        nannies=args.nannies and not args.lab,
        limit=args.ulimit,
        nbytes=args.size,
        later=args.later,
        idle_s=args.idle,
        timeout_s=args.timeout or 60 + 2 * workers,
        calm=workers > one_run.CROWDED * len(os.sched_getaffinity(0)),
    )


def _measure(args: argparse.Namespace, place: Place) -> list[dict[str, Any]]:
    """Take turns: all protocols with one number of workers, then the next number, and all of it in each round."""
    entries = {
        each: {"workers": each[0], "protocol": each[1], "runs": list[dict[str, Any]]()}
        for each in itertools.product(args.workers, args.protocol)
    }
    with progress("scale", args.rounds * len(entries), args.color) as step:
        for number, (each, entry) in itertools.product(range(1, args.rounds + 1), entries.items()):
            step(f"{each[0]} workers over {each[1]}://, round {number}")
            plan = plan_of(args, *each)
            entry["runs"].append(one_run.measure(plan, place))
            entry["calm"] = plan.calm
    return list(entries.values())


def _lab(hosts: lab.Network, stack: contextlib.ExitStack) -> Place:
    """Build the lab, which stands as long as `stack`, and say how processes are started there."""
    cable = lab_hosts.common_cable(hosts)
    standing = stack.enter_context(lab.Lab(hosts))
    return Place(in_turn(standing.start, [host.name for host in hosts.hosts]), standing.device(cable))


def in_turn(start: Callable[..., Any], hosts: Sequence[str]) -> Callable[..., Any]:
    """Return what starts the i-th process on one of the hosts."""

    def started(i: int, command: Sequence[str], **popen: Any) -> Any:
        return start(hosts[i % len(hosts)], command, **popen)

    return started
