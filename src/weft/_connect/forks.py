# SPDX-License-Identifier: BSD-3-Clause
"""What a forked child does with the sockets that it got from its parent."""

from __future__ import annotations

import os
import socket
import weakref

# Python's own socket objects, so that the child's copies know that they are closed.
_close_in_child: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_child(sock: socket.socket) -> None:
    """Have a forked child close its copy of `sock` at once: a child's copy keeps a port, or a peer's hope, alive."""
    _close_in_child.add(sock)


def _after_fork_in_child() -> None:
    for sock in list(_close_in_child):
        sock.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
