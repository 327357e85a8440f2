# SPDX-License-Identifier: BSD-3-Clause
"""``weft simulate``: options and record. ``runs`` and ``lab`` simulate, ``table`` prints."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft import _distribution, _options
from weft.bench.common import environment, options, outcome
from weft.bench.common.rounds import progress
from weft.errors import InvalidParamError, UnsupportedError
from weft.simulate import lab, runs, table
from weft.simulate.graphs import GRAPHS
from weft.simulate.topologies import QUICK, TOPOLOGIES

DESCRIPTION = """
Simulate Dask jobs on networks that you do not have: the GPUs of one machine, two islands, fat trees. Flows share links
max-min fairly. Dask's decisions are compared with weft's (weft.links: learn). The same seed gives the same numbers.
"""
EXAMPLES = (
    "weft simulate dgx1,islands --graphs all-to-all,broadcast",
    "weft simulate tree10000 --graphs broadcast --charts charts",
    "weft simulate none --lab links.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    names = functools.partial(options.some_of, (*TOPOLOGIES, "none"))
    graphs, ways = (
        functools.partial(options.some_of, tuple(GRAPHS)),
        functools.partial(options.some_of, tuple(runs.WAYS)),
    )
    add, shown = parser.add_argument, "(default: %(default)s)"
    what = f"networks, comma-separated: {', '.join(TOPOLOGIES)}, none {shown}"
    add("networks", type=names, nargs="?", default=",".join(QUICK), metavar="NAMES", help=what)
    add("--graphs", type=graphs, metavar="NAMES", help=f"some of {', '.join(GRAPHS)} (default: all that apply)")
    add(
        "--ways",
        type=ways,
        default=",".join(runs.WAYS),
        metavar="NAMES",
        help=f"whose decisions: Dask's own (stock), weft's (learned) {shown}",
    )
    add("--seed", type=int, default=0, metavar="N", help=f"seed of Dask's random decisions {shown}")
    text = "also simulate the runs in FILE, records of weft bench links, and compare"
    add("--lab", type=Path, nargs="+", default=[], metavar="FILE", help=text)
    add("--charts", type=Path, metavar="FOLDER", help="draw a chart (SVG) for each family of networks into FOLDER")
    _options.add_json(parser, (*TOPOLOGIES, "none"))
    _options.add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, print, write, draw; return 0, or the exit status of a failure."""
    return outcome.reported("weft simulate", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    outcome.refuse_files(args.json)
    if args.charts is not None:
        _drawing()
    networks = [name for name in args.networks if name != "none"]
    if not networks:
        _options.refuse_unused("none simulates no network", graphs=args.graphs, charts=args.charts)
        if not args.lab:
            raise InvalidParamError("none: nothing to simulate: name networks, or give --lab FILE")
    measured = [_read(file) for file in args.lab]
    records = _simulate(networks, args)
    compared: list[dict[str, Any]] = []
    for file, record in zip(args.lab, measured, strict=True):
        before = len(compared)
        try:
            compared += [{**row._asdict(), "off": row.off} for row in lab.compare(record)]
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidParamError(f"--lab {file}: not a record of weft bench links") from error
        if len(compared) == before:
            outcome.notes().print(
                f"{file}: none of its runs can be simulated; those of {', '.join(lab.possible())} can"
            )
    if not records and not compared:
        raise InvalidParamError("nothing was simulated")
    record = {"command": "weft simulate", "seed": args.seed, "records": records, "lab": compared}
    if args.json is not None:  # it loads UCX
        record["environment"] = environment.collect()
    if args.charts is not None:
        _draw(record, args.charts)
    with _options.written(args.json, record) as text:
        if text:
            table.show(record, _options.console(args.color))
    return 0


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidParamError(f"--lab {file}: {_options.why_unread(error)}") from error


def _simulate(networks: Sequence[str], args: argparse.Namespace) -> list[Any]:
    graphs, ways = args.graphs, args.ways
    wanted = [(name, graph) for name in networks for graph in runs.graphs_on(name) if not graphs or graph in graphs]
    records: list[Any] = []
    with progress("simulate", len(wanted) * len(ways), args.color) as step:
        for name, graph in wanted:
            found: dict[str, Any] = {}
            for way in ways:
                step(f"{name}, {graph}, {way}")
                found[way] = runs.simulate(name, graph, way, seed=args.seed)
            of = TOPOLOGIES[name]
            records.append({"network": name, "title": of.title, "family": of.family, "graph": graph, "ways": found})
    return records


def _drawing() -> Any:
    try:
        from weft.simulate import chart
    except ImportError:
        raise UnsupportedError(f"matplotlib is not installed: {_distribution.install('bench')}") from None
    return chart


def _draw(record: dict[str, Any], folder: Path) -> None:
    chart = _drawing()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in chart.figures(record):
            (folder / f"{name}.svg").write_text(chart.picture(figure))
    except OSError as error:
        raise InvalidParamError(f"cannot write into {folder}: {error.strerror}") from error
