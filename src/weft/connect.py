# SPDX-License-Identifier: BSD-3-Clause
"""``weft.connect``: connect to a listener, blocking or in an event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

from weft._connect import handshake, local, ring
from weft._connect.address import join, resolve, split
from weft._connect.encryption import EncryptionPolicy, policy_of
from weft._connect.handshake_io import LONG_S, out_of_descriptors, run, run_blocking
from weft._connect.links import Workers, running_loop, workers_of_loop, workers_of_thread
from weft._connect.message import checked, seconds
from weft._connect.route import Route
from weft._tls.session import Session
from weft.config import named
from weft.errors import InvalidParamError, PeerLostError, TimedOutError, UnreachableError
from weft.peer import Peer, peer_of


def connect(
    address: str,
    *,
    timeout: float = 30.0,
    info: dict[str, Any] | None = None,
    ssl: SSLContext | None = None,
    payload: EncryptionPolicy = "refuse",
    settings: Mapping[str, str] | None = None,
    flow: int = 0,
) -> Connecting:
    """Connect to a listener.

    Parameters
    ----------
    address : str
        ``host:port``, as in :attr:`Listener.address`; IPv6 as ``[::1]:port``.
    timeout : float
        Seconds for the whole attempt. If the name has several addresses, each gets an equal part of what is left.
    info : dict, optional
        JSON-able values for the other side, which finds them in :attr:`Peer.remote`.
    ssl : ssl.SSLContext, optional
        Connect over TLS. The context has the trusted certificates and this side's own. The other side must use TLS,
        too.
    payload : {"refuse", "tls", "clear"}
        With `ssl`: what to do if the two processes share no memory, so that UCX would send messages over the network
        unencrypted. ``refuse``: do not connect. ``tls``: send messages over the TLS socket. ``clear``: let UCX send
        them. The stricter choice of the two sides applies.
    settings : mapping of str to str, optional
        UCX settings for this side of the connection, as for :class:`Context`. Connections with the same settings
        share a worker.
    flow : int
        Connections of one flow to a process share a TCP connection where UCX's tcp carries them; other flows have
        their own, for networks that cap each connection, as clouds do. On one host it changes nothing.

    Returns
    -------
    Connecting
        A context manager for ``with`` or ``async with``. It gives a :class:`Peer`, closes it at the end of the block,
        and aborts it after an exception. Or await it, or call its :meth:`~weft.connect.Connecting.open`, for the peer,
        and close the peer yourself.

    Raises
    ------
    UnreachableError
        On entry: nothing listens at that address, or no transport reaches it.
    EncryptionError
        On entry: messages would leave the host unencrypted, and one side's `payload` does not allow it.
    HandshakeError
        On entry: the listener does not speak weft; TlsError if only one side uses TLS, CertificateError if a
        certificate was refused.
    TimedOutError
        On entry: no answer within `timeout`.
    NoMemoryError
        On entry: descriptors or shared memory ran out.
    InvalidParamError
        At once: the address has no port, or an argument is invalid.

    Examples
    --------
    >>> with weft.connect("10.0.0.2:13337") as peer:  # doctest: +SKIP
    ...     peer.send(array).wait()
    ...     reply = peer.recv().wait(timeout=5)
    """
    host, port = split(address)
    if not port:
        raise InvalidParamError(f"connect to {address!r}: a port is needed, as in host:13337")
    info, timeout = checked("connect", info), seconds("connect", timeout)
    if not isinstance(flow, int) or flow < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidParamError(f"connect: flow={flow!r} is not a number from 0 up")
    return Connecting(host, port, timeout, info, named(settings or {}), ssl, policy_of(ssl, payload), flow)


#: A connected path to the listener: the local handshake's socket, or a TCP socket.
_Reached = local.Reached | socket.socket


class Connecting:
    """A connection that :func:`connect` is about to make: enter it or await it to get the peer."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout: float,
        info: dict[str, Any],
        settings: tuple[tuple[str, str], ...],
        ssl: SSLContext | None,
        policy: EncryptionPolicy | None,
        flow: int,
    ) -> None:
        self._host, self._port, self._timeout, self._info = host, port, timeout, info
        self._settings, self._ssl, self._flow = settings, ssl, flow
        self._policy: EncryptionPolicy | None = policy
        self._peer: Peer | None = None

    def _targets(self, name: str) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        try:
            return resolve(self._host, self._port, passive=False)
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE):
                raise out_of_descriptors(f"connect to {name}", e) from None
            if e.errno is not None and not isinstance(e, socket.gaierror):
                raise UnreachableError(f"connect to {name}: the name cannot be looked up: {_why(e)}") from None
            device = " or network device" if "%" in self._host else ""
            raise UnreachableError(f"connect to {name}: no such host{device}: {e.strerror or e}") from None

    def _reach(self, family: socket.AddressFamily, sockaddr: tuple[str, int], name: str) -> local.Reached | None:
        """Try the local handshake with a listener of this host, if it is available to this connection."""
        if self._ssl is not None or not ring.usable(self._settings):
            return None
        try:
            return local.reach(family, sockaddr)
        except OSError as e:
            raise out_of_descriptors(f"connect to {name}", e) from None

    def _steps(self, workers: Workers, to: _Reached, name: str) -> handshake.Steps | local.LocalSteps:
        if isinstance(to, local.Reached):
            return local.client(workers, name, to, self._info)
        route = Route.of(to, self._settings, self._flow)
        steps = handshake.client(workers, route, name, to, self._info, self._policy)
        if self._ssl is None:
            return steps
        return Session(self._ssl, f"connect to {name}", host=self._host).carry(steps)

    def open(self) -> Peer:
        """Connect, blocking, and return the :class:`Peer`; close it yourself. Errors as in :func:`connect`."""
        try:
            return self._open_blocking()
        except TimedOutError as e:
            if running_loop() is None:
                raise
            raise TimedOutError(
                f"{e} This thread's event loop stood still meanwhile: `async with` lets it run"
            ) from None

    def _open_blocking(self) -> Peer:
        name = join(self._host, self._port)
        deadline = time.monotonic() + self._timeout
        workers = workers_of_thread()
        for attempt in (1, 2):  # the two sides may meet at a link that was just lost; then the second makes a new one
            workers.progress()
            to = self._connected_blocking(name, deadline)
            with _socket_of(to) as sock:
                try:
                    steps = self._steps(workers, to, name)
                    what = f"connect to {name}"
                    joined = run_blocking(steps, sock, what, deadline=deadline, timeout=self._timeout)
                    return peer_of(joined, sock)
                except PeerLostError:
                    if attempt == 2:
                        raise
        raise AssertionError

    async def _open(self) -> Peer:
        name = join(self._host, self._port)
        workers = await workers_of_loop()
        deadline = time.monotonic() + self._timeout
        try:
            async with asyncio.timeout(self._timeout):
                for attempt in (1, 2):  # as in `open`
                    to = await self._connected(name, deadline)
                    with _socket_of(to) as sock:
                        try:
                            joined = await run(self._steps(workers, to, name), sock, f"connect to {name}")
                            return peer_of(joined, sock)
                        except PeerLostError:
                            if attempt == 2:
                                raise
        except TimeoutError as e:
            if isinstance(e, TimedOutError):
                raise
            raise _too_late(name, self._timeout) from None
        raise AssertionError

    def _connected_blocking(self, name: str, deadline: float) -> _Reached:
        failure: OSError | None = None
        targets = self._targets(name)
        for i, (family, sockaddr) in enumerate(targets):
            if near := self._reach(family, sockaddr, name):
                return near
            sock = _socket(family, name)
            try:
                sock.settimeout(min(max(_part(deadline - time.monotonic(), targets[i:]), 0.001), LONG_S))
                sock.connect(sockaddr)
                return sock
            except OSError as e:
                sock.close()
                failure = e
            except BaseException:
                sock.close()
                raise
        raise self._not_connected(name, failure)

    async def _connected(self, name: str, deadline: float) -> _Reached:
        loop = asyncio.get_running_loop()
        targets = (
            self._targets(name)
            if self._host.replace(".", "").isdigit() or ":" in self._host
            else await loop.run_in_executor(None, self._targets, name)
        )
        failure: OSError | None = None
        for i, (family, sockaddr) in enumerate(targets):
            if near := self._reach(family, sockaddr, name):
                return near
            sock = _socket(family, name)
            sock.setblocking(False)
            try:
                async with asyncio.timeout(_part(deadline - time.monotonic(), targets[i:])):
                    await loop.sock_connect(sock, sockaddr)
                return sock
            except OSError as e:
                sock.close()
                failure = e
            except BaseException:
                sock.close()
                raise
        raise self._not_connected(name, failure)

    def _not_connected(self, name: str, failure: OSError | None) -> UnreachableError | TimedOutError:
        if isinstance(failure, TimeoutError):
            return _too_late(name, self._timeout)
        if failure is not None and failure.errno == errno.ECONNREFUSED:
            return UnreachableError(
                f"connect to {name}: connection refused: nothing listens there; start the listener first"
            )
        why = _why(failure) if failure is not None else "the name has no address"
        remedy = "check the address and the route to it"
        if failure is not None and failure.errno == errno.EINVAL:
            remedy = "a link-local address needs its network device: fe80::1%DEVICE"
        return UnreachableError(f"connect to {name}: {why}; {remedy}")

    if not TYPE_CHECKING:  # type checkers know that these are a Peer's

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if hasattr(Peer, name):
                text = f"{name}: the connection is not open: enter it with `with` or `async with`, or `await` it"
            elif name == "wait":
                text += "; `with` or `open` connects and blocks, `async with` or `await` suspends"
            raise AttributeError(text, name=name, obj=self)

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


def _socket_of(to: _Reached) -> socket.socket:
    return to.sock if isinstance(to, local.Reached) else to


def _socket(family: socket.AddressFamily, name: str) -> socket.socket:
    try:
        return socket.socket(family, socket.SOCK_STREAM)
    except OSError as e:
        raise out_of_descriptors(f"connect to {name}", e) from None


def _why(error: OSError) -> str:
    """Return the system's text for `error`; asyncio puts one of its own into ``strerror``."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _too_late(name: str, timeout: float) -> TimedOutError:
    return TimedOutError(
        f"connect to {name}: no answer within {timeout} s; is the host up, and the port open in its firewall?"
    )


def _part(seconds: float, targets: Sequence[object]) -> float:
    """Return the next address's part of the time that is left: a silent one must not take that of the others."""
    return seconds / len(targets)
