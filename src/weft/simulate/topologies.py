# SPDX-License-Identifier: BSD-3-Clause
"""The networks of ``weft simulate``, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft.simulate import gpus
from weft.simulate.network import Network, fat_tree

GBIT = 1e9 / 8
MIB = 1 << 20

#: From Dask's blog, 2019, "Experiments in High Performance Networking with UCX and DGX".
DGX1 = """\
     GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7   ib0   ib1   ib2   ib3
GPU0   X    NV1   NV1   NV2   NV2   SYS   SYS   SYS   PIX   SYS   PHB   SYS
GPU1  NV1    X    NV2   NV1   SYS   NV2   SYS   SYS   PIX   SYS   PHB   SYS
GPU2  NV1   NV2    X    NV2   SYS   SYS   NV1   SYS   PHB   SYS   PIX   SYS
GPU3  NV2   NV1   NV2    X    SYS   SYS   SYS   NV1   PHB   SYS   PIX   SYS
GPU4  NV2   SYS   SYS   SYS    X    NV1   NV1   NV2   SYS   PIX   SYS   PHB
GPU5  SYS   NV2   SYS   SYS   NV1    X    NV2   NV1   SYS   PIX   SYS   PHB
GPU6  SYS   SYS   NV1   SYS   NV1   NV2    X    NV2   SYS   PHB   SYS   PIX
GPU7  SYS   SYS   SYS   NV1   NV2   NV1   NV2    X    SYS   PHB   SYS   PIX
ib0   PIX   PIX   PHB   PHB   SYS   SYS   SYS   SYS    X    SYS   PHB   SYS
ib1   SYS   SYS   SYS   SYS   PIX   PIX   PHB   PHB   SYS    X    SYS   PHB
ib2   PHB   PHB   PIX   PIX   SYS   SYS   SYS   SYS   PHB   SYS    X    SYS
ib3   SYS   SYS   SYS   SYS   PHB   PHB   PIX   PIX   SYS   PHB   SYS    X

    CPU Affinity
GPU0  0-19,40-59
GPU1  0-19,40-59
GPU2  0-19,40-59
GPU3  0-19,40-59
GPU4  20-39,60-79
GPU5  20-39,60-79
GPU6  20-39,60-79
GPU7  20-39,60-79
"""

#: From the UCX-Py documentation's notes on Azure.
ND40RS_V2 = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    CPU Affinity    NUMA Affinity
GPU0    X       NV2     NV1     NV2     NODE    NODE    NV1     NODE    0-19            0
GPU1    NV2     X       NV2     NV1     NODE    NODE    NODE    NV1     0-19            0
GPU2    NV1     NV2     X       NV1     NV2     NODE    NODE    NODE    0-19            0
GPU3    NV2     NV1     NV1     X       NODE    NV2     NODE    NODE    0-19            0
GPU4    NODE    NODE    NV2     NODE    X       NV1     NV1     NV2     0-19            0
GPU5    NODE    NODE    NODE    NV2     NV1     X       NV2     NV1     0-19            0
GPU6    NV1     NODE    NODE    NODE    NV1     NV2     X       NV2     0-19            0
GPU7    NODE    NV1     NODE    NODE    NV2     NV1     NV2     X       0-19            0
"""


class Topology(NamedTuple):
    """A network with a name, and the work that runs on it.

    Attributes
    ----------
    family : str
        Networks of one family share a chart.
    nbytes : int
        The size of a block of data.
    compute_Bps : float
        A worker's compute rate, in bytes/second.
    resolution_s : float
        The engine's resolution.
    warm : int
        Runs of a graph before the run that counts: links are distinguished after a pair's third transfer.
    graphs : tuple of str
        The graphs that can run on it; empty: all.
    """

    title: str
    family: str
    make: Callable[[], Network]
    nbytes: int
    compute_Bps: float  # noqa: N815 - the unit
    resolution_s: float = 0.0
    warm: int = 4
    graphs: tuple[str, ...] = ()


def _nvswitch() -> Network:
    names = [f"GPU{i}" for i in range(8)]
    rows = [[name, *("X" if other == name else "NV18" for other in names)] for name in names]
    return gpus.machine("HGX H100", "\n".join(map(" ".join, [names, *rows])))


def _islands() -> Network:
    """Two racks of two hosts with two workers each; the racks are linked at 1 Gb/s, the hosts at 10."""
    racks = [{f"{rack}{host}": 2 for host in range(2)} for rack in "ab"]
    return fat_tree("two islands", racks, 10 * GBIT, uplink_Bps=1 * GBIT)


def _tree(racks: int, hosts: int, workers: int) -> Network:
    """Ports of 25 Gb/s, and uplinks sized for a quarter of a rack's hosts."""
    named = [{f"r{rack}h{host}": workers for host in range(hosts)} for rack in range(racks)]
    title = f"fat tree of {racks * hosts * workers} workers"
    return fat_tree(title, named, 25 * GBIT, uplink_Bps=hosts / 4 * 25 * GBIT)


_AMONG_MANY = ("broadcast", "tree reduce", "shuffle", "x + x.T", "svd", "stencil")
TOPOLOGIES = {
    "dgx1": Topology("DGX-1", "gpus", lambda: gpus.machine("DGX-1", DGX1), 1024 * MIB, compute_Bps=200e9),
    "nd40rs": Topology(
        "ND40rs_v2", "gpus", lambda: gpus.machine("ND40rs_v2", ND40RS_V2), 1024 * MIB, compute_Bps=200e9
    ),
    "h100": Topology("HGX H100", "gpus", _nvswitch, 1024 * MIB, compute_Bps=800e9),
    "islands": Topology("two islands", "islands", _islands, 64 * MIB, compute_Bps=1e9),
    "tree1000": Topology(
        "fat tree, 1,000 workers",
        "trees",
        lambda: _tree(10, 25, 4),
        64 * MIB,
        compute_Bps=1e9,
        resolution_s=2e-3,
        warm=0,
        graphs=_AMONG_MANY,
    ),
    "tree10000": Topology(
        "fat tree, 10,000 workers",
        "trees",
        lambda: _tree(40, 50, 5),
        64 * MIB,
        compute_Bps=1e9,
        resolution_s=2e-3,
        warm=0,
        graphs=("broadcast",),
    ),
}
#: Networks that take seconds, not minutes.
QUICK = ("dgx1", "nd40rs", "h100", "islands")
