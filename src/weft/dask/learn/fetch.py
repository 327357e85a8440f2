# SPDX-License-Identifier: BSD-3-Clause
"""A worker's choice of sources, by the transfer times predicted from its own transfers.

A worker observes every transfer to itself, so it needs no reports from others.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.dask import config, patches_decisions
from weft.dask.learn import chains, measured
from weft.dask.learn.hosts import FORGOTTEN_S, SOFTWARE_S, place_of
from weft.links import LinkModel, Need, Probes, best_source

if TYPE_CHECKING:
    from distributed.worker import Worker

logger = logging.getLogger("weft")

#: Sources within a factor of 1.4 count as equal; then Dask's own order decides.
_STEPS_PER_OCTAVE = 2
#: Check at most this many of a source's values for a faster source elsewhere.
_MOST_TASKS = 64
_MOST_HOLDERS = 16
#: Wait for a busy source only if it is predicted to deliver within this share of the free one's time.
_SOONER = 0.8
#: Do not wait for a transfer that takes this many times as long as predicted.
_OVERDUE = 2.0
#: Seconds after which a source that answered "busy" is asked again (worker.py:2036), notified or not.
BUSY_S = 0.15
#: Workers that this one notifies at most; the others ask again by themselves.
_MOST_WAITING = 1024
_TELL = "weft_free"


class Fetching:
    """One worker's choice of sources."""

    def __init__(self, worker: Worker) -> None:
        self._worker = weakref.ref(worker)
        self.model = LinkModel()
        self.probes = Probes()
        self._since: dict[str, tuple[Any, float]] = {}  # the keys in flight from each source, and since when
        self._nudge: asyncio.TimerHandle | None = None
        self._heard_s: dict[str, float] = {}  # when each source was last heard of, the latest last
        self._here = ""

    def heard(self, source: str, news: measured.Measured) -> None:
        """Learn from a transfer to this process."""
        here = self._address()
        if not here or source == here:
            return
        model, now = self.model, time.monotonic()
        self._heard_s.pop(source, None)
        self._heard_s[source] = now
        self._forget(now)
        model.place(source, place_of(source))
        for nbytes, seconds, flows in news.transfers:
            model.observe(source, here, nbytes, seconds, now, ingress_flows=flows)
        if news.lent_nbytes or news.moved_nbytes:
            model.observe_lent(source, here, news.lent_nbytes, news.moved_nbytes)
            self.probes.fetched(news.lent_nbytes + news.moved_nbytes)
        if news.round_trip_s:
            model.observe(source, here, 1, news.round_trip_s + SOFTWARE_S, now)

    def _forget(self, now: float) -> None:
        """Forget sources that were not heard of for long: they may have left, and Dask's workers come and go."""
        for source, at in list(islice(self._heard_s.items(), 2)):  # with each that is heard of: one may be added
            if now - at > FORGOTTEN_S:
                del self._heard_s[source]
                host = self.model.place_of(source).host
                self.model.forget(source)
                self.model.forget_hosts({host})

    def _address(self) -> str:
        worker = self._worker()
        if not self._here and worker is not None and worker.address_safe != "not-running":
            self._here = worker.address
            self.model.place(self._here, place_of(self._here))
        return self._here

    def select(self, stock: Callable[[], Iterator[Any]], state: Any) -> Iterator[Any]:
        """Yield sources, each with its values to fetch; replaces ``_select_workers_for_gather``."""
        if not self.model.differ or not self._address():
            return stock()
        return self._by_time(state)

    def _by_time(self, state: Any) -> Iterator[Any]:
        """Yield by priority, then by predicted time; skip a source whose values a busy source will deliver sooner."""
        now = time.monotonic()
        needed = state.data_needed
        taken = {**dict.fromkeys(state.busy_workers), **state.in_flight_workers}
        self._since = {w: at for w, at in self._since.items() if state.in_flight_workers.get(w) is at[0]}
        order: list[tuple[Any, ...]] = []
        for source in [each for each, tasks in needed.items() if not tasks]:
            del needed[source]
        for source, tasks in needed.items():
            if source in taken or self._sooner_elsewhere(state, source, tasks, now):
                continue
            order.append(self._entry(state, source, tasks, now))
        order.sort()
        while order:
            entry = order.pop(0)
            source = entry[-1]
            tasks = needed.get(source)
            if not tasks:
                needed.pop(source, None)
            elif tasks.peek().priority != entry[0]:  # another source got its first task
                bisect.insort(order, self._entry(state, source, tasks, now))
            else:
                yield source, tasks
                if not tasks:
                    needed.pop(source, None)

    def _entry(self, state: Any, source: str, tasks: Any, now: float) -> tuple[Any, ...]:
        first = tasks.peek()
        return first.priority, self._rank(source, first, now), -len(tasks), state.rng.random(), source

    def _rank(self, source: str, ts: Any, now: float) -> int:
        nbytes = ts.get_nbytes()
        seconds = self.model.seconds(source, self._here, nbytes, now)
        if len(ts.who_has) > 1:
            need = Need(nbytes, ts.who_has)
            best = best_source(self.model, need, self._here, now)
            if source != best.source and self.probes.choose(self.model, need, self._here, now, best).source == source:
                seconds = best.seconds / 2
        return round(_STEPS_PER_OCTAVE * math.log2(max(seconds, 1e-5)))

    def _sooner_elsewhere(self, state: Any, source: str, tasks: Any, now: float) -> bool:
        longest = 0.0
        for ts in islice(tasks, _MOST_TASKS):
            nbytes = ts.get_nbytes()
            here_s = self.model.seconds(source, self._here, nbytes, now)
            others = [self._until(state, other, nbytes, now) for other in islice(ts.who_has, _MOST_HOLDERS)]
            soonest = min(others, default=math.inf)
            if soonest > _SOONER * here_s:
                return False
            longest = max(longest, soonest)
        self._look_again(longest)
        return True

    def _until(self, state: Any, source: str, nbytes: int, now: float) -> float:
        """Return the seconds until `nbytes` bytes arrive from a busy source; infinity if it is free.

        Its other queued values come first; each is assumed to be as large.
        """
        before = len(state.data_needed.get(source, ()))
        seconds = self.model.seconds(source, self._here, nbytes * max(1, before), now)
        keys = state.in_flight_workers.get(source)
        if keys is None:
            return BUSY_S / 2 + seconds if source in state.busy_workers else math.inf
        known, since = self._since.setdefault(source, (keys, now))
        if known is not keys:
            self._since[source] = (keys, since := now)
        tasks = (state.tasks.get(key) for key in islice(keys, _MOST_TASKS))
        left = sum(ts.get_nbytes() for ts in tasks if ts is not None)
        expected = self.model.seconds(source, self._here, left, now)
        elapsed = now - since
        return math.inf if elapsed > _OVERDUE * expected + 0.1 else max(0.0, expected - elapsed) + seconds

    def _look_again(self, seconds: float) -> None:
        """Schedule another choice for when the awaited transfer is overdue: it may never end."""
        worker = self._worker()
        if self._nudge is not None or worker is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a state machine without a worker, in a test
            return
        self._nudge = loop.call_later(_OVERDUE * seconds + 0.2, self._again)

    def _again(self) -> None:
        self._nudge = None
        worker = self._worker()
        if worker is not None:
            patches_decisions.look_for_sources(worker, self._here)


