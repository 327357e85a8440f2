# SPDX-License-Identifier: BSD-3-Clause
"""``weft.connect`` and ``weft.listen``: sockets, and the two ways to drive a handshake over them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from weft import handshake
from weft.address import is_wildcard, join, outward, resolve, split
from weft.errors import (
    AddressError,
    ClosedError,
    Error,
    HandshakeError,
    InvalidParamError,
    PeerLostError,
    TimedOutError,
    UnreachableError,
)
from weft.links import Lan, Wait, local_of_loop, local_of_thread
from weft.peer import Peer

log = logging.getLogger("weft")

#: Seconds that an accepted socket has for its handshake; then it is closed.
HANDSHAKE_TIMEOUT_S = 10.0
#: A host that vanishes (power, cable) is noticed after this many seconds, sending or idle.
VANISHED_AFTER_S = 60


def connect(address: str, *, timeout: float = 30.0, info: dict[str, Any] | None = None) -> Connecting:
    """Connect to a listener.

    Parameters
    ----------
    address : str
        ``host:port``, as :attr:`Listener.address` gives it; IPv6 as ``[::1]:port``.
    timeout : float
        Seconds for the whole attempt.
    info : dict, optional
        Told to the other side, which has it as :attr:`Peer.remote`; must be JSON.

    Returns
    -------
    Connecting
        A context manager, blocking (``with``) or asynchronous (``async with``), that gives a :class:`Peer` and
        closes it at the end (aborts it after an exception); or await it for the peer.

    Raises
    ------
    UnreachableError
        On entry: nobody listens there, or no transport leads there.
    HandshakeError
        On entry: something else listens there.
    TimedOutError
        On entry: no answer in time.
    """
    host, port = split(address)
    if not port:
        raise InvalidParamError(f"connect to {address!r}: a port is needed, as in host:13337")
    return Connecting(host, port, timeout, info or {})


class Connecting:
    """What :func:`connect` returns: enter it, or await it, for the peer."""

    def __init__(self, host: str, port: int, timeout: float, info: dict[str, Any]) -> None:
        self._host, self._port, self._timeout, self._info = host, port, timeout, info
        self._peer: Peer | None = None

    def _targets(self, name: str) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        try:
            return resolve(self._host, self._port, passive=False)
        except OSError as e:
            raise UnreachableError(f"connect to {name}: no such host: {e}") from None

    def _steps(self, local: Any, sock: socket.socket, name: str) -> handshake.Steps:
        return handshake.client(local, Lan(sock.getsockname()[0]), name, sock, self._info)

    def open(self) -> Peer:
        """Connect, blocking."""
        name = join(self._host, self._port)
        deadline = time.monotonic() + self._timeout
        local = local_of_thread()
        for attempt in (1, 2):
            sock = _first(self._targets(name), lambda s, a: _connect_blocking(s, a, deadline), name, self._timeout)
            with sock:
                try:
                    joined = _drive_blocking(self._steps(local, sock, name), sock, deadline, f"connect to {name}", self._timeout)
                    return _peer(joined, sock)
                except PeerLostError:
                    if attempt == 2:
                        raise
        raise AssertionError

    async def _open(self) -> Peer:
        name = join(self._host, self._port)
        local = await local_of_loop()
        try:
            async with asyncio.timeout(self._timeout):
                for attempt in (1, 2):
                    sock = await self._connected(name)
                    with sock:
                        try:
                            joined = await _drive(self._steps(local, sock, name), sock, f"connect to {name}")
                            return _peer(joined, sock)
                        except PeerLostError:
                            if attempt == 2:
                                raise
        except TimeoutError as e:
            if isinstance(e, TimedOutError):
                raise
            raise _too_late(name, self._timeout) from None
        raise AssertionError

    async def _connected(self, name: str) -> socket.socket:
        loop = asyncio.get_running_loop()
        targets = (
            self._targets(name)
            if self._host.replace(".", "").isdigit() or ":" in self._host
            else await loop.run_in_executor(None, self._targets, name)
        )
        failure: OSError | None = None
        for family, sockaddr in targets:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, sockaddr)
                return sock
            except OSError as e:
                sock.close()
                failure = e
            except BaseException:
                sock.close()
                raise
        raise _not_connected(name, failure)

    def __await__(self) -> Generator[Any, None, Peer]:
        return self._open().__await__()

    def __enter__(self) -> Peer:
        self._peer = self.open()
        return self._peer

    def __exit__(self, *exc: Any) -> None:
        if self._peer is not None:
            self._peer.__exit__(*exc)

    async def __aenter__(self) -> Peer:
        self._peer = await self._open()
        return self._peer

    async def __aexit__(self, *exc: Any) -> None:
        if self._peer is not None:
            await self._peer.__aexit__(*exc)


def listen(
    address: str = "", handler: Callable[[Peer], Awaitable[object]] | None = None, *, info: dict[str, Any] | None = None
) -> Listener:
    """Listen for connections.

    Parameters
    ----------
    address : str
        ``host:port``. Port 0, or none, takes a free one; host ``0.0.0.0`` or ``::`` means every address of this
        host; only the given one is bound otherwise.
    handler : coroutine function, optional
        ``async with``: called with each new :class:`Peer`, which is closed when it returns and aborted when it
        raises. Without a handler, use ``with`` and :meth:`Listener.accept`.
    info : dict, optional
        Told to each peer, which has it as :attr:`Peer.remote`; must be JSON.

    Returns
    -------
    Listener
        A context manager, blocking (``with``) or asynchronous (``async with``).

    Raises
    ------
    AddressError
        On entry: the port is in use, or the address is not this host's.
    """
    return Listener(address, handler, info=info)


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
        on_peer: Callable[[Peer], Awaitable[object]] | None = None,
    ) -> None:
        self._host, self._port = split(address)
        self._handler, self._on_peer, self._info = handler, on_peer, info or {}
        self._sockets: list[socket.socket] = []
        self._side: handshake.SideDoor | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- sockets

    @property
    def address(self) -> str:
        """``host:port`` that :func:`connect` takes; for a wildcard, one that other hosts can use."""
        host, port = self._bound()
        if is_wildcard(host):
            host = outward(self._sockets[0].family)
        return join(host, port)

    @property
    def bound_address(self) -> str:
        """``host:port`` as it was bound, a wildcard as such."""
        return join(*self._bound())

    def _bound(self) -> tuple[str, int]:
        if not self._sockets:
            raise ClosedError("the listener is not open")
        host, port, *_ = self._sockets[0].getsockname()
        return host, port

    def _bind(self) -> None:
        name = join(self._host, self._port)
        if self._sockets:
            raise InvalidParamError(f"listen on {name}: this listener is open already")
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
            remedy = "; choose another port, or 0 for any" if e.errno == errno.EADDRINUSE else ""
            error = AddressError(f"listen on {name}: {e.strerror or e}{remedy}")
            error.errno = e.errno
            raise error from None
        handshake.close_in_child(sock)
        self._sockets = [sock]
        self._side = handshake.SideDoor()

    def stop(self) -> None:
        """Stop listening. Connections that were made go on."""
        for sock in self._sockets:
            if (loop := _running_loop()) is not None:
                loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets = []
        if self._side is not None:
            self._side.close()
            self._side = None

    def _steps(self, local: Any, sock: socket.socket, name: str) -> handshake.Steps:
        if self._side is None:
            raise ClosedError("the listener was closed")
        return handshake.server(local, Lan(sock.getsockname()[0]), name, sock, self._info, self._side)

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
            Seconds; None waits without bound. A caller that fails its handshake does not end the wait.

        Raises
        ------
        TimedOutError
            Nobody connected in time.
        """
        name = self.bound_address
        deadline = None if timeout is None else time.monotonic() + timeout
        local = local_of_thread()
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left < 0:
                raise TimedOutError(f"accept on {name}: nobody connected within {timeout} s")
            self._sockets[0].settimeout(left)
            try:
                sock, _ = self._sockets[0].accept()
            except TimeoutError:
                continue
            finally:
                self._sockets[0].setblocking(False)
            with sock:
                until = time.monotonic() + HANDSHAKE_TIMEOUT_S
                caller = join(*sock.getpeername()[:2])
                try:
                    steps = self._steps(local, sock, caller)
                    joined = _drive_blocking(steps, sock, min(until, deadline or until), f"accept from {caller}", HANDSHAKE_TIMEOUT_S)
                    return _peer(joined, sock)
                except (Error, OSError) as e:
                    log.warning("a caller was turned away: %s", e)

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
        """Bind, and take connections in the running loop."""
        local = await local_of_loop()
        self._bind()
        loop = asyncio.get_running_loop()
        sock = self._sockets[0]
        loop.add_reader(sock.fileno(), self._take, loop, sock, local)

    def _take(self, loop: asyncio.AbstractEventLoop, listening: socket.socket, local: Any) -> None:
        # One socket a turn of the loop keeps it fair; the descriptor stays readable while there are more.
        try:
            sock, _ = listening.accept()
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                log.warning("accept on %s: %s", self._port, e)
            return
        sock.setblocking(False)
        task = loop.create_task(self._serve(sock, local))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket, local: Any) -> None:
        caller = "somebody who left at once"
        with sock:
            try:
                caller = join(*sock.getpeername()[:2])
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    joined = await _drive(self._steps(local, sock, caller), sock, f"accept from {caller}")
                peer = _peer(joined, sock)
            except (Error, OSError) as e:
                log.warning("a caller was turned away: %s", str(e) or f"no handshake from {caller} within {HANDSHAKE_TIMEOUT_S} s")
                return
        if self._on_peer is not None:
            await self._on_peer(peer)
            return
        assert self._handler is not None  # noqa: S101
        try:
            async with peer:
                await self._handler(peer)
        except PeerLostError as e:
            log.info("a handler ended: %s", e)
        except Exception:
            log.exception("the handler of %s raised", peer)


