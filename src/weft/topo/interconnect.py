# SPDX-License-Identifier: BSD-3-Clause
"""The interconnect of two devices by class, nearest first, and the bandwidth to assume until it is measured.

The classes between devices are nvidia-smi's; those between processes are ours.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass


class InterconnectClass(enum.IntEnum):
    """What lies between two devices or processes. A smaller number is nearer; no prior is above a nearer class's."""

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
    SAME_HOST = 10  # one host, the places in it are not known
    NETWORK = 11


_TEXT = {
    InterconnectClass.SELF: "X",
    InterconnectClass.NVLINK: "NV",
    InterconnectClass.SAME_L3: "same L3",
    InterconnectClass.SAME_NUMA: "same NUMA",
    InterconnectClass.CROSS_SOCKET: "cross socket",
    InterconnectClass.SAME_HOST: "same host",
    InterconnectClass.NETWORK: "network",
}
_NVLINK = re.compile(r"NV([1-9][0-9]{0,2})")
_CELLS = {"X": InterconnectClass.SELF} | {kind.name: kind for kind in InterconnectClass if kind not in _TEXT}


@dataclass(frozen=True, slots=True)
class Prior:
    """A bandwidth to assume until one is measured, in bytes/second one way, and the source of the number."""

    bandwidth_Bps: float  # noqa: N815 - the unit
    source: str


_NCCL = "NCCL, src/graph/topo.h"
_WEFT = "weft's C loop over UCX's posix, 2-core Sapphire Rapids guest"

PRIORS: dict[InterconnectClass, Prior] = {
    InterconnectClass.NVLINK: Prior(
        20.0e9, f"{_NCCL}: 20.0 per link for SM70 and SM80 (18.0 SM60, 20.6 SM90, 40.1 SM100)"
    ),
    InterconnectClass.SAME_L3: Prior(13.3e9, f"{_WEFT}: messages of 1 MiB, which stay in the cache"),
    InterconnectClass.PIX: Prior(12.0e9, f"{_NCCL}: PCI_BW, PCIe 3.0 x16"),
    InterconnectClass.PXB: Prior(12.0e9, f"{_NCCL}: PCI_BW, PCIe 3.0 x16; a switch takes nothing off"),
    InterconnectClass.PHB: Prior(10.0e9, f"{_NCCL}: PCI_BW over INTEL_P2P_OVERHEAD, 12.0 / 1.2"),
    InterconnectClass.NODE: Prior(10.0e9, f"{_NCCL}: as PHB, from which it does not tell it apart"),
    InterconnectClass.SAME_NUMA: Prior(9.0e9, f"{_WEFT}: messages of 128 MiB, which go through memory"),
    InterconnectClass.SYS: Prior(
        6.0e9, f"{_NCCL}: BDW_QPI_BW, the slowest x86 socket link there (SKL 10, SPR 22, ERP 40)"
    ),
    InterconnectClass.CROSS_SOCKET: Prior(6.0e9, f"{_NCCL}: BDW_QPI_BW, as SYS"),
    InterconnectClass.SAME_HOST: Prior(6.0e9, "assumed: as cross socket, the slowest place in one host"),
    InterconnectClass.NETWORK: Prior(1.25e9, "assumed: the line rate of 10 Gb/s Ethernet"),
}


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Interconnect:
    """Its class and, for NVLink, how many links are bonded (else 0). ``min`` of several is the nearest."""

    kind: InterconnectClass
    count: int = 0

    def __lt__(self, other: Interconnect) -> bool:
        return (self.kind, -self.count) < (other.kind, -other.count)

    def __str__(self) -> str:
        return f"NV{self.count}" if self.kind is InterconnectClass.NVLINK else _TEXT.get(self.kind, self.kind.name)

    @classmethod
    def parse(cls, cell: str) -> Interconnect:
        """Read a cell of nvidia-smi's matrix: ``X``, ``NV2``, ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.

        Raises
        ------
        ValueError
            It is none of these.
        """
        if match := _NVLINK.fullmatch(cell):
            return cls(InterconnectClass.NVLINK, int(match[1]))
        if cell not in _CELLS:
            raise ValueError(f"{cell!r} is not an interconnect: X, NV#, PIX, PXB, PHB, NODE or SYS")
        return cls(_CELLS[cell])

    def prior(self, *, rate_bps: float | None = None) -> Prior | None:
        """Return the bandwidth to assume, for NVLink that of all bonded links; None between a device and itself.

        Parameters
        ----------
        rate_bps : float, optional
            For a network: the port's rate in bits/second, used in place of the assumption.
        """
        if self.kind is InterconnectClass.SELF:
            return None
        if self.kind is InterconnectClass.NETWORK and rate_bps:
            return Prior(rate_bps / 8, "the port's rate, from the kernel")
        known = PRIORS[self.kind]
        return Prior(known.bandwidth_Bps * max(1, self.count), known.source)
