# SPDX-License-Identifier: BSD-3-Clause
"""InfiniBand and RoCE: drivers, ports, IPoIB, Azure's agent, locked memory, a libucp that can use them."""

from __future__ import annotations

import re

from weft._units import format_size
from weft.doctor import ucx
from weft.doctor.finding import Finding, error, not_applicable, note, ok, warning
from weft.doctor.machine import CAP_IPC_LOCK, Machine, brief
from weft.topo.model import KINDS, Nic

_MELLANOX = "0x15b3"
_AZURE = "7783-7084-3265-9085-8269-3286-77"  # the asset tag of every virtual machine there
_CLASS = "sys/class/infiniband"
#: The least limit of locked memory that suffices: UCX's buffers for some hundred endpoints.
_LOCKED_NBYTES = 1 << 30
_MEMLOCK_SOURCE = "getrlimit(2): RLIMIT_MEMLOCK; Red Hat, Configuring InfiniBand and RDMA networks: pinned memory"


def _rdma(machine: Machine) -> list[Nic]:
    return [nic for nic in machine.topology.nics if nic.rdma]


def _on_bus(machine: Machine) -> tuple[list[str], list[str]]:
    """List the addresses of InfiniBand controllers, and of NVIDIA's Ethernet controllers, which have RoCE."""
    infiniband: list[str] = []
    ethernet: list[str] = []
    for name in machine.names("sys/bus/pci/devices"):
        kind = machine.text(f"sys/bus/pci/devices/{name}/class") or ""
        if kind.startswith("0x0207"):
            infiniband.append(name)
        elif kind.startswith("0x0200") and machine.text(f"sys/bus/pci/devices/{name}/vendor") == _MELLANOX:
            ethernet.append(name)
    return infiniband, ethernet


def _absent(machine: Machine) -> Finding | None:
    """Return the finding of a machine that has no RDMA device in use."""
    if _rdma(machine):
        return None
    infiniband, ethernet = _on_bus(machine)
    if infiniband or ethernet:
        return not_applicable("no RDMA device in use: see RDMA devices", f"/{_CLASS}: empty")
    return not_applicable(
        "no InfiniBand or RoCE device on the PCI bus", "/sys/bus/pci/devices: no controller of class 0x0207"
    )


def devices(machine: Machine) -> Finding:
    """Check whether RDMA drivers, the kernel's or OFED's, handle the devices on the bus."""
    found = _rdma(machine)
    infiniband, ethernet = _on_bus(machine)
    drivers = "OFED's" if machine.has("sys/module/mlx_compat") else "the kernel's own"
    if not found and not infiniband and not ethernet:
        return not_applicable(
            "no InfiniBand or RoCE device on the PCI bus", "/sys/bus/pci/devices: no controller of class 0x0207"
        )
    bus = f"/sys/bus/pci/devices: {', '.join(infiniband + ethernet) or 'none that is known as RDMA'}"
    if not found:
        evidence = (bus, f"/{_CLASS}: empty", f"/sys/module/mlx5_ib: {_there(machine, 'sys/module/mlx5_ib')}")
        remedy = (
            "give the container the devices: --device /dev/infiniband --ulimit memlock=-1"
            if machine.container
            else "modprobe mlx5_ib ib_uverbs (rdma-core has them loaded at each start), or install OFED"
        )
        if infiniband:
            what = "an InfiniBand controller is on the PCI bus, but no RDMA driver handles it"
            return error(what, *evidence, remedy=remedy, source="guide: InfiniBand driver")
        return note(
            "an Ethernet controller that supports RoCE, without an RDMA driver",
            *evidence,
            remedy=remedy,
            source="Linux, Documentation/infiniband; rdma-core",
        )
    kinds = {nic.kind: [other.name for other in found if other.kind == nic.kind] for nic in found}
    names = "; ".join(f"{', '.join(same)} ({KINDS[kind]})" for kind, same in kinds.items())
    verbs = [name for name in machine.names("dev/infiniband") if name.startswith("uverbs")]
    evidence = (f"/{_CLASS}: {names}", f"drivers: {drivers}", f"/dev/infiniband: {', '.join(verbs) or 'no uverbs'}")
    if not verbs:
        inside = "start the container with --device /dev/infiniband"
        return error(
            f"{names}: no /dev/infiniband/uverbs* by which programs reach them",
            *evidence,
            remedy=inside if machine.container else "modprobe ib_uverbs; rdma-core has it loaded at each start",
            source="Linux, Documentation/infiniband/user_verbs.rst",
        )
    return _of_software(machine, found, evidence) or ok(f"{names}, by {drivers} drivers", *evidence)


