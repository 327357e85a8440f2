# SPDX-License-Identifier: BSD-3-Clause
"""Parts of machines as files below a folder, as the kernel shows them in /sys and /proc."""

from __future__ import annotations

import os

from weft.topo import cpulist

GIB = 2**30
CPU = "sys/devices/system/cpu"


def write(root, files):
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")


def cpus(root, cores, *, memory_gib, allowed=None, mems=None):
    """Put CPUs there: `cores` has (its CPUs, socket, NUMA node, L3 or None), `memory_gib` each node's memory."""
    nodes, l3s = {}, {}
    for ids, _, node, l3 in cores:
        nodes.setdefault(node, []).extend(ids)
        l3s.setdefault(l3, []).extend(ids)
    files = {}
    for ids, socket, _, l3 in cores:
        for i in ids:
            files[f"{CPU}/cpu{i}/topology/core_cpus_list"] = cpulist.join(ids)
            files[f"{CPU}/cpu{i}/topology/physical_package_id"] = socket
            if l3 is not None:
                files[f"{CPU}/cpu{i}/cache/index3/level"] = 3
                files[f"{CPU}/cpu{i}/cache/index3/shared_cpu_list"] = cpulist.join(l3s[l3])
    for node, nbytes in enumerate(memory_gib):
        folder = f"sys/devices/system/node/node{node}"
        files[f"{folder}/cpulist"] = cpulist.join(nodes.get(node, []))
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal: {nbytes * GIB // 1024} kB"
    every = cpulist.join(i for ids, *_ in cores for i in ids)
    allowed, mems = allowed or every, mems or cpulist.join(range(len(memory_gib)))
    files |= {f"{CPU}/online": every, "proc/meminfo": f"MemTotal: {sum(memory_gib) * GIB // 1024} kB"}
    files["proc/self/status"] = f"Name:\tx\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{mems}"
    write(root, files)


def regular(*, sockets, cores, threads=1, nodes=1, per_l3=None):
    """Make `cores` of each socket, over its `nodes`, `per_l3` of them to an L3.

    Thread t of core c is CPU c + t * (number of cores), as most firmware numbers them.
    """
    every = sockets * cores
    return [
        (
            [core + thread * every for thread in range(threads)],
            core // cores,
            core * nodes // cores,
            core // per_l3 if per_l3 else None,
        )
        for core in range(every)
    ]


def two_sockets(root, *, allowed="0-15", mems="0-1", l3=True):
    """Two sockets, a NUMA node each, four cores each of two threads; an L3 for two cores: 16 CPUs, 64 GiB."""
    made = regular(sockets=2, cores=4, threads=2, per_l3=2 if l3 else None)
    cpus(root, made, memory_gib=(32, 32), allowed=allowed, mems=mems)
    write(root, {f"{CPU}/cpu{i}/cache/index0/level": 1 for i in range(16)})
    os.mkdir(os.path.join(root, CPU, "cpufreq"))
    return root


def pci(root, path, *, node=-1, **files):
    """Put a device on the PCI bus at `path`, such as ``pci0000:00/0000:00:01.0/0000:01:00.0``."""
    folder = f"sys/devices/{path}"
    write(root, {f"{folder}/numa_node": node, **{f"{folder}/{name}": text for name, text in files.items()}})
    link = root / "sys/bus/pci/devices" / path.rpartition("/")[2]
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(root / folder)
    return root / folder


def gpu(root, path, *, node=-1, cpus=""):
    return pci(root, path, node=node, vendor="0x10de", local_cpulist=cpus, **{"class": "0x030200"})


ACTIVE = "4: ACTIVE"


def rdma(
    root,
    name,
    path,
    *,
    node=-1,
    ports=((ACTIVE, "200 Gb/sec (4X HDR)"),),
    layer="InfiniBand",
    netdev=None,
    driver="mlx5_core",
    kind="1: CA",
):
    device = pci(root, path, node=node)
    folder = root / "sys/class/infiniband" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    (device / "driver").symlink_to(f"../../bus/pci/drivers/{driver}")
    write(folder, {"node_type": kind})
    for i, (state, rate) in enumerate(ports, 1):
        write(folder, {f"ports/{i}/state": state, f"ports/{i}/rate": rate, f"ports/{i}/link_layer": layer})
    if netdev:
        (device / "net" / netdev).mkdir(parents=True)


def netdev(root, name, path, *, state="up", speed=25000, kind=1):
    """Put a network device on the PCI device at `path`, which may be there already."""
    device = root / "sys/devices" / path
    (device / "net" / name).mkdir(parents=True, exist_ok=True)
    write(root, {f"sys/class/net/{name}/operstate": state, f"sys/class/net/{name}/type": kind})
    if speed is not None:
        write(root, {f"sys/class/net/{name}/speed": speed})
    os.symlink(device, root / "sys/class/net" / name / "device")


#: A container's network device: one end of a pair.
VETH = {"operstate": "up", "type": 1, "speed": 10000, "ifindex": 2, "iflink": 47, "mtu": 1500}
