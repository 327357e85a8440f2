# SPDX-License-Identifier: BSD-3-Clause
"""Which processes of a host UCX's posix lets share memory: it opens the peer's files in /proc, both ways.

That takes the same IPC, PID and user namespace (containers of one pod share the network alone), and no capability
that the other has not. Another ``/dev/shm`` is no hindrance.

Source: UCX, uct_posix_iface_is_reachable; ptrace(2), "Ptrace access mode checking".
"""

from __future__ import annotations

import os
import socket
import struct

_CAP_SYS_PTRACE = 19


def own() -> list[str | int]:
    """Return what a peer needs to know of this process: its namespaces, and the capabilities that it may have."""
    names = " ".join(os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "pid", "user"))
    with open("/proc/self/status", "rb") as status:
        return [names, next((int(line.split()[1], 16) for line in status if line.startswith(b"CapPrm")), 0)]


def shared(peers: object) -> bool:
    """Tell whether this process, and the one that sent `peers`, may open each other's files."""
    names, capabilities = own()
    match peers:
        case [str(their_names), int(theirs)]:
            return names == their_names and _sees(int(capabilities), theirs) and _sees(theirs, int(capabilities))
        case _:
            return False


def _sees(one: int, other: int) -> bool:
    return bool(one >> _CAP_SYS_PTRACE & 1) or not other & ~one


def same_user(unix: socket.socket) -> bool:
    """Ask the kernel whether the process at the other end runs as this user."""
    credentials = unix.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.geteuid())
