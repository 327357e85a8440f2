# SPDX-License-Identifier: BSD-3-Clause
"""Memory and CPUs: memfds, ``/dev/shm``, huge pages, NUMA balancing, copies, limits of control groups."""

from __future__ import annotations

import re

from weft._units import format_nbytes
from weft.config import LINK_FREE_NBYTES, LINK_SHM_NBYTES, WORKER_FREE_NBYTES
from weft.doctor.carrier import has_posix, why_ucx
from weft.doctor.finding import Finding, error, not_applicable, note, ok, warning
from weft.doctor.machine import CAP_SYS_ADMIN, Machine, brief
from weft.topo import cpulist

_SHM = "/dev/shm"  # noqa: S108
_SHM_SOURCE = "weft's docs, design: full /dev/shm; a ring for links on one host"
_THP = "sys/kernel/mm/transparent_hugepage"
_MUCH_SLOWER = 3  # AMD's Zen 3: 10 to 15, and 1 with the remedy
_THP_SOURCE = "Linux, Documentation/admin-guide/mm/transhuge.rst"


def memfd(machine: Machine) -> Finding:
    """Check that memfd works: links on one host use it."""
    if machine.memfd is None:
        return note("cannot tell whether memfd works", "memfd_create: not tried")
    if not machine.memfd:
        return ok("memfd works", "memfd_create, F_ADD_SEALS, fallocate: done")
    where = "the container's seccomp profile" if machine.container else "the filter that this process runs under"
    return warning(
        "no memfd: UCX carries messages between processes of this host, and takes room in /dev/shm for each link",
        machine.memfd,
        remedy=f"allow memfd_create, fcntl and fallocate in {where}{_PROFILE if machine.container else ''}",
        source="weft's docs, design: a ring for links on one host; memfd_create(2), seccomp(2)",
    )


_PROFILE = " (Docker's own does: no --security-opt seccomp=FILE, or one that has them)"


