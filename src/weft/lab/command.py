# SPDX-License-Identifier: BSD-3-Clause
"""``weft lab``: run a command on each host of a lab, or on one, and remove the lab however the command ends."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from types import FrameType
from typing import NoReturn

from weft import _options
from weft.errors import InvalidParamError
from weft.lab import lab as labs
from weft.lab import network

DESCRIPTION = """
Emulate several hosts on this machine, with links of given bandwidth and delay between them, and run a command on each.
The hosts are network namespaces: this needs root. They are removed when the command ends.

FILE is TOML. A link may also have a delay, such as "5ms". Two hosts and a link:

    [hosts.a]
    [hosts.b]
    [[links]]
    between = ["a", "b"]
    rate = "100mbit"
"""
EXAMPLES = ("weft lab two.toml -- hostname", "weft lab two.toml --on a -- weft doctor", "weft lab --clean")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft lab`` to `parser`."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="hosts and the links between them, in TOML")
    parser.add_argument("--on", metavar="HOST", help="run the command on this host only, in this terminal")
    parser.add_argument("--clean", action="store_true", help="remove what killed labs left behind; run nothing")
    parser.add_argument(
        "argv", nargs=argparse.REMAINDER, metavar="[--] COMMAND", help="the command to run on each host"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command, or clean up.

    Returns
    -------
    int
        0 if every host's command returned 0, else the first other status in the order of the hosts.

    Raises
    ------
    InvalidParamError
        The file does not describe a lab, there is no command, or no such host.
    UnsupportedError
        The process is not root, a tool is missing, or the kernel does not permit it.
    """
    if args.clean:
        _options.refuse_unused("nothing is run with --clean", on=args.on)
        if args.file is not None:
            raise InvalidParamError("--clean runs nothing: give no file and no command")
        removed = labs.clean()
        print("\n".join(f"removed {namespace}" for namespace in removed) or "nothing to remove")
        return 0
    on, command = _split(args.argv)
    on = on or args.on
    if args.file is None or not command:
        raise InvalidParamError("no file or no command: give both, as in weft lab two.toml -- hostname")
    described = network.read(args.file)
    with ended_by_signals(), labs.Lab(described) as lab:
        if on is not None:
            return _status(lab.start(on, command).wait())
        started = [_Started(lab, host.name, command) for host in described.hosts]
        statuses = [each.wait() for each in started]
        return next((status for status in statuses if status), 0)


def _split(rest: list[str]) -> tuple[str | None, list[str]]:
    """Find ``--on HOST`` and ``--`` between the file and the command: argparse keeps all of it in one list."""
    on = None
    if rest[:1] == ["--on"]:
        on, rest = "".join(rest[1:2]), rest[2:]
    elif rest and rest[0].startswith("--on="):
        on, rest = rest[0].removeprefix("--on="), rest[1:]
    if rest and rest[0].startswith("-") and rest[0] != "--":
        raise InvalidParamError(f"{rest[0]} after the file is no option: options stand before it, the command after --")
    return on, rest[1:] if rest[:1] == ["--"] else rest


class _Started:
    """A host's process, and the thread that passes its lines on."""

    def __init__(self, lab: labs.Lab, host: str, command: list[str]) -> None:
        self._host = host
        self._process = lab.start(
            host,
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        # a daemon: a grandchild that inherited the pipe must not block this command
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        # closed at the end: if this command's output has no reader, the host's process gets SIGPIPE, too
        with contextlib.suppress(BrokenPipeError), self._process.stdout as lines:
            for line in lines:
                sys.stdout.write(f"{self._host} | {line.rstrip()}\n")
                sys.stdout.flush()

    def wait(self) -> int:
        status = self._process.wait()
        self._thread.join(1)
        return _status(status)


def _status(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode  # as a shell reports it


@contextlib.contextmanager
def ended_by_signals() -> Generator[None]:
    """Make SIGTERM and SIGHUP unwind like Ctrl-C, which removes the lab."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        # one is enough: a second must not interrupt the cleanup
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
