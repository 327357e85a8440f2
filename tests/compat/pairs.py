# SPDX-License-Identifier: BSD-3-Clause
"""Two ends of a connection, in one loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from weft.compat import ucp


async def connected() -> tuple[ucp.Endpoint, ucp.Endpoint]:
    """Return the connector's end and the listener's."""
    accepted: asyncio.Future[ucp.Endpoint] = asyncio.get_running_loop().create_future()
    listener = ucp.create_listener(accepted.set_result)
    here = await ucp.create_endpoint("127.0.0.1", listener.port)
    there = await accepted
    listener.close()
    return here, there


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[ucp.Endpoint, ucp.Endpoint]]:
    """Give the connector's end and the listener's, and abort what is left of them."""
    here, there = await connected()
    try:
        yield here, there
    finally:
        here.abort()
        there.abort()
