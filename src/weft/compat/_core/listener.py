# SPDX-License-Identifier: BSD-3-Clause
"""``Listener``: accepts connections as long as it exists."""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import socket
import traceback
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import weft
from weft._connect.handshake_io import out_of_descriptors
from weft._connect.sockets import OwnedSocket, close_in_child
from weft.compat._core import handshake
from weft.compat._core.worker import Worker
from weft.listen import PAUSE_S

log = logging.getLogger("ucx")


class Context(Protocol):
    """The part of a context that a listener uses."""

    @property
    def core(self) -> Worker:
        """The worker."""
        ...

    def endpoint(self, joined: handshake.Joined) -> Any:
        """Make an endpoint."""
        ...


class Listener:
    """A listening socket; made by ``create_listener``. It is closed when this object is deleted."""

    def __init__(
        self,
        ctx: Context,
        port: int,
        callback: Callable[[Any], Any],
        error_handling: bool,
        connect_timeout: float,
    ) -> None:
        self._clients = Clients()
        self._worker = ctx.core
        self._loop = asyncio.get_running_loop()
        self._ctx: Context | None = ctx
        self._callback = callback
        self._error_handling = error_handling
        self._timeout = connect_timeout
        sock = OwnedSocket()
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
        self._socket: OwnedSocket | None = sock
        self._watch()

    def _watch(self) -> None:
        # The callback often refers to the listener: the loop must not keep both alive.
        assert self._socket is not None
        me: weakref.ref[Listener] = weakref.ref(self)
        self._loop.add_reader(self._socket, _with, me, Listener.accept)

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            self.close()

    def is_closed(self) -> bool:
        """Return whether it has stopped."""
        return self._socket is None

    @property
    def released(self) -> bool:
        """Whether it has stopped."""
        return self._ctx is None

    @property
    def active_clients(self) -> int:
        """The number of connections whose handshake or callback is still running."""
        return self._clients.active

    @property
    def ip(self) -> str:
        """The bound address."""
        return self._bound[0]

    @property
    def port(self) -> int:
        """The listening port."""
        return self._bound[1]

    def close(self) -> None:
        """Stop listening; existing connections stay open."""
        sock, self._socket, self._ctx = self._socket, None, None
        if sock is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(sock)
            sock.close()

    def accept(self) -> None:
        """Accept one connection."""
        assert self._socket is not None
        assert self._ctx is not None
        try:
            sock, _ = self._socket.accept()
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                log.warning("%s", out_of_descriptors(f"accept on port {self.port}", e))
                # The caller stays queued and the descriptor stays readable: without a pause, the loop would spin.
                self._loop.remove_reader(self._socket)
                me: weakref.ref[Listener] = weakref.ref(self)
                self._loop.call_later(PAUSE_S, _with, me, Listener._watch)
            return
        sock.setblocking(False)
        handshakes = self._worker.handshakes
        serving = _serve(self._ctx, sock, self._callback, self._error_handling, self._timeout)
        task = self._loop.create_task(serving)
        self._clients.active += 1
        handshakes.add(task)
        task.add_done_callback(handshakes.discard)
        task.add_done_callback(self._clients.leave)


class Clients:
    """Counts connections, also after the listener is gone."""

    active = 0

    def leave(self, _task: object) -> None:
        """Count one fewer."""
        self.active -= 1


def _with(reference: weakref.ref[Listener], call: Callable[[Listener], None]) -> None:
    listener = reference()
    if listener is not None and not listener.is_closed():
        call(listener)


async def _serve(ctx: Context, sock: socket.socket, callback: Any, error_handling: bool, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            joined = await handshake.server(ctx.core, sock, error_handling=error_handling)
    except (weft.Error, OSError) as e:
        log.warning("rejected a connection: %s", str(e) or f"no handshake within {timeout_s} s")
        return
    ep = ctx.endpoint(joined)
    # From here on, only what the callback awaits keeps it alive; if that does not last, reset() may end it.
    task = asyncio.current_task()
    assert task is not None
    ctx.core.handshakes.discard(task)
    del ctx, joined, task
    try:
        outcome = callback(ep)
        del ep
        if inspect.isawaitable(outcome):
            await outcome
    except Exception:  # noqa: BLE001  (the program's own: it has nobody else to tell)
        # As text: a traceback in the log record would keep frames, and the objects in them, alive.
        log.error("the listener's callback failed:\n%s", traceback.format_exc().rstrip())
