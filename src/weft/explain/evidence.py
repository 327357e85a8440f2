# SPDX-License-Identifier: BSD-3-Clause
"""Facts about this machine from which `reasons` draws its conclusions."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft._load import Library
from weft.explain import ucx_info

_NAMESPACES = ("net", "ipc", "pid")
#: Device nodes that transports need.
NODES = ("/dev/knem", "/dev/xpmem", "/dev/nvidiactl", "/dev/gdrdrv", "/dev/kfd", "/dev/dri")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found, and where.

    Attributes
    ----------
    folders : str
        Where this UCX looks for its modules, as text.
    modules : frozenset of str
        The modules found there: ``cma`` for ``libuct_cma.so``.
    reported : dict of str to Found, or None
        The transports that ``ucx_info -d`` lists; None if it could not be run.
    infiniband : tuple of str
        Devices under ``/sys/class/infiniband``.
    nodes : frozenset of str
        Those of `NODES` that exist.
    ptrace_scope : str
        What ``/proc/sys/kernel/yama/ptrace_scope`` says; empty where there is none, and nothing is restricted.
    ucx : tuple of int
        UCX's version.
    """

    folders: str
    modules: frozenset[str]
    reported: dict[str, ucx_info.Found] | None
    infiniband: tuple[str, ...]
    nodes: frozenset[str]
    ptrace_scope: str
    ucx: tuple[int, int, int]


def read(library: Library, settings: Mapping[str, str], root: Path = Path("/")) -> Evidence:
    """Read it all. `settings` are UCX's, for ``ucx_info``; `root` is where ``/sys``, ``/proc`` and ``/dev`` are."""
    folders = [f"{os.path.dirname(library.path)}/ucx", *filter(None, [os.environ.get("UCX_MODULE_DIR")])]
    files = [file.name for folder in folders for file in Path(folder).glob("libuct_*.so*")]
    text = ucx_info.ask(library, settings)
    reported = None if text is None else ucx_info.transports(text)
    scope = root / "proc/sys/kernel/yama/ptrace_scope"
    return Evidence(
        folders=" or ".join(["ucx beside libucp", *folders[1:]]),
        modules=frozenset(name.removeprefix("libuct_").partition(".")[0] for name in files),
        reported=reported or None,  # a tool that lists nothing at all has failed
        infiniband=tuple(sorted(device.name for device in (root / "sys/class/infiniband").glob("*"))),
        nodes=frozenset(node for node in NODES if (root / node[1:]).exists()),
        ptrace_scope=scope.read_text().strip() if scope.is_file() else "",
        ucx=library.version,
    )


def location() -> dict[str, str]:
    """Return where this process runs: host and boot, namespaces, user."""
    namespaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES}
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"host": socket.gethostname(), "boot": boot, **namespaces, "uid": str(os.geteuid())}


def apart(here: Mapping[str, str], there: Mapping[str, object], *, own_address: bool) -> str:
    """Return the known reason why the other process could not prove that it is on this host.

    Parameters
    ----------
    here, there : mapping
        From :func:`location`; `there` is the other process's, empty if it sent none.
    own_address : bool
        The other process's address is one of this network namespace.
    """
    if not there.get("boot"):
        if own_address:
            return "its address is this host's own: another user, or a namespace without this one's Unix sockets"
        return "its address is none of this host's; where it is was not told"
    if there["boot"] != here["boot"]:
        return f"it is on another host, {_printable(there.get('host', '?'))}: its boot id differs"
    differing = [f"{name} namespace" for name in _NAMESPACES if there.get(name) != here[name]]
    if there.get("uid") != here["uid"]:
        differing.append(f"user ({_printable(there.get('uid'))}, here {here['uid']})")
    if not differing:
        return "same host, namespaces and user by its own account; why its Unix socket was not reached is unknown"
    return f"same boot of the same kernel, but another {', another '.join(differing)}"


def _printable(told: object) -> str:
    """Replace control characters in text from an untrusted process."""
    return "".join(character for character in str(told)[:64] if character.isprintable())
