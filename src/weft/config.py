# SPDX-License-Identifier: BSD-3-Clause
"""The UCX settings in effect, and the context made with them.

Precedence: an explicit argument, then the user's ``UCX_*``, then weft's defaults below. Nothing here writes to
``os.environ``; settings are passed to ``ucp_config_modify``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from weft import _load, _native
from weft.errors import InvalidParamError, LoadError

#: weft's defaults. With peer-error handling, UCX hides shared memory unless told that it may report errors (by the
#: name MM: UCX 1.16 does not accept POSIX_ERROR_HANDLING in ucp_config_modify). posix notices a peer's death late, so
#: weft watches a socket. sysv and cma are excluded: sysv cannot detect a dead peer, and cma aborts the process when its
#: peer is killed in mid-receive. If /dev/shm has less free space than POSIX_SHM_MIN_SIZE, UCX uses heap memory for its
#: buffers and crashes. A buffer allocation is 4.1 MiB, but UCX's default of 16 MiB is checked each time a queue grows
#: (1.16 does not accept the setting). Where a firewall drops tcp's connects, UCX would block the thread for 2 minutes.
DEFAULTS: dict[str, str] = {
    "MM_ERROR_HANDLING": "y",
    "POSIX_SHM_MIN_SIZE": "5m",
    "TLS": "^sysv,cma",
    "TCP_CONN_NB": "y",
    "TCP_SYN_CNT": "3",  # given up after 15 s
}

#: With peer-error handling, tcp copies what it sends into segments of 8 KiB: 1 MiB then takes 1.2 ms, with these 0.3.
#: A receiver does not check that its buffers are as large: this is for peers that have agreed on it.
_TCP_SEGMENT = "256k"

#: The queue of a link, which has one sender. 64 elements perform like UCX's 256, with a buffer for each and a few more
#: for messages that are being read: 0.65 MiB instead of 4.13. Both sides need the same queue, because each uses its own
#: settings to write to the other's.
_LINK_QUEUE = {"MM_FIFO_SIZE": "64", "MM_FIFO_ELEM_SIZE": "128", "MM_SEG_SIZE": "8256"}
_LINK_BUFFERS = {"MM_RX_BUFS_GROW": "80", "POSIX_SHM_MIN_SIZE": "1m"}
_BUFFERS = 512  # of any other worker: UCX's default for RX_BUFS_GROW

#: What a link over UCX takes in each of its two processes on one host, measured: descriptors, of its ucp_worker, socket
#: and timer; and in /dev/shm the queue and the buffers above.
LINK_DESCRIPTORS, LINK_SHM_NBYTES = 7, 668 << 10
#: What a link over a ring takes: the descriptor of its socket, and one more in a process that borrows the other side's
#: memory.
RING_DESCRIPTORS, BORROWED_DESCRIPTORS = 1, 1
#: Free space required in /dev/shm for each 8 KiB buffer of a worker: several times its size, as others allocate too.
_FREE_NBYTES = 40 << 10
#: Free space required there before a link is made, and before any other worker is made.
LINK_FREE_NBYTES, WORKER_FREE_NBYTES = int(_LINK_BUFFERS["MM_RX_BUFS_GROW"]) * _FREE_NBYTES, _BUFFERS * _FREE_NBYTES


def ucx_library() -> _load.Library:
    """Return the libucp in use; load it if necessary.

    Returns
    -------
    Library
        With ``path``, ``version`` (a tuple of three int) and ``origin``: ``wheel``, ``system``, ``path`` or ``mapped``.

    Raises
    ------
    LoadError
        There is no usable libucp: it is missing, older than 1.16, or mixed with a second UCX in this process.
    """
    library: _load.Library = _native.keep_sighup(_load.load)
    if not _native.bound():
        try:
            _native.bind(library.path)
        except LoadError as error:
            raise _load.unusable(library.path, error) from None
    return library


class Context(_native.Context):
    """A UCP context: the transports and devices that its workers may use.

    Parameters
    ----------
    settings : mapping of str to str, optional
        UCX settings without their ``UCX_`` prefix, e.g. ``{"TLS": "posix,self"}``. They override ``UCX_*``
        environment variables, which override weft's own defaults.
    features : iterable of {"stream", "rma", "amo"}
        Features besides tags and active messages: streams, remote memory access, atomic operations. Use ``rma`` only
        with trusted peers: on a transport without remote access of its own, UCX writes to the address in a message
        without checking the key. With ``amo`` a worker does not notice a peer's death, because UCX offers atomic
        operations only without its peer-error handling.

    Raises
    ------
    LoadError
        There is no usable libucp.
    InvalidParamError
        UCX does not know a setting or accept its value, or a feature is unknown.

    Source: ``ucp_init``.
    """

    _always: tuple[str, ...] = ("tag", "am")  #: its features in any case
    _same_settings = False  #: whether its peers have agreed on tcp's segments

    def __init__(self, settings: Mapping[str, str] | None = None, *, features: Iterable[str] = ()) -> None:
        ucx_library()
        explicit = dict(named(settings or {}))
        told = explicit.get("TLS", os.environ.get("UCX_TLS"))
        if told is not None and not told.strip(" ,"):
            raise InvalidParamError("Context: UCX_TLS is empty, so UCX has no transport; unset it, or name transports")
        tls = explicit.get("TLS") or os.environ.get("UCX_TLS") or DEFAULTS["TLS"]
        devices = explicit.get("NET_DEVICES") or os.environ.get("UCX_NET_DEVICES") or "all"
        mine = DEFAULTS | (tcp_segments(explicit) if self._same_settings else {})
        room = _room(explicit) if uses_shm(tls) else 0
        super().__init__(explicit, _used(mine, tls, devices), (*self._always, *features), room)


class PairedContext(Context):
    """A context whose workers only meet those of a process with the same :func:`tcp_segments`."""

    _same_settings = True


class LinkContext(PairedContext):
    """The context of links, which use active messages only: UCX selects protocols for each feature, in milliseconds."""

    _always = ("am",)

    def bare(self) -> BareContext:
        """Return a new context with the same settings that can connect, and nothing else."""
        return BareContext({name: value for name, (value, origin) in self.config.items() if origin == "argument"})


class BareContext(PairedContext):
    """A context without any protocol, so that its endpoints cost little."""

    _always = ()


def _room(settings: Mapping[str, str]) -> int:
    """Return the free space required in /dev/shm for a worker with these settings."""
    told = settings.get("MM_RX_BUFS_GROW", "")
    return (int(told) if told.isdecimal() and _asks_for_less() else _BUFFERS) * _FREE_NBYTES


def _asks_for_less() -> bool:
    """Tell whether UCX accepts POSIX_SHM_MIN_SIZE: before 1.17 it requires 16 MiB in any case."""
    return ucx_library().version >= (1, 17)


def link_queue(given: Mapping[str, str]) -> dict[str, str]:
    """Return the queue settings of a link: those `given`, else the user's ``UCX_*``, else weft's."""
    return {name.removeprefix("MM_"): _told(name, given) or value for name, value in _LINK_QUEUE.items()}


def link_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return weft's settings for links, except those that are `given` or set by the user's ``UCX_*``."""
    left_out = () if _asks_for_less() else ("POSIX_",)
    mine = (_LINK_QUEUE | _LINK_BUFFERS).items()
    return {name: value for name, value in mine if not name.startswith(left_out) and not _told(name, given)}


