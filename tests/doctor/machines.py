# SPDX-License-Identifier: BSD-3-Clause
"""Machines for the doctor, good and bad, as trees of files and what commands said there."""

from __future__ import annotations

import dataclasses

from tests.topo import matrices, trees

from weft.doctor.machine import FIRST_NAMESPACES, Machine

GIB = 2**30
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder)"
OLD_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.61.05  Thu Sep 29 05:30:25 UTC 2022"
AZURE = "7783-7084-3265-9085-8269-3286-77"
V2 = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate"
SITE = "usr/lib/python3/site-packages"


def limits(files="1048576", locked="unlimited"):
    """Write /proc/self/limits; a limit is one number, or soft and hard as 1024/4096."""
    soft_hard = {
        name: (text if "/" in text else f"{text}/{text}").split("/")
        for name, text in (("Max open files", files), ("Max locked memory", locked))
    }
    return "\n".join(f"{name:<25} {soft:<20} {hard:<20} units" for name, (soft, hard) in soft_hard.items())


def base(root, *, allowed="0-15", mems="0-1", **changes):
    """Two sockets, nothing wrong, nothing special."""
    machine = bare(root, **changes)
    trees.two_sockets(root, allowed=allowed, mems=mems)
    return machine


def bare(root, *, host="node1", address="10.0.0.5", release="6.8.0-45-generic", **changes):
    """All but CPUs and memory: three files in place of a hundred."""
    trees.write(
        root,
        {
            "proc/self/limits": limits(),
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": V2,
            "proc/sys/kernel/osrelease": release,
            "proc/sys/kernel/numa_balancing": 0,
            "proc/sys/kernel/yama/ptrace_scope": 1,
            "proc/sys/vm/nr_hugepages": 0,
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
            "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm",
            f"lib/modules/{release}/modules.dep": "kernel/drivers/net/veth.ko.zst:",
            f"{SITE}/distributed-2026.8.0.dist-info/METADATA": "",
            f"{SITE}/weft-0.1.0.dist-info/entry_points.txt": "[dask.sizeof]\nweft = weft._claim:claim",
            f"{SITE}/libucx_cu12-1.22.0.dist-info/METADATA": "",
            f"{SITE}/libucx/lib/libucp.so": "",
            f"{SITE}/libucx/lib/ucx/libuct_cma.so.0": "",
        },
    )
    namespaces(root)
    machine = Machine(
        root,
        environ={"PATH": "/usr/bin"},
        commands={f"getent ahosts {host}": f"{address}        STREAM {host}"},
        folders=(f"/{SITE}",),
        host=host,
        shm_nbytes=(32 * GIB, 32 * GIB),
        synchronised=True,
    )
    return dataclasses.replace(machine, **changes)


def namespaces(root, **own):
    folder = root / "proc/self/ns"
    folder.mkdir(parents=True, exist_ok=True)
    for kind, number in (FIRST_NAMESPACES | own).items():
        (folder / kind).unlink(missing_ok=True)
        (folder / kind).symlink_to(f"{kind}:[{number}]")


def system_ucx(root, *, version="1.18.1+ds-2", verbs=True):
    """Debian's packages; the linker's cache has NUL after each path."""
    folder = "usr/lib/x86_64-linux-gnu"
    trees.write(
        root,
        {f"{folder}/libucp.so.0": "", "etc/ld.so.cache": f"glibc\0/{folder}/libucp.so.0\0/{folder}/libibverbs.so.1\0"},
    )
    trees.write(
        root, {"var/lib/dpkg/status": f"Package: libucx0\nStatus: install ok\nVersion: {version}\n\nPackage: zlib1g\n"}
    )
    modules = ("libuct_ib.so.0", "libuct_cma.so.0") if verbs else ("libuct_cma.so.0",)
    trees.write(root, {f"{folder}/ucx/{name}": "" for name in modules})


def gpus(root, count, *, driver=OPEN_DRIVER):
    for i in range(count):
        node = i * 2 // count
        trees.gpu(root, f"pci0000:{i + 1:02x}/0000:{i + 1:02x}:00.0", node=node, cpus="0-3" if node == 0 else "4-7")
    if driver:
        trees.write(root, {"proc/driver/nvidia/version": driver, "dev/nvidiactl": ""})
        trees.write(root, {f"dev/nvidia{i}": "" for i in range(count)})


def infiniband(root, count, *, state="4: ACTIVE", physical="5: LinkUp", verbs=True, drivers=True, ipoib="up"):
    for i in range(count):
        path = f"pci0000:{0x80 + i:02x}/0000:{0x80 + i:02x}:00.0"
        if drivers:
            trees.rdma(root, f"mlx5_{i}", path, node=i % 2, ports=((state, "200 Gb/sec (4X HDR)"),))
            trees.write(root, {f"sys/class/infiniband/mlx5_{i}/ports/1/phys_state": physical})
        else:
            trees.pci(root, path)
        folder = root / "sys/devices" / path
        trees.write(folder, {"class": "0x020700", "vendor": "0x15b3"})
        if ipoib:
            trees.netdev(root, f"ib{i}", path, state=ipoib, kind=32)
            trees.write(root, {f"sys/class/net/ib{i}/mtu": 4092})
        if verbs:
            trees.write(root, {f"dev/infiniband/uverbs{i}": ""})


