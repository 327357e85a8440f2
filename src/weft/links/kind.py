# SPDX-License-Identifier: BSD-3-Clause
"""The prior of a link: its kind, given by where its ends are, and the assumed latency and bandwidth of the kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.topo.interconnect import PRIORS, InterconnectClass

#: The uncertainty of a prior: a factor of 10, as the variance of the logarithm.
PRIOR_VARIANCE = math.log(10.0) ** 2

#: Seconds until the first byte, assumed for each kind: of a Dask message and its answer, not only of the wire.
_LATENCY_S = {InterconnectClass.NETWORK: 1e-3}
_LATENCY_IN_HOST_S = 3e-4


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a worker.

    Attributes
    ----------
    host : str
        The machine; all links between two hosts share one estimate.
    kinds : mapping of str to InterconnectClass, optional
        The kind of link to other workers of the host, by name, where the topology is known.
    """

    host: str
    kinds: tuple[tuple[str, InterconnectClass], ...] = ()

    def kind_towards(self, name: str, other: Place) -> InterconnectClass:
        """Return the kind of link to the worker `name`, located at `other`."""
        if self.host != other.host:
            return InterconnectClass.NETWORK
        return next((kind for neighbour, kind in self.kinds if neighbour == name), InterconnectClass.SAME_HOST)


def assumed(kind: InterconnectClass) -> tuple[float, float]:
    """Return the assumed latency in seconds and seconds per byte of a kind; the latter is the prior of `weft topo`."""
    return _LATENCY_S.get(kind, _LATENCY_IN_HOST_S), 1 / PRIORS[kind].bandwidth_Bps
