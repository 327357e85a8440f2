# SPDX-License-Identifier: BSD-3-Clause
"""Eight machines, good and bad, as trees of files, and what commands and NVIDIA's driver said there.

``weft topo``, ``weft worker --plan`` and ``weft doctor`` are tried on all of them. `bare` is for single checks.
"""

from __future__ import annotations

import dataclasses

from tests.machines import matrices, trees
from tests.machines.drivers import Driver, nvlinks

from weft.doctor.machine import FIRST_NAMESPACES, Machine
from weft.topo import nvidia_smi

GIB = 2**30
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder)"
OLD_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.61.05  Thu Sep 29 05:30:25 UTC 2022"
AZURE = "7783-7084-3265-9085-8269-3286-77"
V2 = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate"
SITE = "usr/lib/python3/site-packages"


def limits(files="1048576", locked="unlimited", size="unlimited"):
    """Write /proc/self/limits; a limit is one number, or soft and hard as 1024/4096."""
    soft_hard = {
        name: (text if "/" in text else f"{text}/{text}").split("/")
        for name, text in (
            ("Max file size", size),
            ("Max open files", files),
            ("Max locked memory", locked),
        )
    }
    return "\n".join(f"{name:<25} {soft:<20} {hard:<20} units" for name, (soft, hard) in soft_hard.items())


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
            "sys/class/net/lo/flags": "0x9",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
            "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm",
            f"lib/modules/{release}/modules.dep": "kernel/drivers/net/veth.ko.zst:",
            f"{SITE}/distributed-2026.8.0.dist-info/METADATA": "",
            f"{SITE}/weft_ucx-0.1.0.dist-info/entry_points.txt": "[dask.sizeof]\nweft = weft._claim_scheme:claim",
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
        memfd="",
        copies=(45e9, 44e9),
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


def driver(root, count, version=OPEN_DRIVER):
    trees.write(root, {"proc/driver/nvidia/version": version, "dev/nvidiactl": ""})
    trees.write(root, {f"dev/nvidia{i}": "" for i in range(count)})


def card(root, name, path, *, node, state=trees.ACTIVE, physical="5: LinkUp", rate="100 Gb/sec (4X EDR)", ipoib=None):
    """Put an InfiniBand card there: a controller, its port, and with `ipoib` the name and state of a network device."""
    trees.rdma(root, name, path, node=node, ports=((state, rate),))
    trees.write(root / "sys/devices" / path, {"class": "0x020700", "vendor": "0x15b3"})
    number = name.removeprefix("mlx5_")
    trees.write(
        root, {f"sys/class/infiniband/{name}/ports/1/phys_state": physical, f"dev/infiniband/uverbs{number}": ""}
    )
    if ipoib:
        trees.netdev(root, ipoib[0], path, state=ipoib[1], speed=int(rate.split()[0]) * 1000, kind=32)
        trees.write(root, {f"sys/class/net/{ipoib[0]}/mtu": 4092})


def dgx1(root):
    """As it should be: eight V100, four ports of InfiniBand, and a UCX with verbs."""
    machine = bare(
        root,
        environ={"WEFT_LIBUCX": "system"},
        commands={"getent ahosts node1": "10.0.0.5 STREAM node1", "nvidia-smi topo -m": matrices.DGX_1},
    )
    trees.cpus(root, trees.regular(sockets=2, cores=20, threads=2, per_l3=20), memory_gib=(256, 256))
    system_ucx(root)
    driver(root, 8)
    # each switch has two GPUs and a card; each socket has two switches
    for switch in range(4):
        node, port = switch // 2, 2 + switch % 2
        up = f"pci0000:{0x80 * node:02x}/0000:{0x80 * node:02x}:{port:02x}.0/0000:{_bus(switch, 0)}:00.0"
        for i in range(2):
            path = f"{up}/0000:{_bus(switch, 1)}:{4 + 4 * i:02x}.0/{_V100[2 * switch + i]}"
            trees.gpu(root, path, node=node, cpus="20-39,60-79" if node else "0-19,40-59")
        # ib1 is of the other socket: the matrix has ib0 and ib2 here
        number = (0, 2, 1, 3)[switch]
        path = f"{up}/0000:{_bus(switch, 1)}:10.0/0000:{_bus(switch, 4)}:00.0"
        card(root, f"mlx5_{number}", path, node=node, ipoib=(f"ib{number}", "up"))
    trees.netdev(root, "enp1s0f0", "pci0000:00/0000:00:01.0/0000:01:00.0", speed=10000)
    trees.write(root, {"sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/numa_node": 0})
    trees.write(root, {"sys/class/net/enp1s0f0/mtu": 9000})
    trees.write(root, {f"lib/modules/{machine.release}/build/Makefile": "", "sys/module/nvidia_peermem/refcnt": 0})
    return machine


