# SPDX-License-Identifier: BSD-3-Clause
"""The part of the machine that this process may use: affinity, cpusets, limits of its control groups and Slurm job.

A limit applies to a group and all below it, so the groups from the process's own up to the mount are read, and the
tightest limit counts. Both versions of cgroups may be mounted at once, each controller in one of them.

Source: Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst; proc_pid_status(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from weft._units import format_nbytes
from weft.topo import cpulist, slurm, sysfs

if TYPE_CHECKING:
    from weft.topo.model import Allowed


def read(
    root: Path, cpus: tuple[int, ...], nodes: tuple[int, ...], memory_nbytes: int | None, environ: Mapping[str, str]
) -> Allowed:
    """Read what this process, with `environ`, may use of `cpus`, `nodes` and `memory_nbytes`, which the machine has."""
    from weft.topo.model import Allowed  # 5 ms, which each worker would pay that only looks what its groups have left

    status = sysfs.text(root / "proc/self/status") or ""
    why: list[str] = []
    held = {
        "CPUs": _narrowed(
            "CPUs",
            cpus,
            [("affinity", _field(status, "Cpus_allowed_list")), *_cpusets(root, "cpus")],
            why,
        ),
        "nodes": _narrowed(
            "NUMA nodes",
            nodes,
            [("Mems_allowed_list", _field(status, "Mems_allowed_list")), *_cpusets(root, "mems")],
            why,
        ),
    }
    quota = min(_quotas(root), default=None)
    if quota is not None and quota[0] < len(held["CPUs"]):
        why.append(f"CPU time: {quota[0]:g} CPUs, by {quota[1]}")
    job = slurm.memory_limit(environ)
    limits = [*_memory_limits(root), *([job] if job else [])]
    limit = min(limits) if limits else None
    # version 1 writes "no limit" as a number that no machine has
    if limit is not None and memory_nbytes is not None and limit[0] >= memory_nbytes:
        limit = None
    if limit is not None:
        why.append(f"memory: {format_nbytes(limit[0])}, by {limit[1]}")
    memory, by = limit or (None, None)
    return Allowed(held["CPUs"], held["nodes"], quota[0] if quota else None, memory, tuple(why), by)


def _narrowed(
    what: str, have: tuple[int, ...], limits: list[tuple[str, tuple[int, ...]]], why: list[str]
) -> tuple[int, ...]:
    """Intersect; an empty limit is not set."""
    left = set(have)
    for name, numbers in limits:
        if numbers and not left <= set(numbers):
            left &= set(numbers)
            why.append(f"{what}: {cpulist.join(left) or 'none'} of {cpulist.join(have)}, by {name}")
    return tuple(sorted(left))


def _field(status: str, name: str) -> tuple[int, ...]:
    match = re.search(rf"^{name}:\s*([0-9,-]+)$", status, re.MULTILINE)
    try:
        return cpulist.parse(match[1]) if match else ()
    except ValueError:
        return ()


def _cpusets(root: Path, what: str) -> list[tuple[str, tuple[int, ...]]]:
    for folder in groups(root, "cpuset"):
        for file in (f"cpuset.{what}.effective", f"cpuset.effective_{what}", f"cpuset.{what}"):
            if numbers := sysfs.numbers(folder / file):
                return [(_named(root, folder / file), numbers)]
    return []


def _quotas(root: Path) -> Iterator[tuple[float, str]]:
    for folder in groups(root, "cpu"):
        words = (sysfs.text(folder / "cpu.max") or "").split()
        if len(words) == 2 and all(re.fullmatch("[1-9][0-9]{0,19}", word) for word in words):
            yield int(words[0]) / int(words[1]), _named(root, folder / "cpu.max")
        quota, period = sysfs.number(folder / "cpu.cfs_quota_us"), sysfs.number(folder / "cpu.cfs_period_us")
        if quota and period:
            yield quota / period, _named(root, folder / "cpu.cfs_quota_us")


def _memory_limits(root: Path) -> Iterator[tuple[int, str]]:
    for folder in groups(root, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            limit = sysfs.number(folder / file)
            if limit is not None:
                yield limit, _named(root, folder / file)


def _named(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}"


def groups(root: Path, controller: str) -> list[Path]:
    """List the folders that limit this process's use of `controller`, its own group first."""
    own: dict[str, str] = {}
    for line in (sysfs.text(root / "proc/self/cgroup") or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        own.update(dict.fromkeys(controllers.split(","), path))
    second: list[Path] = []
    for line in (sysfs.text(root / "proc/self/mountinfo") or "").splitlines():
        mount, _, kind = line.partition(" - ")
        where, words = mount.split()[3:5], kind.split()
        if len(where) < 2 or len(words) < 3:
            continue
        at, point = where
        if words[0] == "cgroup" and controller in words[2].split(","):
            return _way(root, point, at, own.get(controller, "/"))
        if words[0] == "cgroup2":
            second = _way(root, point, at, own.get("", "/"))
    return second


def _way(root: Path, point: str, at: str, path: str) -> list[Path]:
    """List the folders from the group `path` up to the mount at `point`, which shows the group `at`."""
    top = root / point.lstrip("/")
    below = Path(path).relative_to(at) if Path(path).is_relative_to(at) else Path()
    # a container may see its own group under its path on the host
    folders = [top / below, *(top / parent for parent in below.parents)] if ".." not in below.parts else [top]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
