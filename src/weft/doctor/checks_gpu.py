# SPDX-License-Identifier: BSD-3-Clause
"""GPUs: driver, kernel headers, GPUDirect RDMA, ``nvidia-smi topo -m``."""

from __future__ import annotations

import re

from weft.doctor.finding import Finding, error, not_applicable, note, ok, warning
from weft.doctor.machine import Machine, brief
from weft.errors import TopologyError
from weft.topo import nvidia_smi

_DRIVER = "proc/driver/nvidia/version"
_GUIDE = "guide: NVIDIA drivers"
_PEER_SOURCE = "NVIDIA: GPUDirect RDMA (nvidia-peermem comes with drivers from 470 up)"


def driver(machine: Machine) -> Finding:
    """Look for NVIDIA's driver, where there are GPUs."""
    count = len(machine.topology.gpus)
    if not count:
        return _none()
    have = f"{count} NVIDIA {'GPU' if count == 1 else 'GPUs'} on the PCI bus"
    bus = f"/sys/bus/pci/devices: {', '.join(gpu.pci[-1] for gpu in machine.topology.gpus if gpu.pci)}"
    version = machine.text(_DRIVER)
    if version is None:
        return error(
            f"{have}, and no driver is loaded",
            bus,
            machine.quote(_DRIVER),
            *(["/sys/module/nouveau: loaded"] if machine.has("sys/module/nouveau") else []),
            remedy=_load_driver(machine),
            source=_GUIDE,
        )
    devices = [name for name in machine.names("dev") if re.fullmatch("nvidia[0-9]+", name)]
    evidence = (bus, machine.quote(_DRIVER), f"/dev: {', '.join(devices) or 'no nvidia0'}")
    if not devices:
        inside = "start the container with the GPUs: docker run --gpus all, or the runtime's own option"
        outside = "run nvidia-smi as root once: it makes the files; nvidia-persistenced does at each start"
        return error(
            f"{have}, the driver is loaded, but there are no device files",
            *evidence,
            remedy=inside if machine.container else outside,
            source="NVIDIA Container Toolkit; NVIDIA's driver README",
        )
    if len(devices) < count:
        return note(f"{have}, {len(devices)} of them for this process", *evidence)
    return ok(f"{have}, driver {_version(version) or 'loaded'}", *evidence)


def _none() -> Finding:
    return not_applicable(
        "no NVIDIA GPU on the PCI bus", "/sys/bus/pci/devices: no display controller of vendor 0x10de"
    )


def _version(text: str) -> str:
    found = re.search(r"Module\s.*?\b([0-9]{3,4}\.[0-9.]{1,12})\b", text.partition("\n")[0])
    return found[1] if found else ""


def _load_driver(machine: Machine) -> str:
    if machine.container:
        return "load it on the host: a container uses the host's driver"
    if _has_module(machine, "nvidia.ko"):
        blocked = " (nouveau holds the GPUs: blacklist it and restart)" if machine.has("sys/module/nouveau") else ""
        return f"modprobe nvidia{blocked}; dmesg says why it is not loaded by itself"
    headers = "" if _headers(machine) else f"linux-headers-{machine.release or '$(uname -r)'} and "
    return f"install {headers}the driver (cuda-drivers of NVIDIA's repository; or Debian's nvidia-driver), then restart"


def _has_module(machine: Machine, file: str) -> bool:
    listed = machine.text(f"lib/modules/{machine.release}/modules.dep") if machine.release else None
    return bool(re.search(rf"(^|/){re.escape(file)}(\.\w+)?:", listed or "", re.MULTILINE))


def _headers(machine: Machine) -> bool:
    return bool(machine.release) and machine.has(f"lib/modules/{machine.release}/build")


def headers(machine: Machine) -> Finding:
    """Look for the kernel's headers, which the driver's module is built with."""
    if not machine.topology.gpus:
        return _none()
    build = f"/lib/modules/{machine.release or '?'}/build"
    if machine.container:
        return not_applicable("a container uses the host's driver, and so its headers", machine.container)
    if not machine.release:
        return note("the kernel's release is not known", machine.quote("proc/sys/kernel/osrelease"))
    if _headers(machine):
        return ok(f"headers of {machine.release} are installed", f"{build}: there")
    remedy = f"apt-get install linux-headers-{machine.release}, or kernel-devel of that release"
    if machine.has(_DRIVER):
        what = f"no headers of {machine.release}: the loaded driver works, a new one could not be built by DKMS"
        return note(what, f"{build}: not there", remedy=remedy, source=_GUIDE)
    return warning(
        f"no headers of {machine.release}: the driver's module cannot be built",
        f"{build}: not there",
        remedy=remedy,
        source=_GUIDE,
    )