def shared_memory(machine: Machine) -> Finding:
    """Check ``/dev/shm``: it holds links that UCX carries on one host, and the queues of low-level workers."""
    why = why_ucx(machine)
    carries = [f"UCX carries messages between processes of this host: {why}"] if why else []
    name, is_set, _ = why.partition(" is set")
    if is_set and not has_posix(machine.environ[name]):
        why = ""  # over other transports
    if machine.shm_nbytes is None:
        remedy = _grow(machine) if machine.container else f"mkdir -p {_SHM}; mount -t tmpfs tmpfs {_SHM}"
        return _unusable(machine, f"no {_SHM}", why, [f"statvfs {_SHM}: failed", *carries], remedy)
    size, free = machine.shm_nbytes
    evidence = [f"statvfs {_SHM}: {format_nbytes(size)}, {format_nbytes(free)} free"]
    mounts = re.findall(
        rf"^\S+ \S+ \S+ \S+ {_SHM} .* - (\S+) ", machine.text("proc/self/mountinfo") or "", re.MULTILINE
    )
    left = [name for name in machine.names("dev/shm") if name.startswith("ucx_shm_posix_")]
    if mounts:
        evidence.append(f"/proc/self/mountinfo: {_SHM} is {brief(mounts[-1])}")
    if left:
        evidence.append(f"{_SHM}: {len(left)} files of UCX's, in use or left by processes that were killed")
    clean = "python -c 'import weft.memory; weft.memory.remove_orphans()' removes unused files; " if left else ""
    remedy = f"{clean}{_grow(machine)}"
    evidence += carries
    if machine.shm_read_only:
        evidence[0] += ", read-only"
        remedy = _grow(machine) if machine.container else f"mount -o remount,rw {_SHM}"
        return _unusable(machine, f"{_SHM} is read-only", why, evidence, remedy)
    if not why:
        return _beside_the_ring(machine, free, evidence, remedy)
    if free < LINK_FREE_NBYTES:
        what = f"{format_nbytes(free)} free in {_SHM}: UCX makes no link below {format_nbytes(LINK_FREE_NBYTES)}"
        return error(what, *evidence, remedy=remedy, source="weft's docs, design: full /dev/shm")
    links = (1 + (free - LINK_FREE_NBYTES) // LINK_SHM_NBYTES) // 2
    if links < 64:
        what = f"{format_nbytes(free)} free in {_SHM}: room for {links} links of UCX's between processes of this host"
        if free < WORKER_FREE_NBYTES:
            what += f", and for no low-level worker, which needs {format_nbytes(WORKER_FREE_NBYTES)}"
        return warning(what, *evidence, remedy=_grow(machine), source="weft's docs, design: shared memory")
    return ok(f"{format_nbytes(free)} free in {_SHM}: room for {links} links of UCX's", *evidence)


def _unusable(machine: Machine, state: str, why: str, evidence: list[str], remedy: str) -> Finding:
    """Judge a ``/dev/shm`` that is missing or read-only: Python's locks and queues between processes need it, too."""
    failures: list[str] = []
    if "distributed" in machine.distributions:
        failures.append("Dask's nannies cannot start, because Python's multiprocessing.Queue needs it")
    elif why.endswith(" is set"):
        remedy += f", or unset {why.removesuffix(' is set')}"
    if why:
        failures.append("UCX's posix cannot be used")
    if failures:
        what = f"{state}: {', and '.join(failures)}"
        return error(what, *evidence, remedy=remedy, source="weft's docs, design: shared memory")
    if _without_posix(machine):
        return note(f"{state}: UCX_TLS has no posix, so weft does not need it", *evidence, source=_SHM_SOURCE)
    what = f"{state}: no low-level worker can be made; connections on this host do not need it"
    return note(what, *evidence, remedy=remedy, source=_SHM_SOURCE)


def _without_posix(machine: Machine) -> bool:
    tls = machine.environ.get("UCX_TLS")
    return bool(tls) and not has_posix(str(tls))


def _beside_the_ring(machine: Machine, free: int, evidence: list[str], remedy: str) -> Finding:
    """Judge the free space if no link needs any: UCX needs some for its own workers."""
    if free < WORKER_FREE_NBYTES and not _without_posix(machine):
        what = f"{format_nbytes(free)} free in {_SHM}: a low-level worker needs {format_nbytes(WORKER_FREE_NBYTES)}"
        return note(f"{what}; connections on this host need none", *evidence, remedy=remedy, source=_SHM_SOURCE)
    return ok(f"{format_nbytes(free)} free in {_SHM}; connections on this host need none", *evidence)


def _grow(machine: Machine) -> str:
    if "KUBERNETES_SERVICE_HOST" in machine.environ:
        return f"mount an emptyDir with medium: Memory at {_SHM}"
    if machine.container:
        return "start the container with --shm-size=8g, or --ipc=host"
    return f"mount -o remount,size=50% {_SHM}"


def _selected(text: str | None) -> str:
    """Return the word in brackets, as in ``always [madvise] never``."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else ""


def shared_huge_pages(machine: Machine) -> Finding:
    """Check whether shared memory can use huge pages, by the machine's setting or on weft's own mount."""
    file = f"{_THP}/shmem_enabled"
    mode, ordinary = _selected(machine.text(file)), _selected(machine.text(f"{_THP}/enabled"))
    evidence = [machine.quote(file), machine.quote(f"{_THP}/enabled")]
    if mode in ("advise", "always", "within_size", "force"):
        return ok(f"shared memory can use huge pages: {mode}", *evidence)
    if not mode:
        return note("cannot tell whether shared memory can use huge pages", *evidence)
    if mode == "never" and ordinary != "never" and (how := _may_mount(machine)):
        return ok(f"shared memory can use huge pages, on a tmpfs that weft mounts {how}", *evidence)
    where = "on the host: " if machine.container else ""
    return note(
        f"shared memory uses small pages ({mode}): large arrays cost more page faults",
        *evidence,
        remedy=f"{where}echo advise > /{file}; memory that asks for huge pages then has them",
        source=_THP_SOURCE,
    )


def _may_mount(machine: Machine) -> str:
    """Return how this process may mount a tmpfs, or "" if it may not."""
    if machine.capable(CAP_SYS_ADMIN):
        return "with CAP_SYS_ADMIN"
    closed = {"kernel/unprivileged_userns_clone": 0, "kernel/apparmor_restrict_unprivileged_userns": 1}
    if machine.container or not machine.number("proc/sys/user/max_user_namespaces"):
        return ""
    if any(machine.number(f"proc/sys/{name}") == value for name, value in closed.items()):
        return ""
    return "in a user namespace"


def huge_pages(machine: Machine) -> Finding:
    """Check whether ordinary memory can use huge pages."""
    file = f"{_THP}/enabled"
    mode = _selected(machine.text(file))
    reserved = machine.number("proc/sys/vm/nr_hugepages")
    evidence = [machine.quote(file), machine.quote("proc/sys/vm/nr_hugepages")]
    if mode == "never":
        return note(
            "memory uses small pages: NumPy's large arrays cost more page faults",
            *evidence,
            remedy=f"{'on the host: ' if machine.container else ''}echo madvise > /{file}; NumPy asks for them",
            source=_THP_SOURCE,
        )
    if not mode:
        return note("cannot tell whether memory can use huge pages", *evidence)
    return ok(f"huge pages: {mode}" + (f", {reserved} reserved" if reserved else ""), *evidence)


def numa_balancing(machine: Machine) -> Finding:
    """Check whether the kernel moves pages between NUMA nodes."""
    file = "proc/sys/kernel/numa_balancing"
    count = sum(bool(node.memory_nbytes) for node in machine.topology.nodes)
    if count < 2:
        return not_applicable(
            "memory of one NUMA node: nothing to balance", "/sys/devices/system/node: one node with memory"
        )
    value = machine.number(file)
    if value is None:
        return note("cannot tell whether the kernel balances NUMA nodes", machine.quote(file))
    if value == 0:
        return ok("the kernel leaves pages where they are", machine.quote(file))
    return note(
        f"the kernel moves pages between {count} NUMA nodes: page faults while data is in use",
        machine.quote(file),
        remedy="for workers that are bound (weft worker, TopologyCluster): sysctl kernel.numa_balancing=0",
        source="Linux, Documentation/admin-guide/sysctl/kernel.rst: numa_balancing",
    )


def copies(machine: Machine) -> Finding:
    """Check that the C library copies as fast to every place in a page."""
    if machine.copies is None:
        return note("cannot tell how fast the C library copies", "memmove of 64 KiB: not tried")
    usual, close = machine.copies
    evidence = (
        f"memmove of 64 KiB: {usual / 1e9:.3g} GB/s, and {close / 1e9:.3g} GB/s to a place in its page"
        " 16 bytes after the source's"
    )
    if usual < _MUCH_SLOWER * close:
        return ok(f"the C library copies {min(usual, close) / 1e9:.3g} GB/s", evidence)
    return note(
        f"some copies of 2 KiB to 512 KiB take {usual / close:.0f} times as long as others, but not in weft's rings",
        evidence,
        remedy="where NumPy, UCX or other code copies much: GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1048576",
        source="weft's docs, design: copies in pieces; the GNU C library's manual: hardware capability tunables",
    )


def memory_limit(machine: Machine) -> Finding:
    """Check the memory limit of the control groups or the Slurm job."""
    have, allowed = machine.topology.memory_nbytes, machine.topology.allowed
    if have is None or allowed is None:
        return note("the size of the memory is not known", machine.quote("proc/meminfo"))
    limit = allowed.memory_nbytes
    if limit is None:
        return ok(f"all of {format_nbytes(have)} may be used", machine.quote("proc/meminfo"))
    why = [line for line in allowed.why if line.startswith("memory")]
    what = f"{format_nbytes(limit)} of {format_nbytes(have)} may be used"
    source = "Linux, Documentation/admin-guide/cgroup-v2.rst: memory.max; sbatch(1): --mem"
    if limit < 1 << 30:
        remedy = "ask for more: --mem in Slurm, --memory for a container; /dev/shm counts, too"
        return warning(what, *why, remedy=remedy, source=source)
    return note(f"{what}, shared memory included", *why, source=source)


def cpus(machine: Machine) -> Finding:
    """Check affinity, cpusets and the quota of CPU time."""
    have, allowed = machine.topology.cpus, machine.topology.allowed
    if not have or allowed is None:
        return note("the list of CPUs is not known", machine.quote("sys/devices/system/cpu/online"))
    why = [line for line in allowed.why if not line.startswith("memory")]
    source = "Linux, Documentation/admin-guide/cgroup-v2.rst: cpu.max, cpuset; sched_setaffinity(2)"
    if allowed.cpu_quota is not None and allowed.cpu_quota < 2:
        return warning(
            f"{allowed.cpu_quota:g} CPUs of time: a transfer keeps one core busy at each end",
            *why,
            remedy="ask for whole CPUs: --cpus for a container, limits.cpu in Kubernetes, -c in Slurm",
            source=source,
        )
    usable = cpulist.join(allowed.cpus)
    if allowed.cpu_quota is not None and allowed.cpu_quota < len(allowed.cpus):
        return note(f"{allowed.cpu_quota:g} CPUs of time, on CPUs {usable} of {len(have)}", *why, source=source)
    if why:
        return note(f"CPUs {usable} of {len(have)} may be used", *why, source=source)
    return ok(f"CPUs {usable}, all of them", "/proc/self/status: Cpus_allowed_list; no cpuset, no quota")
