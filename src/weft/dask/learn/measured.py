# SPDX-License-Identifier: BSD-3-Clause
"""What this process's comms measure of their links, until a heartbeat takes it along.

A transfer is timed by its receiver, from when announced data is asked for until it is here (`Peer.landed`). A sender
tells no time, which would have waiting for the receiver in it, but how many transfers over the network it had under
way at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from weft.peer import Peer

#: From so many bytes on a transfer is told.
LEAST_NBYTES = 64 << 10
#: Transfers of a peer that one heartbeat tells of, the latest; and peers, those with news for longest.
MOST_TRANSFERS = 8
MOST_PEERS = 256

#: What a worker tells in Dask's handshake: that it can be told when one that was busy is free (``fetch``).
TOLD = "weft-told"
#: And that it can be asked to join (``fanout``), whether it does anything about that or not.
JOINS = "weft-joins"
#: From this value of it on, a worker relays and hands out slices, and a scheduler names relays (``relays``).
ROUTES = 2

#: What a transfer is told as: bytes, seconds, and how many were received at once on average.
Transfer = tuple[int, float, float]


class Measured:
    """What was measured of one peer since the last heartbeat."""

    __slots__ = ("lent_nbytes", "moved_nbytes", "round_trip_s", "sending", "sending_s", "transfers")

    def __init__(self) -> None:
        self.transfers: deque[Transfer] = deque(maxlen=MOST_TRANSFERS)
        self.lent_nbytes = self.moved_nbytes = 0
        self.round_trip_s = 0.0
        self.sending = self.sending_s = 0.0  # the integral of sends at once, over the time of sends to this peer

    def row(self) -> dict[str, Any]:
        """Return it as JSON-able values, without what is not known."""
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


#: Of peers with news, by their process.
by_process: dict[str, Measured] = {}
#: Who else wants to know of each transfer from a worker, by the address that it was reached at: this process's workers.
listeners: list[Callable[[str, Measured], None]] = []


def _of(process: str) -> Measured:
    measured = by_process.get(process)
    if measured is None:
        if len(by_process) >= MOST_PEERS:
            by_process.pop(next(iter(by_process)))
        measured = by_process[process] = Measured()
    return measured


def report() -> dict[str, dict[str, Any]]:
    """Return what is new of each peer, by its process, and begin anew."""
    known = dict(by_process)  # at once: another thread's comms may add to it
    by_process.clear()
    return {process: row for process, measured in known.items() if (row := measured.row())}


class _Outflow:
    """How many sends over the network are under way, integrated over time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the threads of this process's workers and clients
        self.flows = 0
        self._flow_s = self._seen_s = 0.0

    def change(self, by: int) -> tuple[float, float]:
        """Begin or end one; return the time and the integral until now."""
        with self._lock:
            now = time.perf_counter()
            self._flow_s += self.flows * (now - self._seen_s)
            self._seen_s = now
            self.flows += by
            return now, self._flow_s


_outflow = _Outflow()


def sends() -> int:
    """Return how many sends over the network are under way."""
    return _outflow.flows


class CommLinks:
    """One comm's part.

    Parameters
    ----------
    process : str
        The peer's.
    worker : str
        The address that the peer was reached at; empty if it came by itself.
    """

    __slots__ = ("_borrowed", "_landed", "_peer", "_process", "_worker")

    def __init__(self, peer: Peer, process: str, worker: str) -> None:
        self._peer, self._process, self._worker = peer, process, worker
        self._landed = peer.landed
        self._borrowed = peer.lent_nbytes[1]
        if peer.round_trip_s > 0:
            measured = _of(process)
            measured.round_trip_s = peer.round_trip_s
            if worker:
                alone = Measured()
                alone.round_trip_s = peer.round_trip_s
                _tell(worker, alone)

    def received(self, nbytes: int) -> None:
        """Take what the link tells of a message of so many bytes that was received, lent ones included."""
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
        measured = _of(self._process)
        measured.transfers += news.transfers
        measured.lent_nbytes += news.lent_nbytes
        measured.moved_nbytes += news.moved_nbytes
        if self._worker:
            _tell(self._worker, news)

    def received_pieces(self, nbytes: int, seconds: float | None, at_once: float, of_nbytes: int | None = None) -> None:
        """Take a value that came in pieces, `at_once` of which were asked for at any time.

        `seconds` is None where the sender had to wait for them itself. They are those of the whole transfer, of
        `of_nbytes` over several comms, where that is given.
        """
        landed, before = self._peer.landed, self._landed
        self._landed, self._borrowed = landed, self._peer.lent_nbytes[1]
        news = Measured()
        news.moved_nbytes = nbytes
        asked_s = landed[1] - before[1]
        whole = nbytes if of_nbytes is None else of_nbytes
        if seconds and asked_s > 0 and whole >= LEAST_NBYTES:
            news.transfers.append((whole, seconds, max(1.0, (landed[2] - before[2]) / asked_s / at_once)))
        measured = _of(self._process)
        measured.transfers += news.transfers
        measured.moved_nbytes += nbytes
        if self._worker:
            _tell(self._worker, news)

    def begin_send(self, nbytes: int) -> tuple[float, float] | None:
        """Count a send of so many bytes as under way; what this returns is for :meth:`end_send`."""
        if nbytes < LEAST_NBYTES or self._peer.same_host:
            return None
        return _outflow.change(1)

    def end_send(self, began: tuple[float, float] | None) -> None:
        """Count it no more."""
        if began is None:
            return
        now, flow_s = _outflow.change(-1)
        measured = _of(self._process)
        measured.sending += flow_s - began[1]
        measured.sending_s += now - began[0]


def _tell(worker: str, news: Measured) -> None:
    for listener in listeners:
        listener(worker, news)


def routes(comm: Any) -> bool:
    """Tell whether the other side of a comm knows of relays and slices."""
    known = comm.remote_info.get(JOINS)
    return isinstance(known, int) and known >= ROUTES
