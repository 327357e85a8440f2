# SPDX-License-Identifier: BSD-3-Clause
"""This process and those it starts: namespaces, tracing, open files, clocks."""

from __future__ import annotations

import re

from weft._units import format_nbytes
from weft.config import BORROWED_DESCRIPTORS, LINK_DESCRIPTORS, LINK_SHM_NBYTES, RING_DESCRIPTORS
from weft.doctor.carrier import why_ucx
from weft.doctor.finding import Finding, error, not_applicable, note, ok, warning
from weft.doctor.machine import CAP_SYS_PTRACE, FIRST_NAMESPACES, Machine

#: By how much the file of a process's rings grows for its first link. It never shrinks.
RING_NBYTES = 4 << 20
#: Descriptors of the rest of a process.
_RESERVED = 64
_SLOW_CLOCKS = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")


def namespaces(machine: Machine) -> Finding:
    """Check whether this is a container, and what it shares with others."""
    own = machine.own_namespaces
    evidence = [f"/proc/self/ns/{kind}: {machine.link(f'proc/self/ns/{kind}') or '?'}" for kind in FIRST_NAMESPACES]
    evidence += [machine.container] if machine.container else []
    if own is None and not machine.container:
        return note("cannot tell whether this is a container", *evidence)
    if not own and not machine.container:
        return ok("no container: processes of this user share memory", *evidence)
    with_own = f", with {', '.join(own)} of its own" if own else ""
    what = f"a container{with_own}: its processes share memory with each other"
    source = "weft's docs, containers; weft's docs, design: connections; namespaces(7)"
    if not (why := why_ucx(machine)):
        what += " and with this user's in the same network namespace, and reach others over the network"
        return note(what, *evidence, remedy=_share_network(machine), source=source)
    what += ", and reach those outside over the network"
    evidence.append(f"UCX carries messages between processes of this host: {why}")
    evidence += [_PAUSE] if _shares_processes(machine) else []
    return note(what, *evidence, remedy=_share(machine, own or ()), source=source)


_PAUSE = "/proc/1/comm: pause, so all containers of this pod share their processes"


def _shares_processes(machine: Machine) -> bool:
    return machine.text("proc/1/comm") == "pause"


def _share_network(machine: Machine) -> str:
    """Say what to share so that weft's ring works with processes outside this container."""
    if "KUBERNETES_SERVICE_HOST" in machine.environ:
        return ""  # the containers of a pod have one network
    return "to share memory with processes outside: --network=host, or --network=container:NAME, as the same user"


def _share(machine: Machine, own: tuple[str, ...]) -> str:
    """Say what to share so that UCX can share memory with processes outside this container."""
    if "KUBERNETES_SERVICE_HOST" in machine.environ:
        if _shares_processes(machine):
            return ""
        return "to share memory with other containers of this pod: shareProcessNamespace: true in its spec"
    options = [f"--{kind}=host" for kind in ("ipc", "pid") if kind in own]
    if not options:
        return ""
    others = " ".join(option.replace("host", "container:NAME") for option in options)
    user = ", as the same user in one user namespace" if "user" in own else ""
    return f"to share memory with processes outside: {' '.join(options)} --network=host, or {others} alike{user}"


def ptrace(machine: Machine) -> Finding:
    """Check whether UCX's cma may read other processes' memory, if a setting asks for it."""
    file = "proc/sys/kernel/yama/ptrace_scope"
    asked = re.split("[,^]", machine.environ.get("UCX_TLS", ""))
    wanted = bool({"cma", "all", "sm", "shm"} & set(asked)) and not machine.environ.get("UCX_TLS", "").startswith("^")
    scope = machine.number(file)
    evidence = (machine.quote(file), f"UCX_TLS: {machine.environ.get('UCX_TLS', 'not set')}")
    if not wanted:
        return not_applicable("weft does not use cma, and needs no right to trace", *evidence)
    if scope is None or scope == 0 or machine.capable(CAP_SYS_PTRACE):
        return ok("cma may read the memory of this user's processes", *evidence)
    allow = (
        "start the container with --cap-add=SYS_PTRACE" if machine.container else "sysctl kernel.yama.ptrace_scope=0"
    )
    return note(
        f"ptrace_scope is {scope}: cma may not read other processes' memory; UCX copies instead",
        *evidence,
        remedy=f"leave cma out of UCX_TLS (weft does: it aborts the survivor of a killed peer), or {allow}",
        source="Linux, Documentation/admin-guide/LSM/Yama.rst; weft's docs, design: shared memory",
    )