def _of_software(machine: Machine, found: list[Nic], evidence: tuple[str, ...]) -> Finding | None:
    """Return the finding for devices of the kernel's rxe, over Ethernet, if UCX's settings for them are missing.

    rxe may report twice that a queue pair has ended, and UCX up to 1.22 then aborts the process. UCX also drops packets
    of ud, which rc needs to connect, as foreign if it chose an IPv4 address. It accepts them with IPv6's link-local
    address, which is the first in the kernel's table of a device's addresses.
    """
    files = [f"{_CLASS}/{nic.name}/parent" for nic in found if machine.has(f"{_CLASS}/{nic.name}/parent")]
    wanted = {"UCX_IB_ASYNC_EVENTS": "n", "UCX_IB_GID_INDEX": "0"}
    missing = [f"{name}={value}" for name, value in wanted.items() if name not in machine.environ]
    if not files or not missing:
        return None
    return note(
        f"an RDMA device made of software (rxe): {', '.join(file.split('/')[3] for file in files)}",
        *evidence,
        *(machine.quote(file) for file in files),
        remedy=f"export {' '.join(missing)}, or UCX may abort or never connect; or leave it out: UCX_TLS=^ib",
        source="weft's docs, rdma; UCX, src/uct/ib/base/ib_device.c",
    )


def _there(machine: Machine, name: str) -> str:
    return "there" if machine.has(name) else "not there"


def ports(machine: Machine) -> Finding:
    """Read the state of each port, as ibv_devinfo shows it."""
    absent = _absent(machine)
    if absent:
        return absent
    evidence: list[str] = []
    up: list[str] = []
    down: list[str] = []
    remedies: list[str] = []
    for nic in _rdma(machine):
        for port in nic.ports:
            folder = f"{_CLASS}/{nic.name}/ports/{port.number}"
            physical = brief(machine.text(f"{folder}/phys_state") or "not known")
            evidence.append(f"/{folder}/state: {brief(machine.text(f'{folder}/state') or '')} (physical: {physical})")
            if port.up:
                up.append(f"{nic.name}:{port.number}")
            else:
                down.append(f"{nic.name}:{port.number}")
                remedies.append(f"{down[-1]}: {_port_remedy(nic, port.state)}")
    source = "Linux, Documentation/ABI/stable/sysfs-class-infiniband; guide: ibv_devinfo"
    if not evidence:
        return note("the RDMA devices show no ports", f"/{_CLASS}: {', '.join(nic.name for nic in _rdma(machine))}")
    if not up and any(nic.kind == "infiniband" for nic in _rdma(machine)):
        return error("no RDMA port is active", *evidence, remedy="; ".join(remedies), source=source)
    if remedies:
        what = f"not active: {', '.join(down)}; active: {', '.join(up) or 'none'}"
        return note(what, *evidence, remedy="; ".join(remedies), source=source)
    return ok(f"active: {', '.join(up)}", *evidence)


def _port_remedy(nic: Nic, state: str) -> str:
    if nic.kind == "roce":
        return "bring its network device up: ip link set DEVICE up"
    if nic.kind == "efa":
        return "the instance's network interface has to be one with EFA, attached at its start"
    if state in ("init", "armed"):
        return "the port waits for a subnet manager: start opensm on the fabric, or ask its administrator"
    return "no link: check the cable, the switch port and ibstat"


