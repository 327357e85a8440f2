# SPDX-License-Identifier: BSD-3-Clause
"""Predicts how long a transfer of ``nbytes`` takes between two workers, learned from earlier transfers.

The model is ``alpha + nbytes / beta`` for a source, a destination and a memory type. The estimate for a pair starts
from that for its two hosts, which starts from that for the kind of link, which starts from the prior of `weft topo`;
samples and their spread give each level its weight. All pairs behind a network port share it, so each host's ingress
and egress bandwidth are learned beside the pairs, from concurrent transfers. Pages lent within a host are not moved:
the lent share of a pair's bytes adds no time.

Every operation is O(1). There is no clock and nothing of Dask here. Decisions are in ``choose``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from math import exp
from typing import Any, NamedTuple, cast

from weft.links.kind import PRIOR_VARIANCE, Place, assumed
from weft.links.learned import FADING, Learned
from weft.topo.interconnect import PRIORS, InterconnectClass

#: Messages up to this size measure the latency, larger ones the bandwidth.
_LATENCY_NBYTES = 4096
_BANDWIDTH_NBYTES = 64 << 10
#: Bounds of a plausible report: a link is neither slower than a byte a second nor faster than light allows.
_MOST_NBYTES = 1 << 50
_MOST_SECONDS = 1e6
_MOST_BPS = 1e14
_LEAST_SECONDS = 1e-9
_MOST_FLOWS = 1 << 20
#: Seconds for which a computed prediction is cached if neither the pair nor its hosts were measured.
_FRESH_S = 10.0
#: A concurrent transfer that reaches this share of its part of the port's bandwidth was bounded by the port.
_PORTS_DOING = 0.7
#: With fewer concurrent flows than this, on average, a transfer had the port to itself.
_ALONE = 1.2
#: A pair's bandwidth counts in comparisons of links once it has this many samples.
_SETTLED = 2.0
#: Links differ when the fastest is this many times as fast as the slowest.
DIFFERENT = 2.5

_NETWORK = InterconnectClass.NETWORK

#: Below this many seconds per byte, all bytes are lent: no link is as fast.
_MOVED = 1e-12

#: A network with this many seconds per byte is slow compared with memory: ten times the prior within a host.
_SLOW_NETWORK = 10 / PRIORS[InterconnectClass.SAME_HOST].bandwidth_Bps

#: Lower bound for how much links of one kind, and pairs of workers on two hosts, differ, whatever some samples say: a
#: factor of 3, and of 1.4, as the variance of the logarithm.
_APART = {"kind": 1.2, "hosts": 0.11, "pair": 0.0}

Pair = tuple[str, str, str]
#: What is known of a link after some levels: the logarithms of latency and seconds per byte, each with its variance;
#: the lent share; the most specific level with samples; and the weight of the last level's samples of the rate.
_Estimate = tuple[float, float, float, float, float | None, str, float]


class Prediction(NamedTuple):
    """The predicted latency and bandwidth of a link.

    Attributes
    ----------
    latency_s : float
        Seconds, for any size.
    seconds_per_byte : float
        The inverse of the bandwidth; of moved bytes, so 0 where all memory is lent.
    deviation : float
        Standard deviation of the logarithm of the bandwidth: 0.3 is 30 %; 2.3 is a guess.
    samples : float
        The weight of the pair's own samples; it decreases with their age.
    source : str
        The most specific level with samples: ``pair``, ``hosts``, ``kind`` or ``assumed``.
    """

    latency_s: float
    seconds_per_byte: float
    deviation: float
    samples: float
    source: str

    def seconds(self, nbytes: int) -> float:
        """Return the duration of a transfer of `nbytes` that has the link to itself."""
        return self.latency_s + nbytes * self.seconds_per_byte

    @property
    def bandwidth_Bps(self) -> float | None:  # noqa: N802 - the unit
        """Bytes per second; None if all bytes are lent, so that the time does not depend on the size."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte > _MOVED else None


class Level:
    """What is known about a pair, about two hosts, or about a kind of link."""

    __slots__ = ("_estimate", "cached", "latency", "lent_share", "rate", "version")

    def __init__(self, *, follow: bool = True) -> None:
        self.latency = Learned(follow=follow)
        self.rate = Learned(follow=follow)  # seconds per byte
        self.lent_share: float | None = None
        self.version = 0
        self.cached: tuple[float, int, Prediction] | None = None
        self._estimate: tuple[float, int, _Estimate] | None = None

    def estimate(self, kind: InterconnectClass, now_s: float) -> _Estimate:
        """Return what is known of a kind of link, of which this is the level; most predictions start from the same."""
        cached = self._estimate
        if cached is None or cached[1] != self.version or now_s - cached[0] >= _FRESH_S:
            cached = self._estimate = now_s, self.version, _refine(_PRIORS[kind], self, "kind", now_s)
        return cached[2]

    def known(self, now_s: float) -> Prediction | None:
        """Return the cached prediction, unless it is old or a sample came since."""
        cached = self.cached
        if cached is None or cached[1] != self.version or now_s - cached[0] >= _FRESH_S:
            return None
        return cached[2]


