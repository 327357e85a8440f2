# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of one value over several comms at once: the receiver requests piece after piece from each.

So faster comms carry more, and their number may change during the transfer (``weft.links.flows`` decides). The pieces
are forwarded in order, as if they came over one comm.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from distributed.comm.core import CommClosedError

from weft.dask.learn.pieces import Copy, PieceComm, aborting
from weft.errors import Error
from weft.links.flows import Trial, worth

if TYPE_CHECKING:
    from weft.typing import Request

#: Pieces in flight on each comm; and the request that ends the transfer.
_AT_ONCE = 8
_END = (1 << 64) - 1


async def send(comm: PieceComm, copy: Copy, *, counted: bool) -> int:
    """Send the requested pieces, each as soon as it has arrived; return their number.

    Parameters
    ----------
    counted : bool
        Whether this comm stands for the transfer in reports; one of a value's comms does.

    Raises
    ------
    OSError
        The peer is lost, or requested a piece that does not exist; the comm is aborted.
    GoneError
        The pieces will not arrive; the comm is aborted.
    """
    under_way: deque[Request[None]] = deque()
    asked = bytearray(8)
    number_sent = 0
    with aborting(comm):
        with comm.sending_pieces(sum(map(len, copy.pieces)) if counted else 0) as sent:
            sent[0] = 0
            while True:
                nbytes = await comm.recv_piece(memoryview(asked))
                number = int.from_bytes(asked, "little")
                if nbytes == 8 and number == _END:
                    break
                if nbytes != 8 or number >= len(copy.pieces):
                    raise CommClosedError(f"{comm!r}: asked for piece {number} of {len(copy.pieces)}")
                piece = copy.pieces[number] if number < copy.have else await copy.until(number)
                under_way.append(comm.send_piece(piece))
                sent[0] += len(piece)
                number_sent += 1
                if len(under_way) > _AT_ONCE:
                    await under_way.popleft()
            while under_way:
                await under_way.popleft()
        return number_sent


class _Asked(NamedTuple):
    number: int
    request: Request[int]


class _Flow:
    def __init__(self, comm: PieceComm) -> None:
        self.comm = comm
        self.asked: deque[_Asked] = deque()
        self.asked_nbytes = self.nbytes = 0
        self.began_s = time.perf_counter()

    def rate(self, now_s: float) -> float:
        """Return bytes/second; 0 before the first piece."""
        return self.nbytes / max(now_s - self.began_s, 1e-9)


