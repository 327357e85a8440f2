# SPDX-License-Identifier: BSD-3-Clause
"""A network to simulate: workers and their places, links and their capacities, and the path of each pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from weft.links import Place

#: Seconds until the first byte of a request between workers: Dask's message, its answer, and the wire.
LATENCY_S = 2e-3
#: The same on one host that shares pages; nothing else has to be done then, whatever the size.
LENT_S = 1e-3


class Way(NamedTuple):
    """The path from one worker to another.

    Attributes
    ----------
    links : tuple of int
        In order; empty if pages are shared.
    latency_s : float
        Seconds until the first byte.
    lent : bool
        Whether pages are shared, so that the size does not matter.
    relay : str
        The worker that forwards the data, if any.
    """

    links: tuple[int, ...]
    latency_s: float
    lent: bool = False
    relay: str = ""


class Link(NamedTuple):
    """A link in one direction, and its capacity in bytes/second."""

    name: str
    bandwidth_Bps: float  # noqa: N815 - the unit


@dataclass(frozen=True)
class Network:
    """A network to simulate.

    Attributes
    ----------
    title : str
        A short description.
    places : dict of str to Place
        The place of each worker, by name.
    links : tuple of Link
        The paths that `way` returns contain indices into this.
    way : callable
        Returns the path from one worker to another.
    processors : dict of str to int
        For each host, the link that stands for the cores shared by its tasks. Without one, tasks wait only for a
        thread of their worker.
    """

    title: str
    places: dict[str, Place]
    links: tuple[Link, ...]
    way: Callable[[str, str], Way]
    processors: dict[str, int]

    @property
    def hosts(self) -> list[str]:
        """The hosts, in the order of their first worker."""
        return list(dict.fromkeys(place.host for place in self.places.values()))


def switched(
    title: str,
    workers: dict[str, int],
    bandwidth_Bps: float,  # noqa: N803 - the unit
    *,
    latency_s: float = LATENCY_S,
    lent_s: float = LENT_S,
    cores: float = 0,
) -> Network:
    """Connect hosts by a non-blocking switch, with ports of one bandwidth.

    Parameters
    ----------
    workers : dict of str to int
        The number of workers on each host.
    cores : float
        Cores shared by all tasks of all hosts, as in a lab on one machine; 0: every worker has its own.
    """
    return fat_tree(title, [workers], bandwidth_Bps, uplink_Bps=0, latency_s=latency_s, lent_s=lent_s, cores=cores)


def fat_tree(
    title: str,
    racks: list[dict[str, int]],
    bandwidth_Bps: float,  # noqa: N803
    *,
    uplink_Bps: float,  # noqa: N803
    latency_s: float = LATENCY_S,
    lent_s: float = LENT_S,
    cores: float = 0,
) -> Network:
    """Connect hosts by a switch in each rack, and the racks by an uplink each to a non-blocking core.

    Parameters
    ----------
    racks : list of dict of str to int
        For each rack, the number of workers on each of its hosts.
    bandwidth_Bps, uplink_Bps : float
        Bandwidth of each host's port, and of each rack's uplink, in each direction.
    """
    links: list[Link] = [Link("cores", cores)] if cores else []
    places: dict[str, Place] = {}
    ports: dict[str, tuple[int, int]] = {}
    uplinks: dict[str, tuple[int, int] | None] = {}
    for number, hosts in enumerate(racks):
        uplink = None
        if uplink_Bps:
            uplink = len(links), len(links) + 1
            links += [Link(f"uplink {number} out", uplink_Bps), Link(f"uplink {number} in", uplink_Bps)]
        for host, count in hosts.items():
            ports[host], uplinks[host] = (len(links), len(links) + 1), uplink
            links += [Link(f"{host} out", bandwidth_Bps), Link(f"{host} in", bandwidth_Bps)]
            places.update({f"{host}.{i}": Place(host) for i in range(count)})

    def way(a: str, b: str) -> Way:
        here, there = places[a].host, places[b].host
        if here == there:
            return Way((), lent_s, lent=True)
        up, down = uplinks[here], uplinks[there]
        between = (up[0], down[1]) if up and down and up != down else ()
        return Way((ports[here][0], *between, ports[there][1]), latency_s)

    return Network(title, places, tuple(links), way, dict.fromkeys(ports, 0) if cores else {})
