# SPDX-License-Identifier: BSD-3-Clause
"""``weft.listen``: accept connections, blocking or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import logging
import math
import select
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from ssl import SSLContext
from typing import Any

from weft._connect import handshake, local, ring
from weft._connect.address import is_wildcard, join, of_socket, outward, resolve, split, unbound_remedy
from weft._connect.admission import SameHostListener, process_of, same_user
from weft._connect.encryption import EncryptionPolicy, policy_of
from weft._connect.handshake_io import LONG_S, no_handshake, out_of_descriptors, run, run_blocking
from weft._connect.links import Workers, forked, running_loop, workers_of_loop, workers_of_thread
from weft._connect.message import checked, of_accept, seconds
from weft._connect.route import Route
from weft._connect.sockets import close_in_child
from weft._tls.session import Session
from weft.config import named
from weft.errors import (
    AddressError,
    ClosedError,
    Error,
    HandshakeError,
    InvalidParamError,
    PeerLostError,
    TimedOutError,
)
from weft.peer import Peer, peer_of

log = logging.getLogger("weft")

#: Seconds that an accepted socket has for its handshake; then it is closed.
HANDSHAKE_TIMEOUT_S = 10.0
#: Minimum seconds for the handshake of a caller that came before :meth:`Listener.accept` timed out.
LEAST_HANDSHAKE_S = 1.0
#: Seconds until the next attempt to accept after descriptors ran out.
PAUSE_S = 1.0


def listen(
    address: str = "",
    handler: Callable[[Peer], Awaitable[object]] | None = None,
    *,
    info: dict[str, Any] | None = None,
    ssl: SSLContext | None = None,
    payload: EncryptionPolicy = "refuse",
    settings: Mapping[str, str] | None = None,
) -> Listener:
    """Listen for connections.

    Parameters
    ----------
    address : str
        ``host:port``. Without a port, or with port 0, the kernel chooses a free one. Without a host, or with
        ``0.0.0.0``, it listens on all IPv4 addresses of this host, with ``[::]`` on all IPv6 addresses; otherwise
        only on the given one.
    handler : coroutine function, optional
        For ``async with``: called with each new :class:`Peer`. The peer is closed when the handler returns, and
        aborted when it raises. Without a handler, use ``with`` and :meth:`Listener.accept`.
    info : dict, optional
        JSON-able values for each peer, which finds them in :attr:`Peer.remote`.
    ssl : ssl.SSLContext, optional
        Accept connections over TLS only; see :func:`connect`.
    payload : {"refuse", "tls", "clear"}
        With `ssl`: what to do if messages would leave this host unencrypted; see :func:`connect`.
    settings : mapping of str to str, optional
        UCX settings for this side of the connections, as for :class:`Context`.

    Returns
    -------
    Listener
        A context manager for ``with`` or ``async with``.

    Raises
    ------
    AddressError
        On entry: the port is in use, or the address is not this host's.
    NoMemoryError
        On entry: descriptors ran out. Nothing listens.
    InvalidParamError
        `handler` is not callable. On entry: ``with`` and a handler, or ``async with`` without one.
    """
    return Listener(address, handler, info=info, settings=settings, ssl=ssl, payload=payload)


class Listener:
    """Takes connections while its context lasts; made by :func:`listen`.

    Leaving the context stops listening, ends the handlers that still run (by cancellation, which aborts their
    connections) and waits for them; peers taken by :meth:`accept` stay.
    """

    def __init__(
        self,
        address: str,
        handler: Callable[[Peer], Awaitable[object]] | None,
        *,
        info: dict[str, Any] | None = None,
        settings: Mapping[str, str] | None = None,
        on_peer: Callable[[Peer], Awaitable[object]] | None = None,
        ssl: SSLContext | None = None,
        payload: EncryptionPolicy = "refuse",
    ) -> None:
        self._host, self._port = split(address)
        if handler is not None and not callable(handler):  # callers without types
            raise InvalidParamError(f"listen: handler={handler!r} is not callable; pass a coroutine function")
        self._ssl = ssl
        self._policy: EncryptionPolicy | None = policy_of(ssl, payload)
        self._handler, self._on_peer, self._info = handler, on_peer, checked("listen", info)
        self._settings = named(settings or {})
        self._sockets: list[socket.socket] = []  # TCP's first; then that of the local handshake, if available
        self._local_name = ""
        self._workers: Workers | None = None
        self._same_host: SameHostListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- sockets

    @property
    def address(self) -> str:
        """``host:port`` that :func:`connect` takes; for a wildcard, one that other hosts can use."""
        host, port = self._bound()
        try:
            if is_wildcard(host):
                host = outward(self._sockets[0].family)
        except OSError as e:
            raise out_of_descriptors(f"the address of a listener on {join(host, port)}", e) from None
        return join(host, port)

    @property
    def bound_address(self) -> str:
        """``host:port`` as bound; a wildcard host stays a wildcard."""
        return join(*self._bound())

    def _bound(self) -> tuple[str, int]:
        return of_socket(self._listening().getsockname())

    def _listening(self) -> socket.socket:
        for sock in self._sockets:
            if sock.fileno() < 0:
                raise forked()  # closed there, see close_in_child
            return sock
        raise ClosedError("the listener is not open: use it inside `with weft.listen(...)`")

    def _bind(self) -> None:
        name = join(self._host, self._port)
        if self._sockets:
            raise InvalidParamError(f"listen on {name}: this listener is open already")
        if self._ssl is not None:
            Session(self._ssl, f"listen on {name}")  # report an unsuitable context now, not to every caller
        try:
            family, sockaddr = resolve(self._host, self._port, passive=True)[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setblocking(False)
                sock.bind(sockaddr)
                sock.listen(1024)
            except BaseException:
                sock.close()
                raise
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE):
                raise out_of_descriptors(f"listen on {name}", e) from None
            error = AddressError(f"listen on {name}: {e.strerror or e}{unbound_remedy(e)}")
            error.errno = e.errno
            raise error from None
        close_in_child(sock)
        self._sockets = [sock]
        try:
            self._same_host = SameHostListener()
            if self._ssl is None and ring.usable(self._settings):
                self._local_name = local.name_of(*sock.getsockname()[:2])
                near = local.listen(self._local_name)
                if near is not None:
                    self._sockets.append(near)
        except BaseException as e:
            self.stop()
            if isinstance(e, OSError) and not isinstance(e, Error):
                raise out_of_descriptors(f"listen on {name}", e) from None
            raise

    def stop(self) -> None:
        """Stop listening. Existing connections stay open."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            if (loop := running_loop()) is not None:
                loop.remove_reader(sock.fileno())
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # ends an accept() in another thread
            sock.close()
        if self._same_host is not None:
            self._same_host.close()
            self._same_host = None
        if self._workers is not None:
            self._workers.listens.discard(self._local_name)

    def _steps(self, workers: Workers, sock: socket.socket, name: str) -> handshake.Steps | local.LocalSteps:
        if self._same_host is None:
            raise ClosedError("the listener was closed")
        if sock.family == socket.AF_UNIX:
            return local.server(workers, name, sock, self._info, self._bound()[1])
        route = Route.of(sock, self._settings)
        steps = handshake.server(workers, route, name, sock, self._info, self._same_host, self._policy)
        return steps if self._ssl is None else Session(self._ssl, f"accept from {name}").carry(steps)

    # ---- blocking

    def __enter__(self) -> Listener:
        if self._handler is not None:
            raise InvalidParamError("a handler is for `async with`; use accept() in a blocking listener")
        self._bind()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def accept(self, timeout: float | None = None) -> Peer:
        """Wait for the next connection, blocking.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for a caller. 0 accepts one that is already waiting; None waits without limit. The caller
            then has at least one second for the handshake. A failed handshake does not end the wait.

        Returns
        -------
        Peer
            Close it yourself.

        Raises
        ------
        TimedOutError
            No connection within `timeout`.
        InvalidParamError
            `timeout` is not a number of seconds.
        ClosedError
            The listener is not open, or another thread closed it during the wait.
        """
        listening, name = list(self._sockets), self.bound_address
        deadline = math.inf if timeout is None else time.monotonic() + seconds(f"accept on {name}", timeout)
        workers = workers_of_thread()
        late = False
        while not late:  # a caller that is already waiting is accepted even after the deadline
            late = time.monotonic() >= deadline
            workers.progress()
            sock = self._next(listening, deadline, name)
            if sock is None:
                break
            with sock:
                caller = _caller(sock)
                began = time.monotonic()
                until = min(began + HANDSHAKE_TIMEOUT_S, max(deadline, began + LEAST_HANDSHAKE_S))
                try:
                    steps = self._steps(workers, sock, caller)
                    limit = round(until - began, 2)
                    joined = run_blocking(steps, sock, f"accept from {caller}", deadline=until, timeout=limit)
                    return peer_of(joined, sock)
                except (Error, OSError) as e:
                    log.log(_level(e, sock), "rejected a connection: %s", of_accept(e, caller))
        raise TimedOutError(f"accept on {name}: no connection within {timeout} s")

    def _next(self, listening: list[socket.socket], deadline: float, name: str) -> socket.socket | None:
        """Wait for a caller; None if none came in time."""
        poll = select.poll()
        try:
            for each in listening:
                poll.register(each, select.POLLIN)
            while True:
                left = None if deadline == math.inf else min(max(deadline - time.monotonic(), 0), LONG_S)
                found = {fd for fd, _ in poll.poll(None if left is None else math.ceil(left * 1e3))}
                if listening != self._sockets:
                    raise ClosedError(f"accept on {name}: the listener was closed")
                for each in listening:
                    if each.fileno() in found:
                        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                            sock = each.accept()[0]
                            if each.family != socket.AF_UNIX or same_user(sock):
                                return sock
                            sock.close()
                if left == 0:
                    return None
        except (OSError, ValueError) as e:
            if isinstance(e, Error):
                raise
            if isinstance(e, ValueError) or listening != self._sockets:  # closed before poll, or during it
                raise ClosedError(f"accept on {name}: the listener was closed") from None
            raise out_of_descriptors(f"accept on {name}", e) from None

    # ---- asyncio

    async def __aenter__(self) -> Listener:
        if self._handler is None:
            raise InvalidParamError("async with weft.listen(...) needs a handler: weft.listen(address, handler)")
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def start(self) -> None:
        """Bind, and accept connections in the running loop."""
        workers = await workers_of_loop()
        self._bind()
        loop = asyncio.get_running_loop()
        self._workers = workers
        workers.listens.add(self._local_name)
        for sock in self._sockets:
            self._watch(loop, sock, workers)

    def _watch(self, loop: asyncio.AbstractEventLoop, listening: socket.socket, workers: Workers) -> None:
        if listening in self._sockets:
            loop.add_reader(listening.fileno(), self._take, loop, listening, workers)

    def _take(self, loop: asyncio.AbstractEventLoop, listening: socket.socket, workers: Workers) -> None:
        # Accept one socket per iteration of the loop, for fairness; the descriptor stays readable while there are more.
        try:
            sock, _ = listening.accept()
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                log.warning("%s", out_of_descriptors(f"accept on {self.bound_address}", e))
                # The caller stays queued and the descriptor stays readable: without a pause, the loop would spin.
                loop.remove_reader(listening.fileno())
                loop.call_later(PAUSE_S, self._watch, loop, listening, workers)
            return
        if sock.family == socket.AF_UNIX and not same_user(sock):
            sock.close()
            return
        sock.setblocking(False)
        task = loop.create_task(self._serve(sock, workers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: sock.close())  # it may be cancelled before it begins

    async def _serve(self, sock: socket.socket, workers: Workers) -> None:
        caller = "an unknown address"
        with sock:
            try:
                caller = _caller(sock)
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    joined = await run(self._steps(workers, sock, caller), sock, f"accept from {caller}")
                peer = peer_of(joined, sock)
            except (Error, OSError) as e:
                log.log(
                    _level(e, sock),
                    "rejected a connection: %s",
                    of_accept(e, caller) if str(e) else no_handshake(f"accept from {caller}", HANDSHAKE_TIMEOUT_S),
                )
                return
        if self._on_peer is not None:
            await self._on_peer(peer)
            return
        assert self._handler is not None
        try:
            async with peer:
                ending = self._handler(peer)
                if not inspect.isawaitable(ending):
                    raise TypeError(f"listen: the handler must be an `async def` function; it returned {ending!r}")
                await ending
        except PeerLostError as e:
            log.info("a handler ended: %s", e)
        except Exception:
            log.exception("the handler of %s raised", peer)


def _level(error: Exception, sock: socket.socket) -> int:
    """Return how loud to report it: a listener that stops, or a process of this host that gave up, is no trouble.

    Nor is one that connects again at once, because its link is gone, or is that of another thread that accepts here.
    """
    gave_up = (isinstance(error, HandshakeError) and error.ended) or isinstance(error, PeerLostError)
    is_quiet = isinstance(error, ClosedError) or (gave_up and sock.family == socket.AF_UNIX)
    return logging.INFO if is_quiet else logging.WARNING


def _caller(sock: socket.socket) -> str:
    """Name the other end of an accepted socket, for messages."""
    try:
        return f"process {process_of(sock)}" if sock.family == socket.AF_UNIX else join(*of_socket(sock.getpeername()))
    except OSError:  # it has reset the connection
        return "an unknown address"
