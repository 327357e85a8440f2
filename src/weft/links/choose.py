# SPDX-License-Identifier: BSD-3-Clause
"""What is decided by the model: from where to fetch, what fetching costs, who else may run a task, when to try out.

Of Dask nothing is known here, nor of who asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from weft.links.kind import Place
from weft.links.model import LinkModel
from weft.topo.interconnect import InterconnectClass

#: Of the workers that hold a value so many are looked at.
_MOST_SOURCES = 16
#: Idle neighbours that are looked at beside those that hold something.
_MOST_NEIGHBOURS = 4
#: The holders whose neighbours are looked at.
_MOST_HOLDERS = 2
#: Of all bytes that are fetched, this share may go over links that are only guessed to be better.
PROBED_SHARE = 0.01
#: A link whose bandwidth is known worse than to this factor may be tried.
_UNKNOWN = math.log(2.0)


class Need(NamedTuple):
    """A value that somebody wants: its bytes, the workers that hold it, and the type of memory it lies in."""

    nbytes: int
    holders: Collection[str]
    memory: str = "host"


class Fetch(NamedTuple):
    """From where to fetch, and how many seconds that is expected to take."""

    source: str
    seconds: float


def best_source(model: LinkModel, need: Need, destination: str, now_s: float) -> Fetch:
    """Choose among the holders of a value the one from which it is here first; there must be one."""
    source, seconds, _ = _best(model, need, destination, now_s)
    return Fetch(source, seconds)


def _best(model: LinkModel, need: Need, destination: str, now_s: float) -> tuple[str, float, float]:
    """Return the source, the seconds that it takes, and of these the latency."""
    predict, nbytes, memory = model.predict, need.nbytes, need.memory
    best, least, latency = "", math.inf, 0.0
    for holder in islice(need.holders, _MOST_SOURCES):
        prediction = predict(holder, destination, now_s, memory)
        latency_s = prediction.latency_s
        seconds = latency_s + nbytes * prediction.seconds_per_byte
        if seconds < least:
            best, least, latency = holder, seconds, latency_s
    return best, least, latency


def fetch_seconds(
    model: LinkModel,
    needs: Iterable[Need],
    destination: str,
    now_s: float,
    wait_s: Callable[[str, str], float] | None = None,
) -> float:
    """Predict how long a worker takes to fetch several values, each from its best source, all sources at once.

    What comes from one source comes one after the other; what comes over the network shares the worker's port, and
    waits for what is before it: `wait_s` is asked for the seconds, by the hosts it comes from and goes to.
    """
    host = model.place_of(destination).host
    by_source: dict[str, float] = {}
    over_network, waits = 0, 0.0
    for need in needs:
        if not need.holders:
            continue
        source, seconds, latency_s = _best(model, need, destination, now_s)
        before = by_source.get(source)
        by_source[source] = seconds if before is None else before + seconds - latency_s
        there = model.place_of(source).host
        if there != host:
            over_network += need.nbytes
            if wait_s is not None:
                waits = max(waits, wait_s(there, host))
    if not by_source:
        return 0.0
    return waits + max(*by_source.values(), over_network * model.port_seconds_per_byte("ingress", host))


def neighbours(
    model: LinkModel, held_nbytes: dict[str, int], idle: Callable[[str], bool], *, most: int = _MOST_NEIGHBOURS
) -> Iterator[str]:
    """Yield idle workers on the hosts of those that hold most of what a task needs, nearest first.

    Parameters
    ----------
    held_nbytes : dict
        Bytes of what is needed, by the worker that holds them.
    idle : callable
        Whether a worker has nothing to do.
    """
    left = most
    for holder in sorted(held_nbytes, key=held_nbytes.__getitem__, reverse=True)[:_MOST_HOLDERS]:
        place = model.place_of(holder)
        # of a host with hundreds of workers not all are looked at
        near = [w for w in islice(model.beside(holder), 64) if w not in held_nbytes and idle(w)]
        near.sort(key=partial(_kind, model, place))
        for worker in near[:left]:
            left -= 1
            yield worker
        if not left:
            return


def _kind(model: LinkModel, place: Place, worker: str) -> InterconnectClass:
    return place.kind_towards(worker, model.place_of(worker))


class Probes:
    """Decides when to fetch over a link of which little is known, though another seems better.

    Only where the decision depends on it: the link would be the best if it were as good as it may be. And of all bytes
    that were fetched, at most :data:`PROBED_SHARE` go that way.

    Attributes
    ----------
    fetched_nbytes, probed_nbytes : int
        All, and those of probes.
    """

    def __init__(self, share: float = PROBED_SHARE) -> None:
        self._share = share
        self.fetched_nbytes = self.probed_nbytes = 0

    def fetched(self, nbytes: int) -> None:
        """Count what was fetched, however it was decided."""
        self.fetched_nbytes += nbytes

    def choose(self, model: LinkModel, need: Need, destination: str, now_s: float, best: Fetch) -> Fetch:
        """Return a source worth a try, or `best`."""
        if self.probed_nbytes + need.nbytes > self._share * self.fetched_nbytes:
            return best
        for holder in islice(need.holders, _MOST_SOURCES):
            prediction = model.predict(holder, destination, now_s, need.memory)
            if holder == best.source or prediction.deviation < _UNKNOWN:
                continue
            hoped = prediction.latency_s + need.nbytes * prediction.seconds_per_byte * math.exp(-prediction.deviation)
            if hoped < best.seconds:
                self.probed_nbytes += need.nbytes
                return Fetch(holder, prediction.seconds(need.nbytes))
        return best
