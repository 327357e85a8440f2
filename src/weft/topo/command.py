# SPDX-License-Identifier: BSD-3-Clause
"""``weft topo``: what this machine consists of, or one that ``nvidia-smi topo -m`` tells of, and where workers go."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from weft.errors import InvalidParamError
from weft.topo import draw, links, machine, nvidia_smi, nvml
from weft.topo.model import Topology
from weft.topo.plan import Request, plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft topo`` to `parser`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--nvidia-smi", metavar="FILE", help="describe the machine of this text, from nvidia-smi topo -m; - is stdin"
    )
    placing = parser.add_argument_group("placing workers (nothing is started)")
    placing.add_argument("--plan", action="store_true", help="print where workers go, and the reason of each choice")
    placing.add_argument(
        "--per", metavar="PLACE", help="a worker per gpu, numa, l3, or so many cores (default: gpu, else numa)"
    )
    placing.add_argument("--workers", type=_count, metavar="N", help="at most so many workers")
    placing.add_argument("--threads", type=_count, metavar="N", help="threads of each worker")
    placing.add_argument("--memory-limit", type=_gib, metavar="GIB", help="memory limit of each worker")
    placing.add_argument("--interface", metavar="NAME", help="the network device of the workers' addresses")


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
        _show(record(described) if args.json else draw.topology(described))
        return 0
    made = plan(described, _request(args, described))
    _show(dataclasses.asdict(made) if args.json else draw.plan(made))
    return 0


def record(described: Topology) -> dict[str, Any]:
    """Return `described` for JSON: links by name, with the bandwidth that is assumed for each."""
    made = dataclasses.asdict(described)
    described_links: list[dict[str, Any]] = []
    for a, b, link in described.links:
        known = links.prior(link)
        assumed = {"prior_Bps": known.bandwidth_Bps, "prior_source": known.source} if known else {}
        described_links.append({"a": a, "b": b, "link": str(link), **assumed})
    return made | {"links": described_links}


def _described(file: str | None) -> Topology:
    if file is None:
        return machine.read(driver=nvml.load())
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParamError(f"--nvidia-smi {file}: {error}") from error
    return nvidia_smi.topology(nvidia_smi.parse(text, name=file), source=f"nvidia-smi topo -m in {file}")


def _request(args: argparse.Namespace, described: Topology) -> Request:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if args.nvidia_smi is None else None
    return Request(
        per=args.per or ("gpu" if described.gpus else "numa"),
        workers=args.workers,
        threads=args.threads,
        memory_nbytes=args.memory_limit,
        gpus=tuple(filter(None, visible.split(","))) if visible is not None else None,
        interface=args.interface,
    )


def _show(what: RenderableType | dict[str, Any]) -> None:
    if isinstance(what, dict):
        print(json.dumps(what, indent=2))
        return
    console = Console()
    # a matrix is not folded: a line of it that the terminal breaks can still be read, one of single letters cannot
    least = console.measure(what, options=console.options.update(width=10_000)).minimum
    Console(width=max(console.width, least), highlight=False, markup=False).print(what)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _gib(text: str) -> int:
    try:
        nbytes = int(float(text) * 2**30)
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB above 0")
    return nbytes
