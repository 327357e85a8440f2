# SPDX-License-Identifier: BSD-3-Clause
"""How near two ends are, nearest first, and what such a link is assumed to carry before anything is measured.

The classes between devices are nvidia-smi's; those between processes are ours.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass


class LinkClass(enum.IntEnum):
    """What lies between two ends. A smaller number is nearer; no class's prior is above a nearer one's."""

    SELF = 0
    NVLINK = 1
    SAME_L3 = 2
    PIX = 3  # at most a single PCIe bridge
    PXB = 4  # several PCIe bridges, no host bridge
    PHB = 5  # a PCIe host bridge
    NODE = 6  # several host bridges of one NUMA node
    SAME_NUMA = 7
    SYS = 8  # PCIe and the interconnect between NUMA nodes
    CROSS_SOCKET = 9
    SAME_HOST = 10  # one host, the places in it unknown
    NETWORK = 11


_TEXT = {
    LinkClass.SELF: "X",
    LinkClass.NVLINK: "NV",
    LinkClass.SAME_L3: "same L3",
    LinkClass.SAME_NUMA: "same NUMA",
    LinkClass.CROSS_SOCKET: "cross socket",
    LinkClass.SAME_HOST: "same host",
    LinkClass.NETWORK: "network",
}
_NVLINK = re.compile(r"NV([1-9][0-9]{0,2})")
_CELLS = {"X": LinkClass.SELF} | {kind.name: kind for kind in LinkClass if kind not in _TEXT}


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Link:
    """A class of link and, for NVLink, how many are bonded (else 0). ``min`` of several is the nearest."""

    kind: LinkClass
    count: int = 0

    def __lt__(self, other: Link) -> bool:
        return (self.kind, -self.count) < (other.kind, -other.count)

    def __str__(self) -> str:
        return f"NV{self.count}" if self.kind is LinkClass.NVLINK else _TEXT.get(self.kind, self.kind.name)


def parse(cell: str) -> Link:
    """Read a cell of nvidia-smi's matrix: ``X``, ``NV2``, ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.

    Raises
    ------
    ValueError
        It is none of these.
    """
    if match := _NVLINK.fullmatch(cell):
        return Link(LinkClass.NVLINK, int(match[1]))
    if cell not in _CELLS:
        raise ValueError(f"{cell!r} is no link: X, NV#, PIX, PXB, PHB, NODE or SYS are")
    return Link(_CELLS[cell])


@dataclass(frozen=True, slots=True)
class Prior:
    """A bandwidth to assume until one is measured, in bytes/second one way, and where the number is from."""

    bandwidth_Bps: float  # noqa: N815 - the unit
    source: str


_NCCL = "NCCL, src/graph/topo.h"
_WEFT = "weft's C loop over UCX's posix, 2-core Sapphire Rapids guest"

PRIORS: dict[LinkClass, Prior] = {
    LinkClass.NVLINK: Prior(20.0e9, f"{_NCCL}: 20.0 per link for SM70 and SM80 (18.0 SM60, 20.6 SM90, 40.1 SM100)"),
    LinkClass.SAME_L3: Prior(13.3e9, f"{_WEFT}: messages of 1 MiB, which stay in the cache"),
    LinkClass.PIX: Prior(12.0e9, f"{_NCCL}: PCI_BW, PCIe 3.0 x16"),
    LinkClass.PXB: Prior(12.0e9, f"{_NCCL}: PCI_BW, PCIe 3.0 x16; a switch takes nothing off"),
    LinkClass.PHB: Prior(10.0e9, f"{_NCCL}: PCI_BW over INTEL_P2P_OVERHEAD, 12.0 / 1.2"),
    LinkClass.NODE: Prior(10.0e9, f"{_NCCL}: as PHB, from which it does not tell it apart"),
    LinkClass.SAME_NUMA: Prior(9.0e9, f"{_WEFT}: messages of 128 MiB, which go through memory"),
    LinkClass.SYS: Prior(6.0e9, f"{_NCCL}: BDW_QPI_BW, the slowest x86 socket link there (SKL 10, SPR 22, ERP 40)"),
    LinkClass.CROSS_SOCKET: Prior(6.0e9, f"{_NCCL}: BDW_QPI_BW, as SYS"),
    LinkClass.SAME_HOST: Prior(6.0e9, "assumed: as cross socket, the slowest place in one host"),
    LinkClass.NETWORK: Prior(1.25e9, "assumed: the line rate of 10 Gb/s Ethernet"),
}


def prior(link: Link, *, rate_bps: float | None = None) -> Prior | None:
    """Return the bandwidth to assume for `link`; None for an end and itself.

    Parameters
    ----------
    link : Link
        NVLink counts each of its bonded links.
    rate_bps : float, optional
        For a network: the port's rate in bits/second, used in place of the assumption.
    """
    if link.kind is LinkClass.SELF:
        return None
    if link.kind is LinkClass.NETWORK and rate_bps:
        return Prior(rate_bps / 8, "the port's rate, as the kernel tells it")
    known = PRIORS[link.kind]
    return Prior(known.bandwidth_Bps * max(1, link.count), known.source)
