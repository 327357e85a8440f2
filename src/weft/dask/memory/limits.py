# SPDX-License-Identifier: BSD-3-Clause
"""Dask's memory limits, with memory that the pool keeps warm and memory that processes of a host share.

A worker spills and pauses by its resident memory, and its nanny kills it by the same. Memory that the pool keeps warm
is resident: what is spilled to make room comes back to the pool first, and Dask would find nothing gained and spill on.
So is what was spilled while other workers have it on loan: that becomes theirs.

What a worker has borrowed is resident too, though its owner counts it (`borrowed`). So worker and nanny
leave it out by the same reading of the kernel's, and managed memory, which Dask makes of the sizes of keys, leaves it
out as well; what is spilled is the worker's own (`spill`). A nanny that weft is not in would look at resident
memory and kill a worker that sees no need to spill: under one, a worker counts as if it had copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import psutil
from distributed.spill import SpillBuffer

from weft import _native
from weft.dask.memory.borrowed import NOTHING, Borrowed, Reader
from weft.dask.memory.spill import spill_own

if TYPE_CHECKING:
    from distributed.nanny import Nanny
    from distributed.worker import Worker

#: A worker with a memory limit keeps at most this part of it warm.
_IDLE_PART = 32


def live_within_limits(worker: Worker) -> None:
    """Have Dask see of a worker's memory what is the worker's, and the pool give back what it keeps warm in time.

    Dask's monitor asks for the memory of the process by a method of its own so that it can be replaced. Short of
    memory is above the fraction at which Dask stops spilling. A worker comes here for each port that it tries.
    """
    limit = worker.memory_manager.memory_limit
    fraction = worker.memory_manager.memory_target_fraction or worker.memory_manager.memory_spill_fraction
    if limit:
        _native.pool_set_cap(min(_native.pool_statistics()["cap_nbytes"], limit // _IDLE_PART))
    monitor = worker.monitor
    if isinstance(monitor.get_process_memory, _Counted):
        return
    books = _Books(counts=worker.nanny is None or str(worker.nanny).startswith("ucx://"))
    monitor.get_process_memory = _Counted(monitor, books, limit * fraction if limit and fraction else float("inf"))
    worker.get_metrics = _Metrics(worker, books)
    if isinstance(worker.data, SpillBuffer):
        spill_own(worker.data, books.mapped)


class _Books:
    """What this process has borrowed, and others count."""

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts
        self._reader = Reader()
        self._seen = NOTHING
        self._total = 0  # bytes borrowed when that was seen

    def read(self, resident: int) -> Borrowed:
        """Look again: costs nothing while nothing is borrowed, else little (`Reader`)."""
        total = _native.pool_statistics()["borrowed_nbytes"] if self._counts else 0
        if not total:
            self._reader, self._seen, self._total = Reader(), NOTHING, 0
            return NOTHING
        _native.flag_loans()
        seen = self._reader.read("self", resident)
        if seen is not self._seen:  # but read anew
            self._seen, self._total = seen, total
        return Borrowed(min(seen.resident, total), min(seen.mapped, total))

    def mapped(self) -> int:
        """Return the bytes of all that others count now, without a look: what came since the last one is theirs."""
        if not self._counts:
            return 0
        return max(0, self._seen.mapped + _native.pool_statistics()["borrowed_nbytes"] - self._total)


class _Counted:
    """What takes the place of ``SystemMonitor.get_process_memory``."""

    def __init__(self, monitor: Any, books: _Books, plenty_nbytes: float) -> None:
        self._ask = weakref.WeakMethod(monitor.get_process_memory)  # no cycle: a worker is freed when it is dropped
        self._books = books
        self._plenty_nbytes = plenty_nbytes

    def __call__(self) -> int:
        nbytes = self._count()
        if nbytes <= self._plenty_nbytes:
            return nbytes
        pool = _native.pool_statistics()
        if pool["idle_nbytes"] or pool["pinned_nbytes"]:
            _native.pool_trim(0)
            nbytes = self._count()
        return nbytes

    def _count(self) -> int:
        ask = self._ask()
        assert ask is not None, "the monitor owns this"
        nbytes: int = ask()
        return max(0, nbytes - self._books.read(nbytes).resident)


class _Metrics:
    """What takes the place of ``Worker.get_metrics``.

    Dask's managed memory is the size of a worker's keys without those on disk. Keys that others count are not the
    worker's memory either, so they go into that figure; what Dask shows as spilled is another one, the size on disk.
    """

    def __init__(self, worker: Worker, books: _Books) -> None:
        self._ask = weakref.WeakMethod(worker.get_metrics)
        self._books = books

    async def __call__(self) -> dict[str, Any]:
        ask: Callable[[], Awaitable[dict[str, Any]]] | None = self._ask()
        assert ask is not None, "the worker owns this"
        metrics = await ask()
        spilled = metrics["spilled_bytes"]
        in_memory = max(0, metrics["managed_bytes"] - spilled["memory"])
        metrics["spilled_bytes"] = {**spilled, "memory": spilled["memory"] + min(self._books.mapped(), in_memory)}
        return metrics


def watch_by_the_same_count(nanny: Nanny) -> None:
    """Have a nanny ask what of its worker's resident memory is the worker's before it ends it."""
    monitor = nanny.periodic_callbacks.get("memory_monitor")
    if monitor is not None and not isinstance(monitor.callback, _Second):
        monitor.callback = _Second(nanny, monitor.callback)


class _Second:
    """What takes the place of ``NannyMemoryManager.memory_monitor``: that, where the count is too high as well."""

    def __init__(self, nanny: Nanny, look: Callable[[], None]) -> None:
        self._nanny = weakref.proxy(nanny)
        self._look = look
        self._reader = Reader()

    def __call__(self) -> None:
        if not self._has_room():
            self._look()

    def _has_room(self) -> bool:
        memory, process = self._nanny.memory_manager, self._nanny.process
        pid = process and process.process and process.process.pid
        if not pid or not memory.memory_limit:
            return False
        try:
            resident: int = psutil.Process(pid).memory_info().rss
        except psutil.Error:
            return False
        most = memory.memory_limit * memory.memory_terminate_fraction
        return bool(resident <= most or resident - self._reader.read(pid, resident).resident <= most)
