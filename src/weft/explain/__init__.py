# SPDX-License-Identifier: BSD-3-Clause
"""Which wire carries a connection's data, and why that one: for :meth:`weft.Peer.explain` and ``weft explain``.

- ``evidence``, with ``ucx_info``: facts read from this machine. ``protocols``: UCX's tables.
- ``ring``: connections that weft's own ring carries; they do not load UCX.
- ``reasons``: why each transport is used or not. ``explanation``: the result, as JSON and as tables.
- ``command``: ``weft explain``. ``round_trip``: its two processes; only they send and measure.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from weft._connect import address
from weft._connect.route import TLS_ACROSS_NETWORK, TLS_WITHIN_HOST
from weft._load import Library
from weft._native import Channel, Link
from weft.config import ucx_library
from weft.errors import PeerLostError
from weft.explain import evidence, protocols, ring
from weft.explain.explanation import WITHIN_HOST, Explanation, Time, lines, lines_of_ring
from weft.explain.reasons import Case, Setting, verdicts

#: The name in the handshake under which the processes of ``weft explain`` exchange their locations.
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
    why_ucx: str | None,
    same_host: bool,
    local_address: str,
    remote_address: str,
    remote: Mapping[str, Any],
) -> Explanation:
    """Explain the connection of `channel`; see :meth:`weft.Peer.explain`.

    `config` is its context's, and `why_ucx` the reason why it has one, as the handshake gave it: None if weft's ring
    carries the messages.
    """
    text, transports = channel.print_info(), channel.transports  # the first raises if the worker is closed
    if not transports:
        raise PeerLostError(f"explain {remote_address}: the peer was lost, and its lanes with it")
    if why_ucx is None:
        return Explanation(
            peer=remote_address,
            local_address=local_address,
            same_host=True,
            apart="",
            why_ucx="",
            ucx="",
            endpoint="",
            scope=WITHIN_HOST,
            settings={},
            lanes=ring.lanes(transports),
            sizes=ring.sizes(),
            times=[Time(nbytes, None) for nbytes in TIMED_NBYTES],
            transports=ring.verdicts(),
        )
    library = ucx_library()
    settings = limits(config, same_host=same_host)
    tables = protocols.tables(text)
    told: dict[str, object] | None = remote.get(LOCATION)
    apart = "" if same_host else _apart(told if isinstance(told, dict) else {}, remote_address)
    abilities = tuple((name, value) for name, (value, _) in config.items() if name not in _LIMITS)
    case = Case(transports, settings, same_host, apart, _evidence(library, abilities))
    return Explanation(
        peer=remote_address,
        local_address=local_address,
        same_host=same_host,
        apart=apart,
        why_ucx=why_ucx if same_host else "",
        ucx=str(library),
        endpoint=hex(channel.handle),
        scope=protocols.scope(tables),
        settings=settings,
        lanes=protocols.lanes(text, transports),
        sizes=protocols.sizes(tables, lends=same_host),
        times=[Time(nbytes, channel.evaluate_perf(nbytes)) for nbytes in TIMED_NBYTES],
        transports=[*verdicts(case), ring.verdict_of_ucx(why_ucx, same_host=same_host, apart=apart)],
    )


def limits(config: Mapping[str, tuple[str, str]], *, same_host: bool) -> dict[str, Setting]:
    """Return the settings that limit a connection, with who set them: weft, for its route, or its user."""
    found: dict[str, Setting] = {}
    for name in _LIMITS:
        if name in config:
            value, who = config[name]
            route = "weft for peers on this host" if same_host else "weft for peers across the network"
            if name == "TLS" and who == "argument" and value not in (TLS_WITHIN_HOST, TLS_ACROSS_NETWORK):
                found[name] = Setting(value, "the connection's settings")
            else:
                found[name] = Setting(value, route if who == "argument" else "weft's defaults", weft=True)
        elif f"UCX_{name}" in os.environ:
            found[name] = Setting(os.environ[f"UCX_{name}"], "the environment")
    return found


def announce(link: Link, config: Mapping[str, tuple[str, str]], *, why_ucx: str | None, same_host: bool) -> None:
    """Report a new link in two lines: to the logger ``weft`` if its level permits info, else to stderr."""
    if why_ucx is None:
        told = lines_of_ring(link.transports)
    else:
        scope = protocols.scope(protocols.tables(link.print_info()))
        reason = why_ucx if same_host else ""
        told = lines(limits(config, same_host=same_host), hex(link.handle), scope, link.transports, reason)
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
