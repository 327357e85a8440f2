# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench merge`` and its kin: the work of dask-cuda's benchmarks over several protocols, with or without GPUs.

Here live the table of workloads and all options, which are parsed where Dask may be missing. Rounds and record are
in ``rounds``, the work in ``arrays``, ``tables`` and ``moves``, what is printed in ``printed``, the hosts of a lab in
``lab_clusters``. Options that dask-cuda has too have its names.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from weft import _options, lab
from weft._options import positive, protocols, whole
from weft._units import format_nbytes, format_size
from weft.bench.charts import command as plot
from weft.bench.common import lab_hosts, options, outcome
from weft.bench.common.errors import BenchError, UsageError
from weft.bench.common.options import size, sizes
from weft.bench.dask import dask_cuda, lab_clusters, printed, report, rounds
from weft.bench.dask.clusters import WORKERS, Deployment

if TYPE_CHECKING:
    from weft.bench.dask.workloads import Workload


class Option(NamedTuple):
    """An option of one workload, and an argument of its class.

    `default` is as it would be typed; None is the number of workers. The value of the option `most`, which comes before
    this one, limits it. Where `read` is bool, it is a flag.
    """

    name: str
    default: str | None
    text: str
    read: Callable[[str], Any] = functools.partial(positive, int)
    short: str | None = None
    most: str | None = None


class Load(NamedTuple):
    """One workload: `make` is its class in the module `room`, `gpu` the packages that ``--type gpu`` needs."""

    text: str
    room: str
    make: str
    options: tuple[Option, ...]
    gpu: tuple[str, ...] = ("cupy",)


def _part(text: str) -> float:
    part = positive(float, text)
    if part > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is above 1")
    return part


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _method(text: str) -> str:
    if text not in ("tasks", "p2p"):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of tasks, p2p")
    return text


def _task(text: str) -> str:
    if text not in ("python", "numpy"):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of python, numpy")
    return text


_ROWS = Option("chunk-size", "1_000_000", "rows per chunk", short="-c")
_PARTS = Option("in-parts", None, "chunks of the table")
_SHUFFLE = Option("shuffle", "tasks", "Dask's method: tasks, or p2p, which no log of transfers shows", _method)
_IGNORE_INDEX = Option("ignore-index", None, "the tables' index need not be kept", bool)
_SIZES = Option("sizes", "1KiB,100MiB", "sizes of an array, comma-separated; each is measured in turn", sizes)
_COUNT = Option("count", "8", "arrays in each run")
_TABLES = ("cudf", "dask_cudf")


def _side(default: str, text: str = "side of the matrix, in elements") -> Option:
    return Option("size", default, text, short="-s")


def _block(default: str, text: str = "side of its blocks, in elements") -> Option:
    return Option("chunk-size", default, text, short="-c", most="size")


