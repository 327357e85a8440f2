# SPDX-License-Identifier: BSD-3-Clause
"""``weft topo``: what this machine consists of, or one that ``nvidia-smi topo -m`` tells of, and where workers go."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, RenderableType

from weft.errors import InvalidParamError
from weft.topo import discovery, draw, nvidia_smi, nvml, options
from weft.topo.model import Topology
from weft.topo.plan import plan

#: Timers take no number above some bound, each another.
LONGEST_S = 1e8

Number = TypeVar("Number", int, float)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft topo`` to `parser`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--nvidia-smi", metavar="FILE", help="describe the machine of this text, from nvidia-smi topo -m; - is stdin"
    )
    parser.add_argument("--plan", action="store_true", help="print where workers go, and why; start nothing")
    add_placing_arguments(parser, "placing workers")


def add_placing_arguments(
    parser: argparse.ArgumentParser,
    title: str,
    *,
    workers: Sequence[str] = ("--workers",),
    threads: Sequence[str] = ("--threads",),
) -> None:
    """Add a group of the options by which a plan is made; two of them may have several names."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--per", metavar="PLACE", help="a worker per gpu, numa, l3, or so many cores (default: gpu, else numa)"
    )
    group.add_argument(*workers, type=count, metavar="N", help="at most so many workers")
    group.add_argument(*threads, type=count, metavar="N", help="threads of each worker")
    group.add_argument(
        "--memory-limit",
        metavar="SIZE",
        default="auto",
        help="of each worker: 4GiB, or 0.5 for half of the machine's; 0: none (default: its share)",
    )
    group.add_argument(
        "--interface",
        metavar="NAME",
        help="the network device of the workers' addresses, or how several begin: ib for the nearest of ib0, ib1",
    )


def run(args: argparse.Namespace) -> int:
    """Print what `args` ask for.

    Returns
    -------
    int
        0.

    Raises
    ------
    TopologyError
        The text of ``--nvidia-smi`` is malformed.
    InvalidParamError
        The file cannot be read, or there are no such places for workers.
    """
    described = _described(args.nvidia_smi)
    if not args.plan:
        show(record(described) if args.json else draw.topology(described))
        return 0
    made = plan(described, _options(args, described))
    show(dataclasses.asdict(made) if args.json else draw.plan(made))
    return 0


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
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParamError(f"--nvidia-smi {file}: {error}") from error
    return nvidia_smi.topology(nvidia_smi.parse(text, name=file), source=f"nvidia-smi topo -m in {file}")


def _options(args: argparse.Namespace, described: Topology) -> options.PlanOptions:
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


def show(what: RenderableType | dict[str, Any]) -> None:
    """Print a record as JSON, anything else drawn as wide as it needs."""
    if isinstance(what, dict):
        print(json.dumps(what, indent=2))
        return
    console = Console()
    size = console.measure(what, options=console.options.update(width=10_000))
    # A matrix is not folded: a line of it that the terminal breaks can still be read, one of single letters cannot. A
    # file or a pipe has no width to fold to.
    width = max(console.width, size.minimum) if console.is_terminal else size.maximum
    Console(width=width, highlight=False, markup=False).print(what)


def count(text: str) -> int:
    """Read a number from 1 up, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def port(text: str) -> int:
    """Read a port, for argparse."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port between 1 and 65535")
    return int(text)


def positive(kind: Callable[[str], Number], text: str) -> Number:
    """Read a finite number above 0, for argparse."""
    with contextlib.suppress(ValueError):
        if 0 < (value := kind(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def timeout(text: str) -> float:
    """Read a time in seconds that a timer of the system can wait for, for argparse."""
    if (value := positive(float, text)) > LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is above {LONGEST_S:.0f}, three years")
    return value
