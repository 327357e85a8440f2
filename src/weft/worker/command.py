# SPDX-License-Identifier: BSD-3-Clause
"""``weft worker``, and ``dask weft worker``: options, the plan they ask for, and what each nanny is given."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import Any

from weft import _distribution, _open_files, _options
from weft._connect.address import device_of, source_towards, split
from weft.errors import InvalidParamError, UnsupportedError
from weft.topo import discovery, nvml
from weft.topo.command import add_placing_arguments, refuse_absent_devices, show_plan
from weft.topo.model import Topology
from weft.topo.options import DASK_CUDA, PlanOptions, of
from weft.topo.plan import Plan, plan
from weft.worker import scheduler_file

DESCRIPTION = """
Start Dask workers on this machine, one for each GPU or NUMA node, bound to its cores, memory and network device, and
connect them to a scheduler. dask weft worker is the same command.
"""
EXAMPLES = (
    "weft worker ucx://10.0.0.2:8786",
    "weft worker ucx://10.0.0.2:8786 --plan",
    "weft worker --scheduler-file scheduler.json --per l3 --threads 2 --memory-limit 8GiB",
)

#: Options of dask-cuda's worker that ask for what weft does.
AS_HERE = (
    "disable-cudf-spill",
    "disable-jit-unspill",
    "no-rmm-managed-memory",
    "no-rmm-async",
    "no-rmm-track-allocations",
)
_OF_DASK_CUDA = {name.replace("_", "-"): why for name, why in DASK_CUDA.items()}
_WIRES = ("tcp-over-ucx", "infiniband", "nvlink", "rdmacm")
#: Options of dask-cuda's worker that have no meaning here, and why.
NOT_SUPPORTED = {
    **_OF_DASK_CUDA,
    **{f"disable-{name}": _OF_DASK_CUDA[f"enable-{name}"] for name in _WIRES},
    "enable-jit-unspill": _OF_DASK_CUDA["jit-unspill"],
    "pre-import": "use --preload",
    "pid-file": "the program that starts weft worker knows its pid",
    "worker-class": "weft worker starts distributed's Worker, each below a Nanny",
    "multiprocessing-method": "nannies start their workers by distributed.worker.multiprocessing-method",
    "shared-filesystem": "weft does not spill to a file system that workers share",
    **dict.fromkeys(
        ("dashboard-prefix", "worker-port", "listen-address", "contact-address"), "use dask worker, which has it"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft worker`` to `parser`."""
    parser.add_argument(
        "scheduler", nargs="?", metavar="SCHEDULER", help="the scheduler's address, such as ucx://10.0.0.2:8786"
    )
    parser.add_argument(
        "--scheduler-file", metavar="FILE", help="read the address from the file that the scheduler wrote"
    )
    parser.add_argument("--plan", action="store_true", help="show where workers would run, and why; start nothing")
    workers, threads = add_placing_arguments(parser, "workers, as for weft topo --plan")
    _options.add_alias(parser, workers, "--nworkers")
    _options.add_alias(parser, threads, "--nthreads")
    dask = parser.add_argument_group("as for dask worker")
    dask.add_argument(
        "--protocol", metavar="NAME", help="protocol of the workers' addresses (default: the scheduler's)"
    )
    dask.add_argument("--host", metavar="ADDRESS", help="the workers' own address")
    dask.add_argument("--name", help="name of the worker; several are NAME-0, NAME-1, ...")
    dask.add_argument("--local-directory", metavar="FOLDER", help="where workers spill to")
    dask.add_argument(
        "--preload", action="append", default=[], metavar="MODULE", help="module that each worker imports"
    )
    dask.add_argument("--preload-nanny", action="append", metavar="MODULE", help="module that each nanny imports")
    dask.add_argument("--resources", help='resources of each worker, such as "GPU=1 MEM=10e9"')
    timeout = dask.add_argument(
        "--timeout",
        type=_patience,
        metavar="S",
        help="seconds to wait for the scheduler, then for the workers to start, 60 at least (default: no limit)",
    )
    _options.add_alias(parser, timeout, "--death-timeout")
    dask.add_argument(
        "--dashboard-address", metavar="ADDRESS", help="address of each worker's dashboard (default: :0, any port)"
    )
    dask.add_argument("--no-dashboard", action="store_true", help="start no dashboards")
    dask.add_argument("--dashboard", action="store_false", dest="no_dashboard", help=argparse.SUPPRESS)
    dask.add_argument("--tls-ca-file", metavar="FILE", help="certificates of the authorities to trust, PEM")
    dask.add_argument("--tls-cert", metavar="FILE", help="the workers' certificate, PEM")
    dask.add_argument("--tls-key", metavar="FILE", help="the private key of --tls-cert, PEM")
    _options.add_json(parser)
    _options.add_color(parser)
    for name in AS_HERE:
        parser.add_argument(f"--{name}", action="store_true", dest="as_here", help=argparse.SUPPRESS)
    for name in NOT_SUPPORTED:
        parser.add_argument(f"--{name}", nargs="?", action=_Refused, dest="refused", help=argparse.SUPPRESS)


