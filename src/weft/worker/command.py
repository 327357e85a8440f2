# SPDX-License-Identifier: BSD-3-Clause
"""``weft worker``, and ``dask weft worker``: options, the plan they ask for, and what each nanny is given."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

from weft.errors import InvalidParamError
from weft.topo import draw, machine, nvml
from weft.topo.command import count, show
from weft.topo.model import Topology
from weft.topo.plan import Plan, Request, plan

#: Options of dask-cuda's worker that have no meaning here, and why.
_RMM = "weft sets no RMM up: do it in a module given with --preload"
_SPILL = "weft spills no device memory: dask cuda worker does"
_UCX = "UCX chooses its transports itself; UCX_TLS narrows the choice"
NOT_SUPPORTED = {
    **dict.fromkeys(("rmm-pool-size", "rmm-maximum-pool-size", "rmm-release-threshold", "rmm-log-directory"), _RMM),
    **dict.fromkeys(("rmm-managed-memory", "rmm-async", "rmm-track-allocations", "set-rmm-allocator-for-libs"), _RMM),
    **dict.fromkeys(("device-memory-limit", "enable-cudf-spill", "cudf-spill-stats"), _SPILL),
    **dict.fromkeys(("enable-tcp-over-ucx", "enable-infiniband", "enable-nvlink", "enable-rdmacm"), _UCX),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft worker`` to `parser`."""
    parser.add_argument("scheduler", nargs="?", metavar="SCHEDULER", help="its address, such as ucx://10.0.0.2:8786")
    parser.add_argument("--scheduler-file", metavar="FILE", help="the file that the scheduler wrote its address to")
    parser.add_argument("--plan", action="store_true", help="print where workers go, and why; start nothing")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    placing = parser.add_argument_group("placing, as for weft topo --plan")
    placing.add_argument(
        "--per", metavar="PLACE", help="a worker per gpu, numa, l3, or so many cores (default: gpu, else numa)"
    )
    placing.add_argument("--workers", "--nworkers", type=count, metavar="N", help="at most so many workers")
    placing.add_argument("--threads", "--nthreads", type=count, metavar="N", help="threads of each worker")
    placing.add_argument(
        "--memory-limit",
        metavar="SIZE",
        default="auto",
        help="of each worker, such as 4GiB; 0: none (default: its share)",
    )
    placing.add_argument("--interface", metavar="NAME", help="the network device of the workers' addresses")
    dask = parser.add_argument_group("as for dask worker")
    dask.add_argument("--protocol", help="of the workers' addresses, such as ucx (default: the scheduler's)")
    dask.add_argument("--host", metavar="ADDRESS", help="the workers' own address")
    dask.add_argument("--name", help="of the workers: NAME-0, NAME-1, ...")
    dask.add_argument("--local-directory", metavar="FOLDER", help="where workers put what they spill")
    dask.add_argument("--preload", action="append", default=[], metavar="MODULE", help="load it in each worker")
    dask.add_argument("--preload-nanny", action="append", metavar="MODULE", help="load it in each nanny")
    dask.add_argument("--resources", help='of each worker, such as "GPU=1 MEM=10e9"')
    dask.add_argument("--death-timeout", metavar="SECONDS", help="how long to wait for the scheduler")
    dask.add_argument("--dashboard-address", metavar="ADDRESS", help="of each worker's dashboard (default: any port)")
    dask.add_argument("--no-dashboard", action="store_true", help="no dashboard")
    for name in ("tls-ca-file", "tls-cert", "tls-key"):
        dask.add_argument(f"--{name}", metavar="FILE", help=argparse.SUPPRESS if name != "tls-ca-file" else "TLS files")
    for name in NOT_SUPPORTED:
        parser.add_argument(f"--{name}", nargs="?", action=_Refused, dest="refused", help=argparse.SUPPRESS)


class _Refused(argparse.Action):
    """Keep the name of an option that is not supported, for a line of error of its own."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        namespace.refused = option


def run(args: argparse.Namespace) -> int:
    """Start the workers and wait for their end, or print the plan.

    Returns
    -------
    int
        0 after a signal or when the scheduler has retired them all.

    Raises
    ------
    InvalidParamError
        An option that is not supported or cannot be read, no scheduler, or no such places for workers.
    Error
        The workers could not be started.
    """
    if args.refused is not None:
        raise InvalidParamError(f"{args.refused} is not supported: {NOT_SUPPORTED[args.refused.removeprefix('--')]}")
    topology = machine.read(driver=nvml.load())
    made = plan(topology, request(args, topology))
    if args.plan:
        show(dataclasses.asdict(made) if args.json else draw.plan(made))
        return 0
    _require_dask()
    from weft.worker import nannies

    return nannies.run(options(args, made))


def request(args: argparse.Namespace, topology: Topology) -> Request:
    """Return what `args` ask of the plan."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Request(
        per=args.per or ("gpu" if topology.gpus else "numa"),
        workers=args.workers,
        threads=args.threads,
        memory_nbytes=None if args.memory_limit == "auto" else _nbytes(args.memory_limit),
        gpus=tuple(filter(None, visible.split(","))) if visible is not None else None,
        interface=args.interface,
    )


def options(args: argparse.Namespace, made: Plan) -> list[dict[str, Any]]:
    """Return what the nanny of each worker is given."""
    from weft.dask.cluster import nanny_options

    security = {
        kind: value
        for kind, value in (
            ("tls_ca_file", args.tls_ca_file),
            ("tls_worker_cert", args.tls_cert),
            ("tls_worker_key", args.tls_key),
        )
        if value is not None
    }
    common = {
        "scheduler_ip": args.scheduler,
        "scheduler_file": args.scheduler_file,
        "protocol": args.protocol,
        "host": args.host,
        "interface": args.interface,
        "security": security,
        "local_directory": args.local_directory,
        "preload_nanny": args.preload_nanny,
        "resources": _resources(args.resources),
        "death_timeout": args.death_timeout,
        "dashboard": not args.no_dashboard,
        "dashboard_address": args.dashboard_address or ":0",
    }
    given = []
    for i, worker in enumerate(made.workers):
        name = args.name if args.name is None or len(made.workers) == 1 else f"{args.name}-{i}"
        one = {**common, **nanny_options(worker), "name": name}
        given.append({**one, "preload": [*one["preload"], *args.preload]})
    return given


def _require_dask() -> None:
    from importlib.util import find_spec

    if find_spec("distributed") is None:
        raise InvalidParamError("start workers: Dask is not installed; pip install 'weft[dask]'")


def _resources(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        pairs = [word.partition("=") for word in text.replace(",", " ").split()]
        return {name: float(value) for name, _, value in pairs}
    except ValueError:
        raise InvalidParamError(f"--resources {text!r}: write NAME=NUMBER, as in GPU=1") from None


def _nbytes(text: str) -> int:
    _require_dask()
    from dask.utils import parse_bytes

    try:
        nbytes = int(parse_bytes(text))
    except ValueError:
        nbytes = -1
    # dask worker takes 0.5 for half of the machine's memory; here it would be 0 bytes, and no limit
    if nbytes < 1024 and text.strip() != "0":
        raise InvalidParamError(f"--memory-limit {text!r}: a size such as 4GiB, a number of bytes, 0 for none, or auto")
    return nbytes
