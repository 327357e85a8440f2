# SPDX-License-Identifier: BSD-3-Clause
"""NICs, RDMA devices, NVIDIA GPUs, and the PCIe paths between them, from sysfs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from weft.topo import sysfs
from weft.topo.interconnect import Interconnect, InterconnectClass
from weft.topo.model import Gpu, Nic, Port

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_NVIDIA = "0x10de"
_ARPHRD_INFINIBAND = 32
_DISPLAY = ("0x0300", "0x0302")  # VGA controller, 3D controller


def read_nics(root: Path) -> tuple[Nic, ...]:
    """Read RDMA devices, then network devices: hardware, bonds and VLANs; else a container's end of a pair."""
    rdma = [_rdma(path) for path in sorted((root / "sys/class/infiniband").glob("*"))]
    every = sorted((root / "sys/class/net").glob("*"))
    netdevs = [path for path in every if (path / "device").exists() or _stands_for_hardware(path)]
    return (*rdma, *map(_netdev, netdevs or filter(_paired, every)))


def _stands_for_hardware(path: Path) -> bool:
    return re.search(r"^DEVTYPE=(bond|vlan)$", sysfs.text(path / "uevent") or "", re.MULTILINE) is not None


def _paired(path: Path) -> bool:
    """Tell whether the device is one end of a pair: veth, macvlan and similar."""
    own, other = sysfs.number(path / "ifindex"), sysfs.number(path / "iflink")
    return own is not None and other is not None and own != other


def read_gpus(root: Path) -> tuple[Gpu, ...]:
    """Read NVIDIA's GPUs on the PCI bus, in the order of nvidia-smi: by address."""
    found = [
        path
        for path in sorted((root / "sys/bus/pci/devices").glob("*"))
        if sysfs.text(path / "vendor") == _NVIDIA and (sysfs.text(path / "class") or "").startswith(_DISPLAY)
    ]
    return tuple(gpu_at(path, i) for i, path in enumerate(found))


def gpu_at(path: Path, index: int) -> Gpu:
    """Read what sysfs says of the GPU at `path`, which may be missing."""
    node, cpus = sysfs.number(path / "numa_node"), sysfs.numbers(path / "local_cpulist")
    return Gpu(f"GPU{index}", index, cpus=cpus, node=node, pci=pci_path(path))


def pci_path(path: Path) -> tuple[str, ...]:
    """Return the way to the device: host bridge, bridges, the device itself; empty if it is not on PCI."""
    parts = Path(os.path.realpath(path)).parts
    root = next((part for part in parts if _ROOT.fullmatch(part)), None)
    return (root, *filter(_PCI.fullmatch, parts)) if root else ()


def over_pci(a: Gpu | Nic, b: Gpu | Nic) -> Interconnect:
    """Return the interconnect of two devices, in nvidia-smi's words, from their paths on PCI."""
    if a.node is not None and b.node is not None and a.node != b.node:
        return Interconnect(InterconnectClass.SYS)
    if not a.pci or not b.pci:
        return Interconnect(InterconnectClass.SAME_HOST)
    if a.pci[0] != b.pci[0]:
        return Interconnect(InterconnectClass.NODE)
    common = next(
        (i for i, (x, y) in enumerate(zip(a.pci, b.pci, strict=False)) if x != y), min(len(a.pci), len(b.pci))
    )
    if common == 1:
        return Interconnect(InterconnectClass.PHB)
    # bridges below the common one: the ports of one switch are one on each side
    below = max(len(a.pci), len(b.pci)) - common - 1
    return Interconnect(InterconnectClass.PIX if below <= 1 else InterconnectClass.PXB)


def _rdma(path: Path) -> Nic:
    device = path / "device"
    ports: list[Port] = []
    layers: set[str | None] = set()
    for number, port in sorted((int(p.name), p) for p in (path / "ports").glob("[0-9]*")):
        state = sysfs.text(port / "state") or "unknown"  # "4: ACTIVE"
        rate = re.match(r"([0-9]+(?:\.[0-9]+)?) Gb/sec", sysfs.text(port / "rate") or "")
        layers.add(sysfs.text(port / "link_layer"))
        name = state.rpartition(" ")[2].lower()
        ports.append(Port(number, name == "active", name, float(rate[1]) * 1e9 if rate else None))
    netdevs = tuple(sorted(p.name for p in (device / "net").glob("*")))
    return Nic(path.name, _kind(path, layers), _node(device), tuple(ports), netdevs, pci_path(device))


def _kind(path: Path, layers: set[str | None]) -> str:
    """Distinguish the RDMA devices: RoCE and iWARP both report Ethernet, Amazon's EFA Unspecified."""
    if "InfiniBand" in layers:  # a card may have a port of each
        return "infiniband"
    if "Ethernet" in layers:
        return "iwarp" if (sysfs.text(path / "node_type") or "").startswith("4") else "roce"
    driver = os.path.basename(os.path.realpath(path / "device/driver"))
    return "efa" if driver == "efa" else "unspecified"


def _netdev(path: Path) -> Nic:
    state = sysfs.text(path / "operstate") or "unknown"
    speed = None if _paired(path) else sysfs.number(path / "speed")  # Mb/s; a veth always reports 10000
    port = Port(None, state in ("up", "unknown"), state, speed * 1e6 if speed else None)
    device = path / "device"
    kind = "ipoib" if sysfs.number(path / "type") == _ARPHRD_INFINIBAND else "ethernet"
    above = path / "master"
    master = os.path.basename(os.path.realpath(above)) if os.path.islink(above) else None
    return Nic(path.name, kind, _node(device), (port,), (path.name,), pci_path(device), master)


def _node(device: Path) -> int | None:
    """Read the NUMA node of a device or, where it sits on a bus of its own (virtio), of the PCI device above."""
    real = Path(os.path.realpath(device))
    return next((node for p in (real, real.parent) if (node := sysfs.number(p / "numa_node")) is not None), None)
