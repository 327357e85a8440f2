# SPDX-License-Identifier: BSD-3-Clause
"""A running lab: its namespaces, cables and processes on this machine, all removed with it.

Everything is named ``weft-PID-...`` after the process that made it, so leftovers can be found and removed if that
process was killed together with its sweeper. Labs are separate from each other, and nothing appears in the caller's
namespace except the folders under ``/etc/netns``, from which ``ip netns exec`` gives each host its ``/etc/hosts``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.errors import InvalidParamError, TimedOutError, UnsupportedError
from weft.lab import network as networks
from weft.lab.network import Network
from weft.topo import cpulist

_PREFIX = re.compile(r"weft-(\d+)-\S+")
_ETC = Path("/etc/netns")
#: The programs that are run, and their packages.
_TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "taskset": "util-linux",
}
#: Kernel modules for traffic shaping, and the keys of the file that need them.
_MODULES = {"sch_netem": "delay", "sch_tbf": "rate", "sch_htb": "pairs and rate_per_flow"}
_COMMAND_S = 10.0
#: Seconds for devices to come up, and for processes to end after SIGTERM.
_UP_S, _END_S = 10.0, 5.0
_KILL_ROUNDS = 5
_serial = itertools.count()
#: Keeps the other namespaces that a host's processes share, of its name and its IPC.
_KEEPER = 'printf %s "$0" > /proc/sys/kernel/hostname && echo up && exec sleep infinity'
#: Removes the namespaces of a lab whose owner has ended without that: then its standard input ends.
_SWEEPER = """
read nothing
for namespace; do
    for round in 1 2 3 4 5; do
        pids=$(ip netns pids "$namespace")
        [ -n "$pids" ] || break
        kill -KILL $pids
        sleep 0.02
    done
    ip netns del "$namespace"
    rm -r "/etc/netns/$namespace"
