# SPDX-License-Identifier: BSD-3-Clause
"""A lab that stands: namespaces, cables and processes on this machine, all of which go with it.

Everything is named ``weft-PID-...`` after the process that made it: what a killed one left is found by that name, and
swept once no such process is there. Two labs never meet, nor does anything appear in the caller's namespace, but for
the folders under ``/etc/netns`` from which ``ip netns exec`` gives each host its ``/etc/hosts``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.errors import InvalidParamError, TimedOutError, UnsupportedError
from weft.lab import plan as plans
from weft.lab.plan import Plan

_PREFIX = re.compile(r"weft-(\d+)-\S+")
_ETC = Path("/etc/netns")
_COMMAND_S = 10.0
#: Seconds that devices have to come up, and processes to end when they are asked to.
_UP_S, _END_S = 10.0, 5.0
_KILL_ROUNDS = 5
_serial = itertools.count()
#: Holds the namespaces that a host's processes share, beside that of its network: for its name and its IPC.
_KEEPER = 'printf %s "$0" > /proc/sys/kernel/hostname && echo up && exec sleep infinity'


class Lab:
    """Hosts on this machine, joined by links; a context manager that builds them and takes them down.

    Parameters
    ----------
    plan : Plan
        Of :func:`weft.lab.read` or :func:`weft.lab.parse`.

    Raises
    ------
    UnsupportedError
        On entry: this is not root, a tool is missing, or the kernel does not permit it. Nothing is left behind.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._spaces: dict[str, str] = {}
        self._processes: list[subprocess.Popen[Any]] = []
        self._keepers: dict[str, subprocess.Popen[Any]] = {}

    def __enter__(self) -> Lab:
        _check_tools(self.plan)
        self._spaces = plans.namespaces(self.plan, f"weft-{os.getpid()}-{next(_serial)}")
        try:
            for space in self._spaces.values():
                _run("ip", "netns", "add", space)
            for command in plans.commands(self.plan, self._spaces):
                _run(*command)
            for host in self.plan.hosts:
                self._tell_names(host.name)
                self._keep(host.name)
            self._wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that :meth:`start` started, and all others in the namespaces; remove those. Idempotent."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + _END_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0))
        for space in self._spaces.values():
            _remove(space)
        for process in [*self._processes, *self._keepers.values()]:  # killed with their namespaces
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        self._spaces, self._processes, self._keepers = {}, [], {}

    def address(self, host: str, *, link: int = 0, version: int = 4) -> str:
        """Return the host's IPv4 or IPv6 address on a link, counted as in the file."""
        return self.plan.address(host, link=link, version=version)

    def device(self, link: int = 0) -> str:
        """Name the network device of a link, the same on each of its hosts."""
        return f"lab{link}"

    def ip(self, host: str, *arguments: str) -> str:
        """Run ``ip`` on a host and return what it prints."""
        return _run("ip", "-n", self._space(host), *arguments)

    def command(self, host: str, command: Sequence[str], *, own_ipc: bool = True) -> list[str]:
        """Return what runs `command` on a host. It becomes the command: one process id, the same streams.

        Parameters
        ----------
        own_ipc : bool
            In the host's IPC namespace, without which UCX takes processes of other hosts for neighbours.
        """
        space = self._space(host)
        cpus = next(each.cpus for each in self.plan.hosts if each.name == host)
        bind = ["taskset", "-c", cpus] if cpus is not None else []
        enter = ["nsenter", "--target", str(self._keepers[host].pid), "--uts", *(["--ipc"] if own_ipc else [])]
        return ["ip", "netns", "exec", space, *bind, *enter, "--", *command]

    def start(self, host: str, command: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a process on a host; it ends with the lab. `popen` goes to ``subprocess.Popen``.

        Its environment has ``WEFT_LAB_HOST``, the host's name.
        """
        environment = {**(popen.pop("env", None) or os.environ), "WEFT_LAB_HOST": host}
        process = subprocess.Popen(self.command(host, command), env=environment, **popen)
        self._processes.append(process)
        return process

    def _space(self, host: str) -> str:
        if not self._spaces:
            raise InvalidParamError("the lab is not standing: enter it first, `with Lab(plan) as lab`")
        if host not in (each.name for each in self.plan.hosts):
            raise InvalidParamError(f"lab: no host {host!r}; there are {', '.join(h.name for h in self.plan.hosts)}")
        return self._spaces[host]

    def _tell_names(self, host: str) -> None:
        folder = _ETC / self._spaces[host]
        folder.mkdir(parents=True)
        names = self.plan.seen_from(host).items()
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{address} {name}" for name, address in names)]
        (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))

    def _keep(self, host: str) -> None:
        """Start the process whose namespaces are the host's; without one they would end with each command."""
        command = ["ip", "netns", "exec", self._spaces[host], "unshare", "--uts", "--ipc", "sh", "-c", _KEEPER, host]
        keeper = self._keepers[host] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        with keeper.stdout, keeper.stderr:
            if keeper.stdout.readline() != "up\n":
                said = keeper.stderr.read().strip()
                raise UnsupportedError(f"lab: {' '.join(command[:8])}: {said}{_remedy(command, said)}")

    def _wait_until_up(self) -> None:
        until = time.monotonic() + _UP_S
        for i, link in enumerate(self.plan.links):
            for host in link.between:
                # the kernel declares it up in its own time, and UCX takes no device before
                while "state UP" not in self.ip(host, "link", "show", f"lab{i}"):
                    if time.monotonic() > until:
                        raise TimedOutError(f"lab: the device lab{i} of host {host} did not come up in {_UP_S:.0f} s")
                    time.sleep(0.01)


def leftovers() -> list[str]:
    """List the namespaces of labs whose process is gone."""
    listed = _run("ip", "netns", "list").splitlines()
    spaces = {line.split()[0] for line in listed if line} | {path.name for path in _ETC.glob("weft-*")}
    return sorted(space for space in spaces if (match := _PREFIX.fullmatch(space)) and not _alive(int(match[1])))


def clean() -> list[str]:
    """Remove what labs left whose process is gone, with the processes in it; return the namespaces' names."""
    _check_root()
    found = leftovers()
    for space in found:
        _remove(space)
    return found


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _remove(space: str) -> None:
    """End every process in a namespace, all of which were started for it, and remove it; what is gone is passed by."""
    with contextlib.suppress(UnsupportedError, TimedOutError):
        for _ in range(_KILL_ROUNDS):  # one that forks just then leaves a child for the next round
            pids = _run("ip", "netns", "pids", space).split()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            if not pids:
                break
            time.sleep(0.02)
    with contextlib.suppress(UnsupportedError, TimedOutError):
        _run("ip", "netns", "del", space)
    shutil.rmtree(_ETC / space, ignore_errors=True)


def _check_root() -> None:
    if os.geteuid() != 0:
        raise UnsupportedError("lab: network namespaces need root; run it with sudo, or in a container as root")


def _check_tools(plan: Plan) -> None:
    _check_root()
    tools = {
        "ip": "iproute2",
        "tc": "iproute2",
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "taskset": "util-linux",
    }
    missing = {tool: package for tool, package in tools.items() if shutil.which(tool) is None}
    if missing:
        packages = " ".join(dict.fromkeys(missing.values()))
        raise UnsupportedError(f"lab: {', '.join(missing)} not found; apt-get install {packages}")


def _run(*command: str) -> str:
    # A session of its own: Ctrl-C at the terminal must not end the command that takes things down.
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, start_new_session=True)
    except subprocess.TimeoutExpired:
        raise TimedOutError(f"lab: {' '.join(command)}: not done within {_COMMAND_S:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.strip()
        raise UnsupportedError(f"lab: {' '.join(command)}: {said}{_remedy(command, said)}")
    return done.stdout


def _remedy(command: Sequence[str], said: str) -> str:
    if "qdisc kind is unknown" in said:
        module, key = ("sch_netem", "delay") if "netem" in command else ("sch_tbf", "rate")
        return f"; this kernel has no {module}: modprobe {module}, or leave {key} out of the file"
    if "Operation not permitted" in said:
        return "; is this a container without CAP_NET_ADMIN and CAP_SYS_ADMIN?"
    return ""
