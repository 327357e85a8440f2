# SPDX-License-Identifier: BSD-3-Clause
"""The two ways to take a handshake's steps over a socket: blocking, and in a loop."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, cast

from weft import _native
from weft._connect import handshake
from weft._connect.address import join
from weft._connect.forks import close_in_child
from weft._connect.links import Wait
from weft._tls.channel import TlsChannel
from weft.errors import Error, HandshakeError, NoMemoryError, TimedOutError
from weft.peer import Peer

#: A host that vanishes (power, cable) is noticed after this many seconds, sending or idle.
VANISHED_AFTER_S = 60


def peer_of(joined: handshake.Joined, sock: socket.socket) -> Peer:
    channel = joined.channel
    if channel is None:
        channel = _over_tls(joined, sock)
    elif not joined.same_host:
        keep_alive(sock)
    return Peer(
        channel,
        local_address=join(*sock.getsockname()[:2]),
        remote_address=join(*sock.getpeername()[:2]),
        same_host=joined.same_host,
        remote=joined.remote,
        config=None if joined.link is None else joined.link.worker.context.config,
    )


def _over_tls(joined: handshake.Joined, sock: socket.socket) -> _native.Channel:
    keep_alive(sock)
    own = sock.dup()  # the handshake's is closed by who opened it
    close_in_child(own)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = TlsChannel(joined.session, own, join(*sock.getpeername()[:2]))
    joined.local.adopt(channel)
    return cast(_native.Channel, channel)  # what a Peer uses of one, it has


def keep_alive(sock: socket.socket) -> None:
    # A duplicate of this descriptor is the link's liveness: the options are the socket's, so they reach it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_AFTER_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(VANISHED_AFTER_S // 10, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_S * 1000)


async def drive(steps: handshake.Steps, sock: socket.socket, what: str) -> handshake.Joined:
    loop = asyncio.get_running_loop()
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.throw(failure) if failure is not None else steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except OSError as e:
            raise e if isinstance(e, Error) else out_of_descriptors(what, e) from None
        answer = failure = None
        try:
            if isinstance(step, bytes):
                await loop.sock_sendall(sock, step)
            elif isinstance(step, Wait):
                await step.future()
            elif isinstance(step, handshake.UpTo):
                answer = await loop.sock_recv(sock, step.nbytes)
            else:
                answer = bytearray()
                while len(answer) < step:
                    data = await loop.sock_recv(sock, step - len(answer))
                    _append(answer, data, what)
        except asyncio.CancelledError as e:
            failure = e
        except OSError as e:
            failure = e if isinstance(e, Error) else _cut(what, e)


def drive_blocking(
    steps: handshake.Steps, sock: socket.socket, deadline: float, what: str, timeout: float
) -> handshake.Joined:
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.throw(failure) if failure is not None else steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except OSError as e:
            raise e if isinstance(e, Error) else out_of_descriptors(what, e) from None
        answer = failure = None
        try:
            if isinstance(step, bytes):
                _set_timeout(sock, deadline)
                sock.sendall(step)
            elif isinstance(step, Wait):
                raise HandshakeError(f"{what}: another handshake with the same process is under way in this thread")
            elif isinstance(step, handshake.UpTo):
                _set_timeout(sock, deadline)
                answer = sock.recv(step.nbytes)
            else:
                answer = bytearray()
                while len(answer) < step:
                    _set_timeout(sock, deadline)  # at each byte: who drips them must not outlast the deadline
                    _append(answer, sock.recv(step - len(answer)), what)
        except TimeoutError:
            failure = TimedOutError(f"{what}: no answer within {timeout} s; is it a weft listener, and does it accept?")
        except OSError as e:
            failure = e if isinstance(e, Error) else _cut(what, e)
        except KeyboardInterrupt as e:
            failure = e


def _set_timeout(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def out_of_descriptors(what: str, error: OSError) -> NoMemoryError:
    """Make the error for a descriptor that the kernel did not give."""
    return NoMemoryError(f"{what}: {error.strerror or error}; is the limit of open files (ulimit -n) reached?")


def _append(answer: bytearray, data: bytes, what: str) -> None:
    if not data:
        raise HandshakeError(
            f"{what}: the other side closed the socket in the middle of the handshake; is it a weft listener?"
        )
    answer += data


def _cut(what: str, error: OSError) -> HandshakeError:
    return HandshakeError(f"{what}: the socket failed in the middle of the handshake: {error.strerror or error}")
