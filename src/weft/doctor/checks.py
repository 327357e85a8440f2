# SPDX-License-Identifier: BSD-3-Clause
"""All checks by name, in the order in which they are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from weft.doctor import checks_gpu, checks_memory, checks_network, checks_process, checks_rdma, checks_ucx
from weft.doctor.finding import Finding
from weft.doctor.machine import Machine, printable

Check = Callable[[Machine], Finding]

CHECKS: Mapping[str, Check] = {
    "libucp": checks_ucx.library,
    "several UCX": checks_ucx.several,
    "UCX variables": checks_ucx.variables,
    "UCX settings": checks_ucx.settings,
    "weft's package": checks_ucx.package,
    "Dask's ucx": checks_ucx.scheme,
    "memfd": checks_memory.memfd,
    "shared memory": checks_memory.shared_memory,
    "shared huge pages": checks_memory.shared_huge_pages,
    "huge pages": checks_memory.huge_pages,
    "NUMA balancing": checks_memory.numa_balancing,
    "memory copies": checks_memory.copies,
    "memory limit": checks_memory.memory_limit,
    "CPUs": checks_memory.cpus,
    "container": checks_process.namespaces,
    "ptrace": checks_process.ptrace,
    "open files": checks_process.open_files,
    "file size": checks_process.file_size,
    "clock": checks_process.clock,
    "clock source": checks_process.clock_source,
    "loopback": checks_network.loopback,
    "host name": checks_network.host_name,
    "MTU": checks_network.mtu,
    "GPU driver": checks_gpu.driver,
    "kernel headers": checks_gpu.headers,
    "GPU memory to NIC": checks_gpu.peer_memory,
    "nvidia-smi": checks_gpu.matrix,
    "RDMA devices": checks_rdma.devices,
    "RDMA ports": checks_rdma.ports,
    "IPoIB": checks_rdma.ipoib,
    "Azure's agent": checks_rdma.waagent,
    "libucp with verbs": checks_rdma.verbs,
    "locked memory": checks_rdma.memlock,
}


def examine(machine: Machine, *, port: int | None = None) -> dict[str, Finding]:
    """Run all checks on `machine`, and the check of `port` if one is given.

    Parameters
    ----------
    machine : Machine
        From :func:`weft.doctor.here.read`.
    port : int, optional
        A port that other hosts must reach.

    Returns
    -------
    dict of str to Finding
        By the name of the check.
    """
    wanted = dict(CHECKS) if port is None else {**CHECKS, "port": checks_network.port(port)}
    return {name: _printable(check(machine)) for name, check in wanted.items()}


def _printable(finding: Finding) -> Finding:
    """Replace control characters of files and variables, which would move the terminal's cursor."""
    evidence = tuple(map(printable, finding.evidence))
    return dataclasses.replace(
        finding, what=printable(finding.what), evidence=evidence, remedy=printable(finding.remedy)
    )
