# SPDX-License-Identifier: BSD-3-Clause
"""What a link is before anything was measured: its kind, by where its ends are, and what is assumed of the kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.topo.interconnect import PRIORS, InterconnectClass

#: How far off an assumption may be: a factor of 10, as the variance of the logarithm.
PRIOR_VARIANCE = math.log(10.0) ** 2

#: Seconds until the first byte, assumed per kind: of a message of Dask's and its answer, not of the wire alone.
_LATENCY_S = {InterconnectClass.NETWORK: 1e-3}
_LATENCY_IN_HOST_S = 3e-4


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker is.

    Attributes
    ----------
    host : str
        The machine; links between the same two are learned together.
    kinds : mapping of str to InterconnectClass, optional
        What joins it to others of its host, by their names, where that is known from a topology.
    """

    host: str
    kinds: tuple[tuple[str, InterconnectClass], ...] = ()

    def kind_towards(self, name: str, other: Place) -> InterconnectClass:
        """Return the kind of link to the worker called `name`, which is at `other`."""
        if self.host != other.host:
            return InterconnectClass.NETWORK
        return next((kind for neighbour, kind in self.kinds if neighbour == name), InterconnectClass.SAME_HOST)


def assumed(kind: InterconnectClass) -> tuple[float, float]:
    """Return latency in seconds and seconds per byte to assume of a kind; the latter is `weft topo`'s prior."""
    return _LATENCY_S.get(kind, _LATENCY_IN_HOST_S), 1 / PRIORS[kind].bandwidth_Bps