# ---- driving a handshake ------------------------------------------------------------------------------------


def _peer(joined: handshake.Joined, sock: socket.socket) -> Peer:
    if not joined.same_host:
        _keep_alive(sock)
    return Peer(
        joined.channel,
        local_address=join(*sock.getsockname()[:2]),
        remote_address=join(*sock.getpeername()[:2]),
        same_host=joined.same_host,
        remote=joined.remote,
    )


def _keep_alive(sock: socket.socket) -> None:
    # A duplicate of this descriptor is the link's liveness: the options are the socket's, so they reach it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_AFTER_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, VANISHED_AFTER_S // 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_S * 1000)


async def _drive(steps: handshake.Steps, sock: socket.socket, what: str) -> handshake.Joined:
    loop = asyncio.get_running_loop()
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.throw(failure) if failure is not None else steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = failure = None
        try:
            if isinstance(step, bytes):
                await loop.sock_sendall(sock, step)
            elif isinstance(step, Wait):
                await step.future()
            else:
                answer = bytearray()
                while len(answer) < step:
                    data = await loop.sock_recv(sock, step - len(answer))
                    _append(answer, data, what)
        except asyncio.CancelledError as e:
            failure = e
        except OSError as e:
            failure = e if isinstance(e, Error) else _cut(what, e)


