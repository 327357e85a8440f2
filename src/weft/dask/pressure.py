# SPDX-License-Identifier: BSD-3-Clause
"""The pool's idle memory and Dask's memory limits.

A worker spills and pauses by its resident memory, and its nanny kills it by the same. Memory that the pool keeps warm
is resident: what is spilled to make room comes back to the pool first, and Dask would find nothing gained and spill on.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from weft import _native

if TYPE_CHECKING:
    from distributed.worker import Worker

#: A worker with a memory limit keeps at most this part of it warm.
_IDLE_PART = 32


def live_within_limits(worker: Worker) -> None:
    """Have the pool give back what it keeps warm whenever Dask looks at the memory of a worker that is short of it.

    Dask's monitor asks for the memory of the process by a method of its own so that it can be replaced. Short of
    memory is above the fraction at which Dask stops spilling.
    """
    limit = worker.memory_manager.memory_limit
    fraction = worker.memory_manager.memory_target_fraction or worker.memory_manager.memory_spill_fraction
    if not limit:
        return
    _native.pool_set_cap(min(_native.pool_statistics()["cap_nbytes"], limit // _IDLE_PART))
    if fraction:
        monitor = worker.monitor
        monitor.get_process_memory = _Resident(monitor, limit * fraction)


class _Resident:
    """What takes the place of ``SystemMonitor.get_process_memory``."""

    def __init__(self, monitor: Any, plenty_nbytes: float) -> None:
        self._ask = weakref.WeakMethod(monitor.get_process_memory)  # no cycle: a worker is freed when it is dropped
        self._plenty_nbytes = plenty_nbytes

    def __call__(self) -> int:
        ask = self._ask()
        assert ask is not None, "the monitor owns this"
        nbytes: int = ask()
        if nbytes > self._plenty_nbytes and _native.pool_statistics()["idle_nbytes"]:
            _native.pool_trim(0)
            nbytes = ask()
        return nbytes