def _told(name: str, given: Mapping[str, str]) -> str | None:
    own = "POSIX_" + name.partition("_")[2]  # overrides the name that posix and sysv share
    told = [*map(given.get, (own, name)), *(os.environ.get(f"UCX_{each}") for each in (own, name))]
    return next(filter(None, told), None)


def tcp_segments(given: Mapping[str, str]) -> dict[str, str]:
    """Return the sizes of tcp's segments in bytes: those `given`, else the user's ``UCX_*``, else weft's."""
    if ucx_library().version < (1, 17):  # it takes them from the environment only
        own = {"TCP_TX_SEG_SIZE": "8k", "TCP_RX_SEG_SIZE": "64k"}
        return {name: _in_bytes(os.environ.get(f"UCX_{name}") or size) for name, size in own.items()}
    names = ("TCP_TX_SEG_SIZE", "TCP_RX_SEG_SIZE")
    told = {name: given.get(name) or os.environ.get(f"UCX_{name}") for name in names}
    return {name: _in_bytes(value or next(filter(None, told.values()), _TCP_SEGMENT)) for name, value in told.items()}


def _in_bytes(size: str) -> str:
    """Write a size of UCX's (``64k``, ``64KB``) as a number of bytes; what is none stays, for UCX to refuse."""
    if (told := re.fullmatch(r"([0-9]+)([kmg]?)b?", size, re.IGNORECASE)) is None:
        return size
    number, unit = told.groups()
    return str(int(number) << 10 * " kmg".index(unit.lower() or " "))


def _used(settings: Mapping[str, str], tls: str, devices: str) -> dict[str, str]:
    """Leave out `settings` that UCX does not use with these values of ``UCX_TLS`` and ``UCX_NET_DEVICES``.

    Settings of excluded transports are left out: up to 1.20.0, UCX warns about unused settings.
    """
    left_out = [] if uses_shm(tls) or _allows(tls, {"sysv"}) else ["MM_"]
    left_out += [] if uses_shm(tls) and _asks_for_less() else ["POSIX_"]
    # An RDMA device is named with its port, as in mlx5_0:1; tcp devices have none.
    ethernet = devices.startswith("^") or not all(":" in device for device in devices.split(","))
    left_out += [] if ethernet and uses_tcp(tls) else ["TCP_"]
    return {name: value for name, value in settings.items() if not name.startswith(tuple(left_out))}


def named(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return settings by the names that UCX uses, without ``UCX_``, sorted."""
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidParamError(f"settings: {settings!r} is not a mapping of UCX's names to values")
    for name, value in settings.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise InvalidParamError(f"settings: the name {name!r} is {type(name).__name__}; UCX's names are str")
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise InvalidParamError(f"settings: {name}={value!r} is {type(value).__name__}; UCX's values are str")
        if not f"{name}{value}".isprintable():  # UCX would read as far as a NUL
            raise InvalidParamError(f"settings: {name!r}: {value!r} has characters that cannot be printed")
    return tuple(sorted((name.removeprefix("UCX_"), value) for name, value in settings.items()))


def uses_shm(tls: str) -> bool:
    """Tell whether a value of ``UCX_TLS`` permits posix."""
    return _allows(tls, {"posix", "mm", "shm", "sm", "all"})


def uses_tcp(tls: str) -> bool:
    """Tell whether a value of ``UCX_TLS`` permits tcp."""
    return _allows(tls, {"tcp", "all"})


def _allows(tls: str, names: set[str]) -> bool:
    """Tell whether a value of ``UCX_TLS`` permits a transport with any of these `names`."""
    return bool(names & set(tls.removeprefix("^").split(","))) != tls.startswith("^")
