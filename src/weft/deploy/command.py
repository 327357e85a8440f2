# SPDX-License-Identifier: BSD-3-Clause
"""``weft deploy``: read the options and print the script."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from weft import _options
from weft._options import add_command, count, port
from weft.deploy import azure, slurm, ssh
from weft.deploy.cluster import PLACEHOLDER, Cluster
from weft.errors import InvalidParamError
from weft.topo.plan import refuse_place
from weft.topo.size import memory_limit

DESCRIPTION = """
Print a script that starts a scheduler, workers (by weft worker) and your program on other machines. Read it, then run
or submit it; nothing is started here.
"""
EXAMPLES = (
    "weft deploy slurm --nodes 4 -- python job.py {scheduler} > job.sh && sbatch job.sh",
    "weft deploy ssh --hosts node0,node1,node2 -- python job.py {scheduler} | bash",
)
#: The memory of the machines is not known here, and a fraction of it is allowed.
_ANY_NBYTES = 1 << 40
#: Of each target: its line in the list, description, examples.
_TARGETS = {
    "slurm": (
        "a script for sbatch",
        "Print a batch script for Slurm: a scheduler on the first node, workers on all nodes, then your program.",
        (
            "weft deploy slurm --nodes 4 --time 1:00:00 -- python job.py {scheduler} > job.sh",
            "weft deploy slurm --cpus 16 --mem 64G --partition short > job.sh",
        ),
    ),
    "ssh": (
        "a script that uses SSH to a list of hosts",
        "Print a script that starts a scheduler on the first host and workers on the others by SSH, then your program.",
        (
            "weft deploy ssh --hosts node0,node1,node2 -- python job.py {scheduler} | bash",
            "weft deploy ssh --hosts a,b --ssh=-p --ssh=2222 --protocol tcp,ucx > start.sh",
        ),
    ),
    "azure": (
        "az commands and cloud-init for machines with InfiniBand",
        "Print a script of az commands that creates machines with GPUs and InfiniBand on Azure, ready for weft.",
        (
            "weft deploy azure --package 'weft-ucx[dask]' --ssh-from 203.0.113.7 > create.sh",
            "weft deploy azure --package 'weft-ucx[dask]' --cloud-init",
        ),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft deploy`` to `parser`."""
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    for name, add in (("slurm", _add_slurm), ("ssh", _add_ssh), ("azure", _add_azure)):
        target = add_command(targets, name, *_TARGETS[name])
        add(target)
        target.set_defaults(prog=target.prog)


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
        script = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParamError(f"an option is not UTF-8: {error}") from None
    if (binary := getattr(sys.stdout, "buffer", None)) is None:
        print(text, end="")
    else:  # a script is UTF-8, whatever the terminal's encoding is
        sys.stdout.flush()
        binary.write(script)
    return 0


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    job = slurm.Job()
    parser.add_argument(
        "--nodes", type=count, default=job.nodes, metavar="N", help="number of nodes (default: %(default)s)"
    )
    parser.add_argument("--cpus", type=count, metavar="N", help="CPUs of each node (default: whole nodes)")
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs of each node (default: none asked for)")
    parser.add_argument(
        "--mem", metavar="SIZE", help="memory of each node, such as 64G; 0 for all (default: the cluster's)"
    )
    parser.add_argument("--time", metavar="TIME", help="time limit, such as 1:00:00 (default: the cluster's)")
    parser.add_argument("--partition", metavar="NAME", help="partition to use (default: the cluster's)")
    parser.add_argument("--account", metavar="NAME", help="account to charge (default: yours)")
    parser.add_argument("--job-name", default=job.name, metavar="NAME", help="name of the job (default: %(default)s)")
    parser.add_argument(
        "--folder", metavar="FOLDER", help="for logs; all nodes must see it (default: where the job is submitted)"
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="option for sbatch, as in --sbatch=--constraint=ib",
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
    parser.add_argument("--hosts", required=True, metavar="A,B,C", help="the scheduler's host, then the workers'")
    parser.add_argument(
        "--address", metavar="NAME", help="the first host's address for the others (default: as in --hosts)"
    )
    parser.add_argument(
        "--port", type=port, default=8786, metavar="N", help="the scheduler's port (default: %(default)s)"
    )
    parser.add_argument(
        "--ssh",
        action="append",
        default=[],
        metavar="WORD",
        help="argument for ssh; one for each word: --ssh=-p --ssh=2222",
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
        "--cloud-init", action="store_true", help="print only what each machine does at its first start"
    )
    parser.add_argument("--package", required=True, metavar="WEFT", help="what pip installs: a name, a URL, a wheel")
    parser.add_argument(
        "--count", type=count, default=given["count"], metavar="N", help="machines (default: %(default)s)"
    )
    parser.add_argument(
        "--ssh-from", default="", metavar="ADDRESS", help="who may log in: 203.0.113.7 or 203.0.113.0/24"
    )
    parser.add_argument(
        "--subnet", default="", metavar="ID", help="your own subnet, in place of --ssh-from and public addresses"
    )
    parser.add_argument(
        "--drivers",
        choices=azure.DRIVERS,
        default=given["drivers"],
        metavar="FROM",
        help=f"where drivers come from: {', '.join(azure.DRIVERS)} (default: %(default)s)",
    )
    for name, text in (
        ("size", "of each machine"),
        ("image", "of each machine"),
        ("location", "Azure's region"),
        ("group", "resource group"),
        ("name", "of the scale set"),
        ("user", "on each machine"),
        ("nvidia-driver", "NVIDIA driver's version, for --drivers doca and inbox"),
        ("nvidia-package", "package of the kernel modules, for --drivers doca and inbox; cuda-drivers for V100"),
        ("doca", "URL of DOCA's package, for --drivers doca"),
    ):
        default = given[name.replace("-", "_")]
        metavar = name.rpartition("-")[2].upper()
        parser.add_argument(f"--{name}", default=default, metavar=metavar, help=f"{text} (default: %(default)s)")


def _azure(args: argparse.Namespace) -> str:
    scale_set = azure.ScaleSet(**{each.name: getattr(args, each.name) for each in dataclasses.fields(azure.ScaleSet)})
    unused = {
        name: getattr(args, name) != getattr(azure.ScaleSet, name)
        for name in ("nvidia_driver", "nvidia_package", "doca")
    }
    if args.drivers == "image":
        _options.refuse_unused("the image has its own drivers: only with --drivers doca or inbox", **unused)
    elif args.drivers != "doca":
        _options.refuse_unused("only with --drivers doca", doca=unused["doca"])
    if not args.cloud_init:
        return azure.script(scale_set)
    creates = ("subnet", "ssh_from", "count", "size", "image", "location", "group", "name", "user")
    given = {name: getattr(args, name) != getattr(azure.ScaleSet, name) for name in creates}
    _options.refuse_unused("not with --cloud-init, which creates nothing", **given)
    return azure.cloud_init(scale_set)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument(
        "--protocol",
        type=_options.protocols,
        default=["ucx"],
        metavar="A,B",
        help="protocols; one cluster is started for each (default: ucx)",
    )
    cluster.add_argument("--interface", metavar="NAME", help="network device for the addresses")
    for name, metavar, kind in (
        ("per", "PLACE", str),
        ("workers", "N", count),
        ("threads", "N", count),
        ("memory-limit", "SIZE", str),
    ):
        cluster.add_argument(f"--{name}", type=kind, metavar=metavar, help="as for weft worker")
    cluster.add_argument(
        "--python", default=sys.executable, metavar="FILE", help="Python on the hosts (default: the one that runs this)"
    )
    cluster.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="variable for every process")
    cluster.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="shell code to run first, such as 'module load ucx'",
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="[--] PROGRAM",
        help=f"a program and its arguments; {PLACEHOLDER} is the scheduler's address (default: none, until stopped)",
    )


def _cluster(args: argparse.Namespace) -> Cluster:
    for name in ("python", "interface"):
        if getattr(args, name) == "":
            raise InvalidParamError(f"--{name} is empty")
    if args.per is not None:
        refuse_place(args.per)
    if args.memory_limit is not None:
        memory_limit(args.memory_limit, _ANY_NBYTES)
    placing: list[str] = []
    for name in ("per", "workers", "threads", "memory_limit"):
        if (value := getattr(args, name)) is not None:
            placing += [f"--{name.replace('_', '-')}", str(value)]
    return Cluster(
        python=args.python,
        protocols=tuple(args.protocol),
        placing=tuple(placing),
        interface=args.interface,
        env=tuple(args.env),
        setup=tuple(args.setup),
        program=tuple(args.program[1:] if args.program[:1] == ["--"] else args.program),
    )
