# SPDX-License-Identifier: BSD-3-Clause
"""``weft explain``: its options, and what it prints. ``round_trip`` has the two processes that it joins."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from rich.console import Console

from weft.errors import InvalidParamError
from weft.explain import round_trip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft explain`` to `parser`."""
    parser.add_argument("address", nargs="?", help="host:port of a weft explain --listen; without it, a child here")
    parser.add_argument("--listen", metavar="HOST:PORT", help="answer those who explain the way to here, until Ctrl-C")
    parser.add_argument("--once", action="store_true", help="with --listen: answer one, who has to come within 30 s")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Explain, or answer until interrupted.

    Returns
    -------
    int
        0.

    Raises
    ------
    UnreachableError, HandshakeError, TimedOutError
        Nobody answers at the address.
    InvalidParamError
        Both an address and ``--listen``.
    """
    if args.listen is not None:
        if args.address is not None:
            raise InvalidParamError("give an address to explain the way there, or --listen, not both")
        round_trip.echo(args.listen, once=args.once)
        return 0
    with contextlib.nullcontext(args.address) if args.address else round_trip.child() as address:
        explanation = round_trip.explain(address)
    if args.json:
        print(json.dumps(explanation.json(), indent=2))
    elif sys.stdout.isatty():
        Console(highlight=False, markup=False).print(explanation)
    else:
        print(explanation)
    return 0
