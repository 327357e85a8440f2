# SPDX-License-Identifier: BSD-3-Clause
"""What this process has sent to and received from each other process, over ``ucx://``.

Counts are by process, not by address: each connection comes from a new port, so the two sides exchange process ids in
weft's handshake. The receiving side measures no time: it cannot tell receiving from waiting for an idle sender.
``pairs``, ``scheduler`` and ``prometheus`` use the counts.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import Any

from distributed.comm.addressing import parse_address, parse_host_port
from distributed.metrics import context_meter

from weft.errors import PeerClosedError, PeerLostError
from weft.peer import Peer

#: The name of the schedulers' and workers' extensions that report traffic.
EXTENSION = "weft"
#: Messages that move at least this many bytes count as transfers, whose bandwidth is reported. Smaller ones are not in
#: distributed's fine performance metrics either: a worker passes each of those on several times.
TRANSFER_NBYTES = 1 << 20
#: The bandwidth of a pair is the median of this many latest transfers.
TRANSFERS = 32
#: The maximum number of processes; beyond it, those without an open comm are summed under ``OTHERS``.
MOST_PROCESSES = 1024
#: The maximum number of hosts whose bandwidths are kept; beyond it, the first seen are dropped.
_MOST_HOSTS = 1024
OTHERS = "others"
#: Identifies this process to its peers.
PROCESS = secrets.token_hex(8)
#: What comms send in weft's handshake.
INFO = {"process": PROCESS}

#: Counters that only grow, in the order in which they are reported.
COUNTERS = (
    "sent_messages",
    "sent_nbytes",
    "sent_seconds",
    "lent_messages",
    "lent_nbytes",
    "received_messages",
    "received_nbytes",
    "borrowed_messages",
    "borrowed_nbytes",
    "errors",
)


class Traffic:
    """Everything between this process and one other, or over one set of lanes.

    Attributes
    ----------
    process, address : str
        The process, and the address that it was reached at (or came from, if this process never connected to it).
    lanes : tuple of str
        What carries the traffic, as ``transport/device``; and the codec, if messages to it are compressed.
    comms : int
        Comms that are open, or were dropped and not yet garbage-collected.
    sent_messages, sent_nbytes, received_messages, received_nbytes : int
        Dask messages, and the bytes in them, lent ones included.
    lent_nbytes, borrowed_nbytes : int
        The part of those bytes that the receiver mapped instead of receiving a copy.
    lent_messages, borrowed_messages : int
        The messages that had such bytes.
    sent_seconds : float
        Seconds from each send to its completion, added up.
    errors : int
        Comms that broke: the peer was lost without a goodbye.
    rates_Bps : deque of float
        Bandwidths of the latest transfers to that process.
    """

    __slots__ = (*COUNTERS, "address", "comms", "lanes", "process", "rates_Bps")

    def __init__(self, process: str, address: str, lanes: tuple[str, ...] = ()) -> None:
        self.process, self.address, self.lanes = process, address, lanes
        self.comms = 0
        self.sent_messages = self.sent_nbytes = self.lent_messages = self.lent_nbytes = 0
        self.received_messages = self.received_nbytes = self.borrowed_messages = self.borrowed_nbytes = 0
        self.errors = 0
        self.sent_seconds = 0.0
        self.rates_Bps: deque[float] = deque(maxlen=TRANSFERS)

    @property
    def bandwidth_Bps(self) -> float | None:  # noqa: N802
        """Median of the latest transfers to that process; None if there was none."""
        return _median(self.rates_Bps)

    def add(self, other: Traffic) -> None:
        """Add the counts of another."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def row(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        counts = {name: getattr(self, name) for name in COUNTERS}
        return {
            "process": self.process,
            "address": self.address,
            "lanes": list(self.lanes),
            "comms": self.comms,
            "bandwidth_Bps": self.bandwidth_Bps,
            **counts,
        }


#: Traffic by the other process.
by_process: dict[str, Traffic] = {}
#: The same counts by lanes. They only grow, also when a process goes or is reached by other lanes.
by_lanes: dict[tuple[str, ...], Traffic] = {}


#: Bandwidths of the latest transfers to each host.
_to_host: dict[str, deque[float]] = {}


def _rates_to_host(address: str) -> deque[float]:
    host = str(parse_host_port(parse_address(address)[1], 0)[0])
    rates = _to_host.get(host)
    if rates is None:
        if len(_to_host) >= _MOST_HOSTS:
            del _to_host[next(iter(_to_host))]
        rates = _to_host[host] = deque(maxlen=TRANSFERS)
    return rates


