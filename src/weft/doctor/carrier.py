# SPDX-License-Identifier: BSD-3-Clause
"""Whether weft's own ring or UCX carries messages between processes of this machine, as far as files show it."""

from __future__ import annotations

from weft._connect import ring
from weft.doctor.machine import Machine

#: Each names transports of a connection; UCX then carries its messages.
_TRANSPORTS = ("UCX_TLS", "DASK_WEFT__UCX__TLS")
#: Names by which UCX_TLS lets posix in.
POSIX = {"posix", "mm", "shm", "sm", "all"}


def why_ucx(machine: Machine) -> str:
    """Return why UCX carries messages between processes of `machine`; empty if weft's ring does.

    It does not see a program that passes TLS as a setting.
    """
    for name in _TRANSPORTS:
        if machine.environ.get(name):
            return f"{name} is set"
    if ring.gpus_shown(machine.environ) and machine.has(ring.GPU):
        return f"/{ring.GPU} is there, so processes can see a GPU"
    if machine.memfd:
        return f"no memfd: {machine.memfd}"
    return ""


def names(tls: str) -> list[str]:
    """List the names in a value of UCX_TLS, without UCX's marks, such as ^, a backslash and :aux."""
    words = tls.removeprefix("^").split(",")
    return [name for word in words if (name := word.strip().lstrip("\\").partition(":")[0])]


def has_posix(tls: str) -> bool:
    """Tell whether the value `tls` of UCX_TLS lets UCX use posix."""
    return tls.startswith("^") == POSIX.isdisjoint(names(tls))
