# SPDX-License-Identifier: BSD-3-Clause
"""The GPUs of one machine as a network, from ``nvidia-smi topo -m``: NVLink between GPUs that have it, otherwise PCIe.

Bandwidths are the priors of ``weft topo`` for each kind. GPUs that reach a NIC over a single PCIe bridge (PIX) are
behind one PCIe switch and share its uplink; traffic between sockets shares that link. If every GPU has the same number
of NVLinks to every other, they are connected by a switch (NVSwitch), and a GPU's links are one port.
"""

from __future__ import annotations

from weft.links import Place
from weft.simulate.network import Link, Network, Way
from weft.topo import nvidia_smi
from weft.topo.interconnect import PRIORS, Interconnect, InterconnectClass

#: Seconds until the first byte between two workers with one GPU each: Dask's messages within a host.
_LATENCY_S = 1e-3


def machine(title: str, table: str) -> Network:
    """Make a network with a worker for each GPU of the machine that printed `table`."""
    matrix = nvidia_smi.parse(table)
    gpus = len(matrix.gpus)
    every = [matrix.cells[i][j] for i in range(gpus) for j in range(gpus) if i != j]
    kinds = [tuple((f"gpu{j}", matrix.cells[i][j].kind) for j in range(gpus) if j != i) for i in range(gpus)]
    places = {f"gpu{i}": Place("machine", kinds[i]) for i in range(gpus)}
    made = _Links(matrix)
    if len(set(every)) == 1 and every[0].kind is InterconnectClass.NVLINK:
        ways = {(i, j): made.switched(i, j, every[0]) for i in range(gpus) for j in range(gpus) if i != j}
    else:
        ways = {(i, j): made.between(i, j) for i in range(gpus) for j in range(gpus) if i != j}

    def way(a: str, b: str) -> Way:
        return Way(ways[int(a[3:]), int(b[3:])], _LATENCY_S)

    return Network(title, places, tuple(made.links), way, {})


class _Links:
    """The links of a machine, each created on first use."""

    def __init__(self, matrix: nvidia_smi.Matrix) -> None:
        self._cells, self._gpus = matrix.cells, len(matrix.gpus)
        self._sockets = matrix.column("CPU Affinity")
        self.links: list[Link] = []
        self._index: dict[str, int] = {}

    def _link(self, name: str, bandwidth: float) -> int:
        if name not in self._index:
            self._index[name] = len(self.links)
            self.links.append(Link(name, bandwidth))
        return self._index[name]

    def switched(self, a: int, b: int, link: Interconnect) -> tuple[int, ...]:
        """Return the path through an NVSwitch."""
        known = link.prior()
        assert known is not None, "between two GPUs"
        return self._link(f"gpu{a} out", known.bandwidth_Bps), self._link(f"gpu{b} in", known.bandwidth_Bps)

    def between(self, a: int, b: int) -> tuple[int, ...]:
        """Return the path over NVLink, or over PCIe."""
        link = self._cells[a][b]
        known = link.prior()
        assert known is not None, "between two GPUs"
        if link.kind is InterconnectClass.NVLINK:
            return (self._link(f"gpu{a} > gpu{b}", known.bandwidth_Bps),)
        pcie = PRIORS[InterconnectClass.PIX].bandwidth_Bps
        path = [self._link(f"gpu{a} PCIe out", pcie)]
        if self._switch(a) != self._switch(b):
            bridge = PRIORS[InterconnectClass.PHB].bandwidth_Bps
            path.append(self._link(f"{self._switch(a)} up", bridge))
            if self._sockets[a] != self._sockets[b]:
                path.append(self._link(f"socket {self._sockets[a]} > {self._sockets[b]}", known.bandwidth_Bps))
            path.append(self._link(f"{self._switch(b)} down", bridge))
        return (*path, self._link(f"gpu{b} PCIe in", pcie))

    def _switch(self, gpu: int) -> str:
        """Name a GPU's PCIe switch by the NIC behind it; without one, the GPU has a bridge of its own."""
        nics = range(self._gpus, len(self._cells))
        return next((f"switch {n}" for n in nics if self._cells[gpu][n].kind is InterconnectClass.PIX), f"bridge {gpu}")
