# SPDX-License-Identifier: BSD-3-Clause
"""How one of Dask's servers is asked over a comm that is there already."""

from __future__ import annotations

from typing import Any

from distributed.core import send_recv


async def ask(comm: object, op: str, **what: Any) -> Any:
    """Ask the other side of a comm, and return its answer."""
    return await send_recv(comm, op=op, **what)
