# SPDX-License-Identifier: BSD-3-Clause
"""``get_address``: an address of this host."""

from __future__ import annotations

import os
import socket

import psutil

_PREFERRED = ("ib", "eth", "en", "docker")


def get_address(ifname: str | None = None, use_ipv6: bool = False) -> str:
    """Return the address of a network device.

    Parameters
    ----------
    ifname : str, optional
        The device; by default what ``UCXPY_IFNAME`` says, else the first with an address whose name starts with
        ``ib``, ``eth``, ``en`` or ``docker``, in this order.
    use_ipv6 : bool
        Return an IPv6 address instead of IPv4.

    Raises
    ------
    OSError
        There is no such device, or it has no such address.
    RuntimeError
        No device was named, and none with such a name has an address.
    """
    ifname = ifname or os.environ.get("UCXPY_IFNAME")
    family = socket.AF_INET6 if use_ipv6 else socket.AF_INET
    found = {
        device: entry.address.partition("%")[0]
        for device, entries in psutil.net_if_addrs().items()
        for entry in reversed(entries)
        if entry.family == family
    }
    if ifname is not None:
        if ifname not in found:
            raise OSError(
                f"get_address: no device {ifname} with an {family.name} address on this host; devices: {found}"
            )
        return found[ifname]
    for prefix in _PREFERRED:
        for device in sorted(found):
            if device.startswith(prefix):
                return found[device]
    raise RuntimeError(
        f"get_address: no device called {', '.join(_PREFERRED)}* has an {family.name} address; "
        "name one with UCXPY_IFNAME"
    )
