# SPDX-License-Identifier: BSD-3-Clause
"""Which transports UCX has on this machine, by asking ``ucx_info``, and how to ask UCX for one of them.

UCP has no call that lists them; UCX's own tool does, and the wheel brings it along.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from weft._load import Library

#: Tried where ``ucx_info`` is missing: what every Linux build of UCX has.
EVERYWHERE = ("posix", "sysv", "cma", "tcp")
#: Carry no message of their own between two processes: loopback, and copies from and to a GPU.
NO_WIRE = ("self", "cuda_copy", "cuda_ipc", "gdr_copy", "gdaki", "rocm_copy", "rocm_ipc", "ze_copy")
#: What UCX_TLS must say to get one: cma and knem need another transport for small messages, and the verbs ones
#: need an unreliable datagram to connect over, which their short names bring.
SETTINGS = {
    "cma": "cma,posix",
    "knem": "knem,posix",
    "rc_verbs": "rc_v",
    "rc_mlx5": "rc_x",
    "ud_verbs": "ud_v",
    "ud_mlx5": "ud_x",
    "dc_mlx5": "dc_x",
}
_LIMIT_S = 20.0


def found(library: Library) -> list[str]:
    """List the transports that UCX reports, in its order; `EVERYWHERE` if its tool cannot be asked.

    Parameters
    ----------
    library : Library
        The UCX in use; the tool beside it is taken before one on the path.

    Returns
    -------
    list of str
        Without those of `NO_WIRE`.
    """
    beside = Path(library.path).parent
    tool = beside.parent / "bin" / "ucx_info"
    command = str(tool) if tool.is_file() else shutil.which("ucx_info")
    if command is None:
        return list(EVERYWHERE)
    # the wheel's tools do not find the wheel's libraries by themselves
    paths = [str(beside), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {name: value for name, value in os.environ.items() if name not in ("UCX_TLS", "UCX_NET_DEVICES")}
    try:
        asked = subprocess.run(
            [command, "-d"],
            capture_output=True,
            check=True,
            env=environment | {"LD_LIBRARY_PATH": ":".join(paths)},
            text=True,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return list(EVERYWHERE)
    return named(asked.stdout) or list(EVERYWHERE)


def named(text: str) -> list[str]:
    """Read the names of transports, each once, from what ``ucx_info -d`` prints."""
    names = re.findall(r"^#\s+Transport:\s+(\S+)", text, re.MULTILINE)
    return [name for name in dict.fromkeys(names) if name not in NO_WIRE]


def setting(name: str, memory: str) -> str:
    """Return the ``UCX_TLS`` that lets the transport `name` carry `memory` (``"cuda"``, or any of the host)."""
    if name == "all" or memory != "cuda":
        return SETTINGS.get(name, name)
    return f"{SETTINGS.get(name, name)},cuda_copy,cuda_ipc"
