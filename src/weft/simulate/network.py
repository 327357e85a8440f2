# SPDX-License-Identifier: BSD-3-Clause
"""A network to simulate: workers and where they are, links and what each carries, and how each pair talks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from weft.links import Place

#: Seconds until the first byte of what one worker asks of another: a message of Dask's, its answer, and the wire.
LATENCY_S = 2e-3
#: The same where both are on one host and share pages: nothing else is to be done then, whatever the size.
LENT_S = 1e-3


class Way(NamedTuple):
    """How one worker reaches another.

    Attributes
    ----------
    links : tuple of int
        In order; none where pages are shared.
    latency_s : float
        Seconds until the first byte.
    lent : bool
        Whether pages are shared, so that the size does not matter.
    relay : str
        The worker that passes it on, if one does.
    """

    links: tuple[int, ...]
    latency_s: float
    lent: bool = False
    relay: str = ""


class Link(NamedTuple):
    """A link, one way, and what it carries, in bytes/second."""

    name: str
    bandwidth_Bps: float  # noqa: N815 - the unit


@dataclass(frozen=True)
class Network:
    """What is simulated.

    Attributes
    ----------
    title : str
        In a few words.
    places : dict of str to Place
        The workers by name, and where each is.
    links : tuple of Link
        Named by their index in what `way` returns.
    way : callable
        From one worker to another.
    processors : dict of str to int
        The link that stands for the cores which the tasks of a host share; tasks of a host without one only wait for
        a thread of their worker.
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
    """Join hosts by a switch that is never full, with a port of a bandwidth each.

    Parameters
    ----------
    workers : dict of str to int
        How many each host has.
    cores : float
        That all tasks of all hosts share, as in a lab on one machine; 0: every worker has its own.
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
    """Join hosts by a switch for each rack, and the racks by an uplink each to a core that is never full.

    Parameters
    ----------
    racks : list of dict of str to int
        For each rack, how many workers each of its hosts has.
    bandwidth_Bps, uplink_Bps : float
        Of each host's port, and of each rack's uplink, each way.
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
