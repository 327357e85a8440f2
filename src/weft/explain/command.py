# SPDX-License-Identifier: BSD-3-Clause
"""``weft explain``: its options, and what it prints. ``round_trip`` has the two processes that it joins."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys

from weft import _options
from weft._connect import address as addresses
from weft.errors import InvalidParamError
from weft.explain import learned, round_trip

DESCRIPTION = """
Connect to another process, send messages of several sizes, and show which wire carried each, and why no other did.
Without an address, the other process is a child on this host.
"""
EXAMPLES = (
    "weft explain",
    "weft explain --listen 0.0.0.0:13337  # then, on another machine:",
    "weft explain 10.0.0.2:13337",
    "weft explain 10.0.0.2:13337 --cluster mine  # the name in weft.cluster",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft explain`` to `parser`."""
    parser.add_argument(
        "address",
        nargs="?",
        metavar="HOST:PORT",
        help="where weft explain --listen runs (default: a child process here)",
    )
    text = "answer weft explain HOST:PORT until interrupted; without PORT at any that is free, which is printed"
    parser.add_argument("--listen", metavar="HOST[:PORT]", help=text)
    parser.add_argument("--once", action="store_true", help="with --listen: answer one caller within 30 s, then end")
    text = "the cluster, or its file, whose knowledge of the link is shown (default: any that knows both hosts)"
    parser.add_argument("--cluster", metavar="NAME", help=text)
    _options.add_json(parser)
    _options.add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Explain, or answer until interrupted.

    Returns
    -------
    int
        0.

    Raises
    ------
    UnreachableError, HandshakeError, TimedOutError
        No ``weft explain --listen`` answers at the address.
    InvalidParamError
        The address is empty, both an address and ``--listen`` were given, or the cluster has no file.
    """
    if "" in (args.address, args.listen):
        raise InvalidParamError("the address is empty: write HOST:PORT")
    if args.listen is not None:
        if args.address is not None:
            raise InvalidParamError("give an address or --listen, not both")
        _options.refuse_unused("not with --listen", json=args.json, cluster=args.cluster)
        round_trip.echo(args.listen, once=args.once)
        return 0
    _options.refuse_unused("only with --listen", once=args.once)
    with contextlib.nullcontext(args.address) if args.address else round_trip.child() as address:
        explanation = round_trip.explain(address)
    here, there = (addresses.split(each)[0] for each in (explanation.local_address, explanation.peer))
    if explanation.same_host:
        here = there
    known = learned.of_hosts(here, there) if args.cluster is None else learned.of_cluster(args.cluster, here, there)
    explanation = dataclasses.replace(explanation, learned=known)
    console = _options.console(args.color, highlight=False, markup=False)
    with _options.written(args.json, explanation.json()) as text:
        if text and console.is_terminal:
            console.print(explanation, crop=False)
        elif text:
            print(explanation.text(sys.stdout.encoding or "utf-8"))
    return 0
