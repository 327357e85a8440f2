# SPDX-License-Identifier: BSD-3-Clause
"""Max-min fair sharing of links: no flow can get more without taking it from one that has less.

This approximates many TCP streams through the same ports. Only the flows that a change affects are recomputed: a link
that could carry all its flows at their maximum limits none of them, so changes do not spread across it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

#: Up to this many flows, plain Python is faster than arrays.
_FEW = 48
#: Shares that differ by less than this factor are equal.
_SAME = 1 + 1e-9


class Flow:
    """A transfer over some links.

    Parameters
    ----------
    path : tuple of int
        The links, each once.
    amount : float
        How much to move, in the unit of the links' capacities.
    most : float
        Its maximum rate per second, when it has the links to itself.
    done : callable
        Called when everything has been moved; returns a further amount, or None.

    Attributes
    ----------
    rate : float
        Its current rate per second.
    left, since_s : float
        The amount left at the time `since_s`.
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
        Capacity of each link per second, in one direction.
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
        """Return the rate of a flow that has these links to itself."""
        return min((self.capacities[link] for link in path), default=math.inf)

    def on(self, link: int) -> Collection[Flow]:
        """Return the flows on a link."""
        return self._on[link]

    def add(self, flow: Flow) -> None:
        """Add a flow; it moves after the next :meth:`share`."""
        self._new[flow] = None
        for link in flow.path:
            self._on[link][flow] = None
            self._wanted[link] += flow.most

    def remove(self, flow: Flow) -> None:
        """Remove a flow; the others get its share at the next :meth:`share`."""
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
        """Whether :meth:`share` has work to do."""
        return bool(self._new or self._freed)

    @property
    def late(self) -> bool:
        """Whether changes were deferred."""
        return bool(self._late_new or self._late_freed)

    def share_late(self) -> list[tuple[Flow, float]]:
        """Do :meth:`share` for all deferred changes."""
        self._new.update(self._late_new)
        self._freed.update(self._late_freed)
        self._late_new, self._late_freed = {}, {}
        return self.share()

    def share(self, *, most: float = math.inf) -> list[tuple[Flow, float]]:
        """Recompute after the changes since the last call; return the affected flows with their new rates per second.

        Parameters
        ----------
        most : int
            Changes that affect more flows are deferred.
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
        """Share among these flows and all that they affect; return False, without effect, if those are too many."""
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
    """Progressive filling: raise all flows alike, and freeze those that a full link, or their own maximum, stops.

    Parameters
    ----------
    left : dict
        The capacity of each link that may become full; it is consumed.
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
    """Do what :func:`_fill` does, with arrays: each link that limits all its flows is filled at once, at its level."""
    try:
        import numpy as np
    except ImportError:  # the same, slower
        return _fill(flows, left)

    place = {link: i for i, link in enumerate(left)}
    none = len(place)  # a link of infinite capacity, to pad all paths to one length
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
        least = np.full(none + 1, math.inf)  # the link's poorest flow, limited also by its other links
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