def _bus(switch, i):
    return f"{4 + 5 * switch % 10 + 0x80 * (switch // 2) + i:02x}"


_V100 = [f"0000:{_bus(switch, 2 + i)}:00.0" for switch in range(4) for i in range(2)]


def nd40(root):
    """Azure's ND40rs_v2 before its guide: no driver, InfiniBand left alone, the wheel's UCX."""
    machine = bare(root, release="5.15.0-1023-azure")
    trees.cpus(root, trees.regular(sockets=2, cores=20, per_l3=20), memory_gib=(336, 336))
    # Hyper-V gives each device a PCI domain of its own, and all of them to the first node
    for i in range(8):
        trees.gpu(root, f"{_VMBUS}/pci{i + 1:04x}:00/{i + 1:04x}:00:00.0", node=0, cpus="0-19")
    card(root, "mlx5_0", f"{_VMBUS}/pci0101:00/0101:00:02.0", node=0, ipoib=("ib0", "down"))
    trees.netdev(root, "eth0", f"{_VMBUS}/f8b3781a", speed=40000)
    trees.write(
        root,
        {
            "sys/class/dmi/id/chassis_asset_tag": AZURE,
            "sys/class/net/eth0/mtu": 1500,
            "etc/waagent.conf": "Provisioning.Enabled=n\n# OS.EnableRDMA=y\n",
            "proc/self/limits": limits("1024/1048576", "67108864"),
            "etc/hosts": "127.0.0.1 localhost",
        },
    )
    return machine


_VMBUS = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00"


def hgx_h100(root):
    """Half set up: no peer memory with a closed driver, one port of eight down, both wheels, a table cut short."""
    machine = bare(root, commands={"getent ahosts node1": "10.0.0.5 STREAM node1", "nvidia-smi topo -m": "GPU0 GPU1\n"})
    trees.cpus(root, trees.regular(sockets=2, cores=56, threads=2, per_l3=56), memory_gib=(1024, 1024))
    driver(root, 8, OLD_DRIVER)
    for i in range(8):
        node, bus = i // 4, 0x15 + 0x10 * i
        up = f"pci0000:{bus - 1:02x}/0000:{bus - 1:02x}:01.0/0000:{bus:02x}:00.0/0000:{bus + 1:02x}"
        cpus = "56-111,168-223" if node else "0-55,112-167"
        trees.gpu(root, f"{up}:00.0/{_H100[i]}", node=node, cpus=cpus)
        down = {"state": "1: DOWN", "physical": "2: Polling", "rate": "10 Gb/sec (4X SDR)"} if i == 5 else {}
        up_rate = {"rate": "400 Gb/sec (4X NDR)", "ipoib": (f"ib{i}", "up")}
        card(root, f"mlx5_{i}", f"{up}:02.0/0000:{bus + 3:02x}:00.0", node=node, **(down or up_rate))
    storage = "pci0000:10/0000:10:01.0/0000:11:00.0"
    trees.rdma(root, "mlx5_8", storage, node=0, ports=((trees.ACTIVE, "200 Gb/sec (4X HDR)"),), layer="Ethernet")
    trees.netdev(root, "ens1", storage, speed=200000)
    trees.write(root, {"sys/class/net/ens1/mtu": 9000})
    trees.write(root, {f"{SITE}/libucx_cu13-1.22.0.dist-info/METADATA": ""})
    return machine


_H100 = [f"0000:{0x15 + 0x10 * i + 2:02x}:00.0" for i in range(8)]


def epyc(root):
    """Two sockets of four nodes each, fast Ethernet: the kernel balances, the clock is slow, nothing follows it."""
    machine = bare(root, synchronised=False)
    trees.cpus(root, trees.regular(sockets=2, cores=64, threads=2, nodes=4, per_l3=8), memory_gib=(64,) * 8)
    trees.netdev(root, "eth0", "pci0000:c0/0000:c0:01.1/0000:c1:00.0", speed=100000)
    trees.netdev(root, "eth1", "pci0000:c0/0000:c0:01.1/0000:c1:00.1", state="down", speed=-1)
    clock = "sys/devices/system/clocksource/clocksource0"
    trees.write(
        root,
        {
            **{f"sys/devices/pci0000:c0/0000:c0:01.1/0000:c1:00.{i}/numa_node": 2 for i in range(2)},
            "sys/class/net/eth0/mtu": 1500,
            "proc/sys/kernel/numa_balancing": 1,
            f"{clock}/current_clocksource": "hpet",
            f"{clock}/available_clocksource": "hpet acpi_pm",
            "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force",
        },
    )
    return machine


