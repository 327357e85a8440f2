# SPDX-License-Identifier: BSD-3-Clause
"""``Listener``: takes connections as long as it exists."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import weakref
from collections.abc import Callable
from typing import Any

import weft
from weft._connect.sockets import close_in_child
from weft.compat.ucp import _handshake
from weft.compat.ucp._context import ApplicationContext
from weft.compat.ucp._endpoint import Endpoint

log = logging.getLogger("ucx")


class Listener:
    """A socket that is listened on; made by ``create_listener``. It is closed when this is deleted."""

    def __init__(
        self, ctx: ApplicationContext, port: int, callback: Callable[[Endpoint], Any], *, error_handling: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ctx: ApplicationContext | None = ctx
        self._callback = callback
        self._error_handling = error_handling
        sock = socket.socket()
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(("", port))
            sock.listen(4096)
        except BaseException:
            sock.close()
            raise
        close_in_child(sock)
        self._bound: tuple[str, int] = sock.getsockname()
        self._socket: socket.socket | None = sock
        # The callback often refers to the listener: the loop must not keep the two alive.
        me: weakref.ref[Listener] = weakref.ref(self)
        self._loop.add_reader(sock, _take, me)

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            self.close()

    def closed(self) -> bool:
        """Tell whether it has stopped."""
        return self._socket is None

    @property
    def ip(self) -> str:
        """The address that it is bound to."""
        return self._bound[0]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._bound[1]

    def close(self) -> None:
        """Stop listening; connections that were made go on."""
        sock, self._socket, self._ctx = self._socket, None, None
        if sock is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(sock)
            sock.close()

    def accept(self) -> None:
        """Take one caller."""
        assert self._socket is not None
        assert self._ctx is not None
        try:
            sock, _ = self._socket.accept()
        except OSError:  # it left, or descriptors ran out: the next turn tries again
            return
        sock.setblocking(False)
        handshakes = self._ctx.worker.handshakes
        task = self._loop.create_task(_serve(self._ctx, sock, self._callback, self._error_handling))
        handshakes.add(task)
        task.add_done_callback(handshakes.discard)


def _take(reference: weakref.ref[Listener]) -> None:
    listener = reference()
    if listener is not None and not listener.closed():
        listener.accept()


async def _serve(ctx: ApplicationContext, sock: socket.socket, callback: Any, error_handling: bool) -> None:
    try:
        async with asyncio.timeout(ctx.connect_timeout):
            joined = await _handshake.server(ctx.worker, sock, error_handling=error_handling)
    except (weft.Error, OSError) as e:
        log.warning("a caller was turned away: %s", str(e) or f"no handshake within {ctx.connect_timeout} s")
        return
    ep = endpoint_of(ctx, joined)
    # From here on, what the callback waits for holds it; if that is nothing that lasts, reset() may end it.
    task = asyncio.current_task()
    assert task is not None
    ctx.worker.handshakes.discard(task)
    del ctx, joined, task
    outcome = callback(ep)
    del ep
    if inspect.isawaitable(outcome):
        await outcome


def endpoint_of(ctx: ApplicationContext, joined: _handshake.Joined) -> Endpoint:
    """Make the endpoint of a connection that was just made."""
    connection, tag_send, tag_recv = joined
    assert connection.peer_key is not None
    tags = {
        "msg_send": tag_send,
        "msg_recv": tag_recv,
        "ctrl_send": connection.peer_key,
        "ctrl_recv": connection.key,
    }
    return Endpoint(connection, ctx, tags)
