# SPDX-License-Identifier: BSD-3-Clause
"""Simulated time: the queue of events, and the transfers in flight over shared links.

Events at the same instant run in the order in which they were scheduled, so a run can be repeated exactly.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence

from weft.simulate.sharing import Flow, Links

#: A rate that changes by less than this share counts as unchanged.
_SAME = 1e-9
#: A change that affects more flows than this waits for the next multiple of the resolution.
_MANY = 64


class Engine:
    """A clock and shared links.

    Parameters
    ----------
    capacities : sequence of float
        Capacity of each link per second, in one direction.
    resolution_s : float
        If a change affects many flows, recompute shares only at multiples of this, in seconds; a flow may start that
        much late. 0: recompute whenever a flow begins or ends. With thousands of concurrent flows, recomputing takes
        most of the run time.

    Attributes
    ----------
    now_s : float
        Simulated seconds since the start.
        How often shares were recomputed.
        How often links were shared anew.
    """

    def __init__(self, capacities: Sequence[float], *, resolution_s: float = 0.0) -> None:
        self.links = Links(capacities)
        self.now_s = 0.0
        self.shared = 0
        self._resolution_s = resolution_s
        self._next: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = itertools.count()
        self._late_s = math.inf

    def after(self, seconds: float, what: Callable[..., None], *arguments: object) -> None:
        """Schedule a call in `seconds` from now."""
        heapq.heappush(self._next, (self.now_s + seconds, next(self._number), what, arguments))

    def move(
        self, path: tuple[int, ...], amount: float, done: Callable[[], float | None], *, most: float = math.inf
    ) -> Flow:
        """Move an amount over links; call `done` when it has arrived, which may return a further amount for the flow.

        Over no links and without a `most`, it arrives at once.
        """
        flow = Flow(path, max(0.0, amount), min(most, self.links.most(path)), done)
        flow.since_s = self.now_s
        if math.isinf(flow.most):
            self.after(0.0, self._there, flow, 0)
        else:
            self.links.add(flow)
        return flow

    @property
    def waits(self) -> bool:
        """Whether any event is pending."""
        return bool(self._next) or self.links.changed or self.links.late

    def stop(self, flow: Flow) -> None:
        """Stop a flow; its `done` is not called."""
        if flow.version >= 0:
            flow.version = -1
            if not math.isinf(flow.most):
                self.links.remove(flow)

    def run(self, *, until_s: float = math.inf) -> None:
        """Advance time until no event is pending, or until `until_s`."""
        events, links, step = self._next, self.links, self._resolution_s
        while True:
            at = events[0][0] if events else math.inf
            if links.changed and self.now_s < at:
                self._share(links.share(most=_MANY if step else math.inf))
                continue
            if links.late and self._late_s == math.inf:
                self._late_s = (math.floor(self.now_s / step) + 1) * step
            if self._late_s <= at and self._late_s < math.inf:
                if self._late_s > until_s:
                    break
                self.now_s, self._late_s = self._late_s, math.inf
                self._share(links.share_late())
                continue
            if at > until_s or not events:
                break
            self.now_s, _, what, arguments = heapq.heappop(events)
            what(*arguments)

    def _share(self, flows: list[tuple[Flow, float]]) -> None:
        self.shared += 1
        now = self.now_s
        for flow, rate in flows:
            if abs(rate - flow.rate) <= _SAME * rate:
                continue
            flow.left = max(0.0, flow.left - flow.rate * (now - flow.since_s))
            flow.since_s, flow.rate = now, rate
            flow.version += 1
            self.after(flow.left / rate, self._there, flow, flow.version)

    def _there(self, flow: Flow, version: int) -> None:
        if flow.version != version:
            return
        more = flow.done()
        if flow.version < 0:
            return  # stopped by done()
        if more is None:
            flow.version = -1
            if not math.isinf(flow.most):
                self.links.remove(flow)
            return
        flow.left, flow.since_s = more, self.now_s
        flow.version += 1
        self.after(more / flow.rate if flow.rate else 0.0, self._there, flow, flow.version)