def laptop(root):
    """Four fast cores of two threads and eight slow ones, Debian: its name leads to 127.0.1.1, limits are the usual."""
    machine = bare(root, host="laptop", address="127.0.1.1")
    fast, slow = [([2 * i, 2 * i + 1], 0, 0, 0) for i in range(4)], [([i], 0, 0, 0) for i in range(8, 16)]
    trees.cpus(root, fast + slow, memory_gib=(16,))
    trees.netdev(root, "wlp0s20f3", "pci0000:00/0000:00:14.3", speed=None)
    trees.netdev(root, "enp0s31f6", "pci0000:00/0000:00:1f.6", state="down", speed=-1)
    trees.write(root, {"sys/class/net/docker0/operstate": "down", "sys/class/net/wlp0s20f3/mtu": 1500})
    trees.write(root, {"proc/self/limits": limits("1024/1048576", "8388608"), "etc/hosts": "127.0.1.1 laptop"})
    return machine


def container(root):
    """Docker's defaults: 64 MiB of /dev/shm, own namespaces, 1.5 CPUs, 512 MiB."""
    machine = bare(root, shm_nbytes=(64 << 20, 64 << 20), synchronised=None)
    trees.two_sockets(root)
    namespaces(root, ipc=4026532201, pid=4026532204, cgroup=4026532300)
    trees.write(
        root,
        {
            ".dockerenv": "",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": 512 << 20,
            **{f"sys/class/net/eth0/{name}": text for name, text in trees.VETH.items()},
            "proc/self/limits": limits("1024", "65536"),
        },
    )
    return machine


def slurm(root):
    """A step of Slurm's: eight cores of the second socket, InfiniBand, too little memory that may be locked."""
    machine = bare(root, environ={"SLURM_JOB_ID": "7", "UCX_TLS": "rc,tcp,cma", "WEFT_LIBUCX": "system"})
    allowed = {"allowed": "24-31", "mems": "1"}
    trees.cpus(root, trees.regular(sockets=2, cores=24, per_l3=24), memory_gib=(96, 96), **allowed)
    system_ucx(root)
    card(root, "mlx5_0", "pci0000:80/0000:80:02.0/0000:81:00.0", node=1, state="2: INIT")
    trees.netdev(root, "eno1", "pci0000:00/0000:00:1c.0/0000:02:00.0", speed=1000)
    job = "system.slice/slurmstepd.scope/job_7"
    trees.write(
        root,
        {
            "sys/devices/pci0000:00/0000:00:1c.0/0000:02:00.0/numa_node": 0,
            "sys/class/net/eno1/mtu": 1500,
            "proc/self/limits": limits("4096", "65536"),
            "proc/self/cgroup": f"0::/{job}/step_0/user/task_0",
            f"sys/fs/cgroup/{job}/memory.max": 32 * GIB,
            f"sys/fs/cgroup/{job}/step_0/user/task_0/cpuset.cpus.effective": "24-31",
            f"sys/fs/cgroup/{job}/step_0/user/task_0/cpuset.mems.effective": "1",
        },
    )
    return machine


def arm(root):
    """An Arm server with RoCE: one socket, no L3 that the kernel tells, another clock, no GPUs."""
    machine = bare(root, environ={"WEFT_LIBUCX": "system"})
    trees.cpus(root, trees.regular(sockets=1, cores=80), memory_gib=(256,))
    system_ucx(root)
    path = "pci000d:00/000d:00:01.0/000d:01:00.0"
    trees.rdma(root, "rocep1s0", path, layer="Ethernet", ports=((trees.ACTIVE, "100 Gb/sec (4X EDR)"),))
    trees.netdev(root, "enp1s0", path, speed=100000)
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    trees.write(root, {clock: "arch_sys_counter", "sys/class/net/enp1s0/mtu": 9000, "dev/infiniband/uverbs0": ""})
    return machine


ALL = {made.__name__: made for made in (dgx1, nd40, hgx_h100, epyc, laptop, container, slurm, arm)}


def nvml_of(name):
    """Return NVIDIA's driver on the machine `name`; None where nvidia-ml-py is not installed."""
    if name == "dgx1":
        return Driver(_V100, nvlinks(nvidia_smi.parse(matrices.DGX_1)), name="Tesla V100-SXM2-32GB")
    if name == "hgx_h100":
        return Driver(_H100, [("switch",) * 18] * 8, name="NVIDIA H100 80GB HBM3", gib=80)
    return None