#: By the name of the command.
LOADS = {
    "merge": Load(
        "inner merge of two tables, as dask-cuda's local_cudf_merge",
        "tables",
        "Merge",
        (
            _ROWS,
            Option("base-chunks", None, "chunks of the first table"),
            Option("other-chunks", None, "chunks of the second table"),
            Option("frac-match", "0.3", "part of the second table's keys that occur in the first", _part),
            Option("broadcast-join", None, "send the second table to all in place of shuffling both", bool),
            _SHUFFLE,
        ),
        _TABLES,
    ),
    "shuffle": Load(
        "shuffle of a table by a column's hash, as local_cudf_shuffle",
        "tables",
        "Shuffle",
        (Option("partition-size", "50MiB", "bytes of each chunk", size), _PARTS, _SHUFFLE, _IGNORE_INDEX),
        _TABLES,
    ),
    "groupby": Load(
        "sum, count and maximum by key, as local_cudf_groupby",
        "tables",
        "GroupBy",
        (
            _ROWS,
            _PARTS,
            Option("unique-ratio", "0.01", "keys for each row", _part),
            Option("split-out", "1", "chunks of the result", short="--split_out"),
            Option("split-every", "0", "chunks that one task puts together; 0: Dask's choice", _count, "--split_every"),
            Option("sort", None, "sort the result by the keys", bool),
            _SHUFFLE,
        ),
        _TABLES,
    ),
    "transpose": Load(
        "(x + x.T).sum(), as local_cupy's transpose_sum",
        "arrays",
        "TransposeSum",
        (_side("10_000"), _block("2_500")),
    ),
    "dot": Load(
        "x @ y of two square matrices, as local_cupy's dot", "arrays", "Dot", (_side("4_000"), _block("1_000"))
    ),
    "svd": Load(
        "singular values of a tall matrix, as local_cupy's svd",
        "arrays",
        "SingularValues",
        (
            _side("200_000", "rows"),
            Option("second-size", "100", "columns", short="-2"),
            _block("25_000", "rows of its blocks"),
        ),
    ),
    "fetch": Load("arrays that one idle worker fetches from another", "moves", "Fetch", (_SIZES, _COUNT)),
    "busy": Load(
        "arrays sent to a worker that runs a task",
        "moves",
        "Busy",
        (
            _SIZES._replace(default="128MiB"),
            _COUNT,
            Option("beside", "python", "what the task runs: python or numpy", _task),
        ),
    ),
    "broadcast": Load("arrays that all workers fetch from one", "moves", "Broadcast", (_SIZES, _COUNT)),
    "scatter": Load("arrays that the client sends to the workers", "moves", "Scatter", (_SIZES, _COUNT)),
    "gather": Load("results that the client gathers", "moves", "Gather", (_SIZES, _COUNT)),
    "tasks": Load(
        "tiny tasks that move nothing", "moves", "Tasks", (Option("count", "10_000", "tasks in each run"),), ()
    ),
}
# What only clusters that are started here can be told.
_OURS = ("protocol", "devs", "workers", "threads", "memory_limit", "interface", "hosts", "lab")
#: What the benchmark runs on a lab's first host.
ON_HOST = "import sys; from weft.bench.dask.command import on_host; sys.exit(on_host())"


def description(load: str) -> str:
    """Say what a workload's command does."""
    said = f"""Measure with Dask: {LOADS[load].text}. The protocols take turns, every result is checked, and times,
        bandwidths and wires are printed. Without options, the clusters are started on this machine."""
    if load not in dask_cuda.OPTIONS:
        return said
    return f"""{said}

        The options of dask-cuda's benchmark are accepted. A note names those that have no effect here; those that ask
        for something else are refused."""


def examples(load: str) -> tuple[str, ...]:
    """Give two command lines of a workload."""
    return f"weft bench {load}", f"weft bench {load} --protocol ucx --workers 4 --rounds 5 --json {load}.json"


