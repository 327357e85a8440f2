# SPDX-License-Identifier: BSD-3-Clause
"""The libucp that ``weft._load`` would choose, and what it was built with, read from files without loading it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from weft.doctor.machine import Machine

#: The command whose output lists every setting that this UCX knows.
ASK_SETTINGS = "ucx_info -c -a -f"
#: The command that loads the chosen libucp: what files show does not tell whether it can be used.
LOAD = "python -m weft.doctor.load_ucx"
_NAMES = ("libucp.so", "libucp.so.0")


@dataclass(frozen=True, slots=True)
class Ucx:
    """A UCX on this machine: the file of its libucp, its origin, its version if known, and its modules."""

    path: str
    origin: str
    version: str
    modules: tuple[str, ...]

    @property
    def verbs(self) -> bool:
        """Whether it can use RDMA devices."""
        return any(name.startswith("libuct_ib") for name in self.modules)

    @property
    def efa(self) -> bool:
        """Whether it can use Amazon's RDMA devices; UCX 1.19 and newer can."""
        return any(name.startswith("libuct_ib_efa") for name in self.modules)

    def __str__(self) -> str:
        return f"{self.path} ({self.origin}{', ' + self.version if self.version else ''})"


def variables(machine: Machine) -> list[str]:
    """List the ``UCX_*`` variables that are set."""
    return sorted(name for name in machine.environ if name.startswith("UCX_"))


def chosen(machine: Machine) -> Ucx | None:
    """Return the UCX that weft would load in a new process; None if it would find none."""
    wanted = machine.environ.get("WEFT_LIBUCX", "")
    found = None
    if wanted in ("", "wheel"):
        found = wheel(machine)
    if found is None and wanted in ("", "system"):
        found = system(machine)
    if found is None and wanted not in ("", "wheel", "system"):
        files = (wanted, *(f"{folder}/{name}" for folder in _below(wanted) for name in _NAMES))
        found = _first(machine, files, "path")
    return found


def wheel(machine: Machine) -> Ucx | None:
    """Return the UCX of an installed libucx wheel."""
    packages = [name for name in machine.distributions if name.startswith("libucx-cu")]
    version = machine.distributions[packages[0]][0] if packages else ""
    files = [f"{folder}/libucx/lib/{name}" for folder in machine.folders for name in _NAMES]
    return _first(machine, files, "wheel", version)


def system(machine: Machine) -> Ucx | None:
    """Return the UCX that the dynamic linker would find by name."""
    folders = re.split("[:;]", machine.environ.get("LD_LIBRARY_PATH", ""))
    cache = machine.text("etc/ld.so.cache") or ""
    folders += re.findall(r"(/[^\0]*)/libucp\.so\.0(?=\0)", cache)
    package = re.search(
        r"^Package: libucx0\n(?:\S.*\n| .*\n)*?Version: ([^\n]{1,40})$",
        machine.text("var/lib/dpkg/status") or "",
        re.MULTILINE,
    )
    files = [f"{folder}/libucp.so.0" for folder in folders if folder]
    return _first(machine, files, "system", package[1] if package else "")


def tool(machine: Machine) -> tuple[str, dict[str, str]]:
    """Return the ``ucx_info`` of that UCX, and an environment with its libraries' paths and no UCX settings."""
    environment = {name: value for name, value in machine.environ.items() if not name.startswith("UCX_")}
    found = chosen(machine)
    if found is None or found.origin == "system":
        return "ucx_info", environment
    folder = os.path.dirname(found.path)
    paths = [folder, *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    return f"{os.path.dirname(folder)}/bin/ucx_info", environment | {"LD_LIBRARY_PATH": ":".join(paths)}


def _below(folder: str) -> tuple[str, ...]:
    return folder, f"{folder}/lib", f"{folder}/lib64"


def _first(machine: Machine, files: list[str] | tuple[str, ...], origin: str, version: str = "") -> Ucx | None:
    for file in files:
        if os.path.isfile(machine.path(file)):
            path = "/" + os.path.relpath(os.path.realpath(machine.path(file)), os.path.realpath(machine.root))
            return Ucx(path, origin, version, tuple(machine.names(f"{os.path.dirname(path)}/ucx")))
    return None
