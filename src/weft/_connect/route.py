# SPDX-License-Identifier: BSD-3-Clause
"""The route to a peer: the local address of a connection, and its UCX settings."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import NamedTuple

from weft._connect.address import device_of, device_towards, infiniband_ports, is_end, is_ipv6, is_loopback
from weft._connect.encryption import memory_only
from weft.config import link_queue, link_settings, tcp_segments, uses_shm, uses_tcp
from weft.errors import UnreachableError

#: weft's default for UCX_TLS: within a host, and across the network.
TLS_WITHIN_HOST, TLS_ACROSS_NETWORK = "^tcp,sysv,cma,ib", "^posix,sysv,cma"


class NoRouteError(UnreachableError):
    """The addresses, namespaces or settings of the two sides exclude every transport; a retry cannot help."""


class Route(NamedTuple):
    """The local address of a connection; UCX's network transports are restricted to its device.

    `ucx` holds the UCX settings that the user passed for the connection, sorted by name, without ``UCX_``. Each `flow`
    has its own worker, and so its own link: UCX's tcp has one TCP connection for each. `peer` is the address of the
    other end: where the loopback or a device without ARP has `host`, as for a service's address, the route to the
    peer names the device.
    """

    host: str
    ucx: tuple[tuple[str, str], ...] = ()
    flow: int = 0
    peer: str = ""

    @classmethod
    def of(cls, sock: socket.socket, ucx: tuple[tuple[str, str], ...], flow: int = 0) -> Route:
        """Return the route of a connected TCP socket."""
        peer = ""
        with contextlib.suppress(OSError):  # the other side has reset it
            peer = sock.getpeername()[0]
        return cls(sock.getsockname()[0], ucx, flow, peer)

    @property
    def memory_only(self) -> bool:
        """Whether links to processes on this host have no network transport; only the user can add one."""
        return memory_only(dict(self.ucx).get("TLS") or os.environ.get("UCX_TLS"))

    @property
    def queue(self) -> dict[str, str]:
        """The queue settings of links on this host, which must be the same on both sides."""
        return link_queue(dict(self.ucx))

    def segments(self, *, same_host: bool) -> dict[str, str]:
        """Return the sizes of tcp's segments, which must be the same on both sides; empty if UCX does not use tcp."""
        tls = dict(self.ucx).get("TLS") or os.environ.get("UCX_TLS") or (TLS_WITHIN_HOST if same_host else "all")
        return tcp_segments(dict(self.ucx)) if uses_tcp(tls) else {}

    def settings(self, *, same_host: bool) -> dict[str, str]:
        """Return the UCX settings for a peer on this host, or across the network.

        Raises
        ------
        NoRouteError
            Only the loopback reaches the peer, and weft does not open UCX's unauthenticated tcp on it by default.
        """
        given = dict(self.ucx)
        asked = given.get("TLS") or os.environ.get("UCX_TLS")
        if same_host:
            queue = link_settings(given) if uses_shm(asked or "all") else {}
            return queue | ({} if asked else {"TLS": TLS_WITHIN_HOST}) | given
        if not asked and is_loopback(self.host):
            raise NoRouteError(
                f"{self.host}: the peer shares this loopback, but not this user, its capabilities, or the IPC, PID or"
                " user namespace, so there is no shared memory; set UCX_TLS=tcp,self,posix on both sides to let UCX"
                " listen on the loopback"
            )
        # Containers may share /dev/shm and still be two hosts: UCX would choose posix, whose wake-ups use abstract Unix
        # sockets and would not arrive.
        settings = {} if asked else {"TLS": TLS_ACROSS_NETWORK}
        if "NET_DEVICES" not in given and "UCX_NET_DEVICES" not in os.environ:
            device = device_of(self.host)
            if device is None:
                raise UnreachableError(f"{self.host}: no network device of this host has this address")
            if self.peer and not is_loopback(self.host) and is_end(device):
                device = device_towards(self.peer) or device
            settings["NET_DEVICES"] = ",".join([device, *infiniband_ports()])
        if is_ipv6(self.host) and uses_tcp(asked or "all") and "UCX_TCP_AF_PRIO" not in os.environ:
            settings["TCP_AF_PRIO"] = "inet6,inet"
        return settings | given
