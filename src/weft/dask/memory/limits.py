# SPDX-License-Identifier: BSD-3-Clause
"""Dask's memory limits, with memory that the pool keeps warm and memory that processes of a host share.

A worker spills and pauses by its resident memory, and its nanny kills it by the same. Memory that the pool keeps warm
is resident: what is spilled to make room comes back to the pool first, and Dask would find nothing gained and spill on.
So is what was spilled while other workers have it on loan: that becomes theirs. A pool that has not been asked for
a block for a while keeps nothing warm.

What a worker has borrowed is resident too, though its owner counts it (`shared_pages`). So worker and nanny
leave it out by the same reading of the kernel's, and managed memory, which Dask makes of the sizes of keys, leaves it
out as well; what is spilled is the worker's own (`spill`). A nanny that weft is not in would look at resident
memory and kill a worker that sees no need to spill: under one, a worker counts as if it had copies.
"""

from __future__ import annotations

import resource
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from weft import _native
from weft.dask import config, patches, patches_p2p
from weft.dask.memory.shards import Room
from weft.dask.memory.shared_pages import NOTHING, Borrowed, Reader
from weft.dask.memory.spill import spill_own

if TYPE_CHECKING:
    from distributed.nanny import Nanny
    from distributed.worker import Worker

#: A worker with a memory limit keeps at most this part of it warm ...
_IDLE_PART = 128
#: ... and beyond that, for so long, as much as the process had in use at once, in the pool and beside it. After as long
#: without a new block, it keeps none.
_HOLD_S = 3.0


def count_worker(worker: Worker) -> None:
    """Have Dask see of a worker's memory what is the worker's, and the pool give back what it keeps warm in time.

    Short of memory is above the fraction at which Dask stops spilling. A worker comes here for each port that it
    tries.
    """
    limits = patches.limits_of_worker(worker)
    if limits.nbytes:
        _native.pool_set_cap(min(_native.pool_statistics()["cap_nbytes"], limits.nbytes // _IDLE_PART))
    _native.pool_set_hold(_HOLD_S)
    count = WorkerCount(
        leaves_out=worker.nanny is None or str(worker.nanny).startswith("ucx://"),
        plenty_nbytes=float("inf") if limits.spill_until_nbytes is None else limits.spill_until_nbytes,
    )
    if patches.replace_process_memory(worker.monitor, count.process_memory):
        patches.replace_metrics(worker, count.metrics)
        spill_own(worker.data, count.borrowed_nbytes)
        if limits.nbytes and limits.spill_until_nbytes is not None and config.shards_in_memory():
            ask = worker.monitor.get_process_memory
            count.room = Room(
                limits.nbytes,
                limits.spill_until_nbytes,
                lambda: int(ask()) + _native.pool_statistics()["borrowed_nbytes"],
            )
            patches_p2p.keep_shards(worker, count.room)


def private_nbytes() -> int:
    """Return the bytes that are resident and not shared: what the process has beside the pool, nearly."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * resource.getpagesize()


class WorkerCount:
    """What Dask is told of this process's memory: without what it has borrowed and others count.

    Parameters
    ----------
    leaves_out
        Whether anything is left out.
    plenty_nbytes
        Above this, the pool gives back what it keeps warm.
    """

    def __init__(self, *, leaves_out: bool, plenty_nbytes: float) -> None:
        self._leaves_out = leaves_out
        self._plenty_nbytes = plenty_nbytes
        self._reader = Reader()
        self._seen = NOTHING
        self._total = 0  # bytes borrowed when that was seen
        self._taken, self._taken_at = 0, 0.0  # blocks of the pool, and when that was seen first
        #: For P2P's shards, which go to disk where memory is short.
        self.room: Room | None = None

    def process_memory(self, measure: Callable[[], int]) -> int:
        """Return the worker's memory, given how to measure that of the process."""
        nbytes = self._settled(measure)
        if self.room is not None:
            self.room.note(nbytes + _native.pool_statistics()["borrowed_nbytes"])
            self.room.relieve()
        return nbytes

    def _settled(self, measure: Callable[[], int]) -> int:
        pool = _native.pool_statistics()
        if pool["taken_total"] != self._taken:
            self._taken, self._taken_at = pool["taken_total"], time.monotonic()
        elif pool["idle_nbytes"] and time.monotonic() - self._taken_at > _HOLD_S:
            _native.pool_cool()
        _native.pool_settle(private_nbytes())
        nbytes = self._own(measure())
        if nbytes <= self._plenty_nbytes:
            return nbytes
        if pool["idle_nbytes"] or pool["pinned_nbytes"]:
            _native.pool_trim(0)
            nbytes = self._own(measure())
        return nbytes

    async def metrics(self, collect: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return a heartbeat's metrics. Keys that others count are not the worker's memory, so not managed either."""
        return patches.leave_out_of_managed(await collect(), self.borrowed_nbytes)

    def _own(self, resident: int) -> int:
        return max(0, resident - self.read_borrowed(resident).resident)

    def read_borrowed(self, resident: int) -> Borrowed:
        """Look again: costs nothing while nothing is borrowed, else little (`Reader`)."""
        total = _native.pool_statistics()["borrowed_nbytes"] if self._leaves_out else 0
        if not total:
            self._reader, self._seen, self._total = Reader(), NOTHING, 0
            return NOTHING
        _native.flag_loans()
        seen = self._reader.read("self", resident)
        if seen is not self._seen:  # but read anew
            self._seen, self._total = seen, total
        return Borrowed(min(seen.resident, total), min(seen.mapped, total))

    def borrowed_nbytes(self) -> int:
        """Return the bytes of all that others count now, without a look: what came since the last one is theirs."""
        if not self._leaves_out:
            return 0
        return max(0, self._seen.mapped + _native.pool_statistics()["borrowed_nbytes"] - self._total)


def count_in_nanny(nanny: Nanny) -> None:
    """Have a nanny ask what of its worker's resident memory is the worker's before it ends it."""
    patches.replace_nanny_monitor(nanny, NannyCount(nanny))


class NannyCount:
    """Has a nanny look at its worker's memory, and end it, only where that is too much by this count as well."""

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
