# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's decisions by the model of links: functions that replace methods of Dask's scheduler.

They are installed only while links differ, and call Dask's own methods for everything that they do not decide.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.dask import patches_decisions, patches_p2p
from weft.dask.learn.roots import Roots
from weft.links import Backlog, LinkModel, Need, best_source, fetch_seconds, neighbours
from weft.links.fanout import LEAST_NBYTES

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: Seconds that a task must start earlier elsewhere to be moved there: the model is not more exact.
_WORTH_S = 0.01
#: It must also start within this share of the time.
_SOONER = 0.8
#: Decisions kept for `weft.dask.why`.
_MOST_DECISIONS = 4096
#: Sources within this factor of the best count as equal; Dask chooses among them.
_AS_GOOD = 1.5
#: Consider at most this many holders of a value.
_MOST_HOLDERS = 16
#: Copies requested at the same time for each existing copy: no limit.
_MOST_AT_ONCE = 1 << 20
#: With more candidates for a copy, Dask chooses.
_MOST_RECIPIENTS = 64


class Placing:
    """The decisions for one scheduler.

    Attributes
    ----------
    decisions : dict
        For the latest tasks with more than one candidate: worker, time of the decision (``time.time``), and for each
        candidate the predicted seconds of fetching.
    """

    def __init__(self, scheduler: Scheduler, model: LinkModel, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._model, self._clock = scheduler, model, clock
        self.roots, self._backlog = Roots(scheduler, model, clock), Backlog()
        self._trace: list[tuple[str, float]] | None = None
        self.decisions: OrderedDict[Any, dict[str, Any]] = OrderedDict()
        self._on = False
        self._undo: list[Callable[[], None]] = []
        self._undo_copies: list[Callable[[], None]] = []

    def switch_copies(self, on: bool) -> None:
        """Let copies travel in chains, which needs no knowledge of links, or as in Dask."""
        if on and not self._undo_copies:
            self._undo_copies = patches_decisions.steer_replicate(self._scheduler, self.replicate)
        elif not on:
            for undo in self._undo_copies:
                undo()
            self._undo_copies = []

    def switch(self, on: bool) -> None:
        """Replace Dask's methods, or restore them."""
        if on is self._on:
            return
        self._on = on
        if on:
            self._undo = patches_decisions.steer_scheduler(
                self._scheduler,
                get_comm_cost=self.comm_cost,
                decide_worker_non_rootish=self.choose,
                decide_worker_rootish_queuing_disabled=self.roots.place_unqueued,
                decide_worker_rootish_queuing_enabled=self.roots.place_queued,
                is_rootish=self.roots.is_rootish,
                stimulus_queue_slots_maybe_opened=self.roots.fill,
                steal_time_ratio=self.steal_ratio,
                gather_on_worker=self.gather_on_worker,
                find_recipient=self.find_recipient,
            ) + patches_p2p.steer_outputs(self._scheduler, self.by_host)
            self._scheduler.add_plugin(self.roots, name=self.roots.name, idempotent=True)
        else:
            for undo in self._undo:
                undo()
            self._undo = []
            self.roots.forget()
            self._scheduler.remove_plugin(self.roots.name)

    # ---- where a task runs ------------------------------------------------------------------------------------------

    def comm_cost(self, _: Callable[..., float], ts: Any, ws: WorkerState) -> float:
        """Return the seconds that a worker takes to fetch a task's inputs, each from its best source.

        An input that is already in flight to this worker for another task costs nothing.
        """
        needs = self._needs(ts, ws)
        seconds = 0.0
        if needs:
            wait_s = self._wait_s if ts.processing_on is None else None  # else the backlog includes its own inputs
            seconds = fetch_seconds(self._model, needs, ws.address, self._clock(), wait_s)
        if self._trace is not None:
            self._trace.append((ws.address, seconds))
        return seconds

    def _needs(self, ts: Any, ws: WorkerState) -> list[Need]:
        """Return the inputs of a task that a worker would have to fetch."""
        has, coming = ws.has_what, ws.needs_what
        itself = ts.processing_on is ws
        from_one: dict[str, int] = {}
        needs: list[Need] = []
        for dep in ts.dependencies:
            if dep in has or (dep in coming and coming[dep] > itself):
                continue
            holders: Any = dep.who_has or ()
            if len(holders) == 1:
                (holder,) = holders
                from_one[holder.address] = from_one.get(holder.address, 0) + dep.get_nbytes()
            else:
                needs.append(Need(dep.get_nbytes(), [h.address for h in islice(holders, _MOST_HOLDERS)]))
        needs += [Need(nbytes, (holder,)) for holder, nbytes in from_one.items()]
        return needs

    def _link(self, source: str, destination: str) -> tuple[str, str] | tuple[int, int]:
        """Return the key of the link that transfers between two hosts share: their islands, if these differ."""
        island_of = self.roots.island_of
        a, b = island_of.get(source, -1), island_of.get(destination, -1)
        return (source, destination) if a == b else (a, b)

    def _wait_s(self, source: str, destination: str) -> float:
        return self._backlog.wait_s(self._link(source, destination), self._clock())

    def _book(self, ts: Any, ws: WorkerState) -> None:
        """Add the transfers between hosts that a task causes to the backlog."""
        model, address, now = self._model, ws.address, self._clock()
        host = model.place_of(address).host
        for need in self._needs(ts, ws):
            source, seconds = best_source(model, need, address, now)
            there = model.place_of(source).host
            if there != host:
                self._backlog.book(self._link(there, host), seconds, now)

    def choose(self, stock: Callable[..., WorkerState | None], ts: Any) -> WorkerState | None:
        """Return Dask's choice by these costs, or an idle neighbour of the largest holders if that starts it sooner."""
        if not ts.dependencies:
            return self.roots.place(ts) or stock(ts)
        self._trace = []
        try:
            ws = stock(ts)
            if ws is not None and not ts.actor:
                ws = self._or_beside(ts, ws)
            if ws is not None and len(self._trace) > 1:
                self._remember(ts, ws, self._trace)
            self._trace = None
            if ws is not None:
                self._book(ts, ws)
            return ws
        finally:
            self._trace = None

    def _or_beside(self, ts: Any, chosen: WorkerState) -> WorkerState:
        waits_s = chosen.occupancy / chosen.nthreads
        if waits_s < _WORTH_S:
            return chosen  # it starts at once, where most of its inputs are or near them
        scheduler = self._scheduler
        idle = scheduler.idle
        if not idle:
            return chosen
        valid = scheduler.valid_workers(ts)
        near = [
            scheduler.workers[address]
            for address in neighbours(self._model, _held(ts), idle.__contains__)
            if valid is None or scheduler.workers[address] in valid
        ]
        running = [ws for ws in near if ws in scheduler.running]
        if not running:
            return chosen
        here = waits_s + scheduler.get_comm_cost(ts, chosen)
        best = min(running, key=lambda ws: scheduler.worker_objective(ts, ws))
        there = best.occupancy / best.nthreads + scheduler.get_comm_cost(ts, best)
        return best if there < _SOONER * here and here - there > _WORTH_S else chosen

    def _remember(self, ts: Any, ws: WorkerState, trace: Iterable[tuple[str, float]]) -> None:
        decisions = self.decisions
        decisions[ts.key] = {"worker": ws.address, "at": time.time(), "fetch_s": dict(trace)}
        decisions.move_to_end(ts.key)
        if len(decisions) > _MOST_DECISIONS:
            decisions.popitem(last=False)

    # ---- P2P --------------------------------------------------------------------------------------------------------

    def by_host(self, workers: Sequence[str]) -> Sequence[str]:
        """Return the workers with those of one island together, and in it those of one host; else in their order.

        A shuffle gives its outputs to the workers in runs. Neighbours, which often need the same inputs, then lie on
        one host, or behind one fast link.
        """
        self.roots.look(self._clock())
        place_of, island_of = self._model.place_of, self.roots.island_of
        islands: dict[int, dict[str, list[str]]] = {}
        for address in workers:
            host = place_of(address).host
            islands.setdefault(island_of.get(host, -1), {}).setdefault(host, []).append(address)
        return [address for hosts in islands.values() for beside in hosts.values() for address in beside]

    # ---- stealing ---------------------------------------------------------------------------------------------------

    def steal_ratio(self, stock: Callable[..., Any], ts: Any) -> Any:
        """Return Dask's ratio of transfer time to compute time for a task, with the predicted transfer time.

        The thief is not known yet: assume a worker on the host of the largest holder, or an idle one if there is none.
        """
        multiplier, level = stock(ts)
        if multiplier == 0 or not ts.dependencies or ts.processing_on is None:
            return multiplier, level
        held = _held(ts)
        holder = max(held, key=held.__getitem__, default=None)
        if holder is None:
            return multiplier, level
        beside = next((w for w in self._model.beside(holder) if w != holder), None)
        other = beside or next((w for w in self._scheduler.idle if w != holder), None)
        if other is None:
            return multiplier, level
        seconds = self._model.seconds(holder, other, ts.get_nbytes_deps(), self._clock())
        return patches_decisions.steal_level(self._scheduler, ts, seconds, otherwise=(multiplier, level))

    # ---- copies -----------------------------------------------------------------------------------------------------

    def gather_on_worker(
        self, stock: Callable[..., Awaitable[Any]], worker_address: str, who_has: dict[Any, list[str]]
    ) -> Awaitable[Any]:
        """Let a worker fetch keys from its nearest sources, for copies and rebalancing."""
        return stock(worker_address, {key: self._nearest(key, held, worker_address) for key, held in who_has.items()})

    def _nearest(self, key: Any, holders: list[str], destination: str) -> list[str]:
        ts = self._scheduler.tasks.get(key)
        if len(holders) < 2 or ts is None:
            return holders
        now, nbytes = self._clock(), ts.get_nbytes()
        looked_at = holders[:_MOST_RECIPIENTS]
        times = {holder: self._model.seconds(holder, destination, nbytes, now) for holder in looked_at}
        most = _AS_GOOD * min(times.values())
        return [holder for holder in looked_at if times[holder] <= most]

    async def replicate(
        self,
        stock: Callable[..., Awaitable[Any]],
        keys: list[Any],
        n: int | None = None,
        workers: Iterable[str] | None = None,
        **options: Any,
    ) -> Any:
        """Request all copies of a large value at once: they pass from one worker to the next (`fanout`).

        Dask lets a worker copy to two others at a time, and then each of these to two, so that none sends to many.
        """
        tasks = self._scheduler.tasks
        large: list[Any] = []
        small: list[Any] = []
        for key in keys:
            ts = tasks.get(key)
            (large if ts is not None and ts.get_nbytes() >= LEAST_NBYTES else small).append(key)
        answer = None
        if large:
            at_once = {**options, "branching_factor": _MOST_AT_ONCE}
            answer = await stock(keys=large, n=n, workers=workers, **at_once)
        if small or not large:
            answer = await stock(keys=small, n=n, workers=workers, **options) or answer
        return answer

    def find_recipient(self, stock: Callable[..., Any], ts: Any, candidates: Any, pending_repl: Any) -> Any:
        """Let the memory manager choose, by memory, among the workers nearest to a key's holders."""
        among = self._scheduler.running if candidates is None else candidates
        free = [ws for ws in among if ws not in pending_repl and ws not in (ts.who_has or ())]
        if not ts.who_has or not 1 < len(free) <= _MOST_RECIPIENTS:
            return stock(ts, candidates, pending_repl)
        need = Need(ts.get_nbytes(), [ws.address for ws in islice(ts.who_has, _MOST_HOLDERS)])
        now = self._clock()
        times = {ws: best_source(self._model, need, ws.address, now).seconds for ws in free}
        most = _AS_GOOD * min(times.values(), default=math.inf)
        near = {ws for ws in free if times[ws] <= most}
        return stock(ts, near, pending_repl) or stock(ts, candidates, pending_repl)


def _held(ts: Any) -> dict[str, int]:
    """Return the bytes of a task's inputs that each worker holds."""
    held: dict[str, int] = {}
    for dep in ts.dependencies:
        nbytes = dep.get_nbytes()
        for ws in islice(dep.who_has or (), _MOST_HOLDERS):
            held[ws.address] = held.get(ws.address, 0) + nbytes
    return held
