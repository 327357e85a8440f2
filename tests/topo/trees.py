# SPDX-License-Identifier: BSD-3-Clause
"""Machines as trees of files below a folder, as the kernel shows them in /sys and /proc."""

from __future__ import annotations

import os

from weft.topo import cpulist

GIB = 2**30


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def two_sockets(root, *, allowed="0-15", mems="0-1", l3=True):
    """Two sockets, a NUMA node each, four cores each of two threads; an L3 for two cores: 16 CPUs, 64 GiB.

    Thread i of core c is CPU c + 8 * i, as Intel's and AMD's firmware number them.
    """
    cpu = "sys/devices/system/cpu"
    write(root, {f"{cpu}/online": "0-15", "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB"})
    write(root, {"proc/self/status": f"Name:\tx\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{mems}"})
    for i in range(16):
        core = i % 8
        files = {"topology/core_cpus_list": f"{core},{core + 8}", "topology/physical_package_id": core // 4}
        first = core - core % 2
        if l3:
            files["cache/index3/level"] = 3
            files["cache/index3/shared_cpu_list"] = cpulist.join([first, first + 1, first + 8, first + 9])
        files["cache/index0/level"] = 1
        write(root, {f"{cpu}/cpu{i}/{name}": text for name, text in files.items()})
    for node, cpus in enumerate(("0-3,8-11", "4-7,12-15")):
        folder = f"sys/devices/system/node/node{node}"
        write(root, {f"{folder}/cpulist": cpus, f"{folder}/meminfo": f"Node {node} MemTotal: {32 * GIB // 1024} kB"})
    (root / cpu / "cpufreq").mkdir()
    return root


def pci(root, path, *, node=-1, **files):
    """Put a device on the PCI bus at `path`, such as ``pci0000:00/0000:00:01.0/0000:01:00.0``."""
    folder = f"sys/devices/{path}"
    write(root, {f"{folder}/numa_node": node, **{f"{folder}/{name}": text for name, text in files.items()}})
    link = root / "sys/bus/pci/devices" / path.rpartition("/")[2]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / folder)
    return root / folder


def gpu(root, path, *, node=-1, cpus=""):
    return pci(root, path, node=node, vendor="0x10de", local_cpulist=cpus, **{"class": "0x030200"})


def rdma(root, name, path, *, node=-1, ports=(("4: ACTIVE", "200 Gb/sec (4X HDR)"),), layer="InfiniBand", netdev=None):
    device = pci(root, path, node=node)
    folder = root / "sys/class/infiniband" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    for i, (state, rate) in enumerate(ports, 1):
        write(folder, {f"ports/{i}/state": state, f"ports/{i}/rate": rate, f"ports/{i}/link_layer": layer})
    if netdev:
        (device / "net" / netdev).mkdir(parents=True)


def netdev(root, name, path, *, state="up", speed=25000, kind=1):
    """Put a network device on the PCI device at `path`, which may be there already."""
    device = root / "sys/devices" / path
    device.mkdir(parents=True, exist_ok=True)
    write(root, {f"sys/class/net/{name}/operstate": state, f"sys/class/net/{name}/type": kind})
    write(root, {f"sys/class/net/{name}/speed": speed})
    os.symlink(device, root / "sys/class/net" / name / "device")
