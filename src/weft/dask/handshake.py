# SPDX-License-Identifier: BSD-3-Clause
"""Dask's handshake, carried by weft's where both ends are on one host and connected by rings.

After weft has connected, distributed has each side send what its process can do, which takes two messages more. Over
rings it is known beforehand, because nothing in it depends on the connection. So it is a part of the ``info`` that both
sides exchange while they connect, and the comm neither sends nor awaits it. Only a worker's comm does so, and every
listener's: what others say may be changed by distributed (``handshake_overrides``) after they have connected.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from distributed.comm.core import Comm

from weft.dask import acknowledge, config
from weft.dask.learn import measured
from weft.dask.observe import traffic
from weft.dask.tensors import device
from weft.peer import Peer

#: The key in ``info``. Its value is None if only distributed knows it; whoever has the key understands the other's.
_KEY = "handshake"
_RINGS = ["ring/memory"]


class Exchanged(NamedTuple):
    """What came with the connection: whether this side's was `told`, and the other side's (None: a message follows)."""

    told: bool
    heard: dict[str, Any] | None


def info(*, known: bool, gives: bool = True) -> dict[str, Any]:
    """Return the ``info`` for the other side of a connection.

    `known` says that Dask's handshake is as told here, `gives` that small values need no acknowledgment.
    """
    same_host: Any = SimpleNamespace(same_host=True)
    told = {**Comm.handshake_info(same_host), **of_process(holds_device=False, gives=gives)} if known else None
    return {**traffic.INFO, _KEY: told}


def of_process(*, holds_device: bool, gives: bool) -> dict[str, Any]:
    """Return what weft adds to Dask's handshake for any peer."""
    return {
        device.CAPABILITY: holds_device,
        measured.TOLD: config.links() == "learn",
        measured.JOINS: measured.BESIDE,
        acknowledge.GIVEN: gives,
    }


def exchanged(peer: Peer, *, known: bool) -> Exchanged:
    """Return what the two sides of `peer` need not send; `known` is what this side called :func:`info` with."""
    if _KEY not in peer.remote or not peer.same_host or peer.transports != _RINGS:
        return Exchanged(told=False, heard=None)
    return Exchanged(told=known, heard=peer.remote[_KEY])