class Turns:
    """Notifies peers that were refused when this worker was busy, and waits for such notifications from others."""

    def __init__(self, worker: Worker) -> None:
        self._worker = weakref.ref(worker)
        self._waiting: dict[str, None] = {}
        self._freed: dict[str, asyncio.Event] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def get_data(self, stock: Callable[..., Any], comm: Any, **request: Any) -> Any:
        """Serve a request for values, or refuse it; then notify a waiting peer."""
        answer: Any = None
        try:
            answer = await stock(comm, **request)
            return answer
        finally:
            if answer.__class__ is dict and answer.get("status") == "busy":
                who = request.get("who")
                if who and comm.remote_info.get(measured.TOLD) and len(self._waiting) < _MOST_WAITING:
                    self._waiting[who] = None
            elif self._waiting:
                self._tell()

    def _tell(self) -> None:
        who = next(iter(self._waiting))
        del self._waiting[who]
        task = asyncio.ensure_future(self._tell_one(who))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_one(self, who: str) -> None:
        worker = self._worker()
        if worker is None:
            return
        try:
            await getattr(worker.rpc(who), _TELL)(source=worker.address)
        except (OSError, RuntimeError) as e:  # the peer is gone, or asks again by itself; or this worker closes
            logger.debug("could not notify %s that this worker is free: %r", who, e)

    def told(self, source: str) -> None:
        """Handle the notification that a source is free."""
        event = self._freed.get(source)
        if event is not None:
            event.set()

    async def wait(self, source: str) -> None:
        """Return when a busy source notifies this worker, or after 150 ms."""
        event = self._freed.setdefault(source, asyncio.Event())
        try:
            async with asyncio.timeout(BUSY_S):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._freed.pop(source, None)


_of_worker: weakref.WeakKeyDictionary[Worker, Callable[[], None]] = weakref.WeakKeyDictionary()


def switch(worker: Worker, mode: config.LinksMode) -> None:
    """Let a worker choose its sources by predicted time, or return the choice to Dask."""
    chains.serve(worker)
    undo = _of_worker.pop(worker, None)
    if undo is not None:
        undo()
    if mode != "learn":
        return
    from weft.dask.learn.fanout import Fanout

    fetching, turns = Fetching(worker), Turns(worker)
    undos = patches_decisions.steer_fetching(worker, select=fetching.select)
    undos += patches_decisions.steer_busy(worker, get_data=turns.get_data, wait=turns.wait, tell=_TELL, told=turns.told)
    fanout = chains.of[worker] = Fanout(worker, fetching.model)
    undos += patches_decisions.steer_get_data(worker, fanout.fetch)
    measured.listeners.append(fetching.heard)
    here = weakref.ref(worker)  # undo_all lives as long as the worker, so it must not keep the worker alive

    def undo_all() -> None:
        _forget(fetching.heard)
        for each in undos:
            each()
        fanout.close()
        worker = here()
        if worker is not None:
            chains.of.pop(worker, None)

    _of_worker[worker] = undo_all
    weakref.finalize(worker, _forget, fetching.heard)


def _forget(listener: Callable[[str, measured.Measured], None]) -> None:
    if listener in measured.listeners:
        measured.listeners.remove(listener)