class LinkModel:
    """Predicts transfers, and learns from them.

    Times are seconds of any monotonic clock, given by the caller. A worker that was not registered with :meth:`place`
    counts as a host of its own.

    Attributes
    ----------
    samples, refused : int
        Accepted reports, and reports refused as impossible.
    """

    def __init__(self) -> None:
        self.samples = self.refused = 0
        self._places: dict[str, Place] = {}
        self._workers_on: dict[str, set[str]] = {}
        self.pairs: dict[Pair, Level] = {}
        self.hosts: dict[Pair, Level] = {}
        self.kinds: dict[tuple[InterconnectClass, str], Level] = {}
        self.ports: dict[tuple[str, str], Learned] = {}  # ("ingress" or "egress", host): seconds per byte
        self._of_worker: dict[str, set[Pair]] = {}
        self._histogram: dict[int, int] = {}
        self._bucket_of: dict[Pair, int] = {}

    # ---- workers ----------------------------------------------------------------------------------------------------

    def place(self, worker: str, place: Place) -> None:
        """Register where a worker is."""
        if self._places.get(worker) == place:
            return
        self.forget(worker)
        self._places[worker] = place
        self._workers_on.setdefault(place.host, set()).add(worker)

    def place_of(self, worker: str) -> Place:
        """Return where a worker is."""
        return self._places.get(worker) or Place(worker)

    def beside(self, worker: str) -> Set[str]:
        """Return all workers of the same host, including this one."""
        return self._workers_on.get(self.place_of(worker).host, frozenset((worker,)))

    def forget(self, worker: str) -> None:
        """Drop the pairs of a worker that has left; the estimates for its host stay."""
        place = self._places.pop(worker, None)
        if place is not None:
            beside = self._workers_on[place.host]
            beside.discard(worker)
            if not beside:
                del self._workers_on[place.host]
        for pair in self._of_worker.pop(worker, ()):
            self.pairs.pop(pair, None)
            self._count(pair, None)
            other = pair[1] if pair[0] == worker else pair[0]
            self._of_worker.get(other, set()).discard(pair)

    def forget_hosts(self, hosts: Set[str]) -> None:
        """Drop the estimates for those hosts that have no workers."""
        gone = hosts - self._workers_on.keys()
        if gone:
            self.hosts = {pair: level for pair, level in self.hosts.items() if gone.isdisjoint(pair[:2])}
            self.ports = {port: learned for port, learned in self.ports.items() if port[1] not in gone}

    # ---- learning ---------------------------------------------------------------------------------------------------

    def observe(
        self,
        source: str,
        destination: str,
        nbytes: float,
        seconds: float,
        now_s: float,
        *,
        memory: str = "host",
        ingress_flows: float = 1.0,
        egress_flows: float = 1.0,
    ) -> bool:
        """Learn from one transfer, or from several in a row.

        Parameters
        ----------
        nbytes, seconds : float
            The bytes moved, and the time from the first to the last of them. This excludes waiting for the sender or
            for a free connection, and serialization.
        ingress_flows, egress_flows : float
            The average number of concurrent network transfers, including this one, that the receiver received and the
            sender sent meanwhile.

        Returns
        -------
        bool
            False: the report is impossible, and was refused.
        """
        if not _possible(nbytes, seconds, ingress_flows, egress_flows):
            self.refused += 1
            return False
        self.samples += 1
        pair = (source, destination, memory)
        a, b = self.place_of(source), self.place_of(destination)
        kind = a.kind_towards(destination, b)
        levels = self._levels(pair, kind, a, b)
        if nbytes <= _LATENCY_NBYTES:
            for level in levels:
                level.latency.add(seconds, now_s)
                level.version += 1
            return True
        if nbytes < _BANDWIDTH_NBYTES:
            return True
        levels[0].cached = levels[1].cached = None
        expected = self.predict(source, destination, now_s, memory)
        rate = max(seconds - expected.latency_s, seconds / 2) / nbytes
        if kind is InterconnectClass.NETWORK:
            ports_doing = self._learn_ports(a.host, b.host, rate, (egress_flows, ingress_flows), now_s)
            if ports_doing and rate >= expected.seconds_per_byte:
                return True  # a lower bound only: the port was the bottleneck, so the pair may deliver more
        for level in levels:
            level.rate.add(rate, now_s)
            level.version += 1
        if levels[0].rate.weight >= _SETTLED:
            self._count(pair, levels[0].rate.mean)
        return True

    def observe_lent(
        self, source: str, destination: str, lent_nbytes: float, moved_nbytes: float, memory: str = "host"
    ) -> bool:
        """Learn which share of the bytes between two workers was lent instead of moved."""
        total = lent_nbytes + moved_nbytes
        if not (0 <= lent_nbytes <= _MOST_NBYTES and 0 <= moved_nbytes <= _MOST_NBYTES and total > 0):
            self.refused += 1
            return False
        a, b = self.place_of(source), self.place_of(destination)
        share = lent_nbytes / total
        for level in self._levels((source, destination, memory), a.kind_towards(destination, b), a, b):
            known = level.lent_share
            level.lent_share = share if known is None else known + 0.2 * (share - known)
            level.version += 1
        return True

    def _levels(self, pair: Pair, kind: InterconnectClass, a: Place, b: Place) -> tuple[Level, Level, Level]:
        hosts = _hosts(kind, a, b, pair[2])
        at_pair = self.pairs.get(pair)
        if at_pair is None:
            at_pair = self.pairs[pair] = Level()
            for worker in pair[:2]:
                self._of_worker.setdefault(worker, set()).add(pair)
        return at_pair, self.level_of_hosts(*hosts), self.level_of_kind(kind, pair[2])

    def known_of_hosts(self, source: str, destination: str, memory: str = "host") -> Level | None:
        """Return what is known of the hosts of two workers, if anything was learned of them."""
        a, b = self.place_of(source), self.place_of(destination)
        return self.hosts.get(_hosts(a.kind_towards(destination, b), a, b, memory))

    def level_of_hosts(self, a: str, b: str, memory: str) -> Level:
        """Return the level of two hosts; create it if needed."""
        level = self.hosts.get((a, b, memory))
        if level is None:
            level = self.hosts[a, b, memory] = Level()
        return level

    def level_of_kind(self, kind: InterconnectClass, memory: str) -> Level:
        """Return the level of a kind of link; create it if needed."""
        level = self.kinds.get((kind, memory))
        if level is None:
            level = self.kinds[kind, memory] = Level(follow=False)
        return level

    def _learn_ports(
        self, source: str, destination: str, rate: float, flows: tuple[float, float], now_s: float
    ) -> bool:
        """Update two hosts' ports from seconds per byte; tell whether a port was the bottleneck."""
        bounded = False
        for port, count in zip((("egress", source), ("ingress", destination)), flows, strict=True):
            learned = self.ports.get(port)
            together = rate / count  # assuming that the others had the same rate
            if count < _ALONE:
                if learned is not None and together < exp(learned.mean):
                    learned.add(together, now_s)
                continue
            if learned is None:
                learned = self.ports[port] = Learned()
            if learned.weight_at(now_s) <= 1 or together <= exp(learned.mean) / _PORTS_DOING:
                learned.add(together, now_s)
                bounded = True
        return bounded

    # ---- predicting -------------------------------------------------------------------------------------------------

    def predict(self, source: str, destination: str, now_s: float, memory: str = "host") -> Prediction:
        """Return the prediction for the link between two workers."""
        pair = self.pairs.get((source, destination, memory))
        if pair is not None and (known := pair.known(now_s)) is not None:
            return known
        a, b = self.place_of(source), self.place_of(destination)
        if a.host != b.host:
            kind, hosts = _NETWORK, self.hosts.get((a.host, b.host, memory))
        else:
            kind = a.kind_towards(destination, b)
            hosts = self.hosts.get(_hosts(kind, a, b, memory))
        of_kind = self.level_of_kind(kind, memory)
        level = pair or hosts or of_kind
        prediction = None if level is pair else level.known(now_s)
        if prediction is None:
            estimate = of_kind.estimate(kind, now_s)
            if hosts is not None:
                estimate = _refine(estimate, hosts, "hosts", now_s)
            if pair is not None:
                estimate = _refine(estimate, pair, "pair", now_s)
            prediction = _prediction(estimate, 0.0 if pair is None else estimate[6])
            if level is not of_kind and self.ports:
                prediction = self._through_ports(prediction, a, b)
            level.cached = (now_s, level.version, prediction)
        return self._through_ports(prediction, a, b) if level is of_kind else prediction

    def _through_ports(self, prediction: Prediction, a: Place, b: Place) -> Prediction:
        """Limit a pair's predicted bandwidth to that of its hosts' ports."""
        if a.host == b.host or not self.ports:
            return prediction
        port = max(self.port_seconds_per_byte("egress", a.host), self.port_seconds_per_byte("ingress", b.host))
        return prediction if port <= prediction.seconds_per_byte else prediction._replace(seconds_per_byte=port)

    def seconds(self, source: str, destination: str, nbytes: int, now_s: float, memory: str = "host") -> float:
        """Return the predicted duration of a transfer that has the link to itself."""
        return self.predict(source, destination, now_s, memory).seconds(nbytes)

    def port_seconds_per_byte(self, direction: str, host: str) -> float:
        """Return the seconds per byte of a host's port, ``ingress`` or ``egress``; 0 if unknown."""
        learned = self.ports.get((direction, host))
        return exp(learned.mean) if learned is not None and learned.weight > 0 else 0.0

    @property
    def differ(self) -> bool:
        """Whether links are known to differ, so that the choice of link matters."""
        if 1 < len(self._workers_on) < len(self._places):  # some share a host, others do not
            network = self.kinds.get((InterconnectClass.NETWORK, "host"))
            if network is not None and network.rate.weight >= _SETTLED and exp(network.rate.mean) > _SLOW_NETWORK:
                return True
        histogram = self._histogram
        return len(histogram) > 1 and (max(histogram) - min(histogram)) / 4 >= math.log2(DIFFERENT)

    def _count(self, pair: Pair, rate: float | None) -> None:
        """Update the histogram of pairs by bandwidth, in quarters of an octave."""
        histogram = self._histogram
        before = self._bucket_of.pop(pair, None)
        if before is not None:
            histogram[before] -= 1
            if not histogram[before]:
                del histogram[before]
        if rate is not None:
            bucket = self._bucket_of[pair] = round(rate / math.log(2) * 4)
            histogram[bucket] = histogram.get(bucket, 0) + 1

    def workers(self) -> Mapping[str, Place]:
        """Return the registered workers, by name."""
        return self._places

    def workers_by_host(self) -> Mapping[str, Set[str]]:
        """Return the registered workers, by host."""
        return self._workers_on