done
"""


class Lab:
    """Emulated hosts on this machine, joined by cables; a context manager that creates and removes them.

    Parameters
    ----------
    network : Network
        From :func:`weft.lab.read` or :func:`weft.lab.parse`.

    Raises
    ------
    UnsupportedError
        On entry: the process is not root, a tool is missing, or the kernel does not permit it. Nothing is left behind.
    InvalidParamError
        On entry: a host's CPUs are not this process's.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._namespaces: dict[str, str] = {}
        self._processes: list[subprocess.Popen[Any]] = []
        self._keepers: dict[str, subprocess.Popen[Any]] = {}
        self._sweeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Lab:
        _check_tools()
        _check_cpus(self.network)
        self._namespaces = networks.namespaces(self.network, f"weft-{os.getpid()}-{next(_serial)}")
        try:
            self._sweeper = subprocess.Popen(
                ["sh", "-c", _SWEEPER, "sh", *self._namespaces.values()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for namespace in self._namespaces.values():
                _run("ip", "netns", "add", namespace)
            for command in networks.commands(self.network, self._namespaces):
                _run(*command)
            for host in self.network.hosts:
                self._write_hosts(host.name)
                self._keep(host.name)
            self._wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes of the lab and remove its namespaces. Idempotent."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + _END_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0))
        for namespace in self._namespaces.values():
            _remove(namespace)
        for process in [*self._processes, *self._keepers.values()]:  # killed with their namespaces
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        self._namespaces, self._processes, self._keepers = {}, [], {}
        if self._sweeper is not None:
            self._sweeper.kill()
            self._sweeper.communicate()
            self._sweeper = None

    def address(self, host: str, *, cable: int = 0, version: int = 4) -> str:
        """Return a host's IP address on a cable, numbered as in the file; `version` is 4 or 6."""
        return self.network.address(host, cable=cable, version=version)

    def device(self, cable: int = 0) -> str:
        """Return the name of a cable's network device, the same on each of its hosts."""
        return f"lab{cable}"

    def ip(self, host: str, *arguments: str) -> str:
        """Run ``ip`` with `arguments` on a host and return its output."""
        return _run("ip", "-n", self._namespace(host), *arguments)

    def command(self, host: str, command: Sequence[str], *, own_ipc: bool = True) -> list[str]:
        """Return a command line that runs `command` on a host, in the same process and with the same streams.

        Parameters
        ----------
        own_ipc : bool
            Use the host's IPC namespace. Otherwise UCX takes processes of other hosts for processes of this one.
        """
        namespace = self._namespace(host)
        cpus = next(each.cpus for each in self.network.hosts if each.name == host)
        bind = ["taskset", "-c", cpus] if cpus is not None else []
        enter = ["nsenter", "--target", str(self._keepers[host].pid), "--uts", *(["--ipc"] if own_ipc else [])]
        return ["ip", "netns", "exec", namespace, *bind, *enter, "--", *command]

    def start(self, host: str, command: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start `command` on a host as a process that ends with the lab; `popen` is passed to ``subprocess.Popen``.

        The environment variable ``WEFT_LAB_HOST`` is the host's name.
        """
        environment = {**(popen.pop("env", None) or os.environ), "WEFT_LAB_HOST": host}
        process = subprocess.Popen(self.command(host, command), env=environment, **popen)
        self._processes.append(process)
        return process

    def _namespace(self, host: str) -> str:
        if not self._namespaces:
            raise InvalidParamError("the lab is not running: enter it first, `with Lab(network) as lab`")
        if host not in (each.name for each in self.network.hosts):
            raise InvalidParamError(f"no host {host!r}; there are {', '.join(h.name for h in self.network.hosts)}")
        return self._namespaces[host]

    def _write_hosts(self, host: str) -> None:
        folder = _ETC / self._namespaces[host]
        folder.mkdir(parents=True)
        names = self.network.seen_from(host).items()
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{address} {name}" for name, address in names)]
        (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))

    def _keep(self, host: str) -> None:
        """Start a process that keeps the host's namespaces; without it they would end with each command."""
        command = [
            "ip",
            "netns",
            "exec",
            self._namespaces[host],
            "unshare",
            "--uts",
            "--ipc",
            "sh",
            "-c",
            _KEEPER,
            host,
        ]
        keeper = self._keepers[host] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        with keeper.stdout, keeper.stderr:
            if not select.select([keeper.stdout], [], [], _UP_S)[0]:
                keeper.kill()
                raise TimedOutError(f"the namespaces of host {host} were not there within {_UP_S:.0f} s")
            if keeper.stdout.readline() != "up\n":
                said = keeper.stderr.read().strip()
                raise UnsupportedError(f"{' '.join(command[:8])}: {said}{_remedy(command, said)}")

    def _wait_until_up(self) -> None:
        until = time.monotonic() + _UP_S
        for i, cable in enumerate(self.network.cables):
            for host in cable.between:
                # the kernel brings it up asynchronously, and UCX skips a device that is not up
                while "state UP" not in self.ip(host, "link", "show", f"lab{i}"):
                    if time.monotonic() > until:
                        raise TimedOutError(f"the device lab{i} of host {host} did not come up in {_UP_S:.0f} s")
                    time.sleep(0.01)


def leftovers() -> list[str]:
    """List the network namespaces of labs whose process is gone."""
    listed = _run("ip", "netns", "list").splitlines()
    namespaces = {line.split()[0] for line in listed if line} | {path.name for path in _ETC.glob("weft-*")}
    return sorted(each for each in namespaces if (match := _PREFIX.fullmatch(each)) and not _alive(int(match[1])))


def clean() -> list[str]:
    """Remove labs whose process is gone, with the processes in them; return the names of their namespaces."""
    _check_root()
    found = leftovers()
    for namespace in found:
        _remove(namespace)
    return found


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _remove(namespace: str) -> None:
    """End all processes in a namespace, all started for it, and remove it; ignore what is already gone."""
    with contextlib.suppress(UnsupportedError, TimedOutError):
        for _ in range(_KILL_ROUNDS):  # a child forked meanwhile is found in the next round
            pids = _run("ip", "netns", "pids", namespace).split()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            if not pids:
                break
            time.sleep(0.02)
    with contextlib.suppress(UnsupportedError, TimedOutError):
        _run("ip", "netns", "del", namespace)
    shutil.rmtree(_ETC / namespace, ignore_errors=True)


def _check_root() -> None:
    if os.geteuid() != 0:
        raise UnsupportedError("network namespaces need root; run it with sudo, or in a container as root")


def _check_tools() -> None:
    _check_root()
    missing = {tool: package for tool, package in _TOOLS.items() if shutil.which(tool) is None}
    if missing:
        packages = " ".join(dict.fromkeys(missing.values()))
        raise UnsupportedError(f"{', '.join(missing)} not found; apt-get install {packages}")


def _check_cpus(network: Network) -> None:
    mine = os.sched_getaffinity(0)
    for host in network.hosts:
        if host.cpus is not None and not mine.intersection(cpulist.parse(host.cpus)):
            text = f"this process may use none of cpus={host.cpus!r}, only {cpulist.join(mine)}"
            raise InvalidParamError(f"host {host.name}: {text}")


def _run(*command: str) -> str:
    # Its own session: Ctrl-C at the terminal must not end the command that cleans up.
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, start_new_session=True)
    except subprocess.TimeoutExpired:
        raise TimedOutError(f"{' '.join(command)}: not done within {_COMMAND_S:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.strip()
        raise UnsupportedError(f"{' '.join(command)}: {said}{_remedy(command, said)}")
    return done.stdout


def _remedy(command: Sequence[str], said: str) -> str:
    if "qdisc kind is unknown" in said:
        module, key = next((m, k) for m, k in _MODULES.items() if m.removeprefix("sch_") in command)
        return f"; this kernel has no {module}: modprobe {module}, or leave {key} out of the file"
    if "classifier not found" in said:
        module, key = ("cls_bpf", "rate_per_flow") if "bpf" in command else ("cls_u32", "pairs")
        return f"; this kernel has no {module}: modprobe {module}, or leave {key} out of the file"
    if "Operation not permitted" in said:
        return "; is this a container without CAP_NET_ADMIN and CAP_SYS_ADMIN?"
    return ""