def ipoib(machine: Machine) -> Finding:
    """Look for an IPoIB interface: Dask's addresses, and tcp over InfiniBand, need one."""
    if not any(nic.kind == "infiniband" for nic in _rdma(machine)):
        return _absent(machine) or not_applicable(
            "no InfiniBand: Ethernet devices carry the addresses", f"/{_CLASS}: no InfiniBand"
        )
    names = [name for name in machine.names("sys/class/net") if machine.text(f"sys/class/net/{name}/type") == "32"]
    source = "Linux, Documentation/infiniband/ipoib.rst; guide: Enable IPoIB"
    if not names:
        remedy = "modprobe ib_ipoib" if not machine.has("sys/module/ib_ipoib") else "add it: rdma-core, ip link"
        return note(
            "no IPoIB interface: RDMA works, but Dask has no address on InfiniBand",
            "/sys/class/net: none of type 32",
            remedy="start the container with --network=host, if the host has one" if machine.container else remedy,
            source=source,
        )
    states = {name: brief(machine.text(f"sys/class/net/{name}/operstate") or "not known") for name in names}
    evidence = [f"/sys/class/net/{name}/operstate: {state}" for name, state in states.items()]
    if "up" not in states.values():
        azure = "set OS.EnableRDMA=y in /etc/waagent.conf and restart, or " if _azure(machine) else ""
        return warning(
            f"IPoIB is down: {', '.join(names)}",
            *evidence,
            remedy=f"{azure}give it an address and bring it up: ip addr add ADDRESS dev {names[0]}; "
            f"ip link set {names[0]} up",
            source=source,
        )
    return ok(f"IPoIB is up: {', '.join(name for name, state in states.items() if state == 'up')}", *evidence)


def _azure(machine: Machine) -> bool:
    return machine.text("sys/class/dmi/id/chassis_asset_tag") == _AZURE


def waagent(machine: Machine) -> Finding:
    """On Azure, check whether the agent sets up InfiniBand."""
    if not _azure(machine):
        return not_applicable("not an Azure machine", machine.quote("sys/class/dmi/id/chassis_asset_tag"))
    infiniband, _ = _on_bus(machine)
    if not infiniband and not any(nic.kind == "infiniband" for nic in _rdma(machine)):
        return not_applicable("Azure, without InfiniBand", "/sys/bus/pci/devices: no controller of class 0x0207")
    conf = machine.text("etc/waagent.conf")
    source = "guide: Enable IPoIB; Azure Linux agent: OS.EnableRDMA"
    if conf is None:
        return note(
            "this is Azure, but its agent's configuration cannot be read: InfiniBand may not be set up",
            "/etc/waagent.conf: cannot be read",
            source=source,
        )
    found = re.search(r"^[ \t]*OS\.EnableRDMA[ \t]*=[ \t]*(\w+)", conf, re.MULTILINE)
    said = f"/etc/waagent.conf: {found[0].strip() if found else 'OS.EnableRDMA is not set'}"
    if found and found[1].lower() in ("y", "yes", "true"):
        return ok("Azure's agent sets InfiniBand up", said)
    change = (
        "sed -i -E 's/^[# \\t]*OS\\.EnableRDMA=.*/OS.EnableRDMA=y/' /etc/waagent.conf"
        if "OS.EnableRDMA" in conf
        else "echo OS.EnableRDMA=y >> /etc/waagent.conf"
    )
    return warning("Azure's agent does not set up InfiniBand", said, remedy=f"{change}; then restart", source=source)


