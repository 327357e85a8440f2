# SPDX-License-Identifier: BSD-3-Clause
"""Which address this host has, and how ucx-py's benchmarks print."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import psutil

_PREFERRED = ("ib", "eth", "en", "docker")


def get_address(ifname: str | None = None) -> str:
    """Return the IPv4 address of a network device.

    Parameters
    ----------
    ifname : str, optional
        The device; by default what ``UCXPY_IFNAME`` says, else the first with an address whose name starts with
        ``ib``, ``eth``, ``en`` or ``docker``, in this order.

    Raises
    ------
    OSError
        There is no such device, or it has no IPv4 address.
    RuntimeError
        No device was named, and none of those has an address.
    """
    ifname = ifname or os.environ.get("UCXPY_IFNAME")
    found = {
        device: entry.address
        for device, entries in psutil.net_if_addrs().items()
        for entry in reversed(entries)
        if entry.family == socket.AF_INET
    }
    if ifname is not None:
        if ifname not in found:
            raise OSError(f"get_address: {ifname} is no device of this host with an IPv4 address; there are {found}")
        return found[ifname]
    for prefix in _PREFERRED:
        for device in sorted(found):
            if device.startswith(prefix):
                return found[device]
    raise RuntimeError(
        f"get_address: no device called {', '.join(_PREFERRED)}* has an IPv4 address; name one with UCXPY_IFNAME"
    )


def format_time(x: float) -> str:
    """Write seconds as ns, us, ms or s."""
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if x < 1000 / factor:
            return f"{x * factor:.3f} {unit}"
    return f"{x:.3f} s"


def format_bytes(x: float) -> str:
    """Write bytes as B, KiB, MiB, GiB or TiB."""
    if x < 1024:
        return f"{x} B"
    for unit in ("KiB", "MiB", "GiB"):
        x /= 1024
        if x < 1024:
            return f"{x:.2f} {unit}"
    return f"{x / 1024:.2f} TiB"


def print_separator(separator: str = "-", length: int = 80) -> None:
    """Print a line."""
    print(separator * length)


def print_key_value(key: str, value: object, key_length: int = 25) -> None:
    """Print a key in a column of its own, and its value."""
    print(f"{key: <{key_length}} | {value}")


def print_multi(values: Sequence[str], key_length: int = 25) -> None:
    """Print values in columns."""
    print(" | ".join([*(f"{value: <{key_length}}" for value in values[:-1]), values[-1]]))
