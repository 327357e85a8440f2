# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench plot``, and the options that draw.

Sweeps are drawn in ``sweep``, pingpong and peers in ``pingpong``, Dask's work in ``dask``, scale in ``scale``.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft import _distribution
from weft.bench.common import outcome
from weft.bench.common.errors import BenchError, UsageError

DESCRIPTION = """
Draw the charts of a benchmark from its JSON record, as a picture or as one self-contained HTML page with tables. Give
--plot, --html or both.
"""
EXAMPLES = ("weft bench plot sweep.json --plot sweep.svg", "weft bench plot demo.json --html demo.html")
PICTURES = (".png", ".svg", ".pdf")


def add_drawing_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`draw` reads."""
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the charts: .png, .svg or .pdf")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write charts and tables as one self-contained page")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    parser.add_argument(
        "record", type=Path, metavar="RECORD", help="what a benchmark wrote with --json; not send-recv's"
    )
    add_drawing_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Draw a record; return 1 if it cannot be drawn."""
    return outcome.reported("weft bench plot", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    refuse(args)
    if not (args.plot or args.html):
        raise UsageError("nothing to draw: give --plot FILE or --html FILE")
    record = drawable(args.record)
    with outcome.of_a_benchmark(args.record, "drawn"):
        draw(record, args)
    return 0


def drawable(path: Path) -> dict[str, Any]:
    """Read the record of a sweep, a ping-pong, scale or Dask's work; raise `BenchError` for anything else."""
    record = outcome.read_record(path)
    if not (outcome.first_row(record).keys() & {"measure", "latency_s", "wall_s", "runs"}):
        raise UsageError(f"{path} is not what a benchmark that can be drawn wrote with --json, or nothing was measured")
    return record


def refuse(args: argparse.Namespace) -> None:
    """Raise for charts that could not be drawn in the end."""
    for path in filter(None, (args.plot, args.html)):
        outcome.refuse_files(path)
        if importlib.util.find_spec("matplotlib") is None:
            raise BenchError(f"{path.name} needs matplotlib: {_distribution.install('bench')}")
    if args.plot and args.plot.suffix not in PICTURES:
        raise UsageError(f"{args.plot.name} is none of {', '.join(PICTURES)}")


def draw(record: Mapping[str, Any], args: argparse.Namespace) -> None:
    """Write the picture and the page that were asked for, from the record alone."""
    if not (args.plot or args.html):
        return
    from weft.bench.charts.drawing import save

    first = outcome.first_row(record)
    if "workloads" in record:
        from weft.bench.charts import dask as figures
    elif "measure" in first:
        from weft.bench.charts import sweep as figures  # type: ignore[no-redef]
    elif "runs" in first:
        from weft.bench.charts import scale as figures  # type: ignore[no-redef]
    else:
        from weft.bench.charts import pingpong as figures  # type: ignore[no-redef]
    if args.plot:
        try:
            save(figures.chart(record), args.plot)
        except OSError as error:
            raise BenchError(f"cannot write {args.plot}: {error.strerror}") from error
    if args.html:
        outcome.write(args.html, figures.page(record))
