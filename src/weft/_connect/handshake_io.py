# SPDX-License-Identifier: BSD-3-Clause
"""Runs a handshake's steps over a socket: one stepper, with an adapter for blocking sockets and one for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Protocol

from weft._connect.handshake import Attend, Joined, Steps, UpTo
from weft._connect.links import OtherHandshake
from weft._connect.local import LocalSteps, Packet, Receive
from weft.errors import Error, HandshakeError, NoMemoryError, TimedOutError, UnsupportedError

if TYPE_CHECKING:
    from weft._native import Worker

_AT_ONCE = 4096
#: Seconds that a caller waits for UCX to reach the listener; where it cannot, the listener reaches it.
_REACH_S = 1.0
_PACKET_NBYTES = (1 << 16) + 64  # larger than any message
#: Turns without work, after which only the socket wakes a blocking handshake at once: UCX's descriptor is ready, with
#: nothing to do, while a connection of its tcp waits for the other process.
_MOST_VAIN = 16


class _Socket(Protocol):
    """The stepper's interface to a socket. Each method raises weft's errors, or an OSError of the socket."""

    async def send(self, data: bytes) -> None: ...
    async def receive(self, nbytes: int) -> bytes: ...
    async def wait_for(self, other: OtherHandshake) -> None: ...
    async def attend(self, step: Attend) -> None: ...
    async def send_packet(self, packet: Packet) -> None: ...
    async def receive_packet(self) -> tuple[bytes, int]: ...


class _InLoop:
    """A socket in the running loop. The caller limits the time."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def receive(self, nbytes: int) -> bytes:
        return await self._loop.sock_recv(self._sock, nbytes)

    async def wait_for(self, other: OtherHandshake) -> None:
        await other.ended()

    async def attend(self, step: Attend) -> None:
        if step.request is not None:  # the loop progresses the worker
            ended = self._loop.create_future()
            step.request.add_done_callback(lambda _: _set(ended))
            await asyncio.wait({ended}, timeout=_REACH_S)

    async def send_packet(self, packet: Packet) -> None:
        _send_packet(self._sock, packet)  # its buffer has room for every packet of a handshake

    async def receive_packet(self) -> tuple[bytes, int]:
        while True:
            try:
                return _receive_packet(self._sock)
            except BlockingIOError:
                await self._readable()

    async def _readable(self) -> None:
        readable = self._loop.create_future()
        fd = self._sock.fileno()  # not the socket: a new one would make the loop format its two addresses
        self._loop.add_reader(fd, _set, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(fd)


#: Of one system call, which does not take every number of seconds; what waits longer calls again, or never notices.
LONG_S = 1e6


class _Blocking:
    """A socket that blocks until `deadline`, so its coroutines never suspend."""

    def __init__(self, sock: socket.socket, what: str, deadline: float, timeout: float) -> None:
        self._sock, self._what, self._deadline = sock, what, deadline
        self._timeout = timeout
        self._worker: Worker | None = None

    async def send(self, data: bytes) -> None:
        try:
            self._set_timeout()
            self._sock.sendall(data)
        except TimeoutError:
            raise self._too_late() from None

    async def receive(self, nbytes: int) -> bytes:
        try:
            self._progress()
            self._set_timeout()  # for each piece: a peer that sends single bytes must not outlast the deadline
            return self._sock.recv(nbytes)
        except TimeoutError:
            raise self._too_late() from None

    async def wait_for(self, other: OtherHandshake) -> None:
        raise HandshakeError(f"{self._what}: another handshake with the same process is in progress in this thread")

    async def attend(self, step: Attend) -> None:
        self._worker = step.worker
        if step.request is not None:
            with contextlib.suppress(Error):  # what follows tells
                step.request.wait(min(_REACH_S, max(self._deadline - time.monotonic(), 0.0)))

    def _progress(self) -> None:
        """Progress the worker, if there is one, until the socket can be read."""
        if self._worker is None:
            return
        both, alone = select.poll(), select.poll()
        for poll in (both, alone):
            poll.register(self._sock, select.POLLIN)
        both.register(self._worker.fileno(), select.POLLIN)
        vain = 0
        while True:
            vain = 0 if self._worker.progress() else vain + 1
            left = self._deadline - time.monotonic() if self._worker.arm() else 0.0
            found = both.poll(min(max(left, 0.0), LONG_S) * 1e3) if vain < _MOST_VAIN else alone.poll(1)
            if any(fd == self._sock.fileno() for fd, _ in found) or time.monotonic() >= self._deadline:
                return

    async def send_packet(self, packet: Packet) -> None:
        try:
            self._set_timeout()
            _send_packet(self._sock, packet)
        except TimeoutError:
            raise self._too_late() from None

    async def receive_packet(self) -> tuple[bytes, int]:
        try:
            self._set_timeout()
            return _receive_packet(self._sock)
        except TimeoutError:
            raise self._too_late() from None

    def _set_timeout(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(min(left, LONG_S))

    def _too_late(self) -> TimedOutError:
        if self._what.startswith("accept"):
            return no_handshake(self._what, self._timeout)
        return TimedOutError(
            f"{self._what}: no answer within {self._timeout} s; is it a weft listener, and does it accept?"
        )


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _send_packet(sock: socket.socket, packet: Packet) -> None:
    if packet.descriptor < 0:
        sock.send(packet.data)
    else:
        socket.send_fds(sock, [packet.data], [packet.descriptor])


def _receive_packet(sock: socket.socket) -> tuple[bytes, int]:
    data, descriptors, flags, _ = socket.recv_fds(sock, _PACKET_NBYTES, 1, socket.MSG_CMSG_CLOEXEC)
    for surplus in descriptors[1:]:  # the padding of the control buffer has room for a second one
        os.close(surplus)
    if not descriptors and flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, descriptors[0] if descriptors else -1


async def run(steps: Steps | LocalSteps, sock: socket.socket, what: str) -> Joined:
    """Run a handshake in the running loop; `sock` is non-blocking. `what` is the prefix of error messages."""
    return await _run(steps, _InLoop(sock), what)


def run_blocking(
    steps: Steps | LocalSteps, sock: socket.socket, what: str, *, deadline: float, timeout: float
) -> Joined:
    """Run a handshake until `deadline`, of ``time.monotonic``. `timeout` is the same in seconds, for the error."""
    try:
        _run(steps, _Blocking(sock, what, deadline, timeout), what).send(None)
    except StopIteration as stop:
        joined: Joined = stop.value
        return joined
    raise AssertionError("a blocking socket's coroutine was suspended")


async def _run(steps: Steps | LocalSteps, sock: _Socket, what: str) -> Joined:
    answer: Any = None
    failure: BaseException | None = None
    ahead = bytearray()  # read ahead: a message's body arrives with its head
    while True:
        try:
            step = steps.throw(failure) if failure is not None else steps.send(answer)
        except StopIteration as stop:
            joined: Joined = stop.value
            return joined
        except OSError as e:
            raise e if isinstance(e, Error) else out_of_descriptors(what, e) from None
        answer = failure = None
        try:
            if isinstance(step, bytes):
                await sock.send(step)
            elif isinstance(step, OtherHandshake):
                await sock.wait_for(step)
            elif isinstance(step, Packet):
                await sock.send_packet(step)
            elif isinstance(step, Receive):
                answer = await sock.receive_packet()
                if not answer[0]:
                    if answer[1] >= 0:
                        os.close(answer[1])
                    raise _closed(what)
            elif isinstance(step, Attend):
                await sock.attend(step)
            elif isinstance(step, UpTo):
                answer = _taken(ahead, step.nbytes) if ahead else await sock.receive(step.nbytes)
            else:
                while len(ahead) < step:
                    ahead += await _receive_some(sock, step - len(ahead), what)
                answer = _taken(ahead, step)
        except OSError as e:
            failure = e if isinstance(e, Error) else _of_socket(what, e)
        except BaseException as e:  # noqa: BLE001 - cancelled or interrupted: the steps clean up, and raise it again
            failure = e


async def _receive_some(sock: _Socket, nbytes: int, what: str) -> bytes:
    data = await sock.receive(max(nbytes, _AT_ONCE))
    if not data:
        raise _closed(what)
    return data


def _taken(ahead: bytearray, nbytes: int) -> bytearray:
    taken = ahead[:nbytes]
    del ahead[:nbytes]
    return taken


def out_of_descriptors(what: str, error: OSError) -> Error:
    """Return the error for a failure to get a descriptor from the kernel."""
    if error.errno in (errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES):
        ask = "does a filter refuse one of them (seccomp, systemd's RestrictAddressFamilies)?"
        return UnsupportedError(
            f"{what}: {error.strerror or error}; weft needs sockets of AF_UNIX and of AF_INET or AF_INET6; {ask}"
        )
    limited = error.errno in (errno.EMFILE, errno.ENFILE)
    hint = "; is the limit of open files (ulimit -n) reached?" if limited else ""
    return NoMemoryError(f"{what}: {error.strerror or error}{hint}")


def no_handshake(what: str, timeout: float) -> TimedOutError:
    """Return the error for a caller that did not complete its handshake within `timeout` seconds."""
    return TimedOutError(f"{what}: no handshake within {timeout} s; the caller is no weft process, or it is stopped")


def _closed(what: str) -> HandshakeError:
    ask = "" if what.startswith("accept") else "; is it a weft listener?"
    error = HandshakeError(f"{what}: the other side closed the socket in the middle of the handshake{ask}")
    error.ended = True
    return error


def _of_socket(what: str, error: OSError) -> Error:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return out_of_descriptors(what, error)
    failure = HandshakeError(f"{what}: the socket failed in the middle of the handshake: {error.strerror or error}")
    failure.ended = isinstance(error, BrokenPipeError | ConnectionResetError)
    return failure