def _median(rates: deque[float]) -> float | None:
    import statistics  # lazy: a worker's process usually does not need it

    return statistics.median(rates) if rates else None


def with_process(process: str, address: str) -> Traffic:
    """Return the traffic with a process since its first comm."""
    traffic = by_process.get(process)
    if traffic is None:
        if len(by_process) >= MOST_PROCESSES:
            _fold()
        traffic = by_process[process] = Traffic(process, address)
    return traffic


def _fold() -> None:
    """Sum up the processes without an open comm: workers come and go for months."""
    gone = [t for t in by_process.values() if not t.comms and t.process != OTHERS]
    others = by_process.pop(OTHERS, None) or Traffic(OTHERS, OTHERS)
    for traffic in gone:
        others.add(by_process.pop(traffic.process))
    by_process[OTHERS] = others


class CommTraffic:
    """One comm's part of the traffic with its peer's process, and of that over its lanes."""

    __slots__ = ("_borrowed", "_label", "_lent", "_over_lanes", "_peer", "_to_host", "with_process")

    def __init__(self, peer: Peer, address: str) -> None:
        process = peer.remote.get("process")
        # The peer sent this: it may be anything.
        known = isinstance(process, str) and 0 < len(process) <= 64
        self.with_process = with_process(str(process) if known else address, address)
        lanes = self.with_process.lanes = tuple(peer.transports)
        self._over_lanes = by_lanes.setdefault(lanes, Traffic("", "", lanes))
        self.with_process.comms += 1
        self._over_lanes.comms += 1
        self._peer, self._to_host = peer, _rates_to_host(address)
        self._label = f"weft {','.join(lanes)}"
        self._lent = self._borrowed = 0

    def __del__(self) -> None:
        self.with_process.comms -= 1
        self._over_lanes.comms -= 1

    def sent(self, nbytes: int, began: float) -> None:
        """Count a sent message; `began` is its start by ``time.perf_counter``."""
        seconds = time.perf_counter() - began
        lent = self._peer.lent_nbytes[0]
        moved, self._lent = nbytes - (lent - self._lent), lent
        for traffic in (self.with_process, self._over_lanes):
            traffic.sent_messages += 1
            traffic.sent_nbytes += nbytes
            traffic.lent_nbytes += nbytes - moved
            traffic.lent_messages += moved < nbytes
            traffic.sent_seconds += seconds
        if moved >= TRANSFER_NBYTES and seconds > 0:
            self.with_process.rates_Bps.append(moved / seconds)
            self._to_host.append(moved / seconds)
        # As distributed's own activities; the rest of the time stays in its "network".
        if nbytes >= TRANSFER_NBYTES:
            context_meter.digest_metric(self._label, seconds, "seconds")
            self._digest(moved, nbytes - moved, "weft lent")

    @property
    def rate_Bps(self) -> float | None:  # noqa: N802
        """Median bandwidth of the latest transfers to that process, or else to its host; None if there was none."""
        known = self.with_process.bandwidth_Bps
        return _median(self._to_host) if known is None else known

    def compressed(self, codec: str) -> None:
        """Show that messages to this peer are compressed if that makes them smaller."""
        if codec not in self.with_process.lanes:
            self.with_process.lanes += (codec,)

    def received(self, nbytes: int) -> None:
        """Count a received message."""
        borrowed = self._peer.lent_nbytes[1]
        lent, self._borrowed = borrowed - self._borrowed, borrowed
        for traffic in (self.with_process, self._over_lanes):
            traffic.received_messages += 1
            traffic.received_nbytes += nbytes
            traffic.borrowed_nbytes += lent
            traffic.borrowed_messages += lent > 0
        if nbytes >= TRANSFER_NBYTES:
            self._digest(nbytes - lent, lent, "weft borrowed")

    def _digest(self, moved: int, lent: int, lent_label: str) -> None:
        if moved >= TRANSFER_NBYTES:
            context_meter.digest_metric(self._label, moved, "bytes")
        if lent:
            context_meter.digest_metric(lent_label, lent, "bytes")

    def failed(self, error: Exception) -> None:
        """Count a broken comm; one that the peer closed is not an error."""
        if isinstance(error, PeerLostError) and not isinstance(error, PeerClosedError):
            self.with_process.errors += 1
            self._over_lanes.errors += 1


def report() -> dict[str, Any]:
    """Return this process's traffic as JSON-able values: see :class:`Traffic`."""
    return {"process": PROCESS, "peers": {t.process: t.row() for t in list(by_process.values())}}
