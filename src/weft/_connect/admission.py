# SPDX-License-Identifier: BSD-3-Clause
"""Who may share memory with this process: proof of the same host and user, and of namespaces that permit it.

A listener has a Unix socket in addition to its TCP socket, and sends its name and a nonce in the handshake. A caller
that presents the nonce there is on this host, and the kernel reports its user. With UCX's posix, each process opens
the other's files in /proc. That takes the same IPC, PID and user namespaces (containers of one pod only share the
network), and no capability that the other lacks. Different ``/dev/shm`` mounts do not matter. `weft._tls.session`
decides who may connect over TLS; the handshake checks all of these in turn.

Source: UCX, uct_posix_iface_is_reachable; ptrace(2), "Ptrace access mode checking".
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading

from weft._connect.sockets import close_in_child
from weft.errors import UnsupportedError

NONCE_NBYTES = 16
PREFIX = "weft-"  #: prefix of a listener's Unix socket name
_CAP_SYS_PTRACE = 19


class SameHostListener:
    """The abstract Unix socket of a listener. A caller that reaches it is on this host; the kernel reports its user."""

    _backlog = 256  # callers not yet claimed by a handshake; beyond this, the oldest are closed

    def __init__(self) -> None:
        self.name = PREFIX + os.urandom(16).hex()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(b"\0" + self.name.encode())
        self._socket.listen(1024)
        close_in_child(self._socket)
        self._callers: dict[socket.socket, bytes] = {}  # oldest first, with the bytes received from each
        self._lock = threading.RLock()  # threads may accept side by side; a signal handler may close in the middle

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def accept(self, nonce: bytes) -> socket.socket | None:
        """Return the caller that sent this nonce, or None. Other callers may not have sent theirs yet."""
        with self._lock:
            self._accept_callers()
            for caller in list(self._callers):
                if not self._receive(caller):
                    self._reject(caller)
            for caller in list(self._callers)[: -self._backlog]:
                self._reject(caller)
            for caller, received in self._callers.items():
                if received == nonce:
                    del self._callers[caller]
                    return caller
            return None

    def _accept_callers(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except BlockingIOError:
                return
            caller.setblocking(False)
            if same_user(caller):
                self._callers[caller] = b""
            else:
                caller.close()

    def _receive(self, caller: socket.socket) -> bool:
        """Read a caller's nonce; False if it has hung up, or sent more than the ring offer that may follow it."""
        try:
            while wanted := NONCE_NBYTES - len(self._callers[caller]):
                more = caller.recv(wanted)
                if not more:
                    return False
                self._callers[caller] += more
            return len(caller.recv(2, socket.MSG_PEEK)) == 1 and not _hung_up(caller)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _reject(self, caller: socket.socket) -> None:
        self._callers.pop(caller, None)
        caller.close()

    def close(self) -> None:
        """Close the socket, and every caller that no handshake has claimed."""
        self._socket.close()
        with self._lock:
            for caller in list(self._callers):
                self._reject(caller)


def _hung_up(caller: socket.socket) -> bool:
    poll = select.poll()
    poll.register(caller, select.POLLRDHUP)
    return bool(poll.poll(0))


def own_namespaces() -> list[str | int]:
    """Return what a peer needs to know about this process: its namespaces and its permitted capabilities.

    Raises
    ------
    UnsupportedError
        ``/proc`` is not mounted, or the kernel has no namespaces.
    """
    try:
        names = " ".join(os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "pid", "user"))
        with open("/proc/self/status", "rb") as status:
            return [names, next((int(line.split()[1], 16) for line in status if line.startswith(b"CapPrm")), 0)]
    except FileNotFoundError as e:
        why = "/proc is not mounted (mount -t proc proc /proc), or the kernel has no namespaces"
        raise UnsupportedError(f"cannot read {e.filename}: {why}") from None


def shares_memory(peers: object) -> bool:
    """Tell whether this process and the one that sent `peers` may open each other's files."""
    names, capabilities = own_namespaces()
    match peers:
        case [str(their_names), int(theirs)]:
            return names == their_names and _sees(int(capabilities), theirs) and _sees(theirs, int(capabilities))
        case _:
            return False


def _sees(one: int, other: int) -> bool:
    return bool(one >> _CAP_SYS_PTRACE & 1) or not other & ~one


def same_user(unix: socket.socket) -> bool:
    """Ask the kernel whether the process at the other end runs as this user."""
    return _credentials(unix)[1] == os.geteuid()


def process_of(unix: socket.socket) -> int:
    """Ask the kernel for the pid of the process at the other end; 0 if it has none in this PID namespace."""
    return _credentials(unix)[0]


def _credentials(unix: socket.socket) -> tuple[int, int, int]:
    credentials = unix.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    return pid, uid, gid