def open_files(machine: Machine) -> Finding:
    """Compare the limit of open files with the number that each peer takes."""
    limit = machine.limit("Max open files")
    if limit is None:
        return note("the limit of open files is not known", machine.quote("proc/self/limits"))
    soft, hard = limit
    evidence = [f"/proc/self/limits: Max open files {soft or 'unlimited'}, hard {hard or 'unlimited'}"]
    if soft is None:
        return ok("open files without limit", *evidence)
    if why := why_ucx(machine):
        evidence.append(f"UCX carries messages between processes of this host: {why}")
        each, apiece = LINK_DESCRIPTORS, f"{LINK_DESCRIPTORS} for each with UCX"
        section = "a ucp_worker for each link"
    else:
        each = RING_DESCRIPTORS + BORROWED_DESCRIPTORS
        apiece = f"{RING_DESCRIPTORS} for each and {BORROWED_DESCRIPTORS} for memory borrowed from it"
        section = "a ring for links on one host"
    peers = max(0, soft - _RESERVED) // each
    what = f"{soft} open files: room for {peers} peers on this host, at {apiece}"
    if peers >= 500:
        return ok(what, *evidence)
    what += f", beside {_RESERVED} for the rest of the process"
    if hard is None or hard > soft:
        remedy = f"ulimit -n {'unlimited' if hard is None else hard}, in the shell that starts the workers;"
        remedy += " weft worker and TopologyCluster do it themselves"
    elif machine.container:
        remedy = "start the container with --ulimit nofile=65536:65536"
    else:
        remedy = "raise nofile in /etc/security/limits.d and log in again; a service needs LimitNOFILE=65536"
    source = f"weft's docs, design: {section}; getrlimit(2)"
    if peers < 64:
        return warning(what, *evidence, remedy=remedy, source=source)
    return note(what, *evidence, remedy=remedy, source=source)


def file_size(machine: Machine) -> Finding:
    """Compare the limit of a file's size with what links on one host take: shared memory is a file to the kernel."""
    limit = machine.limit("Max file size")
    if limit is None:
        return note("the limit of a file's size is not known", machine.quote("proc/self/limits"))
    soft, hard = limit
    evidence = [f"/proc/self/limits: Max file size {soft or 'unlimited'}, hard {hard or 'unlimited'}"]
    if soft is None:
        return ok("files without limit of their size", *evidence)
    if why := why_ucx(machine):
        evidence.append(f"UCX carries messages between processes of this host: {why}")
        least, taken = (
            LINK_SHM_NBYTES,
            f"a link of UCX's between processes of this host takes {LINK_SHM_NBYTES >> 10} KiB",
        )
    else:
        least, taken = RING_NBYTES, f"links between processes of this host take {RING_NBYTES >> 20} MiB and more"
    what = f"files of at most {format_nbytes(soft)}, and {taken}"
    if hard is None:
        remedy = "ulimit -f unlimited, in the shell that starts the workers"
    elif machine.container:
        remedy = "start the container with --ulimit fsize=-1"
    else:
        remedy = (
            "allow larger files: fsize in /etc/security/limits.d, and log in again; a service needs LimitFSIZE=infinity"
        )
    source = "weft's docs, design: a ring for links on one host; getrlimit(2)"
    if soft < least:
        return error(what, *evidence, remedy=remedy, source=source)
    if not why and soft < 64 * least:
        return warning(what, *evidence, remedy=remedy, source=source)
    return note(what, *evidence, remedy=remedy, source=source)


def clock(machine: Machine) -> Finding:
    """Check whether the clock is synchronised: Dask compares times of several machines."""
    evidence = f"adjtimex: {_SYNCHRONISED[machine.synchronised]}"
    if machine.synchronised:
        return ok("the clock is synchronised", evidence)
    if machine.synchronised is None:
        return note("cannot tell whether the clock is synchronised", evidence)
    return note(
        "the clock is not synchronised: times in Dask's dashboard and transfer logs of several machines will not agree",
        evidence,
        remedy="synchronise the host's clock" if machine.container else "start chronyd, or timedatectl set-ntp true",
        source="adjtimex(2); dask.distributed: worker clocks",
    )


_SYNCHRONISED = {True: "synchronised", False: "not synchronised (STA_UNSYNC)", None: "no answer"}


def clock_source(machine: Machine) -> Finding:
    """Check the kernel's clock source: each await and each wait reads the time."""
    folder = "sys/devices/system/clocksource/clocksource0"
    name = machine.text(f"{folder}/current_clocksource")
    evidence = [machine.quote(f"{folder}/{file}") for file in ("current_clocksource", "available_clocksource")]
    if not name:
        return note("the kernel's clock source is not known", *evidence)
    if name not in _SLOW_CLOCKS:
        return ok(f"clock source {name}" if re.fullmatch(r"[\w-]{1,30}", name) else "a clock source", *evidence)
    other = (machine.text(f"{folder}/available_clocksource") or "").split()
    remedy = (
        f"echo tsc > /{folder}/current_clocksource; dmesg | grep -i tsc says why it was not taken"
        if "tsc" in other
        else "the kernel gave up tsc: dmesg | grep -i tsc says why; a firmware update or tsc=reliable may help"
    )
    return warning(
        f"clock source {name}: reading the clock takes a microsecond instead of 25 ns",
        *evidence,
        remedy=remedy,
        source="Linux, Documentation/timers/timekeeping.rst; weft's docs, design: an 8 B message",
    )
