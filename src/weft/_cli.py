# SPDX-License-Identifier: BSD-3-Clause
"""The ``weft`` command: arguments only; each subcommand lives beside what it runs."""

from __future__ import annotations

import argparse
import json
import os
import sys

import weft


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    from weft.bench import compare
    from weft.bench.charts import command as plot
    from weft.bench.dask import command as dask
    from weft.bench.dask import demo
    from weft.bench.peers import command as peers
    from weft.bench.pingpong import command as pingpong
    from weft.bench.scale import command as scale
    from weft.bench.send_recv import command as send_recv
    from weft.bench.sweep import command as sweep
    from weft.deploy import command as deploy
    from weft.doctor import command as doctor
    from weft.explain import command as explain
    from weft.lab import command as lab
    from weft.topo import command as topo
    from weft.worker import command as worker

    parser = argparse.ArgumentParser(prog="weft", description=weft.__doc__ and weft.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="which UCX is in use, and weft's settings for it")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)

    for name, module, text in (
        ("topo", topo, "what this machine consists of, and where to put workers"),
        ("doctor", doctor, "examine this machine, and say what to mend"),
        ("worker", worker, "start Dask workers where this machine has places for them"),
        ("explain", explain, "which wire carries the data between two processes, and why"),
        ("lab", lab, "hosts and links on this machine, and a command on each"),
        ("deploy", deploy, "scripts that start a cluster elsewhere: Slurm, SSH, Azure"),
        ("demo", demo, "the same Dask jobs over tcp:// and ucx://, side by side"),
    ):
        command = commands.add_parser(name, help=text)
        module.add_arguments(command)
        command.set_defaults(run=module.run)

    bench = commands.add_parser("bench", help="measure, compare, draw")
    benches = bench.add_subparsers(dest="bench", required=True, metavar="BENCHMARK")
    for name, module, text in (
        ("pingpong", pingpong, "latency and bandwidth next to the C loop and sockets"),
        ("sweep", sweep, "latency, bandwidth and message rate over sizes and transports"),
        ("scale", scale, "what a Dask cluster takes as its workers become more, over tcp and ucx"),
        ("send-recv", send_recv, "the round trip of ucx-py's and UCXX's send_recv, with their options"),
        ("peers", peers, "the ping-pong beside mpi4py, pyzmq, UCXX, ucx-py and others"),
        ("compare", compare, "two records of the same benchmark, row by row"),
        ("plot", plot, "draw what sweep, demo or a workload measured, from its JSON record"),
    ):
        benchmark = benches.add_parser(name, help=text)
        module.add_arguments(benchmark)
        benchmark.set_defaults(run=module.run)
    for name, load in dask.LOADS.items():
        benchmark = benches.add_parser(name, help=f"Dask: {load.text}")
        dask.add_arguments(benchmark, name)
        benchmark.set_defaults(run=dask.run, load=name)

    args = parser.parse_args(argv)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has seen enough: head, or a pager
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except weft.Error as e:
        print(f"weft {args.command}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _info(args: argparse.Namespace) -> int:
    library = weft.ucx_library()
    context = weft.Context()
    settings = {name: {"value": value, "from": who} for name, (value, who) in context.config.items()}
    context.close()
    record = {
        "weft": weft.__version__,
        "ucx": ".".join(map(str, library.version)),
        "library": library.path,
        "origin": library.origin,
        "settings": settings,
    }
    if args.json:
        print(json.dumps(record, indent=2))
        return 0
    print(f"weft {record['weft']}")
    print(f"UCX {record['ucx']} from {library.path} ({library.origin})")
    for name, entry in settings.items():
        print(f"UCX_{name}={entry['value']} ({entry['from']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
