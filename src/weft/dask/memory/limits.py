# SPDX-License-Identifier: BSD-3-Clause
"""Dask's memory limits, corrected for memory that the pool keeps warm and memory that a host's processes share.

A worker spills and pauses by its resident memory, and its nanny kills it by the same figure. Warm memory in the pool is
resident: a spilled value's memory goes back to the pool, so Dask would see no gain and spill more. The same holds for a
value that was spilled while other workers borrow it: it becomes theirs. A pool without requests for a while keeps
nothing warm, and one on a host that is short of memory little (`available`).

Borrowed memory is resident too, though its owner counts it (`shared_pages`). So worker and nanny subtract it, both by
the kernel's figures, and it is subtracted from managed memory, which Dask computes from the sizes of keys. Only the
worker's own memory is spilled (`spill`). A nanny without weft would look at resident memory and kill a worker that
sees no need to spill; under such a nanny, a worker counts borrowed memory as its own.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import psutil

from weft import _native
from weft.dask import config, patches, patches_p2p, patches_spill
from weft.dask.memory import host_budget
from weft.dask.memory.available import Available
from weft.dask.memory.shards import Room
from weft.dask.memory.shared_pages import LEAST_S, NOTHING, Borrowed, Reader
from weft.dask.memory.spill import spill_own

if TYPE_CHECKING:
    from distributed.nanny import Nanny
    from distributed.worker import Worker

#: A worker with a memory limit keeps at most this fraction of it warm ...
_IDLE_PART = 128
#: ... plus, for this many seconds, as much as the process had in use at once, in the pool and outside it.
_HOLD_S = 0.5
#: ... and whatever leaves the workers of a host below this fraction of their limits.
_LOW_WATER_PART = 3 / 16
#: After as many seconds without a new block, it keeps none.
_UNUSED_S = 2.0
#: ... and never more than this fraction of what the host has left, which all its workers share.
_AVAILABLE_PART = 16


def count_worker(worker: Worker) -> None:
    """Let Dask count only the worker's own memory, and let the pool release warm memory before Dask spills.

    The pool releases it, and freed memory that others still borrow, above the fraction at which Dask stops spilling.
    This is called for each port that a worker tries.
    """
    limits = patches.limits_of_worker(worker)
    if limits.nbytes:
        _native.pool_set_cap(min(_native.pool_statistics()["cap_nbytes"], limits.nbytes // _IDLE_PART))
    host_budget.join()
    _native.pool_set_hold(
        _HOLD_S, int(limits.spill_until_nbytes or sys.maxsize), int((limits.nbytes or 0) * _LOW_WATER_PART)
    )
    count = WorkerCount(
        leaves_out=worker.nanny is None or str(worker.nanny).startswith("ucx://"),
        plenty_nbytes=float("inf") if limits.spill_until_nbytes is None else limits.spill_until_nbytes,
    )
    if patches.replace_process_memory(worker.monitor, count.process_memory):
        patches.replace_metrics(worker, count.metrics)
        spill_own(worker.data, count.borrowed_nbytes)
        if config.arrays_in_pool():  # memory that spilling freed is reused, and the array can be lent again
            patches_spill.read_spilled_into(worker.data, _native.pool_allocate)
        if limits.nbytes and limits.spill_until_nbytes is not None and config.shards_in_memory():
            ask = worker.monitor.get_process_memory
            count.room = Room(
                limits.nbytes,
                limits.spill_until_nbytes,
                lambda: int(ask()) + _native.pool_statistics()["borrowed_nbytes"],
            )
            patches_p2p.keep_shards(worker, count.room)


class WorkerCount:
    """The memory of this process as reported to Dask: without borrowed memory that its owner counts.

    Parameters
    ----------
    leaves_out
        Whether borrowed memory is subtracted.
    plenty_nbytes
        Above this, the pool releases its warm memory.
    """

    def __init__(self, *, leaves_out: bool, plenty_nbytes: float) -> None:
        self._leaves_out = leaves_out
        self._plenty_nbytes = plenty_nbytes
        self._reader = Reader()
        self._available = Available()
        self._seen = NOTHING
        self._total = 0  # bytes borrowed at the last reading
        self._flag_at = 0.0
        self._taken, self._taken_at = 0, 0.0  # blocks taken from the pool, and when that number last changed
        #: For P2P shards, which go to disk when memory is short.
        self.room: Room | None = None

    def process_memory(self, measure: Callable[[], int]) -> int:
        """Return the worker's memory; `measure` returns that of the process."""
        nbytes = self._settled(measure)
        if self.room is not None:
            self.room.note(nbytes + _native.pool_statistics()["borrowed_nbytes"])
            self.room.relieve()
        return nbytes

    def _settled(self, measure: Callable[[], int]) -> int:
        pool = _native.pool_statistics()
        if pool["taken_total"] != self._taken:
            self._taken, self._taken_at = pool["taken_total"], time.monotonic()
        elif pool["idle_nbytes"] and time.monotonic() - self._taken_at > _UNUSED_S:
            _native.pool_cool()
        _native.pool_settle()
        self._share(pool["idle_nbytes"])
        nbytes = self._own(measure())
        if nbytes <= self._plenty_nbytes:
            return nbytes
        if pool["idle_nbytes"] or pool["pinned_nbytes"]:
            _native.pool_trim(0)
            nbytes = self._own(measure())
        return nbytes

    def _share(self, idle: int) -> None:
        left = self._available.nbytes() if idle else None
        if left is not None and idle > left // _AVAILABLE_PART:
            _native.pool_trim(left // _AVAILABLE_PART)

    async def metrics(self, collect: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return a heartbeat's metrics, with borrowed keys subtracted from managed memory."""
        return patches.leave_out_of_managed(await collect(), self.borrowed_nbytes)

    def _own(self, resident: int) -> int:
        return max(0, resident - self.read_borrowed(resident).resident)

    def read_borrowed(self, resident: int) -> Borrowed:
        """Return what is borrowed; free while nothing is, otherwise cheap (`Reader`)."""
        total = _native.pool_statistics()["borrowed_nbytes"] if self._leaves_out else 0
        if not total:
            self._reader, self._seen, self._total = Reader(), NOTHING, 0
            return NOTHING
        if (now := time.monotonic()) >= self._flag_at:
            _native.flag_loans()
            self._flag_at = now + LEAST_S
        seen = self._reader.read("self", resident)
        if seen is not self._seen:  # a new reading
            self._seen, self._total = seen, total
        return Borrowed(min(seen.resident, total), min(seen.mapped, total))

    def borrowed_nbytes(self) -> int:
        """Return the borrowed bytes that others count, without a new reading: later loans count fully."""
        if not self._leaves_out:
            return 0
        return max(0, self._seen.mapped + _native.pool_statistics()["borrowed_nbytes"] - self._total)


def count_in_nanny(nanny: Nanny) -> None:
    """Let a nanny subtract what its worker borrowed before it kills it, and let its workers share a budget."""
    host_budget.offer(nanny)
    patches.replace_nanny_monitor(nanny, NannyCount(nanny))


class NannyCount:
    """Lets a nanny check its worker's memory, which may kill it, only if that is also too much by this count."""

    def __init__(self, nanny: Nanny) -> None:
        self._nanny = weakref.proxy(nanny)
        self._process: psutil.Process | None = None
        self._reader = Reader()

    def __call__(self, look: Callable[[], object]) -> None:
        if not self._has_room():
            look()

    def _has_room(self) -> bool:
        pid, most = patches.pid_of_worker(self._nanny), patches.limits_of_nanny(self._nanny).terminate_nbytes
        if not pid or most is None:
            return False
        try:
            if self._process is None or self._process.pid != pid:
                self._process = psutil.Process(pid)
            resident: int = self._process.memory_info().rss
        except psutil.Error:
            return False
        return resident <= most or resident - self._reader.read(pid, resident).resident <= most
