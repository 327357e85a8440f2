# SPDX-License-Identifier: BSD-3-Clause
"""``weft worker``, and ``dask weft worker``: options, the plan they ask for, and what each nanny is given."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

from weft import _distribution, _open_files
from weft._connect.address import device_of, source_towards, split
from weft.errors import InvalidParamError
from weft.topo import discovery, draw, nvml
from weft.topo.command import add_placing_arguments, show
from weft.topo.model import Topology
from weft.topo.options import DASK_CUDA, PlanOptions, of
from weft.topo.plan import Plan, plan
from weft.worker import scheduler_file

#: Options of dask-cuda's worker that have no meaning here, and why.
NOT_SUPPORTED = {name.replace("_", "-"): why for name, why in DASK_CUDA.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft worker`` to `parser`."""
    parser.add_argument("scheduler", nargs="?", metavar="SCHEDULER", help="its address, such as ucx://10.0.0.2:8786")
    parser.add_argument("--scheduler-file", metavar="FILE", help="the file that the scheduler wrote its address to")
    parser.add_argument("--plan", action="store_true", help="print where workers go, and why; start nothing")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    title, workers, threads = (
        "placing, as for weft topo --plan",
        ("--workers", "--nworkers"),
        ("--threads", "--nthreads"),
    )
    add_placing_arguments(parser, title, workers=workers, threads=threads)
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
    """Start the workers, with as many open files as the hard limit allows, and wait for their end; or print the plan.

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
    topology = discovery.read(driver=nvml.load(), environ=os.environ)
    made = plan(topology, request(args, topology))
    if args.plan:
        show(dataclasses.asdict(made) if args.json else draw.plan(made))
        return 0
    _require_dask()
    from weft.worker import nannies

    _open_files.raise_limit()  # nannies and workers inherit it
    return nannies.run(options(args, made))


def request(args: argparse.Namespace, topology: Topology) -> PlanOptions:
    """Return what `args` ask of the plan."""
    return of(
        topology,
        per=args.per,
        workers=args.workers,
        threads=args.threads,
        memory=args.memory_limit,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        interface=args.interface,
        towards=_device_towards(args),
    )


def _device_towards(args: argparse.Namespace) -> str | None:
    """Name the network device that the workers' addresses will be on; None where it is not known, or the loopback.

    As distributed does: that of ``--host``, else the one on the way to the scheduler.
    """
    scheduler = scheduler_file.address(args.scheduler_file) if args.scheduler_file else args.scheduler
    host = _host(args.host or scheduler or "")
    own = host if args.host else source_towards(host) if host else None
    try:
        device = device_of(own) if own else None
    except ValueError:  # --host is a name
        return None
    return None if device == "lo" else device


def _host(address: str) -> str:
    """Return the host of ``ucx://host:port``, with or without scheme and port; empty where there is none."""
    try:
        return split(address.rpartition("://")[2])[0]
    except InvalidParamError:
        return ""


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
    common: dict[str, Any] = {
        "scheduler_ip": args.scheduler,
        "scheduler_file": args.scheduler_file,
        "protocol": args.protocol,
        "host": args.host,
        "security": security,
        "local_directory": args.local_directory,
        "preload_nanny": args.preload_nanny,
        "resources": _resources(args.resources),
        "death_timeout": args.death_timeout,
        "dashboard": not args.no_dashboard,
        "dashboard_address": args.dashboard_address or ":0",
    }
    given: list[dict[str, Any]] = []
    for i, worker in enumerate(made.workers):
        name = args.name if args.name is None or len(made.workers) == 1 else f"{args.name}-{i}"
        one: dict[str, Any] = {**common, **nanny_options(worker), "name": name}
        given.append({**one, "preload": [*one["preload"], *args.preload]})
    return given


def _require_dask() -> None:
    from importlib.util import find_spec

    if find_spec("distributed") is None:
        raise InvalidParamError(f"start workers: Dask is not installed; {_distribution.install('dask')}")


def _resources(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        pairs = [word.partition("=") for word in text.replace(",", " ").split()]
        return {name: float(value) for name, _, value in pairs}
    except ValueError:
        raise InvalidParamError(f"--resources {text!r}: write NAME=NUMBER, as in GPU=1") from None
