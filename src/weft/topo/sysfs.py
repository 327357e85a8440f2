# SPDX-License-Identifier: BSD-3-Clause
"""CPUs, caches, NUMA nodes and their memory, as the kernel shows them below ``/sys`` and ``/proc``.

The root is a parameter everywhere, so that a tree recorded elsewhere can be read, too. The kernel omits what it
does not know (NUMA and L3 in many guests), so a file that cannot be read is None and not an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from weft.topo import cpulist

if TYPE_CHECKING:
    from weft.topo.model import Cpu, NumaNode


def text(path: Path) -> str | None:
    """Read a small file, stripped; None if it is not there or the kernel has no answer."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Read a number; None if there is none. The kernel writes -1 for "not known"; that is None too."""
    value = text(path)
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,20}", value) else None


def numbers(path: Path) -> tuple[int, ...]:
    """Read a list of numbers; empty if there is none."""
    try:
        return cpulist.parse(text(path) or "")
    except ValueError:
        return ()


def numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """List the entries ``prefix0``, ``prefix1``, ... of `folder` in order."""
    found = [
        (int(path.name[len(prefix) :]), path)
        for path in folder.glob(f"{prefix}[0-9]*")
        if path.name[len(prefix) :].isdecimal()
    ]
    return sorted(found)


def read_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Read the NUMA nodes; without NUMA there is one, with all CPUs and all memory."""
    from weft.topo.model import NumaNode  # 5 ms, which each worker would pay that only reads a number from a file

    folders = numbered(root / "sys/devices/system/node", "node")
    if not folders:
        return (NumaNode(0, _online(root), memory(root)),)
    if len(folders) == 1:
        # a guest whose memory was plugged in later: its only node reported 6.5 of 23.5 GiB (Linux 6.18, Firecracker)
        return (NumaNode(folders[0][0], numbers(folders[0][1] / "cpulist"), memory(root)),)
    return tuple(NumaNode(i, numbers(path / "cpulist"), _total(path / "meminfo")) for i, path in folders)


def read_cpus(root: Path, nodes: tuple[NumaNode, ...]) -> tuple[Cpu, ...]:
    """Read the CPUs that are online."""
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    return tuple(
        _cpu(i, path, node_of.get(i, nodes[0].id))
        for i, path in numbered(root / "sys/devices/system/cpu", "cpu")
        if i in _online(root)
    )


def memory(root: Path) -> int | None:
    """Read the size of the memory, in bytes."""
    return _total(root / "proc/meminfo")


def _online(root: Path) -> tuple[int, ...]:
    folder = root / "sys/devices/system/cpu"
    return numbers(folder / "online") or tuple(i for i, _ in numbered(folder, "cpu"))


def _cpu(i: int, path: Path, node: int) -> Cpu:
    from weft.topo.model import Cpu

    topology = path / "topology"
    # thread_siblings_list is the name before Linux 5.3
    siblings = numbers(topology / "core_cpus_list") or numbers(topology / "thread_siblings_list") or (i,)
    shared = next(
        (numbers(c / "shared_cpu_list") for _, c in numbered(path / "cache", "index") if number(c / "level") == 3), ()
    )
    socket = number(topology / "physical_package_id") or 0
    return Cpu(i, min(siblings), socket, node, min(shared) if shared else None)


def _total(path: Path) -> int | None:
    match = re.search(r"MemTotal:\s+([0-9]{1,20}) kB", text(path) or "")
    return int(match[1]) * 1024 if match else None
