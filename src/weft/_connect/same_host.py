# SPDX-License-Identifier: BSD-3-Clause
"""Proof that two processes are on the same host: a Unix socket beside a listener's TCP socket, and a nonce."""

from __future__ import annotations

import os
import socket

from weft._connect.namespaces import same_user
from weft._connect.sockets import close_in_child

NONCE_NBYTES = 16
PREFIX = "weft-"  #: how the name of a listener's Unix socket begins


class SameHostListener:
    """The abstract Unix socket of a listener. A caller that reaches it is on this host; the kernel names its user."""

    _backlog = 256  # callers that no handshake has claimed yet; before more of them, the oldest is closed

    def __init__(self) -> None:
        self.name = PREFIX + os.urandom(16).hex()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(b"\0" + self.name.encode())
        self._socket.listen(1024)
        close_in_child(self._socket)
        self._callers: dict[socket.socket, bytes] = {}  # oldest first, with the bytes that each has sent so far

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def accept(self, nonce: bytes) -> socket.socket | None:
        """Return the caller that sent this nonce, None if there is none. Others may still be about to send theirs."""
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
        """Read what a caller sends; False if that is too much, or the caller has hung up."""
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

    def _reject(self, caller: socket.socket) -> None:
        del self._callers[caller]
        caller.close()

    def close(self) -> None:
        """Close the socket, and every caller that no handshake has claimed."""
        self._socket.close()
        for caller in list(self._callers):
            self._reject(caller)
