# SPDX-License-Identifier: BSD-3-Clause
"""How a large value travels between workers in pieces. ``weft.links.fanout`` chooses the sender of each receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft.links.fanout import Chain, piece_nbytes
from weft.simulate.cluster import Cluster
from weft.simulate.sharing import Flow
from weft.simulate.tasks import Task
from weft.simulate.worker import BUSY_S, Worker

#: Seconds for which an idle chain is kept; a worker that comes later begins another.
_LINGER_S = 2.0


class Around(NamedTuple):
    """The surroundings of chains.

    Attributes
    ----------
    rates : callable
        Seconds per byte from a holder's network to a worker, by host; ``""`` is for all other hosts.
    served : callable
        Called with each worker that has finished sending a value.
    timed : callable
        Called with source, receiver, bytes, seconds, and the number of transfers of each of both, for a value whose
        source had all of it.
    hop_s, again_s : float
        Seconds until a received piece is sent on, and until a worker whose source died has another source.
    """

    cluster: Cluster
    rates: Callable[[Worker, Worker], dict[str, float]]
    served: Callable[[Worker], None]
    timed: Callable[[Worker, Worker, int, float, tuple[float, float]], None]
    hop_s: float
    again_s: float = 5e-3


class Copy:
    """What one worker has of a value that travels in pieces, and the workers that it sends the pieces to."""

    def __init__(self, worker: Worker, have: int) -> None:
        self.worker, self.have = worker, have
        self.parent: Copy | None = None
        self.edges: list[_Edge] = []
        self.borrowers: list[Callable[[], None]] = []


class _Edge:
    """Pieces in flight from one worker to the next, one after the other."""

    def __init__(self, source: Copy, to: Copy, links: tuple[int, ...], begin_s: float) -> None:
        self.source, self.to, self.links, self.begin_s = source, to, links, begin_s
        self.sent = to.have
        self.first = (source.have, to.have)
        self.flow: Flow | None = None
        self.over = False
        self.at_once: tuple[float, float] = self._at_once()

    def _at_once(self) -> tuple[int, int]:
        return self.source.worker.serving, self.to.worker.receiving

    def end(self) -> None:
        self.over = True
        begin, end = self.at_once, self._at_once()
        self.at_once = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2
        self.source.worker.serving -= 1
        self.to.worker.receiving -= 1


class Offer:
    """A value that its holder hands out to every worker that asks for it.

    Parameters
    ----------
    around : Around
    holder : Worker
    key : Task
    """

    def __init__(self, around: Around, holder: Worker, key: Task) -> None:
        self._around, self.key, self.holder = around, key, holder
        self._engine = around.cluster.engine
        self.chain = Chain(holder.name, holder.state.host, key.nbytes)
        self._piece = piece_nbytes(key.nbytes)
        self._pieces = -(-key.nbytes // self._piece)
        self._copies = {holder.name: Copy(holder, self._pieces)}
        self._done: dict[Copy, Callable[[], None]] = {}
        self.used_s = self._engine.now_s

    @property
    def over(self) -> bool:
        """Whether the next worker starts a new chain."""
        return not self.chain.under_way and self._engine.now_s - self.used_s > _LINGER_S

    def join(self, worker: Worker, done: Callable[[], None], failed: tuple[str, ...] = ()) -> bool:
        """Connect a worker to the sender that the chain chooses; False: the holder is busy."""
        rates = self._around.rates(self.holder, worker)
        default = rates[""]
        now = self._engine.now_s
        self.used_s = now
        host = worker.state.host
        parent = self.chain.join(worker.name, host, lambda h: rates.get(h, default), now, failed=failed)
        if parent is None:
            return False
        if parent.name == self.holder.name and self.holder.is_busy(worker):
            self.chain.leave(worker.name)
            return False
        copy = self._copies.setdefault(worker.name, Copy(worker, 0))
        self._done[copy] = done
        source = copy.parent = self._copies[parent.name]
        way = self._around.cluster.network.way(parent.name, worker.name)
        if parent.lent:
            self._borrow(source, copy, way.latency_s)
        else:
            self._engine.after(way.latency_s, self._hand_on, source, copy, way.links)
        return True

    def _borrow(self, source: Copy, copy: Copy, latency_s: float) -> None:
        def there() -> None:
            if source.worker.alive:
                self._engine.after(latency_s, self._has_it, copy)

        if source.have == self._pieces:
            there()
        else:
            source.borrowers.append(there)

    def _hand_on(self, source: Copy, copy: Copy, links: tuple[int, ...]) -> None:
        if source.worker.alive:
            source.worker.serving += 1
            copy.worker.receiving += 1
            edge = _Edge(source, copy, links, self._engine.now_s)
            source.edges.append(edge)
            self._send(edge)

    def _send(self, edge: _Edge) -> None:
        if edge.flow is None and not edge.over and edge.sent < edge.source.have:
            edge.flow = self._engine.move(edge.links, self._size(edge.sent), lambda: self._sent(edge))

    def _size(self, number: int) -> int:
        return min(self._piece, self.key.nbytes - number * self._piece)

    def _sent(self, edge: _Edge) -> float | None:
        nbytes = self._size(edge.sent)
        self._around.cluster.moved_nbytes += nbytes
        edge.sent += 1
        self._engine.after(self._around.hop_s, self._arrived, edge.to)
        if edge.sent < edge.source.have:
            return float(self._size(edge.sent))
        edge.flow = None
        if edge.sent == self._pieces:
            edge.end()
            source, worker = edge.source.worker, edge.to.worker
            if edge.first == (self._pieces, 0):
                seconds = self._engine.now_s - edge.begin_s
                self._around.timed(source, worker, self.key.nbytes, seconds, edge.at_once)
            self._around.served(source)
        return None

    def _arrived(self, copy: Copy) -> None:
        copy.have += 1
        for edge in copy.edges:
            self._send(edge)
        if copy.have == self._pieces:
            self._has_it(copy)

    def _has_it(self, copy: Copy) -> None:
        copy.have = self._pieces
        copy.parent = None
        self.used_s = self._engine.now_s
        self.chain.has_it(copy.worker.name)
        for there in copy.borrowers:
            there()
        copy.borrowers.clear()
        done = self._done.pop(copy, None)
        if done is not None and copy.worker.alive:
            done()

    def lost(self, worker: Worker) -> None:
        """Give a new sender to the workers that received the value from a dead one."""
        gone = self._copies.pop(worker.name, None)
        if gone is None:
            return
        self.chain.leave(worker.name)
        self._done.pop(gone, None)
        for copy in self._copies.values():
            for edge in copy.edges:
                if edge.to is gone:
                    self._end(edge)
            if copy.parent is gone and copy in self._done:
                done = self._done.pop(copy)
                self._engine.after(self._around.again_s, self._join_again, copy.worker, done, worker.name)
        for edge in gone.edges:
            self._end(edge)

    def _join_again(self, worker: Worker, done: Callable[[], None], failed: str) -> None:
        if not self.join(worker, done, (failed,)):
            self._engine.after(BUSY_S, self._join_again, worker, done, failed)

    def _end(self, edge: _Edge) -> None:
        if not edge.over:
            edge.end()
            if edge.flow is not None:
                self._engine.stop(edge.flow)
