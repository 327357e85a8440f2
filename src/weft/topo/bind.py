# SPDX-License-Identifier: BSD-3-Clause
"""Bind this process as a plan says: the CPUs of all its threads, the memory policy of future ones.

Affinity and memory policy belong to threads, and a thread inherits both from the one that starts it. Affinity can
be set for other threads, so all that exist are moved; the memory policy cannot, so call this early, from the thread
that starts the others. ``set_mempolicy`` is in the kernel and not in the C library, hence ctypes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Sequence

from weft.topo import cpulist

logger = logging.getLogger("weft")

#: Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_PREFERRED, _PREFERRED_MANY = 1, 5  # include/uapi/linux/mempolicy.h; the second since Linux 5.15
_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def bind(cpus: Sequence[int], nodes: Sequence[int]) -> None:
    """Restrict this process to `cpus`, and let this thread prefer memory of `nodes`.

    A refusal by the kernel is logged as a warning: a worker in the wrong place is slow, but correct.

    Parameters
    ----------
    cpus : sequence of int
        None: no restriction.
    nodes : sequence of int
        NUMA nodes; none: the memory policy stays. Holds for threads that this one starts from now on.
    """
    if cpus:
        try:
            _bind_threads(cpus)
        except OSError as error:
            logger.warning("could not bind this process to CPUs %s: %s", cpulist.join(cpus), error)
    if nodes:
        try:
            _prefer(nodes)
        except OSError as error:
            logger.warning("could not prefer memory of node %s: %s", cpulist.join(nodes), error)


def _bind_threads(cpus: Sequence[int]) -> None:
    bound: set[int] = set()
    # a thread that an unbound thread started meanwhile is found in the next turn
    for _ in range(10):
        found = {int(name) for name in os.listdir("/proc/self/task")} - bound
        if not found:
            return
        for thread in found:
            try:
                os.sched_setaffinity(thread, cpus)
            except ProcessLookupError:
                continue  # it has ended
        bound |= found


def _prefer(nodes: Sequence[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(f"the number of set_mempolicy on {platform.machine()} is not known")
    mask = (ctypes.c_ulong * (max(nodes) // _BITS + 1))()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    mode = _PREFERRED if len(nodes) == 1 else _PREFERRED_MANY
    libc = ctypes.CDLL(None, use_errno=True)
    # the kernel reads one bit less than it is given
    bits = ctypes.c_ulong(len(mask) * _BITS + 1)
    if libc.syscall(ctypes.c_long(number), ctypes.c_int(mode), mask, bits) != 0:
        raise OSError(ctypes.get_errno(), f"set_mempolicy: {os.strerror(ctypes.get_errno())}")
