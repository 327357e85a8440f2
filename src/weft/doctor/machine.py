# SPDX-License-Identifier: BSD-3-Clause
"""The input of a check: files below a root, the environment, and the output of a few commands.

Nothing here raises because of a file's contents: a file that is missing, forbidden or garbled reads as None, or as
text that matches nothing.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from weft.topo import discovery
from weft.topo.model import Topology

_MOST_NBYTES = 8 << 20
#: Linux allocates as much as a read of /proc/sys asks for, and refuses 4 MiB.
_PIECE_NBYTES = 64 << 10
#: Numbers of the first namespace of each kind. Source: Linux, include/linux/proc_ns.h.
FIRST_NAMESPACES = {"ipc": 4026531839, "user": 4026531837, "pid": 4026531836, "cgroup": 4026531835}
CAP_IPC_LOCK, CAP_SYS_PTRACE, CAP_SYS_ADMIN = 14, 19, 21


@dataclass(frozen=True)
class Machine:
    """A machine, as the checks read it.

    Attributes
    ----------
    root : Path
        The folder with ``proc``, ``sys``, ``etc`` and ``dev``.
    environ : mapping
        The environment.
    commands : mapping
        Command line to its output; None if it failed or was too slow; no entry if it is not installed.
    folders : tuple of str
        ``sys.path``.
    host : str
        The machine's host name.
    shm_nbytes : tuple of (int, int), optional
        Size of ``/dev/shm``, and free bytes there.
    shm_read_only : bool
        Whether ``/dev/shm`` is mounted read-only.
    memfd : str, optional
        The step that the kernel refused when a memfd was made and sealed; empty if none, None if not tried.
    copies : tuple of (float, float), optional
        Bytes per second at which the C library copies 64 KiB: to a place 512 bytes further into its page than the
        source, and to one 16 bytes further.
    synchronised : bool, optional
        Whether the kernel's clock is synchronised.
    """

    root: Path
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    commands: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    folders: tuple[str, ...] = ()
    host: str = ""
    shm_nbytes: tuple[int, int] | None = None
    shm_read_only: bool = False
    memfd: str | None = None
    copies: tuple[float, float] | None = None
    synchronised: bool | None = None

    def path(self, name: str) -> Path:
        """Return the path of the file `name`, absolute or not, below the root."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """Read the file `name`, stripped, up to 8 MiB. None if it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                pieces = itertools.islice(iter(lambda: file.read(_PIECE_NBYTES), b""), _MOST_NBYTES // _PIECE_NBYTES)
                return b"".join(pieces).decode(errors="replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, name: str) -> int | None:
        """Read a number from the file `name`; None if there is none."""
        value = self.text(name)
        return int(value) if value is not None and re.fullmatch(r"[0-9]{1,20}", value, re.ASCII) else None

    def names(self, folder: str) -> list[str]:
        """List the names in `folder`; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except (OSError, ValueError):
            return []

    def link(self, name: str) -> str:
        """Return the target of the symbolic link `name`, or an empty string."""
        try:
            return os.readlink(self.path(name))
        except (OSError, ValueError):
            return ""

    def has(self, name: str) -> bool:
        """Return whether the file or folder `name` exists."""
        return os.path.exists(self.path(name))

    def quote(self, name: str) -> str:
        """Return the path and the first line of the file `name`, as evidence."""
        value = self.text(name)
        return f"/{name.lstrip('/')}: " + ("not there" if value is None else brief(value) or "empty")

    @cached_property
    def topology(self) -> Topology:
        """CPUs, memory, GPUs, NICs and limits; GPUs from the PCI bus, because NVML may take seconds to start."""
        return discovery.read(self.root, environ=self.environ)

    @cached_property
    def distributions(self) -> dict[str, tuple[str, str]]:
        """Installed distributions: name to (version, folder of its metadata). The first on the path counts."""
        found: dict[str, tuple[str, str]] = {}
        for folder in self.folders:
            for name in self.names(folder):
                match = re.fullmatch(r"([\w.]+)-([^-]+)\.dist-info", name)
                if match:
                    found.setdefault(match[1].lower().replace("_", "-"), (match[2], f"{folder}/{name}"))
        return found

    @property
    def release(self) -> str:
        """The kernel's release; empty if it is not known."""
        value = self.text("proc/sys/kernel/osrelease") or ""
        return value if re.fullmatch(r"\w[\w.+~-]{0,99}", value) else ""

    @cached_property
    def own_namespaces(self) -> tuple[str, ...] | None:
        """Kinds of namespaces that this process does not share with the first process; None if not known."""
        links = {kind: self.link(f"proc/self/ns/{kind}") for kind in FIRST_NAMESPACES}
        if not any(links.values()):
            return None
        return tuple(kind for kind, link in links.items() if link and link != f"{kind}:[{FIRST_NAMESPACES[kind]}]")

    @property
    def container(self) -> str:
        """The evidence that this is a container; empty outside of one."""
        if self.own_namespaces == ():
            return ""  # a virtual machine whose disk was made from a container's image keeps these files
        for name in (".dockerenv", "run/.containerenv"):
            if self.has(name):
                return f"/{name}"
        if "KUBERNETES_SERVICE_HOST" in self.environ:
            return "KUBERNETES_SERVICE_HOST is set"
        found = re.search(r"/(docker|kubepods|libpod|lxc|containerd)\b[^\n]*", self.text("proc/self/cgroup") or "")
        return f"/proc/self/cgroup: {brief(found[0])}" if found else ""

    @property
    def slurm(self) -> bool:
        """Whether this is a Slurm job."""
        return "SLURM_JOB_ID" in self.environ

    def limit(self, name: str) -> tuple[int | None, int | None] | None:
        """Read the limit `name` of this process, soft and hard; (..., None) means unlimited, None alone not known."""
        found = re.search(rf"^{re.escape(name)}\s+(\S+)\s+(\S+)", self.text("proc/self/limits") or "", re.MULTILINE)
        if not found or not all(re.fullmatch(r"[0-9]{1,20}|unlimited", word, re.ASCII) for word in found.groups()):
            return None
        soft, hard = (None if word == "unlimited" else int(word) for word in found.groups())
        return soft, hard

    def capable(self, capability: int) -> bool:
        """Tell whether this process has the capability of that number."""
        found = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", self.text("proc/self/status") or "", re.MULTILINE)
        return bool(found and int(found[1], 16) >> capability & 1)


def brief(text: str) -> str:
    """Return the first line of `text`, printable and shortened."""
    line = printable(text.partition("\n")[0])
    return line if len(line) <= 120 else line[:117] + "..."


def printable(text: str) -> str:
    """Return `text` with a question mark for each character that is no letter, sign or space."""
    return "".join(c if c.isprintable() else "?" for c in text)
