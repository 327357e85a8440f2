# SPDX-License-Identifier: BSD-3-Clause
"""``weft doctor``: examine this machine, or the path to another one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from rich.console import Console

from weft.doctor import checks, draw, here, trial
from weft.doctor.finding import Finding, exit_code
from weft.topo.command import port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft doctor`` to `parser`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the evidence of what is ok too")
    parser.add_argument("--port", type=port, metavar="N", help="look whether others can reach this port too")
    between = parser.add_argument_group("the path between two machines").add_mutually_exclusive_group()
    between.add_argument("--pair", metavar="HOST[:PORT]", help="try each transport to the doctor that listens there")
    between.add_argument(
        "--listen",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help=f"let other doctors try; at every address, port {trial.PORT}, unless told otherwise",
    )


def run(args: argparse.Namespace) -> int:
    """Print the findings.

    Returns
    -------
    int
        0; 1 if a finding is a warning, 2 if one is an error.
    """
    if args.listen is not None:
        trial.serve(args.listen)
    if args.pair is not None:
        return _show(trial.examine(args.pair), args)
    machine = here.read(firewall=args.port is not None)
    return _show(checks.examine(machine, port=args.port), args)


def _show(findings: Mapping[str, Finding], args: argparse.Namespace) -> int:
    code = exit_code([finding.level for finding in findings.values()])
    if args.json:
        print(json.dumps({"exit": code, "findings": draw.record(findings)}, indent=2))
    elif sys.stdout.isatty():
        Console(highlight=False, markup=False).print(draw.table(findings, verbose=args.verbose))
    else:
        print("\n".join(draw.lines(findings, verbose=args.verbose)))
    return code
