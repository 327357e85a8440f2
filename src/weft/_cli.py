# SPDX-License-Identifier: BSD-3-Clause
"""The ``weft`` command: arguments only; each subcommand is defined next to the code that it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, cast

import weft
from weft import _distribution, _options
from weft.errors import UnsupportedError

#: Groups of commands: for each command, its module below ``weft``, and its line in the list.
_COMMANDS = {
    "look at this machine": {
        "topo": ("topo.command", "the hardware of this machine, and where workers would run"),
        "doctor": ("doctor.command", "problems on this machine that affect weft, and their remedies"),
        "explain": ("explain.command", "which wire carries data between two processes, and why"),
    },
    "run Dask": {
        "demo": ("bench.dask.demo", "the same jobs over tcp:// and ucx://, side by side"),
        "worker": ("worker.command", "start workers, each bound to its part of this machine"),
        "deploy": ("deploy.command", "print a script that starts a cluster: Slurm, SSH, Azure"),
    },
    "measure": {
        "bench": ("", "latency, bandwidth, Dask workloads; compare and plot records"),
        "lab": ("lab.command", "emulate several hosts and the links between them"),
        "simulate": ("simulate.command", "Dask jobs on simulated networks"),
    },
    "this installation": {
        "info": ("", "which UCX is in use, and its settings"),
        "completion": ("", "print a completion script for your shell"),
    },
}
_BENCHMARKS = {
    "messages between two processes": {
        "pingpong": ("bench.pingpong.command", "latency and bandwidth beside the C loop and sockets"),
        "sweep": ("bench.sweep.command", "latency, bandwidth, message rate over sizes and transports"),
        "peers": ("bench.peers.command", "the ping-pong beside mpi4py, pyzmq, UCXX, ucx-py and others"),
        "send-recv": ("bench.send_recv.command", "send_recv of ucx-py and UCXX, with their options"),
    },
    "Dask": {
        "scale": ("bench.scale.command", "start, exchange and memory of clusters of growing size"),
        "links": ("bench.links.command", "jobs over unequal links, with Dask's and with learned decisions"),
    },
    "records": {
        "compare": ("bench.compare", "two records of a benchmark, row by row"),
        "plot": ("bench.charts.command", "charts from the record of a benchmark"),
    },
}
_HIDDEN = {True: argparse.SUPPRESS, False: None}
_EPILOG = """examples:
  weft doctor  # is anything wrong with this machine?
  weft explain  # which wire would two processes here use, and why?
  weft demo --quick  # does weft make Dask faster here?

exit status:
  0  done
  1  failed, or found something to report
  2  the command line is wrong
130  interrupted; 141: the reader of the output closed the pipe

weft COMMAND --help lists a command's options and gives examples."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _replace_closed_stdout()
    prog = "weft"
    try:
        try:
            args = parser().parse_args(argv)
            prog = args.prog
            _options.refuse_file(getattr(args, "json", None))
            return int(args.run(args))
        except weft.Error as e:
            print(f"{prog}: {e}", file=sys.stderr)
            return 2 if isinstance(e, weft.InvalidParamError) else 1
        except KeyboardInterrupt:
            return 130
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe: head, or a pager
        _discard_output()
        return 128 + signal.SIGPIPE  # as a shell reports other programs that this ends
    except OSError as e:
        if not _output_is_stuck():
            raise
        _discard_output()
        print(f"{prog}: cannot write to standard output: {e.strerror}", file=sys.stderr)
        return 1


def _replace_closed_stdout() -> None:
    """If standard output is closed, make writing to it fail; a file that is opened later must not take its number."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives


def _output_is_stuck() -> bool:
    """Tell whether nothing can be written to standard output; if something can, a traceback follows the empty line."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """A parser that reports unknown options itself; argparse leaves those of a subcommand to the main parser."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - its overloads come to this
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            file.write(message)  # argparse hides that it cannot be written
        else:
            super()._print_message(message, file)