def verbs(machine: Machine) -> Finding:
    """Check whether the libucp that weft would load can use the RDMA devices."""
    absent = _absent(machine)
    if absent:
        return absent
    found = ucx.chosen(machine)
    if found is None:
        return not_applicable("no libucp: see libucp", "no libucp found")
    folder = found.path.rpartition("/")[0]
    if found.verbs and not _verbs_library(machine, folder):
        return error(
            f"libucp was built with verbs, but libibverbs.so.1 is missing: {found}",
            f"{folder}/ucx: libuct_ib is there",
            "/etc/ld.so.cache: no libibverbs.so.1",
            remedy="apt-get install ibverbs-providers (Debian, Ubuntu), or rdma-core",
            source="guide: InfiniBand driver; ldd of libuct_ib",
        )
    if found.verbs and not found.efa and all(nic.kind == "efa" for nic in _rdma(machine)):
        return warning(
            f"libucp was built without EFA and leaves it idle: {found}",
            f"{folder}/ucx: no libuct_ib_efa",
            remedy="build UCX 1.19 or newer with EFA (configure --with-efa), and set WEFT_LIBUCX to its path",
            source="UCX NEWS, 1.19.0: SRD transport",
        )
    if found.verbs:
        return ok(f"libucp can use RDMA: {found}", f"{folder}/ucx: libuct_ib is there")
    other = ucx.system(machine)
    evidence = [f"{folder}/ucx: no libuct_ib"]
    if other is not None and other.verbs and other.path != found.path:
        evidence.append(f"{other}: has libuct_ib")
        remedy = "set WEFT_LIBUCX=system"
    else:
        remedy = (
            "install a UCX from 1.16 up that has verbs (Ubuntu 24.04, Debian 13: apt-get install libucx0; conda-forge:"
            " ucx) and set WEFT_LIBUCX=system, or to its path"
        )
    what = f"libucp was built without verbs and leaves RDMA idle: {found}"
    source = "libucx wheels are built --without-verbs: ucx_info -b"
    if all(nic.kind == "roce" for nic in _rdma(machine)):
        # Ethernet of many virtual machines shows RoCE that reaches nothing
        return note(what, *evidence, remedy=remedy, source=source)
    if any(nic.kind == "infiniband" for nic in _rdma(machine)):
        what = f"InfiniBand here, and this libucp was built without verbs, so it carries nothing: {found}"
        return error(what, *evidence, remedy=remedy, source=source)
    return warning(what, *evidence, remedy=remedy, source=source)


def _verbs_library(machine: Machine, folder: str) -> bool:
    cached = re.search(r"/[^\0]*/libibverbs\.so\.1(?=\0)", machine.text("etc/ld.so.cache") or "")
    return bool(cached) or machine.has(f"{folder}/libibverbs.so.1")


def memlock(machine: Machine) -> Finding:
    """Check how much memory this process may lock: RDMA pins the memory that it registers."""
    limit = machine.limit("Max locked memory")
    if limit is None:
        return note("the limit of locked memory is not known", machine.quote("proc/self/limits"))
    soft, hard = limit
    evidence = f"/proc/self/limits: Max locked memory {_size(soft)}, hard {_size(hard)}"
    if soft is None:
        return ok("memory may be locked without limit", evidence)
    if machine.capable(CAP_IPC_LOCK):
        return ok("CAP_IPC_LOCK: the limit of locked memory does not apply", evidence, "/proc/self/status: CapEff")
    if not _rdma(machine):
        return not_applicable(f"{_size(soft)} may be locked; only RDMA needs more", evidence)
    chosen = ucx.chosen(machine)
    if chosen is None or not chosen.verbs:
        what = f"{_size(soft)} may be locked: too little for RDMA, which this libucp cannot use yet"
        return note(what, evidence, remedy=_memlock_remedy(machine, hard), source=_MEMLOCK_SOURCE)
    if soft >= _LOCKED_NBYTES:
        return note(
            f"{_size(soft)} may be locked: enough to start; buffers beyond it cannot be registered",
            evidence,
            remedy=_memlock_remedy(machine, hard),
            source=_MEMLOCK_SOURCE,
        )
    return error(
        f"only {_size(soft)} may be locked: registering memory for RDMA will fail",
        evidence,
        remedy=_memlock_remedy(machine, hard),
        source=_MEMLOCK_SOURCE,
    )


def _size(nbytes: int | None) -> str:
    return "unlimited" if nbytes is None else format_size(nbytes)


def _memlock_remedy(machine: Machine, hard: int | None) -> str:
    if hard is None:
        return "ulimit -l unlimited, in the shell that starts the workers"
    if machine.container:
        return "start the container with --ulimit memlock=-1 (docker, podman), or its runtime's setting"
    if machine.slurm:
        return "in slurm.conf PropagateResourceLimitsExcept=MEMLOCK, and LimitMEMLOCK=infinity for slurmd's service"
    files = ["etc/security/limits.conf"]
    files += [f"etc/security/limits.d/{name}" for name in machine.names("etc/security/limits.d")]
    for file in files:
        if re.search(r"^\s*[^#\s]+\s+(-|hard)\s+memlock\s+(unlimited|-1)", machine.text(file) or "", re.MULTILINE):
            return (
                f"/{file} allows it, this process has not got it: log in again; a service needs LimitMEMLOCK=infinity"
            )
    return "echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf and log in again; services: LimitMEMLOCK"
