# SPDX-License-Identifier: BSD-3-Clause
"""The topology of this machine, or of one recorded as a tree of files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.topo import cgroup, devices, nvml, sysfs
from weft.topo.model import Gpu, Nic, Topology


def read(root: Path = Path("/"), *, driver: Any | None = None, environ: Mapping[str, str] | None = None) -> Topology:
    """Read the topology of the machine below `root`. It reads files only; it starts and changes nothing.

    Parameters
    ----------
    root : Path
        The folder with ``sys`` and ``proc``: this machine's, or a copy from another one.
    driver : module, optional
        ``pynvml``, from `weft.topo.nvml.load`, for the GPUs' names, memory, NVLinks and MIG instances. Without it, the
        GPUs are read from the PCI bus.
    environ : mapping of str to str, optional
        The environment of the process to place; it gives the memory of a Slurm job.

    Returns
    -------
    Topology
    """
    nodes = sysfs.read_nodes(root)
    cpus = sysfs.read_cpus(root, nodes)
    memory = sysfs.memory(root)
    gpus, nvlinks, said = _gpus(root, driver)
    nics = devices.read_nics(root)
    if len(nodes) == 1:  # then firmware seldom gives the node of a device
        gpus = tuple(gpu if gpu.node is not None else replace(gpu, node=nodes[0].id) for gpu in gpus)
        nics = tuple(nic if nic.node is not None else replace(nic, node=nodes[0].id) for nic in nics)
    twos: list[tuple[Gpu | Nic, Gpu | Nic]] = list(itertools.combinations((*gpus, *nics), 2))
    interconnects = [(a.name, b.name, nvlinks.get((a.name, b.name)) or devices.over_pci(a, b)) for a, b in twos]
    allowed = cgroup.read(root, tuple(cpu.id for cpu in cpus), tuple(node.id for node in nodes), memory, environ or {})
    return Topology(
        (f"{root / 'sys'}, {root / 'proc'}", said), cpus, nodes, gpus, nics, tuple(interconnects), allowed, memory
    )


def _gpus(root: Path, driver: Any | None) -> tuple[tuple[Gpu, ...], dict[tuple[str, str], Any], str]:
    on_bus = devices.read_gpus(root)
    if driver is None:
        said = "GPUs from the PCI bus only: nvidia-ml-py is not installed" if on_bus else "no NVIDIA GPU on the PCI bus"
        return on_bus, {}, said
    try:
        gpus, nvlinks = nvml.read(driver, root)
    except driver.NVMLError as error:
        return on_bus, {}, f"GPUs from the PCI bus only: NVML says {error}"
    return gpus, nvlinks, "GPUs from NVML"
