# SPDX-License-Identifier: BSD-3-Clause
"""What a worker's comms measure about their links, collected until a heartbeat reports it.

The receiver times a transfer, from its request for announced data until the data has arrived (`Peer.landed`). A
sender's time would include waiting for the receiver, so it reports only how many network transfers it had in flight
at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from weft.peer import Peer

#: Transfers of this size or more are reported.
LEAST_NBYTES = 64 << 10
#: A heartbeat reports at most this many transfers of a peer, the latest; and this many peers, without those first seen.
MOST_TRANSFERS = 8
MOST_PEERS = 256

#: Key in Dask's handshake: this worker understands the notification that a busy source is free (``fetch``).
TOLD = "weft-told"
#: Key in Dask's handshake: this worker answers requests to join chains (``fanout``), also if it does not take part.
JOINS = "weft-joins"
#: From this value of `JOINS` on, a worker relays and sends slices, and a scheduler names relays (``relays``).
ROUTES = 2
#: From this value on, a request to join tells how much the worker receives from others.
BESIDE = 3

#: A reported transfer: bytes, seconds, and the average number of concurrent receives.
Transfer = tuple[int, float, float]


class Measured:
    """Measurements of one peer since the last heartbeat."""

    __slots__ = ("lent_nbytes", "moved_nbytes", "round_trip_s", "sending", "sending_s", "transfers")

    def __init__(self) -> None:
        self.transfers: deque[Transfer] = deque(maxlen=MOST_TRANSFERS)
        self.lent_nbytes = self.moved_nbytes = 0
        self.round_trip_s = 0.0
        self.sending = self.sending_s = 0.0  # the integral of concurrent sends, over the time of sends to this peer

    def row(self) -> dict[str, Any]:
        """Return the measurements as JSON-able values, without unknown ones."""
        row: dict[str, Any] = {}
        if self.transfers:
            row["transfers"] = [list(each) for each in self.transfers]
        if self.lent_nbytes or self.moved_nbytes:
            row["received"] = [self.lent_nbytes, self.moved_nbytes]
        if self.round_trip_s:
            row["round_trip_s"] = self.round_trip_s
        if self.sending_s:
            row["sending"] = self.sending / self.sending_s
        return row


#: Called for each transfer from a worker, with the address that it was reached at; by this process's workers.
listeners: list[Callable[[str, Measured], None]] = []


class Report:
    """What one worker's comms have measured since its last heartbeat. A process may have several workers.

    Peers are named by the address that they were reached at, and by their process if they came by themselves.
    """

    def __init__(self) -> None:
        self._by_peer: dict[str, Measured] = {}  # those with news

    def of(self, peer: str) -> Measured:
        """Return what is new of a peer, to be added to."""
        measured = self._by_peer.get(peer)
        if measured is None:
            if len(self._by_peer) >= MOST_PEERS:
                self._by_peer.pop(next(iter(self._by_peer)))
            measured = self._by_peer[peer] = Measured()
        return measured

    def take(self) -> dict[str, dict[str, Any]]:
        """Return what is new of each peer, and begin anew."""
        known = dict(self._by_peer)  # at once: another thread's comms may add to it
        self._by_peer.clear()
        return {peer: row for peer, measured in known.items() if (row := measured.row())}


#: A connection argument of Dask's: the report of the worker that connects.
REPORT = "weft_report"
#: The report of comms that belong to no worker; nobody reads it.
nobodys = Report()


class _Outflow:
    """The number of network sends in flight, integrated over time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # workers and clients of this process may use several threads
        self.flows = 0
        self._flow_s = self._seen_s = 0.0

    def change(self, by: int) -> tuple[float, float]:
        """Begin or end a send; return the time and the integral so far."""
        with self._lock:
            now = time.perf_counter()
            self._flow_s += self.flows * (now - self._seen_s)
            self._seen_s = now
            self.flows += by
            return now, self._flow_s


_outflow = _Outflow()


def sends() -> int:
    """Return the number of network sends in flight."""
    return _outflow.flows


class CommLinks:
    """The measurements of one comm.

    Parameters
    ----------
    process : str
        The peer's process.
    worker : str
        The address that the peer was reached at; empty if the peer connected.
    report : Report
        The report of this side's worker.
    """

    __slots__ = ("_borrowed", "_landed", "_name", "_peer", "_report", "_worker")

    def __init__(self, peer: Peer, process: str, worker: str, report: Report) -> None:
        self._peer, self._name, self._worker, self._report = peer, worker or process, worker, report
        self._landed = peer.landed
        self._borrowed = peer.lent_nbytes[1]
        if peer.round_trip_s > 0:
            measured = report.of(self._name)
            measured.round_trip_s = peer.round_trip_s
            if worker:
                alone = Measured()
                alone.round_trip_s = peer.round_trip_s
                _tell(worker, alone)

    def received(self, nbytes: int) -> None:
        """Record a received message of `nbytes` bytes, including lent ones."""
        if nbytes < LEAST_NBYTES:
            return
        landed, before = self._peer.landed, self._landed
        borrowed = self._peer.lent_nbytes[1]
        lent = borrowed - self._borrowed
        self._landed, self._borrowed = landed, borrowed
        news = Measured()
        news.lent_nbytes, news.moved_nbytes = lent, max(0, nbytes - lent)
        moved, seconds = landed[0] - before[0], landed[1] - before[1]
        if moved >= LEAST_NBYTES and seconds > 0:
            news.transfers.append((moved, seconds, max(1.0, (landed[2] - before[2]) / seconds)))
        measured = self._report.of(self._name)
        measured.transfers += news.transfers
        measured.lent_nbytes += news.lent_nbytes
        measured.moved_nbytes += news.moved_nbytes
        if self._worker:
            _tell(self._worker, news)

    def received_pieces(self, nbytes: int, seconds: float | None, at_once: float, of_nbytes: int | None = None) -> None:
        """Record a value received in pieces, of which `at_once` were in flight at any time.

        `seconds` is None if the sender itself had to wait for them. If `of_nbytes` is given, this comm received a part
        of a transfer of that size, and `seconds` is the time of the whole.
        """
        landed, before = self._peer.landed, self._landed
        self._landed, self._borrowed = landed, self._peer.lent_nbytes[1]
        news = Measured()
        news.moved_nbytes = nbytes
        asked_s = landed[1] - before[1]
        whole = nbytes if of_nbytes is None else of_nbytes
        if seconds and asked_s > 0 and whole >= LEAST_NBYTES:
            news.transfers.append((whole, seconds, max(1.0, (landed[2] - before[2]) / asked_s / at_once)))
        measured = self._report.of(self._name)
        measured.transfers += news.transfers
        measured.moved_nbytes += nbytes
        if self._worker:
            _tell(self._worker, news)

    def begin_send(self, nbytes: int) -> tuple[float, float] | None:
        """Count a send of `nbytes` bytes as in flight; pass the result to :meth:`end_send`."""
        if nbytes < LEAST_NBYTES or self._peer.same_host:
            return None
        return _outflow.change(1)

    def end_send(self, began: tuple[float, float] | None) -> None:
        """Count a send as finished."""
        if began is None:
            return
        now, flow_s = _outflow.change(-1)
        measured = self._report.of(self._name)
        measured.sending += flow_s - began[1]
        measured.sending_s += now - began[0]


def _tell(worker: str, news: Measured) -> None:
    for listener in listeners:
        listener(worker, news)


def routes(comm: Any) -> bool:
    """Tell whether the other side of a comm supports relays and slices."""
    known = comm.remote_info.get(JOINS)
    return isinstance(known, int) and known >= ROUTES
