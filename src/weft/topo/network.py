# SPDX-License-Identifier: BSD-3-Clause
"""Which NIC a worker should use: the nearest RDMA device that has a port up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from weft.topo.interconnect import Interconnect, InterconnectClass
from weft.topo.model import KINDS, Nic, Topology

_TCP = ("ethernet", "ipoib")


@dataclass(frozen=True, slots=True)
class Choice:
    """A worker's NIC, None where there is none to name; `tcp` are the network devices that are up."""

    nic: Nic | None
    tcp: tuple[str, ...]
    why: str

    @property
    def name(self) -> str | None:
        return self.nic.name if self.nic else None

    def net_devices(self, interface: str | None, towards: str | None = None) -> tuple[tuple[str, ...], str]:
        """Return what ``UCX_NET_DEVICES`` should name, and why; nothing if UCX should choose.

        The value names network devices for tcp besides the RDMA port: with the port alone, a UCX without verbs (the
        wheel's) would reach no other host. UCX listens on each device that is named, so only one is, if it is known:
        the device of the worker's address, `interface` or else `towards` the scheduler.
        """
        ports = [port for port in self.nic.ports if port.up] if self.nic else []
        if self.nic is None or not ports:
            return (), self.why
        fastest = max(ports, key=lambda port: port.rate_bps or 0)
        one = interface or towards
        tcp = (one,) if one else self.tcp
        why = f"{self.why}; beside it {', '.join(tcp)} for tcp" if tcp else self.why
        why += ", the way to the scheduler" if towards and not interface else ""
        return (f"{self.nic.name}:{fastest.number}", *tcp), why


def choose(topology: Topology, ends: Sequence[tuple[str | None, int | None]]) -> list[Choice]:
    """Choose a NIC for each of `ends`: the name of a GPU or None, and a NUMA node or None.

    Of several at the same distance it takes the one with the fewest workers, so that all rails are used.
    """
    rdma = [nic for nic in topology.nics if nic.rdma]
    up = _one_network([nic for nic in rdma if any(port.up for port in nic.ports)])
    unknown = [nic for nic in topology.nics if nic.kind == "unknown"]
    addressed = [nic for nic in topology.nics if nic.kind in _TCP and nic.master is None]
    tcp = tuple(nic.name for nic in addressed if any(port.up for port in nic.ports))
    taken: Counter[str] = Counter()
    choices: list[Choice] = []
    for gpu, node in ends:
        candidates = up or unknown
        if not candidates:
            choices.append(Choice(None, tcp, _none(rdma, tcp)))
            continue
        ranked = [(_interconnect(topology, gpu, node, nic), taken[nic.name], i) for i, nic in enumerate(candidates)]
        nearest, _, i = min(ranked)
        nic = candidates[i]
        taken[nic.name] += 1
        unsure = "the nearest ({}); whether it is up is not known, so UCX_NET_DEVICES is not set"
        choices.append(Choice(nic, tcp, ("the nearest that is up ({})" if up else unsure).format(nearest)))
    return choices


def interfaces(
    topology: Topology, wanted: str | None, choices: Sequence[Choice], nodes: Sequence[int | None]
) -> list[str | None]:
    """Return the network device of each worker's address.

    This is `wanted`. If `wanted` is a prefix of several names (``ib`` of ``ib0`` and ``ib1``, as for dask-cuda's
    ``DGX``), it is the one on the worker's NIC, else one on its NUMA node.
    """
    here = [nic for nic in topology.nics if nic.kind in _TCP and any(port.up for port in nic.ports)]
    several = [nic for nic in here if wanted and nic.name.removeprefix(wanted).isdecimal()]
    if not several or any(nic.name == wanted for nic in topology.nics):
        return [wanted] * len(choices)
    on_cards = [choice.nic.netdevs if choice.nic else () for choice in choices]
    return [
        min(several, key=lambda nic: (nic.name not in card, nic.node != node)).name
        for card, node in zip(on_cards, nodes, strict=True)
    ]


def left_out(topology: Topology) -> list[str]:
    """Return the reason for each RDMA device that is up and that `choose` does not use."""
    up = [nic for nic in topology.nics if nic.rdma and any(port.up for port in nic.ports)]
    taken = _one_network(up)
    return [
        f"{nic.name} ({KINDS[nic.kind]}) gets no worker: one with it would not reach those with {KINDS[taken[0].kind]}"
        for nic in up
        if nic not in taken
    ]


def _one_network(up: list[Nic]) -> list[Nic]:
    """Keep devices of one kind: over RDMA, a worker with RoCE cannot reach one with InfiniBand."""
    kind = next((kind for kind in ("infiniband", "roce", "efa") if any(nic.kind == kind for nic in up)), "")
    return [nic for nic in up if nic.kind == kind]


def _interconnect(topology: Topology, gpu: str | None, node: int | None, nic: Nic) -> Interconnect:
    known = topology.between(gpu, nic.name) if gpu else None
    if known is not None:
        return known
    if node is None or nic.node is None:
        return Interconnect(InterconnectClass.SAME_HOST)
    return Interconnect(InterconnectClass.SAME_NUMA if node == nic.node else InterconnectClass.CROSS_SOCKET)


def _none(rdma: list[Nic], tcp: tuple[str, ...]) -> str:
    down = f"no RDMA port is up ({', '.join(nic.name for nic in rdma)})" if rdma else "no RDMA device"
    rest = f"{', '.join(tcp)} up" if tcp else "no network device is up"
    return f"{down}; {rest}: tcp takes the device of the worker's address, so none is named"