def add_arguments(parser: argparse.ArgumentParser, load: str) -> None:
    """Add the options of the workload `load`, a key of `LOADS`, to `parser`."""
    for option in LOADS[load].options:
        names = [f"--{option.name}", *filter(None, [option.short])]
        if option.read is bool:
            parser.add_argument(*names, action="store_true", help=option.text)
            continue
        default = "the number of workers" if option.default is None else option.default
        if option.most is not None:
            default += f", or --{option.most} if that is less"
        parser.add_argument(
            *names,
            type=option.read,
            default=option.default if option.most is None else None,
            # the one of dask-cuda's group-by has no value
            nargs="?" if option is _SHUFFLE else None,
            const="tasks" if option is _SHUFFLE else None,
            metavar="METHOD" if option.read is _method else "TASK" if option.read is _task else "N",
            help=f"{option.text} (default: {default})",
        )
    add = parser.add_argument
    if LOADS[load].gpu:
        add(
            "-t",
            "--type",
            choices=("cpu", "gpu"),
            metavar="KIND",
            help="cpu or gpu: where the data are (default: cpu; gpu with --devs)",
        )
    add(
        "-p",
        "--protocol",
        type=protocols,
        metavar="A,B",
        help="protocols to compare, in turns; inproc is one process (default: tcp,ucx)",
    )
    add("-d", "--devs", metavar="GPUS", help="GPUs of this machine, one worker beside each (default: all)")
    add(
        "--workers",
        type=whole,
        metavar="N",
        help=f"workers on this machine, or on each host (default: {WORKERS}; 1 on a host)",
    )
    threads = add("--threads", type=whole, metavar="N", help="threads of each worker (default: 1)")
    _options.add_alias(parser, threads, "--threads-per-worker")
    add("--memory-limit", type=size, metavar="SIZE", help="memory limit of each worker (default: none)")
    add("--interface", metavar="NAME", help="network device to listen on")
    add(
        "--hosts",
        type=_names,
        metavar="A,B,C",
        help="start the cluster by SSH: the scheduler's host, then the workers'",
    )
    add(
        "--lab",
        type=Path,
        metavar="FILE",
        help="start the cluster on the hosts of a lab (see weft lab --help), the scheduler on the first",
    )
    add("--scheduler-address", type=_names, metavar="A,B", help="use running clusters, one for each protocol")
    add("--scheduler-file", type=_names, metavar="FILE,...", help="the same, from the files that the schedulers wrote")
    rounds = options.add_rounds(parser, 3, text="over the protocols in turns")
    _options.add_alias(parser, rounds, "--runs")
    warm_ups = add(
        "--warmup-rounds",
        type=_count,
        default=1,
        metavar="N",
        help="rounds that are checked but not timed (default: 1)",
    )
    _options.add_alias(parser, warm_ups, "--warmup-runs")
    add(
        "--ignore-size",
        type=size,
        default=report.P2P_MIN_NBYTES,
        metavar="SIZE",
        help=f"leave smaller transfers out of the bandwidths (default: {format_size(report.P2P_MIN_NBYTES)})",
    )
    options.add_timeout(parser, 600.0)
    add("--no-show-p2p-bandwidth", action="store_true", help="leave out the tables of pairs of workers")
    add("--markdown", action="store_true", help="print Markdown")
    plot.add_drawing_arguments(parser)
    options.add_output(parser)
    dask_cuda.add_arguments(parser, load)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r}: an empty name")
    return names


def run(args: argparse.Namespace) -> int:
    """Run the workload ``args.load`` and print the report; return what `rounds.reported` does."""
    return rounds.reported(f"weft bench {args.load}", functools.partial(_run, args))


def on_host() -> int:
    """Do the same on the first host of a lab, with the clusters that `lab_clusters.run` has started there."""
    return rounds.reported("weft bench --lab", lambda: _measured(*lab_clusters.given()))


def _run(args: argparse.Namespace) -> dict[str, Any] | int:
    dask_cuda.tell(args)
    load = LOADS[args.load]
    needed = (load.gpu if _kind(args) == "gpu" else ()) + (rounds.TABLES if load.room == "tables" else ())
    rounds.refuse(needed, args.json)
    plot.refuse(args)
    if options.replaces_text(args.json):
        shown = {"markdown": args.markdown, "no_show_p2p_bandwidth": args.no_show_p2p_bandwidth}
        _options.refuse_unused("--json without a file prints no tables", **shown)
    where = deployments(args)
    if args.interface and not args.hosts:
        _options.refuse_absent_device(args.interface)
    # Refuse what does not go together before anything starts.
    made = build(args, args.workers or WORKERS)
    own = psutil.Process().memory_info().rss
    if 0 < (args.memory_limit or 0) < own:
        raise UsageError(f"--memory-limit: a worker's libraries alone take {format_nbytes(own)}")
    if args.workers == 1 and not args.hosts and not args.lab and made[0].least_workers > 1:
        raise UsageError(f"--workers 1: weft bench {args.load} needs 2 at least, one to send and one to receive")
    if args.lab:
        return lab_clusters.run(args, list(where), next(iter(where.values())), ON_HOST)
    return _measured(args, where)


def _measured(args: argparse.Namespace, where: dict[str, Deployment]) -> dict[str, Any]:
    schedule = rounds.Schedule(args.rounds, args.warmup_rounds, args.timeout, 1.0, args.ignore_size)
    measured = rounds.measure(functools.partial(build, args), where, schedule, _options.progress_console(args.color))
    record = {"command": f"weft bench {args.load}", "type": _kind(args), **measured}
    if args.lab:
        record["lab"] = lab_hosts.described(lab.read(args.lab))
    record["ratios"] = [c._asdict() for c in report.comparisons(record)]
    with outcome.written(args.json, record) as text:
        if text and args.markdown:
            print(printed.markdown(record, show_p2p=not args.no_show_p2p_bandwidth), end="")
        elif text:
            printed.print_record(record, _options.console(args.color), show_p2p=not args.no_show_p2p_bandwidth)
    plot.draw(record, args)
    return record


