# SPDX-License-Identifier: BSD-3-Clause
"""A listener's Unix socket, beside the TCP socket that its callers come by."""

from __future__ import annotations

import os
import socket

from weft._connect.forks import close_in_child
from weft._connect.namespaces import same_user

NONCE_NBYTES = 16
PREFIX = "weft-"  #: how the name of a listener's Unix socket begins


class SideDoor:
    """The abstract Unix socket of a listener: who shows up there is on this host, and this user."""

    _most = 256  # callers that have not been taken yet; before more of them, the oldest goes

    def __init__(self) -> None:
        self.name = PREFIX + os.urandom(16).hex()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(b"\0" + self.name.encode())
        self._socket.listen(1024)
        close_in_child(self._socket)
        self._callers: dict[socket.socket, bytes] = {}  # and what each has shown so far, oldest first

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def take(self, nonce: bytes) -> socket.socket | None:
        """Return the caller that showed this nonce. Others may still be about to show theirs."""
        self._admit()
        for caller in list(self._callers):
            if not self._hear(caller):
                self._turn_away(caller)
        for caller in list(self._callers)[: -self._most]:
            self._turn_away(caller)
        for caller, shown in self._callers.items():
            if shown == nonce:
                del self._callers[caller]
                return caller
        return None

    def _admit(self) -> None:
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

    def _hear(self, caller: socket.socket) -> bool:
        """Read what a caller shows; False if it shows too much, or has hung up: it died, or gave up its handshake."""
        try:
            while more := caller.recv(NONCE_NBYTES):
                self._callers[caller] += more
                if len(self._callers[caller]) > NONCE_NBYTES:
                    return False
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _turn_away(self, caller: socket.socket) -> None:
        del self._callers[caller]
        caller.close()

    def close(self) -> None:
        """Close the socket and turn away who has not been taken."""
        self._socket.close()
        for caller in list(self._callers):
            self._turn_away(caller)
