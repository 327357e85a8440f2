# SPDX-License-Identifier: BSD-3-Clause
"""``weft topo``: the parts of this machine, or of one described by ``nvidia-smi topo -m``, and where workers go."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from typing import Any

from rich.console import RenderableType

from weft import _options
from weft._options import count
from weft.errors import InvalidParamError
from weft.topo import discovery, draw, nvidia_smi, nvml, options
from weft.topo.model import Topology
from weft.topo.plan import Plan, plan

DESCRIPTION = """
Show the sockets, NUMA nodes, caches, GPUs and network devices of this machine, and how they are connected. With --plan,
show where Dask workers would run, and why.
"""
_MOST_CHARACTERS = 1 << 20
EXAMPLES = ("weft topo", "weft topo --plan --per l3", "nvidia-smi topo -m | weft topo --nvidia-smi -")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft topo`` to `parser`."""
    parser.add_argument(
        "--nvidia-smi",
        metavar="FILE",
        help="describe the machine that printed FILE by nvidia-smi topo -m; - reads standard input",
    )
    parser.add_argument("--plan", action="store_true", help="show where workers would run, and why; start nothing")
    add_placing_arguments(parser, "workers, with --plan")
    _options.add_json(parser)
    _options.add_color(parser)


def add_placing_arguments(parser: argparse.ArgumentParser, title: str) -> tuple[argparse.Action, argparse.Action]:
    """Add a group of the options by which a plan is made; return those of the number of workers and of threads."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--per",
        metavar="PLACE",
        help="one worker per gpu, numa, l3, or per N cores (default: gpu, or numa without GPUs)",
    )
    workers = group.add_argument("--workers", type=count, metavar="N", help="number of workers (default: all that fit)")
    threads = group.add_argument(
        "--threads", type=count, metavar="N", help="threads of each worker (default: its cores; 1 per GPU)"
    )
    group.add_argument(
        "--memory-limit",
        metavar="SIZE",
        default="auto",
        help="limit of each worker: 4GiB, 0.5 for half of the machine's memory, 0 for no limit (default: its share)",
    )
    group.add_argument(
        "--interface",
        metavar="NAME",
        help="network device for the workers' addresses; a prefix such as ib chooses the nearest of ib0, ib1",
    )
    return workers, threads


def run(args: argparse.Namespace) -> int:
    """Print the machine or the plan.

    Returns
    -------
    int
        0.

    Raises
    ------
    TopologyError
        The text of ``--nvidia-smi`` is malformed.
    InvalidParamError
        The file cannot be read, or the machine has no such places for workers.
    """
    if not args.plan:
        limit = None if args.memory_limit == "auto" else args.memory_limit
        given = {"per": args.per, "workers": args.workers, "threads": args.threads, "interface": args.interface}
        _options.refuse_unused("only with --plan", **given, memory_limit=limit)
    described = _described(args.nvidia_smi)
    if not args.plan:
        show(args, record(described), draw.topology(described))
        return 0
    made = plan(described, _plan_options(args, described))
    if args.nvidia_smi is None:
        refuse_absent_devices(made)
    show_plan(args, made)
    return 0


def refuse_absent_devices(made: Plan) -> None:
    """Raise for a plan of this machine whose workers listen on a network device that it does not have.

    Raises
    ------
    InvalidParamError
        There is no such device.
    """
    for worker in made.workers:
        if worker.interface is not None:
            _options.refuse_absent_device(worker.interface)


def show_plan(args: argparse.Namespace, made: Plan) -> None:
    """Print a plan, as text or JSON."""
    show(args, dataclasses.asdict(made), draw.plan(made))


def record(described: Topology) -> dict[str, Any]:
    """Return `described` for JSON: interconnects as text, with the bandwidth that is assumed for each."""
    made = dataclasses.asdict(described)
    del made["interconnects"]
    links: list[dict[str, Any]] = []
    for a, b, interconnect in described.interconnects:
        known = interconnect.prior()
        assumed = {"prior_Bps": known.bandwidth_Bps, "prior_source": known.source} if known else {}
        links.append({"a": a, "b": b, "link": str(interconnect), **assumed})
    return made | {"links": links}


def _described(file: str | None) -> Topology:
    if file is None:
        return discovery.read(driver=nvml.load(), environ=os.environ)
    try:
        with contextlib.nullcontext(sys.stdin) if file == "-" else open(file, encoding="utf-8") as source:
            text = source.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParamError(f"--nvidia-smi {file}: {_options.why_unread(error)}") from error
    if len(text) > _MOST_CHARACTERS:
        raise InvalidParamError(f"--nvidia-smi {file}: more than {_MOST_CHARACTERS} characters are no such table")
    return nvidia_smi.topology(nvidia_smi.parse(text, name=file), source=f"nvidia-smi topo -m in {file}")


def _plan_options(args: argparse.Namespace, described: Topology) -> options.PlanOptions:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if args.nvidia_smi is None else None
    return options.of(
        described,
        per=args.per,
        workers=args.workers,
        threads=args.threads,
        memory=args.memory_limit,
        visible=visible,
        interface=args.interface,
    )


def show(args: argparse.Namespace, record: dict[str, Any], drawn: RenderableType) -> None:
    """Print the drawing at its full width, or `record` as JSON."""
    with _options.written(args.json, record) as text:
        if text:
            _print(drawn, args.color)


def _print(drawn: RenderableType, color: str) -> None:
    # A matrix is not folded: columns of single letters would be unreadable, lines that the terminal wraps are not.
    width = _options.whole_width(_options.console(color), drawn)
    _options.console(color, width=width, highlight=False, markup=False).print(drawn)
