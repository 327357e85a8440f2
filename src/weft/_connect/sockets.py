# SPDX-License-Identifier: BSD-3-Clause
"""weft's sockets: one that is dropped closes, a forked child closes its copies, and a vanished host is detected."""

from __future__ import annotations

import os
import socket
import struct
import weakref

#: A host that vanishes (power, cable) is detected after this many seconds, busy or idle.
VANISHED_AFTER_S = 60

#: Another object in each forked child.
process = object()

# Python's own socket objects, so that the child's copies are marked as closed.
_close_in_child: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class OwnedSocket(socket.socket):
    """A socket that closes when it is dropped, without Python's warning: it belongs to an object that would close it.

    In a reference cycle the garbage collector may take the socket before its owner's ``__del__`` closes it.
    """

    __slots__ = ()

    def __del__(self) -> None:
        self.close()

    @classmethod
    def duplicate(cls, sock: socket.socket) -> OwnedSocket:
        """Duplicate `sock`; a forked child closes its copy."""
        own = cls(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
        close_in_child(own)
        return own


def close_in_child(sock: socket.socket) -> None:
    """Let a forked child close its copy of `sock` at once: the copy would keep the port, or the connection, open."""
    _close_in_child.add(sock)


def _after_fork_in_child() -> None:
    global process
    process = object()
    for sock in list(_close_in_child):
        sock.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel probe the other host. The options belong to the socket, so duplicates share them."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_AFTER_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(VANISHED_AFTER_S // 10, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_S * 1000)


#: ``tcpi_min_rtt`` of ``struct tcp_info`` (linux/tcp.h), in microseconds.
_MIN_RTT = struct.Struct("=148xI")
_NOT_KNOWN = 0xFFFFFFFF


def round_trip_of(sock: socket.socket) -> float:
    """Return the shortest round trip, in seconds, that the kernel measured on a TCP socket; 0.0 if unknown."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
    except OSError:  # not a TCP socket
        return 0.0
    if len(told) < _MIN_RTT.size:  # a kernel before 4.6
        return 0.0
    microseconds = int(_MIN_RTT.unpack(told)[0])
    return 0.0 if microseconds == _NOT_KNOWN else microseconds * 1e-6
