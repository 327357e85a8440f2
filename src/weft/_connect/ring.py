# SPDX-License-Identifier: BSD-3-Clause
"""Whether weft's own rings can carry the messages between two processes of one host, or why UCX must."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from weft import _native

VERSION = 2  #: of the layout in shared pages; both sides must have the same
GPU = "dev/nvidiactl"  #: exists if a process could use a GPU, unless its environment hides all GPUs


def offer(ucx: Mapping[str, str]) -> dict[str, object]:
    """Return this side's ring offer for the handshake; `ucx` are the connection's UCX settings."""
    why = _obstacle(ucx)
    return {"version": VERSION} if why is None else {"no": why}


def usable(settings: Sequence[tuple[str, str]]) -> bool:
    """Tell whether this side can use rings for a connection with these UCX settings."""
    return _obstacle(dict(settings)) is None


def why_ucx(mine: Mapping[str, object], theirs: object) -> str | None:
    """Return why UCX must carry the messages between two processes of one host; None if rings can."""
    if "no" in mine:
        return str(mine["no"])
    match theirs:
        case {"version": int(version)} if version == mine["version"]:
            return None
        case {"no": str(why)}:
            return f"the other side: {why[:200]}"
        case _:
            return "the other side uses another version of the ring"


def gpus_shown(environ: Mapping[str, str]) -> bool:
    """Tell whether an environment leaves GPUs visible."""
    return environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def _obstacle(ucx: Mapping[str, str]) -> str | None:
    if "TLS" in ucx:
        return f"the connection was given TLS={ucx['TLS']}"
    if asked := os.environ.get("UCX_TLS"):
        return f"UCX_TLS={asked} is set"
    if gpus_shown(os.environ) and os.path.exists(f"/{GPU}"):
        return "this process can see a GPU, and UCX carries its memory"
    if refused := _native.ring_error():
        return f"memfd_create or fallocate was refused: {refused}"
    return None
