# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a machine that matter for placing work. Data only; None means "not known"."""

from __future__ import annotations

from dataclasses import dataclass

from weft.topo.interconnect import Interconnect

#: The names of `Nic.kind` in text.
KINDS = {
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "efa": "EFA",
    "iwarp": "iWARP, which UCX does not use",
    "unspecified": "RDMA of a kind that the kernel does not tell",
    "ethernet": "Ethernet",
    "ipoib": "IPoIB",
}


@dataclass(frozen=True, slots=True)
class Cpu:
    """A logical CPU. `core` and `l3` are the number of their lowest CPU, which is unique in the machine."""

    id: int
    core: int
    socket: int
    node: int
    l3: int | None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node: memory and the CPUs next to it. Either may be missing (a GPU's memory, memory on CXL)."""

    id: int
    cpus: tuple[int, ...]
    memory_nbytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. `name` is nvidia-smi's ``GPU0``; `cpus` and `node` are the nearest; `mig` has its instances' UUIDs."""

    name: str
    index: int
    cpus: tuple[int, ...] = ()
    node: int | None = None
    model: str | None = None
    uuid: str | None = None
    memory_nbytes: int | None = None
    mig: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a NIC. `number` is None for a network device, which has one port; `rate_bps` is in bits per second."""

    number: int | None
    up: bool
    state: str
    rate_bps: float | None


@dataclass(frozen=True, slots=True)
class Nic:
    """A network device, or an RDMA device with the network devices on the same card in `netdevs`.

    `kind` is ``infiniband``, ``roce`` or ``efa`` (Amazon's) for RDMA devices that UCX supports, ``iwarp`` or
    ``unspecified`` for other RDMA devices, ``ethernet`` or ``ipoib`` for network devices, and ``unknown``, without
    `ports`, if only nvidia-smi reports it. `pci` is the path from the host bridge; `master` is the bond or bridge that
    a network device belongs to, which then has the address.
    """

    name: str
    kind: str
    node: int | None = None
    ports: tuple[Port, ...] = ()
    netdevs: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    master: str | None = None

    @property
    def rdma(self) -> bool:
        """Whether it is an RDMA device that a UCX with verbs can use."""
        return self.kind in ("infiniband", "roce", "efa")


@dataclass(frozen=True, slots=True)
class Allowed:
    """The part of the machine that this process may use.

    `cpu_quota` is CPU time in CPUs, e.g. 1.5. `memory_nbytes` is the limit of the control group or the Slurm job, and
    `memory_by` says which; None means no limit. `why` gives the reason for each restriction.
    """

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    cpu_quota: float | None = None
    memory_nbytes: int | None = None
    why: tuple[str, ...] = ()
    memory_by: str | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """A machine: its parts, the interconnects between its devices, and the part that this process may use.

    `interconnects` has one entry for each pair of devices. If only the output of nvidia-smi is known, `allowed` is
    None, and `cpus` and `nodes` are empty. `source` says what was read, and what could not be read.
    """

    source: tuple[str, ...]
    cpus: tuple[Cpu, ...] = ()
    nodes: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    interconnects: tuple[tuple[str, str, Interconnect], ...] = ()
    allowed: Allowed | None = None
    memory_nbytes: int | None = None

    @property
    def usable_nbytes(self) -> int | None:
        """The memory that this process may use, in bytes; None if that is not known."""
        limit = self.allowed.memory_nbytes if self.allowed else None
        return limit if limit is not None else self.memory_nbytes

    def between(self, a: str, b: str) -> Interconnect | None:
        """Return the interconnect between two devices, given by name; None if it is not known."""
        return next((interconnect for one, other, interconnect in self.interconnects if {one, other} == {a, b}), None)
