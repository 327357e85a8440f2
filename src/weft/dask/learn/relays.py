# SPDX-License-Identifier: BSD-3-Clause
"""Values that go by way of a third worker: who that is, and what it does.

The scheduler knows all links, so it is asked, by whoever gets a large value over a slow one (`weft_route`). The third
is asked to relay (`weft_relay`): it gets the pieces as any other of the value's chain, keeps none that nobody waits
for, and makes no value of them. Whatever fails ends in the direct way, from the piece that is missing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.dask.learn import measured, pieces
from weft.dask.learn.ask import ask
from weft.errors import Error
from weft.links import LinkModel
from weft.links.route import LEAST_NBYTES, Pace, route

if TYPE_CHECKING:
    from distributed.worker import Worker

logger = logging.getLogger("weft")

#: Seconds from which on a transfer is worth a question to the scheduler, and that it and a relay have for the answer.
_WORTH_ASKING_S, _ANSWER_S = 0.25, 2.0
#: Of a link that was never used here nothing is known: values of this size are asked about all the same.
_UNKNOWN_NBYTES = 64 << 20
#: Seconds for which a relay that failed, or was slow, is not taken again.
_AVOIDED_S = 60.0
#: Values that a worker relays at once, and the share of its memory that each may have, or bytes.
_MOST_RELAYED, _SHARE, _MOST_NBYTES = 2, 1 / 8, 4 << 30
#: A direct transfer that takes so many times what was expected is worth another question.
_SLOWER = 4.0
_MOST_AVOIDED = 64
_MOST_FRAMES = 4096


class Through(NamedTuple):
    """A relay that has agreed, and how fast it has to be."""

    worker: str
    pace: Pace


class Relays:
    """One worker's part.

    Parameters
    ----------
    worker : callable
        Returns the worker, or None when it is gone.
    model : LinkModel
        What the worker knows of its links.
    pull : callable
        ``await pull(rpc, parent, chain, copy)`` gets what is still to come of a copy.
    """

    def __init__(self, worker: Callable[[], Worker | None], model: LinkModel, pull: Callable[..., Awaitable[None]]):
        self._worker, self._model, self._pull = worker, model, pull
        self._avoided: dict[str, float] = {}
        self._relaying: dict[str, asyncio.Task[None]] = {}

    # ---- getting ----------------------------------------------------------------------------------------------------

    async def find(
        self, rpc: Any, source: str, chain: str, copy: pieces.Copy, seconds_per_byte: float | None = None
    ) -> Through | None:
        """Find a relay for what is still to come of a copy, and have it begin; None: the direct way is as good.

        Parameters
        ----------
        seconds_per_byte : float, optional
            What a byte takes from the source now, if it is not what was expected.
        """
        here = self._worker()
        nbytes = sum(map(len, copy.pieces[copy.have :]))
        if here is None or nbytes < LEAST_NBYTES or not self._worth_asking(source, nbytes, seconds_per_byte):
            return None
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._find(rpc, here, source, chain, copy, nbytes, seconds_per_byte)
        except (OSError, Error) as e:  # TimeoutError among them
            logger.debug("no relay from %s: %r", source, e)
            return None

    def _worth_asking(self, source: str, nbytes: int, seconds_per_byte: float | None) -> bool:
        here = self._worker()
        assert here is not None, "it asks"
        known = self._model.predict(source, here.address, time.monotonic())
        if known.source in ("kind", "assumed") and nbytes >= _UNKNOWN_NBYTES:
            return True
        return nbytes * (seconds_per_byte or known.seconds_per_byte) >= _WORTH_ASKING_S

    async def _find(
        self,
        rpc: Any,
        here: Worker,
        source: str,
        chain: str,
        copy: pieces.Copy,
        nbytes: int,
        seconds_per_byte: float | None,
    ) -> Through | None:
        now = time.monotonic()
        self._avoided = {worker: until for worker, until in self._avoided.items() if until > now}
        asked = {"source": source, "destination": here.address, "nbytes": nbytes, "avoid": list(self._avoided)}
        told = await _ask(rpc, here.scheduler.address, "weft_route", **asked, seconds_per_byte=seconds_per_byte)
        relay = told.get("relay") if told is not None else None
        if told is None or not isinstance(relay, str) or not relay:
            return None
        sizes = [len(frame) for frame in copy.frames if len(frame) >= pieces.SMALL_NBYTES]
        piece = max(map(len, copy.pieces))
        agreed = await _ask(rpc, relay, "weft_relay", source=source, chain=chain, frames=sizes, piece=piece)
        if agreed is None or agreed.get("status") != "OK":
            self.avoid(relay)
            return None
        expected, direct = told["seconds"] / nbytes, told["direct"]
        logger.debug("%s from %s comes by way of %s", chain, source, relay)
        return Through(relay, Pace(direct, piece, expected, time.monotonic()))

    def direct_pace(self, source: str, copy: pieces.Copy) -> Pace | None:
        """Return how fast the direct way has to be for no relay to be looked for; None if nothing is known of it.

        A link that was never used has not become slow: others, as unknown, would be taken to be faster.
        """
        here = self._worker()
        known = self._model.predict(source, "" if here is None else here.address, time.monotonic())
        if known.source not in ("pair", "hosts"):
            return None
        piece = max(map(len, copy.pieces))
        slow = _SLOWER * known.seconds_per_byte
        return Pace(slow, piece, slow, time.monotonic())

    def avoid(self, relay: str) -> None:
        """Take a worker for no relay for a while."""
        if len(self._avoided) < _MOST_AVOIDED:
            self._avoided[relay] = time.monotonic() + _AVOIDED_S

    # ---- relaying ---------------------------------------------------------------------------------------------------

    def agree(self, source: str, chain: str, sizes: list[int], piece: int, copies: dict[str, pieces.Copy]) -> bool:
        """Begin to relay, if there is room; what is relayed is in `copies` for as long as somebody takes it."""
        worker = self._worker()
        known = copies.get(chain)
        if known is not None:  # what this worker gets for itself may come from whoever asks
            return known.whole or chain in self._relaying
        if worker is None or len(self._relaying) >= _MOST_RELAYED or not self._room(worker, sizes, piece):
            return False
        copy = copies[chain] = pieces.Copy(sizes, piece)
        task = asyncio.ensure_future(self._relay(worker, source, chain, copy))
        self._relaying[chain] = task
        task.add_done_callback(lambda _: self._ended(chain, copy, copies))
        return True

    def _room(self, worker: Worker, sizes: list[int], piece: int) -> bool:
        limit = worker.memory_manager.memory_limit
        most = min(_MOST_NBYTES, limit * _SHARE) if limit else _MOST_NBYTES
        counted = len(sizes) <= _MOST_FRAMES and all(type(n) is int and n >= pieces.SMALL_NBYTES for n in sizes)
        return counted and type(piece) is int and piece >= pieces.SMALL_NBYTES and 0 < sum(sizes) <= most

    async def _relay(self, worker: Worker, source: str, chain: str, copy: pieces.Copy) -> None:
        pulling = asyncio.ensure_future(self._pull(worker.rpc, source, chain, copy))
        idle_s, look_s = 0.0, 0.5
        try:
            while not pulling.done() or copy.users:
                await asyncio.wait({pulling}, timeout=look_s) if not pulling.done() else await asyncio.sleep(look_s)
                idle_s = 0.0 if copy.users else idle_s + look_s
                if idle_s > _ANSWER_S:
                    return
            pulling.result()
        except (OSError, Error, pieces.GoneError) as e:
            logger.debug("%s is not relayed: %r", chain, e)
        finally:
            if not pulling.done():
                pulling.cancel()
                await asyncio.wait({pulling})

    def _ended(self, chain: str, copy: pieces.Copy, copies: dict[str, pieces.Copy]) -> None:
        self._relaying.pop(chain, None)
        if not copy.whole or not copy.users:
            copy.fail()
        if copies.get(chain) is copy:
            del copies[chain]

    def close(self) -> None:
        """Relay nothing any more."""
        for task in list(self._relaying.values()):
            task.cancel()


async def _ask(rpc: Any, address: str, op: str, **what: Any) -> dict[str, Any] | None:
    """Ask a scheduler or worker, if it knows of such questions: of others no answer would come."""
    comm = await rpc.connect(address)
    try:
        if not measured.routes(comm):
            return None
        answer = await ask(comm, op, **what)
        return answer if answer.__class__ is dict else None
    finally:
        rpc.reuse(address, comm)


def name_relay(model: LinkModel, known: Any, **asked: Any) -> dict[str, Any]:
    """Answer a worker's question for a relay; nothing that it says is believed unseen.

    Parameters
    ----------
    known : container of str
        The addresses of the workers that are there.
    """
    source, destination, nbytes = asked["source"], asked["destination"], asked["nbytes"]
    direct, avoid = asked.get("seconds_per_byte"), asked.get("avoid", ())
    if source not in known or destination not in known or type(nbytes) is not int or not 0 < nbytes < 1 << 50:
        return {"relay": ""}
    if direct is not None and not (isinstance(direct, float) and math.isfinite(direct) and direct > 0):
        return {"relay": ""}
    gone = [worker for worker in model.workers() if worker not in known]
    now = time.monotonic()
    found = route(model, source, destination, nbytes, now, direct_seconds_per_byte=direct, avoid={*avoid, *gone})
    if found is None:
        return {"relay": ""}
    return {"relay": found.worker, "seconds": found.seconds, "direct": found.direct_seconds_per_byte}
