# SPDX-License-Identifier: BSD-3-Clause
"""Which transports UCX has on this machine, and how to ask UCX for one of them."""

from __future__ import annotations

from weft._load import Library
from weft.explain import ucx_info

#: Tried where ``ucx_info`` is missing: what every Linux build of UCX has.
EVERYWHERE = ("self", "posix", "sysv", "cma", "tcp")
#: Carry no message of their own: copies from and to a GPU.
NO_WIRE = ("cuda_copy", "cuda_ipc", "gdr_copy", "gdaki", "rocm_copy", "rocm_ipc", "ze_copy")
#: What UCX_TLS must say to get one: cma and knem need another transport for small messages, and the verbs ones
#: need an unreliable datagram to connect over, which their short names bring.
SETTINGS = {
    "self": "self,posix",
    "cma": "cma,posix",
    "knem": "knem,posix",
    "rc_verbs": "rc_v",
    "rc_mlx5": "rc_x",
    "ud_verbs": "ud_v",
    "ud_mlx5": "ud_x",
    "dc_mlx5": "dc_x",
}


def found(library: Library) -> list[str]:
    """List the transports that UCX reports, in its order; `EVERYWHERE` if its tool cannot be asked.

    Parameters
    ----------
    library : Library
        The UCX in use.

    Returns
    -------
    list of str
        Without those of `NO_WIRE`.
    """
    return named(ucx_info.ask(library) or "") or list(EVERYWHERE)


def named(text: str) -> list[str]:
    """Read the names of transports, each once, from what ``ucx_info -d`` prints."""
    return [name for name in ucx_info.transports(text) if name not in NO_WIRE]


def setting(name: str, memory: str) -> str:
    """Return the ``UCX_TLS`` that lets the transport `name` carry `memory` (``"cuda"``, or any of the host)."""
    if name == "all" or memory != "cuda":
        return SETTINGS.get(name, name)
    return f"{SETTINGS.get(name, name)},cuda_copy,cuda_ipc"
