# SPDX-License-Identifier: BSD-3-Clause
"""Two ends of a connection whose messages go over its TLS socket, in one loop."""

import contextlib
import socket

from tests.test_tls_channel import peer, sessions


@contextlib.asynccontextmanager
async def tls_pair():
    sockets = socket.socketpair()
    a, b = (peer(session, sock) for session, sock in zip(sessions(), sockets, strict=True))
    try:
        yield a, b
    finally:
        a.abort()
        b.abort()
