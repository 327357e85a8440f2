# SPDX-License-Identifier: BSD-3-Clause
"""Islands are hosts with fast links among each other and slow links to all others; here tasks are divided among them.

Decisions about one task are in ``choose``. Nothing here knows of Dask.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

from weft.links.model import DIFFERENT, LinkModel

#: With more hosts, each is its own island: the number of pairs would be too large.
_MOST_HOSTS = 64
#: Lower bound for the seconds per byte of a link: shared memory takes next to none.
_FASTEST = 1e-10
#: Upper bound for the backlog of a link, in seconds: predictions may be wrong.
_MOST_WAIT_S = 10.0
#: Tasks with more inputs keep nothing together: their inputs come from everywhere.
_MOST_INPUTS = 4


def islands(model: LinkModel, workers: Iterable[str], now_s: float) -> dict[str, int]:
    """Tell for each host which island it is on.

    Sorted by bandwidth, the links are split at the widest gap, if it is a factor of 2.5 or more. Hosts that are
    connected by the faster links, directly or through others, are one island.

    Returns
    -------
    dict
        The number of the island, from 0, by host; in the order of `workers`.
    """
    first: dict[str, str] = {}
    fastest = math.inf
    for worker in workers:
        host = model.place_of(worker).host
        beside = first.setdefault(host, worker)
        if beside != worker and fastest == math.inf:
            fastest = max(_FASTEST, model.predict(beside, worker, now_s).seconds_per_byte)
    hosts = list(first)
    if len(hosts) > _MOST_HOSTS:
        return {host: number for number, host in enumerate(hosts)}
    rates: dict[tuple[int, int], float] = {}
    for i, a in enumerate(hosts):
        for j in range(i):
            b = hosts[j]
            there = model.predict(first[a], first[b], now_s).seconds_per_byte
            back = model.predict(first[b], first[a], now_s).seconds_per_byte
            rates[j, i] = max(_FASTEST, there, back)
    most = _gap([*rates.values(), *([fastest] if fastest < math.inf else [])])
    number = list(range(len(hosts)))
    for (j, i), rate in rates.items():
        if rate < most:
            number = [number[j] if n == number[i] else n for n in number]
    order = {n: k for k, n in enumerate(dict.fromkeys(number))}
    return {host: order[n] for host, n in zip(hosts, number, strict=True)}


def _gap(rates: list[float]) -> float:
    """Return the middle of the widest gap between seconds per byte; infinity if there is no such gap."""
    rates.sort()
    widest, middle = DIFFERENT, math.inf
    for fast, slow in itertools.pairwise(rates):
        if slow / fast >= widest:
            widest, middle = slow / fast, math.sqrt(slow * fast)
    return middle


class Backlog:
    """The predicted backlog of each link: transfers that were decided and have not finished.

    Without it, many decisions in a row choose the same link, each as if it were idle.
    """

    def __init__(self) -> None:
        self._free_s: dict[Hashable, float] = {}

    def wait_s(self, link: Hashable, now_s: float) -> float:
        """Return the seconds until a link has finished its backlog."""
        free_s = self._free_s.get(link)
        return free_s - now_s if free_s is not None and free_s > now_s else 0.0

    def book(self, link: Hashable, seconds: float, now_s: float) -> None:
        """Add a transfer of this duration to a link's backlog."""
        self._free_s[link] = now_s + min(self.wait_s(link, now_s) + seconds, _MOST_WAIT_S)


def split(
    roots: Sequence[Hashable], joined: Iterable[Collection[Hashable]], threads: Sequence[float], first: int = 0
) -> list[int]:
    """Divide tasks without inputs among islands, so that tasks that belong together are on one island.

    Parameters
    ----------
    roots : sequence
        In the order in which they run; neighbours in this order belong together, too.
    joined : iterable of collections
        Root tasks that another task needs together.
    threads : sequence of float
        The number of threads of each island.
    first : int
        The island to fill first. No more islands are used than it takes to run all roots at once.

    Returns
    -------
    list of int
        The island of each root.
    """
    at = {root: i for i, root in enumerate(roots)}
    beside: list[list[int]] = [[] for _ in roots]
    for group in joined:
        members = [at[each] for each in group if each in at] if len(group) <= _MOST_INPUTS else []
        for member, other in itertools.pairwise(members):
            beside[member].append(other)
            beside[other].append(member)
    used, room = list[int](), 0.0
    for island in [*range(first, len(threads)), *range(first)]:
        if room < len(roots):
            used.append(island)
            room += threads[island]
    of = [used[0]] * len(roots)
    shares = [len(roots) * threads[island] / room for island in used]
    done, position, until = 0, 0, shares[0]
    for family in _families(beside):
        # a family larger than an island's share is cut between consecutive members
        for part in [family] if len(family) <= min(shares) else [[i] for i in family]:
            while position + 1 < len(used) and done + len(part) / 2 > until:
                position += 1
                until += shares[position]
            for i in part:
                of[i] = used[position]
            done += len(part)
    return of


def _families(beside: list[list[int]]) -> Iterator[list[int]]:
    """Yield connected components, each in an order that keeps neighbours near (Cuthill-McKee, from an end)."""
    seen: set[int] = set()
    for i in range(len(beside)):
        if i not in seen:
            family = _breadth_first(beside, i)
            seen.update(family)
            yield family if len(family) <= _MOST_INPUTS else _breadth_first(beside, family[-1])[::-1]


def _breadth_first(beside: list[list[int]], begin: int) -> list[int]:
    order: dict[int, None] = {begin: None}
    queue = deque(order)
    while queue:
        for other in beside[queue.popleft()]:
            if other not in order:
                order[other] = None
                queue.append(other)
    return list(order)
