# SPDX-License-Identifier: BSD-3-Clause
"""What this process has sent to and received from each other process, over ``ucx://``.

Counted by process, not by address: whoever connects comes from a new port each time, so the two sides tell each
other in weft's handshake which process they are. No clock on the receiving side, where nobody can tell receiving from
waiting for a sender that has nothing to say.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from distributed.metrics import context_meter
from distributed.utils import nbytes

from weft.errors import PeerClosedError, PeerLostError
from weft.peer import Peer

#: Messages that move at least so many bytes count as transfers, of which the bandwidth is told.
TRANSFER_NBYTES = 1 << 20
#: The bandwidth of a pair is the median of so many of its latest transfers.
TRANSFERS = 32
#: Records kept; beyond them, those of processes without an open comm are added up under ``OTHERS``.
MOST_RECORDS = 1024
OTHERS = "others"
#: Names this process to its peers.
PROCESS = secrets.token_hex(8)
#: What the comms tell in weft's handshake.
INFO = {"process": PROCESS}

#: Counters that only grow, in the order in which they are told.
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


class Record:
    """All traffic between this process and one other.

    Attributes
    ----------
    process, address : str
        Who it is, and where it was reached (or came from, if this process never called it).
    lanes : tuple of str
        What carries it, as ``transport/device``.
    comms : int
        Comms that are open, or were dropped and not yet collected.
    sent_messages, sent_nbytes, received_messages, received_nbytes : int
        Dask messages, and the bytes in them, lent ones included.
    lent_nbytes, borrowed_nbytes : int
        The part of those bytes that was mapped by the receiver in place of moving.
    lent_messages, borrowed_messages : int
        The messages that had such bytes.
    sent_seconds : float
        Seconds from each send to its completion, added up.
    errors : int
        Comms that broke: the peer was lost without a goodbye.
    """

    __slots__ = (*COUNTERS, "_rates", "address", "comms", "lanes", "process")

    def __init__(self, process: str, address: str) -> None:
        self.process, self.address = process, address
        self.lanes: tuple[str, ...] = ()
        self.comms = 0
        self.sent_messages = self.sent_nbytes = self.lent_messages = self.lent_nbytes = 0
        self.received_messages = self.received_nbytes = self.borrowed_messages = self.borrowed_nbytes = 0
        self.errors = 0
        self.sent_seconds = 0.0
        self._rates: deque[float] = deque(maxlen=TRANSFERS)

    @property
    def bandwidth_Bps(self) -> float | None:  # noqa: N802
        """Median of the latest transfers to that process; None if there was none."""
        return statistics.median(self._rates) if self._rates else None

    def count_sent(self, nbytes: int, moved_nbytes: int, seconds: float) -> None:
        """Count a message that was sent, so many bytes of it not lent."""
        self.sent_messages += 1
        self.sent_nbytes += nbytes
        self.lent_nbytes += nbytes - moved_nbytes
        self.lent_messages += moved_nbytes < nbytes
        self.sent_seconds += seconds
        if moved_nbytes >= TRANSFER_NBYTES and seconds > 0:
            self._rates.append(moved_nbytes / seconds)

    def count_received(self, nbytes: int, borrowed_nbytes: int) -> None:
        """Count a message that was received."""
        self.received_messages += 1
        self.received_nbytes += nbytes
        self.borrowed_nbytes += borrowed_nbytes
        self.borrowed_messages += borrowed_nbytes > 0

    def add(self, other: Record) -> None:
        """Take over the counts of another record."""
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


records: dict[str, Record] = {}
#: The same counts by lanes: sums that only grow, whoever goes, and whatever way a process is reached by next.
lanes: dict[tuple[str, ...], Record] = {}


def record_of(process: str, address: str) -> Record:
    """Return the record of a process, made at its first comm."""
    record = records.get(process)
    if record is None:
        if len(records) >= MOST_RECORDS:
            _fold()
        record = records[process] = Record(process, address)
    return record


def _fold() -> None:
    """Add up the records of processes that have no comm any more: workers come and go for months."""
    gone = [r for r in records.values() if not r.comms and r.process != OTHERS]
    others = records.pop(OTHERS, None) or Record(OTHERS, OTHERS)
    for record in gone:
        others.add(records.pop(record.process))
    records[OTHERS] = others


class Account:
    """One comm's part in the record of its peer's process, and in that of its lanes."""

    __slots__ = ("_borrowed", "_label", "_lent", "_of_lanes", "_peer", "record")

    def __init__(self, peer: Peer, address: str) -> None:
        process = peer.remote.get("process")
        # From the peer: anything may stand there.
        known = isinstance(process, str) and 0 < len(process) <= 64
        self.record = record = record_of(str(process) if known else address, address)
        record.lanes = tuple(peer.transports)
        name = ",".join(record.lanes)
        self._of_lanes = lanes.setdefault(record.lanes, Record(name, name))
        self._of_lanes.comms += 1
        record.comms += 1
        self._peer = peer
        self._label = f"weft {name}"
        self._lent = self._borrowed = 0

    def __del__(self) -> None:
        self.record.comms -= 1
        self._of_lanes.comms -= 1

    def sent(self, frames: Sequence[Any], began: float) -> int:
        """Count a message that is sent, begun at `began` by ``time.perf_counter``; return its bytes."""
        seconds = time.perf_counter() - began
        total: int = sum(map(nbytes, frames))
        lent = self._peer.lent_nbytes[0]
        moved, self._lent = total - (lent - self._lent), lent
        for record in (self.record, self._of_lanes):
            record.count_sent(total, moved, seconds)
        # As distributed's own activities; what is not sent remains of its "network".
        context_meter.digest_metric(self._label, seconds, "seconds")
        self._digest(moved, total - moved, "weft lent")
        return total

    def received(self, frames: Sequence[Any]) -> None:
        """Count a message that was received."""
        total = sum(map(nbytes, frames))
        borrowed = self._peer.lent_nbytes[1]
        lent, self._borrowed = borrowed - self._borrowed, borrowed
        for record in (self.record, self._of_lanes):
            record.count_received(total, lent)
        self._digest(total - lent, lent, "weft borrowed")

    def _digest(self, moved: int, lent: int, lent_label: str) -> None:
        context_meter.digest_metric(self._label, 1, "count")
        context_meter.digest_metric(self._label, moved, "bytes")
        if lent:
            context_meter.digest_metric(lent_label, lent, "bytes")

    def failed(self, error: Exception) -> None:
        """Count a comm that broke; a goodbye is no error."""
        if isinstance(error, PeerLostError) and not isinstance(error, PeerClosedError):
            self.record.errors += 1
            self._of_lanes.errors += 1


def report() -> dict[str, Any]:
    """Return what this process knows of its traffic, JSON-able: see :class:`Record`."""
    return {"process": PROCESS, "peers": {r.process: r.row() for r in list(records.values())}}
