# SPDX-License-Identifier: BSD-3-Clause
"""``weft doctor``: examine this machine, or the path to another one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from weft import _options
from weft.doctor import checks, draw, here, trial
from weft.doctor.finding import Finding, exit_code

DESCRIPTION = """
Check this machine for what slows weft down or stops it, and say what to do. With --pair, check the path to another
machine on which weft doctor --listen runs. Nothing is changed.
"""
EXAMPLES = ("weft doctor --verbose", "weft doctor --listen  # then, on another machine:", "weft doctor --pair 10.0.0.2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft doctor`` to `parser`."""
    parser.add_argument("-v", "--verbose", action="store_true", help="show all evidence, and checks that do not apply")
    parser.add_argument("--port", type=_options.port, metavar="N", help="check whether other hosts can reach this port")
    between = parser.add_argument_group("the path between two machines").add_mutually_exclusive_group()
    between.add_argument(
        "--pair",
        type=_options.not_empty,
        metavar="HOST[:PORT]",
        help="try each transport to the weft doctor that listens there",
    )
    between.add_argument(
        "--listen",
        nargs="?",
        type=_options.not_empty,
        const="0.0.0.0",  # noqa: S104 - what the help text says
        metavar="HOST:PORT",
        help=f"answer weft doctor --pair until interrupted (default: every IPv4 address, port {trial.PORT})",
    )
    _options.add_json(parser)
    _options.add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings.

    Returns
    -------
    int
        0; 1 if a finding is a warning or an error.

    Raises
    ------
    InvalidParamError
        Options that do not go together.
    """
    if args.listen is not None:
        _options.refuse_unused("not with --listen", port=args.port, json=args.json, verbose=args.verbose)
        trial.serve(args.listen)
    if args.json == _options.STDOUT:
        _options.refuse_unused("JSON has all of it anyway", verbose=args.verbose)
    if args.pair is not None:
        _options.refuse_unused("not with --pair", port=args.port)
        return _show(trial.examine(args.pair), args)
    machine = here.read(firewall=args.port is not None)
    return _show(checks.examine(machine, port=args.port), args)


def _show(findings: Mapping[str, Finding], args: argparse.Namespace) -> int:
    code = exit_code([finding.level for finding in findings.values()])
    console = _options.console(args.color, highlight=False, markup=False)
    with _options.written(args.json, {"exit": code, "findings": draw.record(findings)}) as text:
        if text and console.is_terminal:
            console.print(draw.table(findings, verbose=args.verbose))
        elif text:
            print("\n".join(draw.lines(findings, verbose=args.verbose)))
    return code