class Receiving:
    """Receives one value.

    Parameters
    ----------
    copy : Copy
        The copy to fill.
    trial : Trial
        Decides the number of comms.
    connect : callable
        ``await connect(number)`` returns a comm with its own TCP connection, whose other side runs :func:`send`.

    Attributes
    ----------
    ending : asyncio.Task or None
        What remains to be done when all pieces have arrived.
    """

    def __init__(self, copy: Copy, trial: Trial, connect: Callable[[int], Awaitable[PieceComm]]) -> None:
        self._copy, self._trial, self._connect = copy, trial, connect
        self._next = copy.have
        self._again: list[int] = []
        self._flows: list[_Flow] = []
        self._left = sum(map(len, copy.pieces[copy.have :])) - sum(len(copy.pieces[n]) for n in copy.beyond)
        self._counted = self._landed = 0  # number of flows, summed over the pieces that landed
        self._wanted = asyncio.Event()
        self.ending: asyncio.Task[None] | None = None

    async def run(self, first: PieceComm, *, timed: bool) -> None:
        """Receive all missing pieces; `first` is the first such comm, and is not closed.

        Raises
        ------
        OSError
            The peer of the first comm is lost. Pieces that have arrived stay.
        """
        copy, began, nbytes = self._copy, time.perf_counter(), self._left
        flow = _Flow(first)
        self._flows.append(flow)
        extra = asyncio.ensure_future(self._more())
        try:
            with aborting(first):
                await self._receive(flow, 0)
                while not copy.whole:  # others have the rest
                    if copy.failed or self._flows == [flow]:
                        raise CommClosedError(f"{first!r}: not all pieces arrived")
                    await copy.changed()
                    await self._receive(flow, 0)  # pieces that a failed flow left
                await _end(first)
        finally:
            if copy.whole:  # the other flows end on their own; nobody waits for that
                self.ending = extra
                self._wanted.set()
            else:
                extra.cancel()
                await asyncio.wait({extra})
            seconds = time.perf_counter() - began if timed and copy.whole else None
            at_once = _AT_ONCE * self._counted / max(1, self._landed)
            first.pieces_received(flow.nbytes, seconds, at_once, of_nbytes=nbytes)

    async def _more(self) -> None:
        """Keep as many comms beside the first as are wanted, until all pieces have arrived."""
        running: set[asyncio.Task[None]] = set()
        opened = 1
        try:
            while running or not self._copy.whole:
                while opened < self._trial.count and not self._copy.whole:  # each once, because little may be left
                    running.add(asyncio.ensure_future(self._one_more(opened)))
                    opened += 1
                self._wanted.clear()
                waiting = asyncio.ensure_future(self._wanted.wait())
                try:
                    await asyncio.wait({waiting, *running}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                running = {task for task in running if not task.done()}
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _one_more(self, number: int) -> None:
        """Receive over one more comm while it is wanted; others take over the pieces that it did not deliver."""
        flow: _Flow | None = None
        comm: PieceComm | None = None
        try:
            comm = await self._connect(number)
            flow = _Flow(comm)
            self._flows.append(flow)
            await self._receive(flow, number)
            await _end(comm)
            comm.pieces_received(flow.nbytes, None, _AT_ONCE)
            await comm.close()
        except (OSError, Error, TimeoutError):
            self._trial.refused(number)
        finally:
            if comm is not None:
                comm.abort()
            if flow is not None:
                for asked in flow.asked:
                    heapq.heappush(self._again, asked.number)
                if flow in self._flows:
                    self._flows.remove(flow)
            self._copy.change()

    async def _receive(self, flow: _Flow, number: int) -> None:
        """Receive the pieces that a flow may carry; flow 0 may carry all."""
        copy, trial = self._copy, self._trial
        while True:
            while len(flow.asked) < _AT_ONCE and (piece := self._take(flow, number)) is not None:
                flow.asked_nbytes += len(copy.pieces[piece])
                flow.asked.append(_Asked(piece, flow.comm.recv_piece(copy.pieces[piece])))
                await flow.comm.send_piece(memoryview(piece.to_bytes(8, "little")))
            if not flow.asked:
                return
            asked = flow.asked[0]
            expected = len(copy.pieces[asked.number])
            if await asked.request != expected:
                raise CommClosedError(f"{flow.comm!r}: piece {asked.number} has another size")
            flow.asked.popleft()
            flow.asked_nbytes -= expected
            flow.nbytes += expected
            self._left -= expected
            copy.landed(asked.number)
            before = trial.count
            self._counted += before
            self._landed += 1
            trial.landed(expected, time.perf_counter(), passed_on=copy.receivers > 0)
            if trial.count > before:
                self._wanted.set()

    def _take(self, flow: _Flow, number: int) -> int | None:
        """Return the piece that a flow must request next, if any."""
        copy = self._copy
        if number >= self._trial.count or copy.failed:
            return None
        piece = self._again[0] if self._again else self._next
        if piece >= len(copy.pieces):
            return None
        if number:
            now = time.perf_counter()
            rates = sum(each.rate(now) for each in self._flows)
            if not worth(flow.rate(now), flow.asked_nbytes + len(copy.pieces[piece]), rates, self._left):
                return None
        if self._again:
            return heapq.heappop(self._again)
        self._next += 1
        while self._next in copy.beyond:
            self._next += 1
        return piece


async def _end(comm: PieceComm) -> None:
    await comm.send_piece(memoryview(_END.to_bytes(8, "little")))