def peer_memory(machine: Machine) -> Finding:
    """Look for a way for NICs to read and write GPU memory: nvidia_peermem, nv_peer_mem, or dma-buf."""
    if not machine.topology.gpus:
        return _none()
    if not any(nic.rdma for nic in machine.topology.nics):
        return not_applicable("no RDMA device that could reach GPU memory", "/sys/class/infiniband: empty")
    version = machine.text(_DRIVER)
    if version is None:
        return not_applicable("no driver to ask: see GPU driver", machine.quote(_DRIVER))
    for module in ("nvidia_peermem", "nv_peer_mem"):
        if machine.has(f"sys/module/{module}"):
            return ok(f"NICs reach GPU memory: {module} is loaded", f"/sys/module/{module}: there")
    evidence = ("/sys/module/nvidia_peermem, nv_peer_mem: not there", machine.quote(_DRIVER))
    if "Open Kernel Module" in version and _kernel(machine) >= (5, 12):
        return ok("NICs reach GPU memory by dma-buf: open kernel module, Linux 5.12 or newer", *evidence)
    what = "neither nvidia_peermem nor nv_peer_mem is loaded: GPU memory goes through host memory to the NIC"
    return warning(what, *evidence, remedy=_load_peer_memory(machine, version), source=_PEER_SOURCE)


def _kernel(machine: Machine) -> tuple[int, int]:
    found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", machine.release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _load_peer_memory(machine: Machine, version: str) -> str:
    files = ["etc/modules", *(f"etc/modules-load.d/{name}" for name in machine.names("etc/modules-load.d"))]
    for file in files:
        if re.search(r"^\s*(nvidia[-_]peermem|nv_peer_mem)\s*$", machine.text(file) or "", re.MULTILINE):
            return (
                f"/{file} names it, and loading it failed: dmesg says why; a driver that was installed before"
                " the RDMA drivers has to be installed again"
            )
    if machine.container:
        return "modprobe nvidia-peermem on the host"
    major = re.match(r"[0-9]+", _version(version))
    if major and int(major[0]) < 470:
        return "install nv_peer_mem (github.com/Mellanox/nv_peer_memory), or a driver from 470 up, which has its own"
    return "modprobe nvidia-peermem, and `echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf` to keep it"


def matrix(machine: Machine) -> Finding:
    """Compare what ``nvidia-smi topo -m`` says with the PCI bus."""
    gpus = machine.topology.gpus
    if not gpus:
        return _none()
    command = "nvidia-smi topo -m"
    if not machine.has(_DRIVER):
        return not_applicable("no driver to ask: see GPU driver", machine.quote(_DRIVER))
    if command not in machine.commands:
        return note(
            "nvidia-smi is not here: NVLinks are not known",
            f"{command}: not found",
            remedy="install nvidia-utils of the driver's version",
            source="guide: nvidia-smi topo -m",
        )
    said = machine.commands[command]
    if said is None:
        return note(
            "nvidia-smi failed, or took longer than a second",
            f"{command}: no answer",
            remedy="run it by hand; nvidia-smi -pm 1 keeps the driver loaded, so that it answers quickly",
            source="NVIDIA's driver README: persistence mode",
        )
    try:
        told = nvidia_smi.topology(nvidia_smi.parse(said, name=command), source=command)
    except TopologyError as problem:
        return note("nvidia-smi's table was not understood", brief(str(problem)))
    kinds = sorted(
        {str(interconnect) for a, b, interconnect in told.interconnects if a.startswith("GPU") and b.startswith("GPU")}
    )
    evidence = f"{command}: {len(told.gpus)} GPUs, between them {', '.join(kinds) or 'nothing'}"
    if len(told.gpus) < len(gpus):
        return warning(
            f"nvidia-smi has {len(told.gpus)} of the {len(gpus)} GPUs on the PCI bus",
            evidence,
            remedy="dmesg | grep -i xid shows whether a GPU fell off the bus; in a container, ask for all of them",
            source="NVIDIA: Xid errors",
        )
    if len(told.gpus) == 1:
        return ok("1 GPU", evidence)
    return ok(f"{len(told.gpus)} GPUs, joined by {', '.join(kinds) or 'nothing'}", evidence)
