# SPDX-License-Identifier: BSD-3-Clause
"""Textual addresses, and the device of this host that has an address."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from weft.errors import InvalidParamError

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address


def split(address: str) -> tuple[str, int]:
    """Split ``host:port``, ``[v6]:port``, ``host``, ``:port`` or ``""`` into host and port (0: any port)."""
    if not isinstance(address, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidParamError(f"address {address!r} is not a string")
    if "://" in address:
        raise InvalidParamError(f"address {address!r}: write HOST:PORT, without {address.partition('://')[0]}://")
    host, port = address, ""
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidParamError(f"address {address!r}: write IPv6 as [::1]:port")
        port = rest[1:]
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    if port and not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise InvalidParamError(f"address {address!r}: {port!r} is not a port between 0 and 65535")
    return host, int(port or 0)


def join(host: str, port: int) -> str:
    """Write host and port as one string that :func:`split` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def of_socket(sockaddr: tuple[Any, ...]) -> tuple[str, int]:
    """Return host and port of a ``getsockname`` result; a link-local address needs its device."""
    host, port, *rest = sockaddr
    return (f"{host}%{socket.if_indextoname(rest[1])}" if rest and rest[1] else host), port


def resolve(host: str, port: int, *, passive: bool) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """Look up `host`; ``""`` means every address of this host if `passive`, otherwise the loopback."""
    flags = socket.AI_PASSIVE if passive else 0
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as e:  # a label of the name is empty or longer than 63 characters
        raise OSError(f"{host!r} is not a valid host name: {e}") from None
    # IPv4 first for a wildcard: most hosts can use the address that is then advertised.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET if not host else False)
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]  # type: ignore[misc]


def unbound_remedy(error: OSError) -> str:
    """Return what to do where a socket cannot listen, for the end of a message; empty if that is not known."""
    if error.errno == errno.EADDRINUSE:
        return "; choose another port, or 0 for any"
    if error.errno == errno.EACCES:
        return "; choose a port from 1024 up, or 0 for any"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "; write an address of this host, or 0.0.0.0 for all IPv4 addresses"
    return ""


def is_wildcard(host: str) -> bool:
    """Tell whether a bound address means every address of this host."""
    return _ip(host).is_unspecified


def is_loopback(host: str) -> bool:
    """Tell whether `host`, an IP address, stays within this host."""
    return _unmapped(host).is_loopback


def is_ipv6(host: str) -> bool:
    """Tell whether `host`, an IP address, is one of IPv6 that does not stand for one of IPv4."""
    return _unmapped(host).version == 6


def _ip(host: str) -> IPv4Address | IPv6Address:
    import ipaddress  # lazy: it would slow down weft's import

    return ipaddress.ip_address(host.partition("%")[0])


def _unmapped(host: str) -> IPv4Address | IPv6Address:
    address = _ip(host)
    return getattr(address, "ipv4_mapped", None) or address


def outward(family: socket.AddressFamily) -> str:
    """Return this host's address on the default route, else that of a device that is up, else the loopback."""
    target, loopback = (
        ("2001:db8::1", "::1") if family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    )  # documentation networks: routed like any other, never answered; connecting a UDP socket sends nothing
    with socket.socket(family, socket.SOCK_DGRAM) as s, contextlib.suppress(OSError):
        s.connect((target, 9))
        return str(s.getsockname()[0])
    import psutil  # lazy: a third of weft's own import time, and not needed within one host

    up = {device for device, state in psutil.net_if_stats().items() if state.isup}
    for device, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if device not in up or entry.family != family or is_loopback(entry.address):
                continue
            if not _ip(entry.address).is_link_local:
                return str(entry.address)
    return loopback


def source_towards(host: str) -> str | None:
    """Return this host's source address for traffic to `host`, a name or an address; None if there is no route."""
    try:
        family, _, _, _, sockaddr = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.connect(sockaddr)  # sends nothing
            return str(s.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def device_of(host: str) -> str | None:
    """Return the network device that has the address `host`; None if there is none.

    If several have it, the loopback is the last choice: IPVS puts a service's address there, too.
    """
    known = _devices.get(host)
    if known and _first_address(known) == host:
        return known
    device = _find_device(host)
    if device and device != "lo":
        _devices[host] = device
    return device


#: Devices found by address: a look at all takes 0.1 ms, and each connection between hosts needs it.
_devices: dict[str, str] = {}


def _first_address(device: str) -> str | None:
    """Return a device's first address of IPv4; None if it has none."""
    import fcntl  # lazy, as psutil

    SIOCGIFADDR = 0x8915  # noqa: N806  (the kernel's name)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return socket.inet_ntoa(fcntl.ioctl(s, SIOCGIFADDR, struct.pack("16s24x", device.encode()))[20:24])
    return None


def _find_device(host: str) -> str | None:
    import psutil

    wanted = _unmapped(host)
    found = [
        device.partition(":")[0]  # a label such as eth0:1 belongs to the address
        for device, addresses in psutil.net_if_addrs().items()
        for entry in addresses
        if entry.family in (socket.AF_INET, socket.AF_INET6) and _ip(entry.address) == wanted
    ]
    # All of 127.0.0.0/8 belongs to the loopback.
    return min(found, key=lambda device: device == "lo", default="lo" if wanted.is_loopback else None)


def is_end(device: str) -> bool:
    """Tell whether a network device has no neighbours of its own: the loopback, or one without ARP.

    A dummy leads to nobody, a tunnel to whom the routes say.
    """
    import fcntl  # lazy, as psutil

    SIOCGIFFLAGS, IFF_LOOPBACK, IFF_NOARP = 0x8913, 0x8, 0x80  # noqa: N806  (the kernel's names)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        answer = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16s24x", device.encode()))
        return bool(struct.unpack_from("16xH", answer)[0] & (IFF_LOOPBACK | IFF_NOARP))
    return False


def device_towards(host: str) -> str | None:
    """Return the network device of this host's route to `host`, an IP address; None if the kernel names none.

    Source: rtnetlink(7), RTM_GETROUTE.
    """
    RTM_NEWROUTE, RTM_GETROUTE, NLM_F_REQUEST, RTA_DST, RTA_OIF = 24, 26, 1, 1, 4  # noqa: N806  (the kernel's names)
    to = _unmapped(host)
    family, packed = socket.AF_INET if to.version == 4 else socket.AF_INET6, to.packed
    route = struct.pack("=BB10xHH", family, 8 * len(packed), 4 + len(packed), RTA_DST) + packed
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as s:
        s.send(struct.pack("=IHH8x", 16 + len(route), RTM_GETROUTE, NLM_F_REQUEST) + route)
        reply, at = s.recv(4096, socket.MSG_DONTWAIT), 28  # the kernel has answered by now
        while struct.unpack_from("=4xH", reply) == (RTM_NEWROUTE,) and at < len(reply):
            nbytes, attribute, value = struct.unpack_from("=HHI", reply, at)
            if attribute == RTA_OIF:
                return socket.if_indextoname(value)
            at += (nbytes + 3) & ~3
    return None


def infiniband_ports() -> list[str]:
    """List the ports of RDMA devices by their UCX names, ``mlx5_0:1``."""
    root = "/sys/class/infiniband"
    devices = os.listdir(root) if os.path.isdir(root) else []
    return sorted(f"{device}:{port}" for device in devices for port in os.listdir(f"{root}/{device}/ports"))