def _drive_blocking(
    steps: handshake.Steps, sock: socket.socket, deadline: float, what: str, timeout: float
) -> handshake.Joined:
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.throw(failure) if failure is not None else steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = failure = None
        try:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            if isinstance(step, bytes):
                sock.sendall(step)
            elif isinstance(step, Wait):
                raise HandshakeError(f"{what}: another handshake with the same process is under way in this thread")
            else:
                answer = bytearray()
                while len(answer) < step:
                    _append(answer, sock.recv(step - len(answer)), what)
        except TimeoutError:
            failure = TimedOutError(f"{what}: no answer within {timeout} s; is it a weft listener, and does it accept?")
        except OSError as e:
            failure = e if isinstance(e, Error) else _cut(what, e)
        except KeyboardInterrupt as e:
            failure = e


def _append(answer: bytearray, data: bytes, what: str) -> None:
    if not data:
        raise HandshakeError(f"{what}: the other side closed the socket in the middle of the handshake; is it a weft listener?")
    answer += data


def _cut(what: str, error: OSError) -> HandshakeError:
    return HandshakeError(f"{what}: the socket failed in the middle of the handshake: {error.strerror or error}")


def _connect_blocking(sock: socket.socket, sockaddr: tuple[str, int], deadline: float) -> None:
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    sock.connect(sockaddr)


def _first(
    targets: list[tuple[socket.AddressFamily, tuple[str, int]]],
    attempt: Callable[[socket.socket, tuple[str, int]], None],
    name: str,
    timeout: float,
) -> socket.socket:
    failure: OSError | None = None
    for family, sockaddr in targets:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            attempt(sock, sockaddr)
            return sock
        except TimeoutError:
            sock.close()
            raise _too_late(name, timeout) from None
        except OSError as e:
            sock.close()
            failure = e
        except BaseException:
            sock.close()
            raise
    raise _not_connected(name, failure)


def _too_late(name: str, timeout: float) -> TimedOutError:
    return TimedOutError(f"connect to {name}: no answer within {timeout} s; is the host up, and the port open in its firewall?")


def _not_connected(name: str, failure: OSError | None) -> UnreachableError:
    if failure is not None and failure.errno == errno.ECONNREFUSED:
        return UnreachableError(f"connect to {name}: nobody listens there (connection refused); start the listener first")
    why = failure.strerror if failure is not None else "the name has no address"
    return UnreachableError(f"connect to {name}: {why}; check the address and the route to it")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


__all__ = ["Connecting", "Listener", "Peer", "connect", "listen"]
