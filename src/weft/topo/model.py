# SPDX-License-Identifier: BSD-3-Clause
"""What a machine consists of, as far as it matters for placing work. Data only; None is "not known"."""

from __future__ import annotations

from dataclasses import dataclass

from weft.topo.interconnect import Interconnect

#: What `Nic.kind` is called where people read it.
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
    """A logical CPU. `core` and `l3` are named by their lowest CPU, so that they are unique in the machine."""

    id: int
    core: int
    socket: int
    node: int
    l3: int | None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Memory and the CPUs beside it; either may be missing (a GPU's memory, memory on CXL)."""

    id: int
    cpus: tuple[int, ...]
    memory_nbytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. `name` is nvidia-smi's ``GPU0``; `cpus` and `node` are those beside it; `mig` are UUIDs of instances."""

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
    """A port of a NIC; `number` is None for a network device, which has one. `rate_bps` is bits/second."""

    number: int | None
    up: bool
    state: str
    rate_bps: float | None


@dataclass(frozen=True, slots=True)
class Nic:
    """A network device, or an RDMA device with the network devices on the same card in `netdevs`.

    `kind` is ``infiniband``, ``roce`` or ``efa`` (Amazon's) for RDMA devices that UCX has transports for, ``iwarp`` or
    ``unspecified`` for others; ``ethernet`` or ``ipoib`` for network devices; ``unknown``, without `ports`, where it is
    known from nvidia-smi alone. `pci` is the way from the host bridge down; `master` the bond or bridge that a
    network device belongs to, which then has the address.
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
        """Whether it is an RDMA device that a UCX with verbs may use."""
        return self.kind in ("infiniband", "roce", "efa")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What of the machine this process may use.

    `cpu_quota` counts CPUs of time (1.5: one and a half), `memory_nbytes` is the limit of the control group or the
    Slurm job, `memory_by` which of them; None is no limit. `why` names, for each thing that is withheld, what
    withholds it.
    """

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    cpu_quota: float | None = None
    memory_nbytes: int | None = None
    why: tuple[str, ...] = ()
    memory_by: str | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """A machine: what it has, what joins its devices, and how much of it this process may use.

    `interconnects` has every two devices once. `allowed` is None, and `cpus` and `nodes` are empty, where only
    nvidia-smi's text is known. `source` says what was read, and what could not be.
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
        """How much of the memory this process may use; None if that is not known."""
        limit = self.allowed.memory_nbytes if self.allowed else None
        return limit if limit is not None else self.memory_nbytes

    def between(self, a: str, b: str) -> Interconnect | None:
        """Return what lies between two devices by name, or None where that is not known."""
        return next((interconnect for one, other, interconnect in self.interconnects if {one, other} == {a, b}), None)
