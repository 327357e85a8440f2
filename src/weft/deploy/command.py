# SPDX-License-Identifier: BSD-3-Clause
"""``weft deploy``: options, and the script that they ask for, on standard output."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys

from weft.deploy import azure, slurm, ssh
from weft.deploy.cluster import PLACEHOLDER, Cluster
from weft.errors import InvalidParamError
from weft.topo.command import count, port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft deploy`` to `parser`."""
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    _add_slurm(targets.add_parser("slurm", help="a script for sbatch: scheduler, workers and a program"))
    _add_ssh(targets.add_parser("ssh", help="a script that starts them on a list of hosts"))
    _add_azure(targets.add_parser("azure", help="az commands and cloud-init for machines with InfiniBand"))


def run(args: argparse.Namespace) -> int:
    """Print the script; nothing is started.

    Returns
    -------
    int
        0.

    Raises
    ------
    InvalidParamError
        An option has a value that cannot stand in the script.
    """
    text = {"slurm": _slurm, "ssh": _ssh, "azure": _azure}[args.target](args)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParamError(f"deploy {args.target}: an option is not UTF-8: {error}") from None
    print(text, end="")
    return 0


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    job = slurm.Job()
    parser.add_argument("--nodes", type=count, default=job.nodes, metavar="N", help=f"default: {job.nodes}")
    parser.add_argument("--cpus", type=count, metavar="N", help="of each node (default: whole nodes)")
    parser.add_argument("--gpus", type=count, metavar="N", help="of each node")
    parser.add_argument("--mem", metavar="SIZE", help="of each node, such as 64G; 0: all")
    parser.add_argument("--time", metavar="TIME", help="such as 1:00:00")
    parser.add_argument("--partition", metavar="NAME", help="default: the cluster's")
    parser.add_argument("--account", metavar="NAME", help="default: yours")
    parser.add_argument("--job-name", default=job.name, metavar="NAME", help=f"default: {job.name}")
    parser.add_argument("--folder", metavar="FOLDER", help="that all nodes have (default: the one of submission)")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="of sbatch: --sbatch=--constraint=ib"
    )
    _add_cluster(parser)


def _slurm(args: argparse.Namespace) -> str:
    job = slurm.Job(
        name=args.job_name,
        nodes=args.nodes,
        cpus=args.cpus,
        gpus=args.gpus,
        memory=args.mem,
        time=args.time,
        partition=args.partition,
        account=args.account,
        folder=args.folder,
        directives=tuple(args.sbatch),
    )
    return slurm.script(job, _cluster(args))


def _add_ssh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", required=True, metavar="A,B,C", help="the scheduler's host, then those of workers")
    parser.add_argument("--address", metavar="NAME", help="the first host's, for the others (default: as in --hosts)")
    parser.add_argument("--port", type=port, default=8786, metavar="N", help="of the scheduler (default: 8786)")
    parser.add_argument(
        "--ssh", action="append", default=[], metavar="WORD", help="of ssh's options: --ssh=-p --ssh=2222"
    )
    _add_cluster(parser)


def _ssh(args: argparse.Namespace) -> str:
    layout = ssh.Layout(
        hosts=tuple(args.hosts.split(",")),
        here=sys.executable,
        address=args.address,
        port=args.port,
        options=tuple(args.ssh),
    )
    return ssh.script(layout, _cluster(args))


def _add_azure(parser: argparse.ArgumentParser) -> None:
    given = {each.name: each.default for each in dataclasses.fields(azure.ScaleSet)}
    parser.add_argument(
        "--cloud-init", action="store_true", help="print only what the machines do at their first start"
    )
    parser.add_argument("--package", required=True, metavar="WEFT", help="for pip: a wheel's URL, git+https://...")
    parser.add_argument("--count", type=count, default=given["count"], metavar="N", help="machines (default: 2)")
    parser.add_argument("--ssh-from", default="", metavar="ADDRESS", help="may log in: 203.0.113.7, or 203.0.113.0/24")
    parser.add_argument(
        "--subnet", default="", metavar="ID", help="of yours, in place of --ssh-from and public addresses"
    )
    parser.add_argument(
        "--drivers", choices=azure.DRIVERS, default=given["drivers"], help="default: those of the image"
    )
    for name, text in (
        ("size", "of the machines"),
        ("image", "of the machines"),
        ("location", "region"),
        ("group", "resource group"),
        ("name", "of the scale set"),
        ("user", "of the machines"),
        ("nvidia-driver", "version of it, if the image has none"),
        ("nvidia-package", "its kernel modules; cuda-drivers for V100"),
        ("doca", "URL of DOCA's package, for --drivers doca"),
    ):
        default = given[name.replace("-", "_")]
        parser.add_argument(f"--{name}", default=default, metavar=name.upper(), help=f"{text} (default: {default})")


def _azure(args: argparse.Namespace) -> str:
    scale_set = azure.ScaleSet(**{each.name: getattr(args, each.name) for each in dataclasses.fields(azure.ScaleSet)})
    return azure.cloud_init(scale_set) if args.cloud_init else azure.script(scale_set)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument(
        "--protocol", type=_protocols, default=("ucx",), metavar="A,B", help="a cluster for each (default: ucx)"
    )
    cluster.add_argument("--interface", metavar="NAME", help="the network device of the addresses")
    for name, metavar in (("per", "PLACE"), ("workers", "N"), ("threads", "N"), ("memory-limit", "SIZE")):
        cluster.add_argument(f"--{name}", metavar=metavar, help="as for weft worker")
    cluster.add_argument("--python", default=sys.executable, metavar="FILE", help="on the hosts (default: this one)")
    cluster.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for every process")
    cluster.add_argument(
        "--setup", action="append", default=[], metavar="LINE", help="of shell, put first as it is: 'module load ucx'"
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="[--] program",
        help=f"and its arguments, in which {PLACEHOLDER} is the scheduler's address (default: none, until it is ended)",
    )


def _cluster(args: argparse.Namespace) -> Cluster:
    placing: list[str] = []
    for name in ("per", "workers", "threads", "memory_limit"):
        if (value := getattr(args, name)) is not None:
            placing += [f"--{name.replace('_', '-')}", value]
    return Cluster(
        python=args.python,
        protocols=args.protocol,
        placing=tuple(placing),
        interface=args.interface,
        env=tuple(args.env),
        setup=tuple(args.setup),
        program=tuple(args.program[1:] if args.program[:1] == ["--"] else args.program),
    )


def _protocols(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(re.fullmatch(r"[a-z][a-z0-9]*", name) for name in names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r}: names such as ucx, once each, with commas between them")
    return names
