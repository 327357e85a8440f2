# SPDX-License-Identifier: BSD-3-Clause
"""Whether weft's own rings may carry the messages between two processes of one host, or UCX has to, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping

from weft import _native

VERSION = 1  #: of what lies in the pages; both sides must have the same
_GPU = "/dev/nvidiactl"


def offer(ucx: Mapping[str, str]) -> dict[str, object]:
    """Return what this side says of its rings in the handshake; `ucx` are the connection's UCX settings."""
    why = _obstacle(ucx)
    return {"version": VERSION} if why is None else {"no": why}


def why_ucx(mine: Mapping[str, object], theirs: object) -> str | None:
    """Tell why UCX has to carry the messages between two processes of one host; None if the rings can."""
    if "no" in mine:
        return str(mine["no"])
    match theirs:
        case {"version": int(version)} if version == mine["version"]:
            return None
        case {"no": str(why)}:
            return f"the other side: {why[:200]}"
        case _:
            return "the other side has another kind of ring"


def _obstacle(ucx: Mapping[str, str]) -> str | None:
    if "TLS" in ucx:
        return f"the connection was given TLS={ucx['TLS']}"
    if asked := os.environ.get("UCX_TLS"):
        return f"UCX_TLS={asked} is set"
    if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and os.path.exists(_GPU):
        return "this process can see a GPU, and UCX carries its memory"
    if refused := _native.ring_error():
        return f"memfd_create was refused: {refused}"
    return None