def deployments(args: argparse.Namespace) -> dict[str, Deployment]:
    """Say where the cluster of each protocol is, from the options.

    Raises
    ------
    BenchError
        Options that exclude each other, or a package or file that is missing.
    """
    gpu = _kind(args) == "gpu"
    if args.scheduler_address or args.scheduler_file:
        ours = [f"--{name.replace('_', '-')}" for name in _OURS if getattr(args, name) is not None]
        if ours:
            raise UsageError(f"{', '.join(ours)}: not with --scheduler-address, whose cluster is running")
        if args.scheduler_address and args.scheduler_file:
            raise UsageError("give --scheduler-address or --scheduler-file, not both")
        addresses = args.scheduler_address or [_address(Path(file)) for file in args.scheduler_file]
        by_protocol = {(a.partition("://")[0] if "://" in a else "tcp"): Deployment(address=a) for a in addresses}
        if len(by_protocol) < len(addresses):
            raise UsageError(f"{', '.join(addresses)}: one scheduler for each protocol")
        return by_protocol
    if args.devs is not None and not gpu:
        raise UsageError("--devs names GPUs, but this workload does not use them: give --workers")
    if gpu and (args.workers or args.hosts):
        raise UsageError("--type gpu puts one worker beside each of --devs; elsewhere, give --scheduler-address")
    if args.lab and (gpu or args.hosts or args.interface):
        raise UsageError("--lab has its own hosts and devices: not with --hosts, --interface, --type gpu")
    if args.hosts and len(args.hosts) < 2:
        raise UsageError("--hosts: give the scheduler's host, then at least one for workers")
    if args.hosts and importlib.util.find_spec("asyncssh") is None:
        raise BenchError("--hosts needs asyncssh: pip install asyncssh")
    deployment = Deployment(
        workers=args.workers or (1 if args.hosts or args.lab else WORKERS),
        threads=args.threads or 1,
        memory_nbytes=args.memory_limit or 0,
        interface=args.interface,
        gpus=(args.devs or "") if gpu else None,
        hosts=args.hosts or (),
    )
    return dict.fromkeys(args.protocol or ["tcp", "ucx"], deployment)


def _kind(args: argparse.Namespace) -> str:
    if not LOADS[args.load].gpu:
        return "cpu"
    return args.type or ("cpu" if args.devs is None else "gpu")


def _address(file: Path) -> str:
    try:
        return str(json.loads(file.read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is not what a scheduler wrote: {error!r}") from error


def _default(option: Option, given: dict[str, Any], workers: int) -> Any:
    if option.default is None:
        return workers
    value = option.read(option.default)
    return value if option.most is None else min(value, given[option.most])


def build(args: argparse.Namespace, workers: int) -> list[Workload]:
    """Make the workload of ``args.load`` for a number of workers; one for each of ``--sizes``, if it has those.

    Raises
    ------
    BenchError
        The sizes do not go together.
    """
    load = LOADS[args.load]
    make = getattr(importlib.import_module(f"weft.bench.dask.{load.room}"), load.make)
    given: dict[str, Any] = {}
    for option in load.options:
        name = option.name.replace("-", "_")
        value = getattr(args, name)
        given[name] = _default(option, given, workers) if value is None else value
    common: dict[str, int | str] = {}
    if load.gpu:
        given["kind"] = common["Type"] = _kind(args)
    if "shuffle" in given:
        common["Shuffle"] = given["shuffle"]
    for name in ("ignore_index", "sort", "split_every"):
        if given.get(name):
            common[name.replace("_", "-").capitalize()] = given[name]
    if args.devs:
        common["Devices"] = args.devs
    try:
        if "sizes" in given:
            each = given.pop("sizes")
            made: list[Workload] = [make(nbytes=nbytes, **given) for nbytes in each]
        else:
            made = [make(**given)]
    except ValueError as error:
        raise UsageError(str(error)) from error
    for workload in made:
        workload.parameters = {**workload.parameters, **common}
    return made
