# SPDX-License-Identifier: BSD-3-Clause
"""Requests to a Dask server over an existing comm."""

from __future__ import annotations

from typing import Any

from distributed.core import send_recv


async def ask(comm: object, op: str, **what: Any) -> Any:
    """Send a request over a comm, and return the answer."""
    return await send_recv(comm, op=op, **what)
