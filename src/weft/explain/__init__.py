# SPDX-License-Identifier: BSD-3-Clause
"""Which wire carries a connection's data, and why that one: for :meth:`weft.Peer.explain` and ``weft explain``.

- ``evidence``, with ``ucx_info``: what this machine shows. ``protocols``: what UCX's tables say.
- ``reasons``: why each transport is used or not. ``explanation``: the whole, as JSON and as tables.
- ``command``: ``weft explain``. ``round_trip``: its two processes; only they send anything and measure.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from weft._connect import address
from weft._load import Library
from weft._native import Channel, Link
from weft.config import ucx_library
from weft.errors import PeerLostError
from weft.explain import evidence, protocols
from weft.explain.explanation import Explanation, Time, lines
from weft.explain.reasons import Case, Setting, verdicts

#: What the processes of ``weft explain`` tell each other of themselves goes by this name in the handshake.
LOCATION = "location"
#: Sizes for which UCX is asked what it expects.
TIMED_NBYTES = (8, 64 << 10, 4 << 20)
#: Settings that limit which transports and devices may be used.
_LIMITS = ("TLS", "NET_DEVICES")
_log = logging.getLogger("weft")


def explain(
    channel: Channel,
    *,
    config: Mapping[str, tuple[str, str]],
    same_host: bool,
    local_address: str,
    remote_address: str,
    remote: Mapping[str, Any],
) -> Explanation:
    """Explain the connection of `channel`; see :meth:`weft.Peer.explain`. `config` is its context's."""
    if not channel.handle:
        raise PeerLostError(f"explain {remote_address}: the peer was lost, and its lanes with it")
    library = ucx_library()
    settings = limits(config, same_host=same_host)
    text = channel.print_info()
    tables = protocols.tables(text)
    scope = protocols.scope(tables)
    told: dict[str, object] | None = remote.get(LOCATION)
    apart = "" if same_host else _apart(told if isinstance(told, dict) else {}, remote_address)
    abilities = tuple((name, value) for name, (value, _) in config.items() if name not in _LIMITS)
    case = Case(channel.transports, settings, same_host, apart, _evidence(library, abilities))
    return Explanation(
        peer=remote_address,
        local_address=local_address,
        same_host=same_host,
        apart=apart,
        ucx=str(library),
        endpoint=hex(channel.handle),
        scope=scope,
        settings=settings,
        lanes=protocols.lanes(text, channel.transports),
        sizes=protocols.sizes(tables, lends=same_host and not scope.startswith("self")),
        times=[Time(nbytes, channel.evaluate_perf(nbytes)) for nbytes in TIMED_NBYTES],
        transports=verdicts(case),
    )


def limits(config: Mapping[str, tuple[str, str]], *, same_host: bool) -> dict[str, Setting]:
    """Return the settings that limit a connection, with who set them: weft, for its route, or the environment."""
    found: dict[str, Setting] = {}
    for name in _LIMITS:
        if name in config:
            value, who = config[name]
            route = "weft for peers on this host" if same_host else "weft for peers across the network"
            found[name] = Setting(value, route if who == "argument" else "weft's defaults", weft=True)
        elif f"UCX_{name}" in os.environ:
            found[name] = Setting(os.environ[f"UCX_{name}"], "the environment")
    return found


def announce(link: Link, config: Mapping[str, tuple[str, str]], *, same_host: bool) -> None:
    """Tell of a new endpoint in two lines: to the logger ``weft`` as info if it takes that, else to stderr."""
    scope = protocols.scope(protocols.tables(link.print_info()))
    told = lines(limits(config, same_host=same_host), hex(link.handle), scope, link.transports)
    if _log.isEnabledFor(logging.INFO):
        for line in told:
            _log.info("%s", line)
    elif sys.stderr is not None:
        sys.stderr.write("".join(f"{line}\n" for line in told))


def _apart(told: Mapping[str, object], remote_address: str) -> str:
    host = address.split(remote_address)[0]
    own = address.is_loopback(host) or address.device_of(host) is not None
    return evidence.apart(evidence.location(), told, own_address=own)


@functools.cache
def _evidence(library: Library, settings: tuple[tuple[str, str], ...]) -> evidence.Evidence:
    return evidence.read(library, dict(settings))