def dgx1(root):
    """As it should be: eight GPUs, four ports, and a UCX with verbs."""
    machine = base(
        root,
        environ={"WEFT_LIBUCX": "system"},
        commands={"getent ahosts node1": "10.0.0.5 STREAM node1", "nvidia-smi topo -m": matrices.DGX_1},
    )
    system_ucx(root)
    gpus(root, 8)
    infiniband(root, 4)
    trees.write(root, {f"lib/modules/{machine.release}/build/Makefile": "", "sys/module/nvidia_peermem/refcnt": 0})
    return machine


def nd40(root):
    """Azure's ND40rs_v2 before its guide: no driver, InfiniBand left alone, the wheel's UCX."""
    machine = base(root, release="5.15.0-1023-azure")
    gpus(root, 8, driver="")
    infiniband(root, 1, ipoib="down")
    trees.write(
        root,
        {
            "sys/class/dmi/id/chassis_asset_tag": AZURE,
            "etc/waagent.conf": "Provisioning.Enabled=n\n# OS.EnableRDMA=y\n",
            "proc/self/limits": limits("1024/1048576", "67108864"),
            "etc/hosts": "127.0.0.1 localhost",
        },
    )
    return machine


def hgx_h100(root):
    """Half set up: no peer memory with a closed driver, one port of two down, both wheels, a table cut short."""
    machine = base(root, commands={"getent ahosts node1": "10.0.0.5 STREAM node1", "nvidia-smi topo -m": "GPU0 GPU1\n"})
    gpus(root, 8, driver=OLD_DRIVER)
    infiniband(root, 1)
    down = "pci0000:90/0000:90:00.0"
    trees.rdma(root, "mlx5_9", down, node=1, ports=(("1: DOWN", "10 Gb/sec (4X SDR)"),))
    trees.write(root, {"sys/class/infiniband/mlx5_9/ports/1/phys_state": "2: Polling"})
    trees.write(root, {f"{SITE}/libucx_cu13-1.22.0.dist-info/METADATA": ""})
    return machine


def epyc(root):
    """Two sockets and fast Ethernet: the kernel balances, the clock is slow, nothing follows it."""
    machine = base(root, synchronised=False)
    trees.netdev(root, "eth0", "pci0000:01/0000:01:00.0", speed=100000)
    clock = "sys/devices/system/clocksource/clocksource0"
    trees.write(
        root,
        {
            "sys/class/net/eth0/mtu": 1500,
            "proc/sys/kernel/numa_balancing": 1,
            f"{clock}/current_clocksource": "hpet",
            f"{clock}/available_clocksource": "hpet acpi_pm",
            "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force",
        },
    )
    return machine


def laptop(root):
    """Debian's: its name leads to 127.0.1.1, limits are the usual."""
    machine = base(root, host="laptop", address="127.0.1.1")
    trees.write(root, {"proc/self/limits": limits("1024/1048576", "8388608"), "etc/hosts": "127.0.1.1 laptop"})
    return machine


def container(root):
    """Docker's defaults: 64 MiB of /dev/shm, own namespaces, 1.5 CPUs, 512 MiB."""
    machine = base(root, shm_nbytes=(64 << 20, 64 << 20), synchronised=None)
    namespaces(root, ipc=4026532201, pid=4026532204, cgroup=4026532300)
    trees.write(
        root,
        {
            ".dockerenv": "",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": 512 << 20,
            "proc/self/limits": limits("1024", "65536"),
        },
    )
    return machine


def slurm(root):
    """A step of Slurm's: half of a socket, with InfiniBand and too little memory that may be locked."""
    machine = base(
        root, allowed="0-1", mems="0", environ={"SLURM_JOB_ID": "7", "UCX_TLS": "rc,tcp,cma", "WEFT_LIBUCX": "system"}
    )
    system_ucx(root)
    infiniband(root, 1, state="2: INIT", ipoib="")
    trees.write(root, {"proc/self/limits": limits("4096", "65536")})
    return machine


def arm(root):
    """An Arm server with RoCE: another clock, no GPUs."""
    machine = base(root, environ={"WEFT_LIBUCX": "system"})
    system_ucx(root)
    trees.rdma(root, "rocep1s0", "pci0000:01/0000:01:00.0", layer="Ethernet")
    trees.netdev(root, "eth0", "pci0000:01/0000:01:00.0", speed=100000)
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    trees.write(root, {clock: "arch_sys_counter", "sys/class/net/eth0/mtu": 9000, "dev/infiniband/uverbs0": ""})
    return machine


ALL = {made.__name__: made for made in (dgx1, nd40, hgx_h100, epyc, laptop, container, slurm, arm)}