def parser(*, grouped: bool = True) -> argparse.ArgumentParser:
    """Make the parser of the whole command line; the result has the function in ``run`` and its name in ``prog``.

    With `grouped`, help lists commands by group; otherwise in argparse's format, which shtab reads.
    """
    top = _Parser(
        prog="weft",
        usage="weft [-h] [--version] COMMAND ...",
        description="Move data between Python processes over the best wire they share.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="weft", help=_HIDDEN[grouped])
    _add(commands, _COMMANDS)
    _add_info(commands)
    _add_bench(commands, grouped=grouped)
    _add_completion(commands)
    if grouped:
        _list(top, _COMMANDS)
    return top


def _add(commands: Any, groups: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
    """Add the commands that have a module; the module defines their arguments."""
    for name, (path, text) in (each for group in groups.values() for each in group.items()):
        if path:
            module = importlib.import_module(f"weft.{path}")
            command = _options.add_command(commands, name, text, module.DESCRIPTION, module.EXAMPLES)
            module.add_arguments(command)
            command.set_defaults(run=module.run, prog=command.prog)


def _list(parser: argparse.ArgumentParser, groups: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
    """List the commands in the help by group; argparse's own list has no groups."""
    for heading, commands in groups.items():
        lines = [f"{name:<12}{text}" for name, (_, text) in commands.items()]
        parser.add_argument_group(heading, "\n".join(lines))


def _add_info(commands: Any) -> None:
    description = "Show which UCX weft uses, where it was found, and its settings that weft or the environment changed."
    info = _options.add_command(
        commands,
        "info",
        _COMMANDS["this installation"]["info"][1],
        description,
        ("weft info", "weft info --json info.json"),
    )
    _options.add_json(info)
    info.set_defaults(run=_info, prog=info.prog)


def _add_bench(commands: Any, *, grouped: bool) -> None:
    from weft.bench.dask import command as dask

    bench = _options.add_command(
        commands,
        "bench",
        _COMMANDS["measure"]["bench"][1],
        "Measure, compare and draw. Each benchmark writes its record with --json; tables and charts are made from it.",
        ("weft bench pingpong --sizes 8,1MiB", "weft bench merge --protocol tcp,ucx --json merge.json"),
    )
    bench.usage = "weft bench [-h] BENCHMARK ..."
    benches = bench.add_subparsers(
        dest="bench", required=True, metavar="BENCHMARK", prog="weft bench", help=_HIDDEN[grouped]
    )
    _add(benches, _BENCHMARKS)
    for name, load in dask.LOADS.items():
        benchmark = _options.add_command(benches, name, load.text, dask.description(name), dask.examples(name))
        dask.add_arguments(benchmark, name)
        benchmark.set_defaults(run=dask.run, load=name, prog=benchmark.prog)
    loads = {name: ("", load.text) for name, load in dask.LOADS.items()}
    if grouped:
        _list(bench, {**_BENCHMARKS, "Dask": {**_BENCHMARKS["Dask"], **loads}})


def _add_completion(commands: Any) -> None:
    completion = _options.add_command(
        commands,
        "completion",
        _COMMANDS["this installation"]["completion"][1],
        "Print a script that makes your shell complete weft's commands, options and files. It needs the package shtab.",
        (
            "weft completion bash > ~/.weft-completion  # and in ~/.bashrc: source ~/.weft-completion",
            "weft completion zsh > ~/.zfunc/_weft  # a folder of $fpath",
        ),
    )
    completion.add_argument(
        "shell", choices=("bash", "zsh", "tcsh", "fish"), metavar="SHELL", help="bash, zsh, tcsh, fish"
    )
    completion.set_defaults(run=_complete, prog=completion.prog)


def _complete(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise UnsupportedError(f"shtab is not installed: {_distribution.install('completion')}") from None
    top = parser(grouped=False)
    files = dict.fromkeys(("FILE", "FILE|N", "FILE,...", "RECORD", "A", "B"), shtab.FILE)
    _complete_files(top, {**files, "FOLDER": shtab.DIRECTORY})
    print(shtab.complete(top, shell=args.shell))
    return 0


def _complete_files(command: argparse.ArgumentParser, kinds: Mapping[str, Any]) -> None:
    """Tell shtab which arguments of a command and its subcommands take files and folders."""
    for action in command._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action.metavar, str) and action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]
        if isinstance(action.choices, dict):
            for below in cast("dict[str, argparse.ArgumentParser]", action.choices).values():
                _complete_files(below, kinds)


def _info(args: argparse.Namespace) -> int:
    library = weft.ucx_library()
    context = weft.Context()
    settings = {name: {"value": value, "from": who} for name, (value, who) in context.config.items()}
    context.close()
    for name in sorted(name for name in os.environ if name.startswith("UCX_")):
        settings.setdefault(name.removeprefix("UCX_"), {"value": os.environ[name], "from": "environment"})
    record = {
        "weft": weft.__version__,
        "ucx": ".".join(map(str, library.version)),
        "library": library.path,
        "origin": library.origin,
        "settings": settings,
    }
    with _options.written(args.json, record) as text:
        if text:
            print(f"weft {record['weft']}")
            print(f"UCX {record['ucx']} from {library.path} ({library.origin})")
            for name, entry in settings.items():
                print(f"UCX_{name}={entry['value']} ({entry['from']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
