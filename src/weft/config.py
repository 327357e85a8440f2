# SPDX-License-Identifier: BSD-3-Clause
"""Which UCX settings apply, and the context that is made with them.

Precedence: an explicit argument, then the user's ``UCX_*``, then weft's defaults below. Nothing here writes to
``os.environ``; settings go through ``ucp_config_modify``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from weft import _load, _native

#: weft's defaults. Peer-error handling hides shared memory unless it is told that it may report errors (by the
#: name MM: UCX 1.16 does not take POSIX_ERROR_HANDLING from ucp_config_modify);
#: weft watches a socket for the death that posix sees late. sysv cannot tell a dead peer and cma, when its
#: peer is killed in mid-receive, aborts the survivor: both stay out. With peer-error handling tcp copies what it sends
#: into segments, which by default are small (8 KiB): 1 MiB then takes 1.2 ms, with these 0.3. With less free in
#: /dev/shm than POSIX_SHM_MIN_SIZE UCX takes heap memory for its buffers and crashes on it; they are 4.1 MiB each time,
#: and UCX's 16 MiB is asked for anew whenever a queue grows (1.16 does not take it).
DEFAULTS: dict[str, str] = {
    "MM_ERROR_HANDLING": "y",
    "POSIX_SHM_MIN_SIZE": "5m",
    "TLS": "^sysv,cma",
    "TCP_TX_SEG_SIZE": "256k",
    "TCP_RX_SEG_SIZE": "256k",
}

#: The queue of a link, which has one sender: 64 elements do what UCX's 256 do, with a buffer for each and a few more
#: that are being read. 0.65 MiB in place of 4.13. Both sides must have the same queue: each goes by its own settings
#: where it writes to the other's.
_LINK_QUEUE = {"MM_FIFO_SIZE": "64", "MM_FIFO_ELEM_SIZE": "128", "MM_SEG_SIZE": "8256"}
_LINK_BUFFERS = {"MM_RX_BUFS_GROW": "80", "POSIX_SHM_MIN_SIZE": "1m"}
_BUFFERS = 512  # of any other worker: UCX's RX_BUFS_GROW

#: What a link that UCX carries takes of each of its two processes on one host, measured: descriptors, those of its
#: ucp_worker and of the link's socket and timer; and of /dev/shm the queue and the buffers above.
LINK_DESCRIPTORS, LINK_SHM_NBYTES = 7, 668 << 10
#: What a link takes there that a ring carries: the descriptor of its socket, and one more at who borrows the other
#: side's memory.
RING_DESCRIPTORS, BORROWED_DESCRIPTORS = 1, 1
#: What must be free in /dev/shm for each buffer of 8 KiB of a worker: several times that, as others may make theirs.
_FREE_NBYTES = 40 << 10
#: What must be free there before a link is made, and before any other worker is.
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
        _native.bind(library.path)
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

    def __init__(self, settings: Mapping[str, str] | None = None, *, features: Iterable[str] = ()) -> None:
        ucx_library()
        explicit = dict(named(settings or {}))
        tls = explicit.get("TLS") or os.environ.get("UCX_TLS") or DEFAULTS["TLS"]
        devices = explicit.get("NET_DEVICES") or os.environ.get("UCX_NET_DEVICES") or "all"
        super().__init__(explicit, defaults(tls, devices), features, _room(explicit) if uses_shm(tls) else 0)


def _room(settings: Mapping[str, str]) -> int:
    """Return what must be free in /dev/shm for a worker with these settings."""
    told = settings.get("MM_RX_BUFS_GROW", "")
    return (int(told) if told.isdecimal() and _asks_for_less() else _BUFFERS) * _FREE_NBYTES


def _asks_for_less() -> bool:
    """Tell whether UCX takes POSIX_SHM_MIN_SIZE: before 1.17 it wants its 16 MiB free in any case."""
    return ucx_library().version >= (1, 17)


def link_queue(given: Mapping[str, str]) -> dict[str, str]:
    """Return what a link's queue looks like by the settings `given`, the user's ``UCX_*``, and weft's."""
    return {name.removeprefix("MM_"): _told(name, given) or value for name, value in _LINK_QUEUE.items()}


def link_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return weft's settings for links, without those that are `given` or among the user's ``UCX_*``."""
    left_out = () if _asks_for_less() else ("POSIX_",)
    mine = (_LINK_QUEUE | _LINK_BUFFERS).items()
    return {name: value for name, value in mine if not name.startswith(left_out) and not _told(name, given)}


def _told(name: str, given: Mapping[str, str]) -> str | None:
    own = "POSIX_" + name.partition("_")[2]  # wins over the name that posix and sysv share
    told = [*map(given.get, (own, name)), *(os.environ.get(f"UCX_{each}") for each in (own, name))]
    return next(filter(None, told), None)


def defaults(tls: str, devices: str) -> dict[str, str]:
    """Return weft's defaults for a value of ``UCX_TLS`` and one of ``UCX_NET_DEVICES``.

    Not those of transports that are left out: up to 1.20.0 UCX warns of settings that nothing has taken.
    """
    left_out = [] if uses_shm(tls) or _allows(tls, {"sysv"}) else ["MM_"]
    left_out += [] if uses_shm(tls) and _asks_for_less() else ["POSIX_"]
    # An RDMA device is named with its port, as mlx5_0:1, and tcp has none of those.
    ethernet = devices.startswith("^") or not all(":" in device for device in devices.split(","))
    left_out += [] if ethernet and _allows(tls, {"tcp", "all"}) else ["TCP_"]
    return {name: value for name, value in DEFAULTS.items() if not name.startswith(tuple(left_out))}


def named(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return UCX settings by the names that UCX knows them by, without ``UCX_``, sorted."""
    return tuple(sorted((name.removeprefix("UCX_"), value) for name, value in settings.items()))


def uses_shm(tls: str) -> bool:
    """Tell whether a value of ``UCX_TLS`` lets posix in."""
    return _allows(tls, {"posix", "mm", "shm", "sm", "all"})


def _allows(tls: str, names: set[str]) -> bool:
    """Tell whether a value of ``UCX_TLS`` lets in what goes by these `names`."""
    return bool(names & set(tls.removeprefix("^").split(","))) != tls.startswith("^")