def _patience(text: str) -> float:
    """Read ``--timeout`` in seconds, or as Dask writes times, such as ``5m``."""
    try:
        return _options.timeout(text)
    except argparse.ArgumentTypeError as error:
        with contextlib.suppress(ImportError, ValueError, KeyError, OverflowError):
            from dask.utils import parse_timedelta

            return _options.timeout(str(parse_timedelta(text)))
        raise argparse.ArgumentTypeError(f"{error}, or a time such as 5m") from None


class _Refused(argparse.Action):
    """Keep the name of an option that is not supported, so that `run` can say why."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        namespace.refused = option


def run(args: argparse.Namespace) -> int:
    """Start the workers with the hard limit of open files, and wait until they end; or print the plan.

    Returns
    -------
    int
        0 after a signal or when the scheduler has retired them all; 130 after Ctrl-C before it was reached.

    Raises
    ------
    InvalidParamError
        An option is not supported or cannot be read, no scheduler is given, or the machine has no such places.
    Error
        The workers could not be started.
    """
    if args.refused is not None:
        raise InvalidParamError(f"{args.refused} is not supported: {NOT_SUPPORTED[args.refused.removeprefix('--')]}")
    if not args.plan:
        _options.refuse_unused("only with --plan", json=args.json)
    if args.scheduler is not None:
        _options.refuse_unused("not with an address", scheduler_file=args.scheduler_file)
    if args.host is not None:
        _options.refuse_unused("not with --host", interface=args.interface)
    if args.no_dashboard:
        _options.refuse_unused("not with --no-dashboard", dashboard_address=args.dashboard_address)
    for name in ("tls_ca_file", "tls_cert", "tls_key"):
        file = getattr(args, name)
        if file is not None and not os.path.isfile(file):
            raise InvalidParamError(f"--{name.replace('_', '-')} {file}: no such file")
    topology = discovery.read(driver=nvml.load(), environ=os.environ)
    made = plan(topology, request(args, topology))
    refuse_absent_devices(made)
    if args.plan:
        if args.protocol and _has_dask():
            from weft.worker import nannies

            nannies.refuse_protocol(args.protocol)
        show_plan(args, made)
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
    """Name the network device of the workers' addresses; None if it is not known, or is the loopback.

    As in distributed: the device of ``--host``, else the one on the route to the scheduler.
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
        "death_timeout": args.timeout,
        "dashboard": not args.no_dashboard,
        "dashboard_address": args.dashboard_address or ":0",
    }
    given: list[dict[str, Any]] = []
    for i, worker in enumerate(made.workers):
        name = args.name if args.name is None or len(made.workers) == 1 else f"{args.name}-{i}"
        one: dict[str, Any] = {**common, **nanny_options(worker), "name": name}
        given.append({**one, "preload": [*one["preload"], *args.preload]})
    return given


def _has_dask() -> bool:
    from importlib.util import find_spec

    return find_spec("distributed") is not None


def _require_dask() -> None:
    if not _has_dask():
        raise UnsupportedError(f"start workers: Dask is not installed; {_distribution.install('dask')}")


def _resources(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        pairs = [word.partition("=") for word in text.replace(",", " ").split()]
        return {name: float(value) for name, _, value in pairs}
    except ValueError:
        raise InvalidParamError(f"--resources {text!r}: write NAME=NUMBER, such as GPU=1") from None
