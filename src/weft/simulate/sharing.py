# SPDX-License-Identifier: BSD-3-Clause
"""Flows that share links max-min fair: none has more where that takes it from one that has less.

That is what many TCP streams through the same ports come to. Only what a change reaches is computed again: a link that
could carry each of its flows at that one's most bounds none of them, and so parts those beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

#: Up to so many flows plain Python is faster than arrays.
_FEW = 48
#: Shares that differ by less than this are one.
_SAME = 1 + 1e-9


class Flow:
    """What moves over some links.

    Parameters
    ----------
    path : tuple of int
        The links, each once.
    amount : float
        How much is to be moved, in the unit of the links' capacities.
    most : float
        What it moves a second if it has the links for itself.
    done : callable
        Called when all of it was moved; returns how much is to follow at once, or None.

    Attributes
    ----------
    rate : float
        What it moves a second now.
    left, since_s : float
        How much was left, and when.
    """

    __slots__ = ("done", "left", "most", "path", "rate", "since_s", "version")

    def __init__(self, path: tuple[int, ...], amount: float, most: float, done: Callable[[], float | None]) -> None:
        self.path, self.left, self.most, self.done = path, amount, most, done
        self.rate = self.since_s = 0.0
        self.version = 0


class Links:
    """Links, and the flows on each.

    Parameters
    ----------
    capacities : sequence of float
        What each link carries a second, one way.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self.capacities = list(capacities)
        self._on: list[dict[Flow, None]] = [{} for _ in capacities]
        self._wanted = [0.0] * len(self.capacities)
        self._new: dict[Flow, None] = {}
        self._freed: dict[int, None] = {}
        self._late_new: dict[Flow, None] = {}
        self._late_freed: dict[int, None] = {}

    def most(self, path: Iterable[int]) -> float:
        """Return what a flow over these links has if it is alone."""
        return min((self.capacities[link] for link in path), default=math.inf)

    def on(self, link: int) -> Collection[Flow]:
        """Return the flows on a link."""
        return self._on[link]

    def add(self, flow: Flow) -> None:
        """Let a flow in; it moves once :meth:`share` was called."""
        self._new[flow] = None
        for link in flow.path:
            self._on[link][flow] = None
            self._wanted[link] += flow.most

    def remove(self, flow: Flow) -> None:
        """Take a flow out; the others have what it leaves once :meth:`share` was called."""
        self._new.pop(flow, None)
        self._late_new.pop(flow, None)
        for link in flow.path:
            if self._tight(link):
                self._freed[link] = None
            on = self._on[link]
            del on[flow]
            self._wanted[link] = self._wanted[link] - flow.most if on else 0.0

    @property
    def changed(self) -> bool:
        """Whether :meth:`share` has something to do."""
        return bool(self._new or self._freed)

    @property
    def late(self) -> bool:
        """Whether changes were left for later."""
        return bool(self._late_new or self._late_freed)

    def share_late(self) -> list[tuple[Flow, float]]:
        """Return what :meth:`share` does, for all that it has left for later."""
        self._new.update(self._late_new)
        self._freed.update(self._late_freed)
        self._late_new, self._late_freed = {}, {}
        return self.share()

    def share(self, *, most: float = math.inf) -> list[tuple[Flow, float]]:
        """Return the flows that a change since the last call reaches, each with what it moves a second from now on.

        Parameters
        ----------
        most : int
            Changes that reach more flows are left for later.
        """
        new, freed = self._new, self._freed
        self._new, self._freed = {}, {}
        found: dict[Flow, float] = {}
        large: set[Flow] = set()
        for flow in new:
            if flow not in found and not self._share([flow], most, found, large):
                self._late_new[flow] = None
        for link in freed:
            on = [flow for flow in self._on[link] if flow not in found]
            if on and not self._share(on, most, found, large):
                self._late_freed[link] = None
        return list(found.items())

    def _share(self, start: list[Flow], most: float, found: dict[Flow, float], large: set[Flow]) -> bool:
        """Share among some flows and all that these reach; False, and nothing is done, if those are too many."""
        reached, waiting, tight = dict.fromkeys(start), list(start), dict[int, None]()
        while waiting:
            flow = waiting.pop()
            if len(reached) > most or flow in large:
                large.update(reached)
                return False
            for link in flow.path:
                if link not in tight and self._tight(link):
                    tight[link] = None
                    waiting += [other for other in self._on[link] if other not in reached]
                    reached.update(self._on[link])
        flows = list(reached)
        if not tight:
            found.update((flow, flow.most) for flow in flows)
            return True
        fill = _fill if len(flows) <= _FEW else _fill_many
        found.update(zip(flows, fill(flows, {link: self.capacities[link] for link in tight}), strict=True))
        return True

    def _tight(self, link: int) -> bool:
        return self._wanted[link] > self.capacities[link] * _SAME


def _fill(flows: Sequence[Flow], left: dict[int, float]) -> list[float]:
    """Fill links as water does: raise all flows alike, and leave behind those that a full link, or their most, stops.

    Parameters
    ----------
    left : dict
        The capacity of each link that may be full; it is used up.
    """
    on = [[link for link in flow.path if link in left] for flow in flows]
    count = dict.fromkeys(left, 0)
    for links in on:
        for link in links:
            count[link] += 1
    rates = [0.0] * len(flows)
    rising = list(range(len(flows)))
    while rising:
        level = min(left[link] / n for link, n in count.items() if n) if any(count.values()) else math.inf
        level = min(level, min(flows[i].most for i in rising))
        full = {link for link, n in count.items() if n and left[link] / n <= level * _SAME}
        still: list[int] = []
        for i in rising:
            if flows[i].most > level * _SAME and full.isdisjoint(on[i]):
                still.append(i)
                continue
            rates[i] = level
            for link in on[i]:
                left[link] -= level
                count[link] -= 1
        rising = still
    return rates


def _fill_many(flows: Sequence[Flow], left: dict[int, float]) -> list[float]:
    """Do what :func:`_fill` does, by arrays: each link that stops all of its flows is full at once, at its level."""
    import numpy as np

    place = {link: i for i, link in enumerate(left)}
    none = len(place)  # a link without end, so that all paths are as long
    on = [[place[link] for link in flow.path if link in place] for flow in flows]
    longest = max(1, max(map(len, on)))
    paths = np.array([links + [none] * (longest - len(links)) for links in on])
    free = np.array([*left.values(), math.inf])
    most = np.array([flow.most for flow in flows])
    rates, rising = np.zeros(len(flows)), np.arange(len(flows))
    while len(rising):
        path = paths[rising]
        count = np.bincount(path.ravel(), minlength=none + 1)
        share = np.divide(free, count, out=np.full(none + 1, math.inf), where=count > 0)
        share[none] = math.inf
        level = share[path].min(axis=1)
        bounded = np.minimum(level, most[rising])
        least = np.full(none + 1, math.inf)  # what the link's poorest flow could have, by its other links too
        np.minimum.at(least, path.ravel(), np.repeat(bounded, longest))
        full = share <= least * _SAME
        full[none] = False
        stop = full[path].any(axis=1) | (most[rising] <= level * _SAME)
        rates[rising[stop]] = bounded[stop]
        taken = np.bincount(path[stop].ravel(), np.repeat(bounded[stop], longest), minlength=none + 1)
        taken[none] = 0.0
        free = np.maximum(free - taken, 0.0)
        rising = rising[~stop]
    found: list[float] = rates.tolist()
    return found
