# SPDX-License-Identifier: BSD-3-Clause
"""Decisions by the model: which source to fetch from, what fetching costs, who else may run a task, when to probe.

Nothing here knows of Dask, or of the caller.
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

#: Consider at most this many holders of a value.
_MOST_SOURCES = 16
#: Consider at most this many idle neighbours, in addition to the holders.
_MOST_NEIGHBOURS = 4
#: Consider the neighbours of this many holders.
_MOST_HOLDERS = 2
#: At most this share of all fetched bytes may go over links that are only guessed to be better.
PROBED_SHARE = 0.01
#: A link may be probed if its bandwidth is uncertain by more than this factor.
_UNKNOWN = math.log(2.0)


class Need(NamedTuple):
    """A value to be fetched: its bytes, the workers that hold it, and its memory type."""

    nbytes: int
    holders: Collection[str]
    memory: str = "host"


class Fetch(NamedTuple):
    """The source to fetch from, and the expected duration in seconds."""

    source: str
    seconds: float


def best_source(model: LinkModel, need: Need, destination: str, now_s: float) -> Fetch:
    """Choose the holder that delivers the value first; there must be at least one."""
    source, seconds, _ = _best(model, need, destination, now_s)
    return Fetch(source, seconds)


def _best(model: LinkModel, need: Need, destination: str, now_s: float) -> tuple[str, float, float]:
    """Return the source, the predicted seconds, and the latency part of them."""
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
    """Predict how long a worker takes to fetch several values, each from its best source, from all sources at once.

    Values from one source arrive one after the other. Values from the network share the worker's port and queue behind
    earlier transfers: `wait_s` returns that wait in seconds, given the source's and the destination's host.
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
    """Yield idle workers on the hosts of the workers that hold most of a task's inputs, nearest first.

    Parameters
    ----------
    held_nbytes : dict
        Bytes of the task's inputs, by the worker that holds them.
    idle : callable
        Whether a worker is idle.
    """
    left = most
    for holder in sorted(held_nbytes, key=held_nbytes.__getitem__, reverse=True)[:_MOST_HOLDERS]:
        place = model.place_of(holder)
        # a host can have hundreds of workers: consider only some
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
    """Decides when to fetch over a little-known link although another seems better.

    It probes only where the result could change the decision: where the link would be the best if it were as good as it
    may be. Probes take at most :data:`PROBED_SHARE` of all bytes fetched.

    Attributes
    ----------
    fetched_nbytes, probed_nbytes : int
        All bytes fetched, and those fetched by probes.
    """

    def __init__(self, share: float = PROBED_SHARE) -> None:
        self._share = share
        self.fetched_nbytes = self.probed_nbytes = 0

    def fetched(self, nbytes: int) -> None:
        """Count fetched bytes, however the source was chosen."""
        self.fetched_nbytes += nbytes

    def choose(self, model: LinkModel, need: Need, destination: str, now_s: float, best: Fetch) -> Fetch:
        """Return a source worth probing, or `best`."""
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
