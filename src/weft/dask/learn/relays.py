# SPDX-License-Identifier: BSD-3-Clause
"""Relays: large values that reach a worker through a third one.

The scheduler knows all links, so a worker that receives a large value over a slow link asks it for a relay
(`weft_route`). The worker then asks the relay (`weft_relay`), which receives the pieces like any member of the value's
chain, drops those that nobody waits for, and builds no value from them. After any failure the receiver continues on the
direct path, from the missing piece.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.core import send_recv

from weft.dask.learn import measured, pieces
from weft.errors import Error
from weft.links import LinkModel
from weft.links.route import LEAST_NBYTES, Pace, route

if TYPE_CHECKING:
    from distributed.worker import Worker

logger = logging.getLogger("weft")

#: Shorter transfers are not worth asking the scheduler; timeout for its answer and that of a relay. Seconds.
_WORTH_ASKING_S, _ANSWER_S = 0.25, 2.0
#: Values of this size are asked about even if the link was never used here, so that nothing is known of it.
_UNKNOWN_NBYTES = 64 << 20
#: Seconds for which a relay that failed or was slow is not used again.
_AVOIDED_S = 60.0
#: Values that a worker relays at once; the most memory of each, as a share of its limit, and in bytes.
_MOST_RELAYED, _SHARE, _MOST_NBYTES = 2, 1 / 8, 4 << 30
#: A direct transfer that is this many times slower than predicted is worth asking again.
_SLOWER = 4.0
_MOST_AVOIDED = 64
_MOST_FRAMES = 4096


class Through(NamedTuple):
    """A relay that has agreed, and the pace that it must keep."""

    worker: str
    pace: Pace


class Relays:
    """Finds relays for a worker, and relays values itself.

    Parameters
    ----------
    worker : callable
        Returns the worker, or None after it has ended.
    model : LinkModel
        The worker's measurements of its links.
    pull : callable
        ``await pull(rpc, parent, chain, copy)`` receives the missing pieces of a copy.
    """

    def __init__(self, worker: Callable[[], Worker | None], model: LinkModel, pull: Callable[..., Awaitable[None]]):
        self._worker, self._model, self._pull = worker, model, pull
        self._avoided: dict[str, float] = {}
        self._relaying: dict[str, asyncio.Task[None]] = {}

    # ---- receiving ---------------------------------------------------------------------------------------------------

    async def find(
        self, rpc: Any, source: str, chain: str, copy: pieces.Copy, seconds_per_byte: float | None = None
    ) -> Through | None:
        """Find a relay for the missing pieces of a copy, and start it. None: the direct path is as good.

        Parameters
        ----------
        seconds_per_byte : float, optional
            Measured seconds per byte from the source, if they differ from the prediction.
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
        logger.debug("%s from %s comes through %s", chain, source, relay)
        return Through(relay, Pace(direct, piece, expected, time.monotonic()))

    def direct_pace(self, source: str, copy: pieces.Copy) -> Pace | None:
        """Return the pace below which a relay is looked for; None if nothing is known of the direct link.

        A link that was never used cannot have become slow; other unknown links would then be taken for faster.
        """
        here = self._worker()
        known = self._model.predict(source, "" if here is None else here.address, time.monotonic())
        if known.source not in ("pair", "hosts"):
            return None
        piece = max(map(len, copy.pieces))
        slow = _SLOWER * known.seconds_per_byte
        return Pace(slow, piece, slow, time.monotonic())

    def avoid(self, relay: str) -> None:
        """Do not use a worker as relay for a while."""
        if len(self._avoided) < _MOST_AVOIDED:
            self._avoided[relay] = time.monotonic() + _AVOIDED_S

    # ---- relaying ---------------------------------------------------------------------------------------------------

    def agree(self, source: str, chain: str, sizes: list[int], piece: int, copies: dict[str, pieces.Copy]) -> bool:
        """Start to relay, if there is room. The copy stays in `copies` while others receive it."""
        worker = self._worker()
        known = copies.get(chain)
        if known is not None:  # a value that this worker receives for itself may come from the worker that asks
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
        """Stop relaying."""
        for task in list(self._relaying.values()):
            task.cancel()


async def _ask(rpc: Any, address: str, op: str, **what: Any) -> dict[str, Any] | None:
    """Ask a scheduler or worker that supports relays; others would not answer."""
    comm = await rpc.connect(address)
    try:
        if not measured.routes(comm):
            return None
        answer = await send_recv(comm, op=op, **what)
        return answer if answer.__class__ is dict else None
    finally:
        rpc.reuse(address, comm)


def relay_of_large(model: LinkModel, source: str, destination: str, now_s: float) -> str:
    """Return the worker through which a large value is predicted to come, as of now; empty if it comes directly."""
    if model.seconds(source, destination, _UNKNOWN_NBYTES, now_s) < _WORTH_ASKING_S:
        return ""
    found = route(model, source, destination, _UNKNOWN_NBYTES, now_s)
    return found.worker if found is not None else ""


def name_relay(model: LinkModel, known: Any, **asked: Any) -> dict[str, Any]:
    """Answer a worker that asks for a relay. Every value of the question is validated.

    Parameters
    ----------
    known : container of str
        The addresses of the current workers.
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