def _hosts(kind: InterconnectClass, a: Place, b: Place, memory: str) -> Pair:
    """Return the key of the level of two hosts; within one host there is one level for each kind of link."""
    return (a.host, b.host if a.host != b.host else f"/{kind.name}", memory)


def _possible(nbytes: float, seconds: float, *flows: float) -> bool:
    try:
        return (
            0 < nbytes <= _MOST_NBYTES
            and _LEAST_SECONDS <= seconds <= _MOST_SECONDS
            and nbytes / seconds <= _MOST_BPS
            and all(1 <= n <= _MOST_FLOWS for n in flows)
        )
    except TypeError:
        return False


def _prior(kind: InterconnectClass) -> _Estimate:
    latency_s, rate = assumed(kind)
    return math.log(latency_s), PRIOR_VARIANCE, math.log(rate), PRIOR_VARIANCE, None, "assumed", 0.0


_PRIORS = {kind: _prior(kind) for kind in PRIORS}


def _refine(known: _Estimate, level: Level, name: str, now_s: float) -> _Estimate:
    """Refine an estimate with the samples of a level: ``kind``, ``hosts`` or ``pair``.

    This is the normal distribution's conjugate prior, for the logarithms of the latency and of the rate: what is known
    counts as many samples as its variance is smaller than theirs. Most of a decision's time is spent here, so the
    formula stands here twice, and `Learned.weight_at` as well.
    """
    latency, latency_variance, rate, rate_variance, lent_share, source, _ = known
    apart = _APART[name]
    learned = level.latency
    weight, own = learned.weight, learned.variance
    if weight:
        age_s = now_s - learned.seen_s
        share = latency_variance * (weight * exp(age_s * FADING) if age_s > 0 else weight)
        total = own + share
        latency = (latency * own + learned.mean * share) / total
        latency_variance = latency_variance * own / total
    if apart:
        latency_variance += own if own > apart else apart
    learned = level.rate
    weight, own = learned.weight, learned.variance
    if weight:
        age_s = now_s - learned.seen_s
        weight = weight * exp(age_s * FADING) if age_s > 0 else weight
        share = rate_variance * weight
        total = own + share
        rate = (rate * own + learned.mean * share) / total
        rate_variance = rate_variance * own / total
        if weight >= 0.5:
            source = name
    if apart:
        rate_variance += own if own > apart else apart
    if level.lent_share is not None:
        lent_share = level.lent_share
    return latency, latency_variance, rate, rate_variance, lent_share, source, weight


#: What ``Prediction(...)`` itself calls, in half the time.
_new: Callable[[type[Prediction], tuple[float, float, float, float, str]], Prediction] = cast("Any", tuple).__new__


def _prediction(known: _Estimate, samples: float) -> Prediction:
    latency, _, rate, rate_variance, lent_share, source, _ = known
    moved = 1.0 if lent_share is None else 1.0 - lent_share
    return _new(Prediction, (exp(latency), exp(rate) * moved, math.sqrt(rate_variance), samples, source))
