# SPDX-License-Identifier: BSD-3-Clause
"""The options of dask-cuda's benchmarks that weft's have not: which change nothing here, which are refused, and why.

Those that both have are in ``loads``. A command line of dask-cuda's runs with the program's name changed, or says which
option it cannot heed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NamedTuple

from weft.bench.common.errors import UsageError


class Told(NamedTuple):
    """What is said of an option, unless its value is `done`, which is what weft does anyway."""

    why: str
    refused: bool = False
    done: str | None = None


_RMM = Told("RMM is used as it is configured")
_UCX = Told("configure UCX with UCX_TLS and UCX_NET_DEVICES")
_SPILL = Told("weft spills no device memory: dask-cuda does", refused=True)
_PROFILE = Told("one page cannot show protocols that take turns; use Dask's performance_report", refused=True)
_FORK = "give it as DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD, which Dask reads"

_ALL = {
    "--disable-rmm": _RMM,
    "--disable-rmm-pool": _RMM,
    "--rmm-pool-size": _RMM,
    "--rmm-maximum-pool-size": _RMM,
    "--rmm-release-threshold": _RMM,
    "--rmm-log-directory": _RMM,
    "--enable-rmm-managed": _RMM,
    "--enable-rmm-async": _RMM,
    "--enable-rmm-statistics": _RMM,
    "--enable-rmm-track-allocations": _RMM,
    **{f"--{what}-{wire}": _UCX for what in ("enable", "disable") for wire in ("tcp-over-ucx", "infiniband", "nvlink")},
    "--enable-rdmacm": _UCX,
    "--disable-rdmacm": _UCX,
    "--device-memory-limit": _SPILL,
    "--multiprocessing-method": Told(_FORK, refused=True, done="spawn"),
    "--dashboard-address": Told("the clusters that are started here show none"),
    "--no-silence-logs": Told("errors are shown, and nothing below them"),
    "--all-to-all": Told("warm-up runs connect the workers"),
    "--multi-node": Told("--hosts says it"),
    "--shutdown-external-cluster-on-exit": Told("weft ends no cluster that it has not started", refused=True),
    "--profile": _PROFILE,
    "--profile-last": _PROFILE,
    "--output-basename": Told("--json FILE writes the record", refused=True),
    "-b --backend": Told("the work is Dask's", refused=True, done="dask"),
}


def _operation(name: str) -> dict[str, Told]:
    why = "transpose_sum, dot and svd are weft bench transpose, dot and svd; there are no others"
    return {"-o --operation": Told(why, refused=True, done=name)}


_SQUARE = {"-2 --second-size": Told("the matrix is square")}
#: By the name of the command; the other commands have no kin in dask-cuda.
OPTIONS = {
    "merge": {
        **_ALL,
        "--shuffle-join": Told("both tables are shuffled unless --broadcast-join is given"),
        "--no-shuffle": Told("the keys of the first table are always a permutation", refused=True),
        "-s --set-index": Told("the tables are joined by a column", refused=True),
    },
    "shuffle": {
        **_ALL,
        "--partition-distribution": Told("all chunks are of one size", refused=True),
        "--dask-spill-device": _SPILL,
        "--gather-shuffle-stats": Told("it is rapidsmpf's", refused=True),
    },
    "groupby": _ALL,
    "transpose": {**_ALL, **_operation("transpose_sum"), **_SQUARE},
    "dot": {**_ALL, **_operation("dot"), **_SQUARE},
    "svd": {**_ALL, **_operation("svd")},
}


class _Keep(argparse.Action):
    """Keep the option and its value, for `tell`."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        namespace.told = (*namespace.told, (" ".join(self.option_strings), values))


def add_arguments(parser: argparse.ArgumentParser, load: str) -> None:
    """Accept the options, for `tell`."""
    parser.set_defaults(told=())
    for names in OPTIONS.get(load, {}):
        # some take a value, some do not: it does not matter here
        parser.add_argument(
            *names.split(), nargs="?", action=_Keep, dest="told", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def tell(args: argparse.Namespace) -> None:
    """Say on stderr which options that were given change nothing.

    Raises
    ------
    UsageError
        One of them asks for something that is not done here.
    """
    for names, value in args.told:
        told, name = OPTIONS[args.load][names], names.split()[-1]
        if told.done is not None and value == told.done:
            continue
        if told.refused:
            raise UsageError(f"{name}{f' {value}' if value else ''} is not supported: {told.why}")
        print(f"note: {name} is ignored: {told.why}", file=sys.stderr)
