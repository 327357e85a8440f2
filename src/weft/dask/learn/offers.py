# SPDX-License-Identifier: BSD-3-Clause
"""The sending side of chains: values that a worker offers to others, and its pieces of any value.

A value is offered, with its own chain (``weft.links.fanout``), when a worker first asks for it, and for as long as it
is wanted. The receiving side is in ``fanout``; ``pieces`` sends and receives pieces.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, cast

from distributed.comm.utils import to_frames
from distributed.core import Status
from distributed.protocol import Serialize
from distributed.utils import nbytes

from weft._frames import HOST
from weft.dask.learn import measured, pieces, slices
from weft.dask.learn.hosts import place_of
from weft.dask.offload import write_offloads
from weft.links.fanout import LEAST_NBYTES, Chain, piece_nbytes

logger = logging.getLogger("weft")

#: Limits of what the answer to a join carries; a value with more small frames is sent by Dask's own request.
_MOST_SMALL_NBYTES, _MOST_FRAMES = 1 << 20, 4096
#: Seconds for which a copy, and a finished chain, are kept for late workers.
_LINGER_S = 2.0
#: A chain that a worker still seems to wait for is kept for this long, or this many times as long as it took so far.
_MOST_S, _MOST_TIMES = 60.0, 4.0


class _Offered(NamedTuple):
    """A value that this worker offers: its chain, with a unique name, and its frames."""

    name: str
    chain: Chain
    copy: pieces.Copy
    announced: list[Any]
    since_s: float


class Offers:
    """The values that one worker offers.

    Parameters
    ----------
    worker : callable
        Returns the worker, or None after it has ended.
    counts : dict
        Counters; ``pieces`` is incremented.

    Attributes
    ----------
    copies : dict
        The pieces that are here, by the name of their chain.
    """

    def __init__(self, worker: Callable[[], Any], counts: dict[str, int]) -> None:
        self._worker, self._counts = worker, counts
        self._offers: dict[Any, asyncio.Future[_Offered | None]] = {}
        self._numbers = itertools.count()
        self.copies: dict[str, pieces.Copy] = {}

    async def join(
        self,
        who: str,
        keys: Collection[Any],
        rates: dict[str, float],
        failed: Collection[str] = (),
        chain: str = "",
        beside: int = 0,
    ) -> dict[str, Any]:
        """Return from which worker to get each large value, at first or after parents have failed."""
        worker = self._worker()
        assert worker is not None, "it asks"
        answers: list[Any] = []
        default = rates.get("", 1e-9)
        for key in keys:
            offered = await self._offered(key, chain)
            if offered is None:
                continue
            host, now = place_of(who).host, time.monotonic()
            parent = offered.chain.join(
                who,
                host,
                lambda h: rates.get(h, default),
                now,
                failed=failed,
                beside_nbytes=beside,
                source_sends=measured.sends(),
            )
            if parent is None:
                continue
            if parent.name == worker.address and _is_busy(worker):
                offered.chain.leave(who)
                return {"status": "busy"}
            logger.debug("%r for %s comes from %s", key, who, parent)
            answer: dict[str, Any] = {"chain": offered.name, "parent": parent.name, "lent": parent.lent}
            if not chain:
                answer["frames"] = offered.announced
                answer["piece"] = piece_nbytes(offered.chain.nbytes)
            answers.append((key, answer))
        return {"status": "OK", "answers": answers}

    async def _offered(self, key: Any, chain: str) -> _Offered | None:
        """Return the offer of a key; make one, unless the worker asks for an earlier chain."""
        known = self._offers.get(key)
        if known is None:
            if chain:
                return None
            known = self._offers[key] = asyncio.ensure_future(self._offer(key))
        offered = None
        try:
            offered = await asyncio.shield(known)
        finally:
            if offered is None and known.done():
                self._offers.pop(key, None)
        return offered if not chain or offered is None or offered.name == chain else None

    async def _offer(self, key: Any) -> _Offered | None:
        worker = self._worker()
        assert worker is not None, "it asks"
        ts = worker.state.tasks.get(key)
        if ts is None or key not in worker.data or key in worker.state.actors or ts.get_nbytes() < LEAST_NBYTES:
            return None
        value = worker.data[key]
        offload = write_offloads({"data": {key: value}})
        as_it_is = {"compression": None}  # otherwise Dask compresses with any installed codec
        frames = await to_frames(
            {"data": _to_serialize(value)}, allow_offload=offload, context=as_it_is, frame_split_size=2**62
        )
        small = [nbytes(frame) for frame in frames if nbytes(frame) < pieces.SMALL_NBYTES]
        if len(frames) > _MOST_FRAMES or sum(small) > _MOST_SMALL_NBYTES:
            return None
        if not all(isinstance(frame, HOST) and memoryview(cast("Any", frame)).contiguous for frame in frames):
            return None
        size = sum(map(nbytes, frames))
        copy = pieces.Copy(frames, piece_nbytes(size))
        if len(copy.pieces) < 2:
            return None
        copy.value = value
        here = worker.address
        name = f"{here} {next(self._numbers)}"
        self.copies[name] = copy
        offered = _Offered(
            name, Chain(here, place_of(here).host, size), copy, pieces.announce(frames), time.monotonic()
        )
        _later(_LINGER_S, self._drop_offer, key, offered, time.monotonic())
        return offered

    def _drop_offer(self, key: Any, offered: _Offered, since: float) -> None:
        """Drop an offer that nobody wants any more; `since` is when a worker last received pieces from this one."""
        now = time.monotonic()
        if offered.copy.users:
            since = now
        most = max(_MOST_S, _MOST_TIMES * (since - offered.since_s))
        if offered.copy.users or (offered.chain.under_way and now - since < most):
            _later(_LINGER_S, self._drop_offer, key, offered, since)
            return
        self._offers.pop(key, None)
        self.copies.pop(offered.name, None)

    def linger(self, name: str) -> None:
        """Keep a copy for late workers, for a short time."""
        _later(_LINGER_S, self._drop_copy, name)

    def _drop_copy(self, name: str) -> None:
        copy = self.copies.get(name)
        if copy is not None and copy.users:
            self.linger(name)
        else:
            self.copies.pop(name, None)

    async def hand_on(self, comm: Any, chain: str, begin: int, who: str) -> Any:
        """Send the pieces of a value from number `begin` on, as they arrive, to the worker `who`."""
        copy, worker = self.copies.get(chain), self._worker()
        if copy is None or worker is None or copy.failed or not 0 <= begin < len(copy.pieces):
            return {"status": "gone"}
        copy.users += 1
        copy.receivers += 1
        worker.transfer_outgoing_count += 1
        worker.transfer_outgoing_count_total += 1
        try:
            await comm.write({"status": "OK", "whole": copy.whole})
            await pieces.send(comm, copy, begin)
            self._counts["pieces"] += len(copy.pieces) - begin
        except (OSError, pieces.GoneError) as e:  # the receiver joins again, with another parent
            logger.debug("pieces for %s: %r", comm.peer_address, e)
            comm.abort()
            self.took(chain, who, whole=False)  # until it asks again, if it lives
        finally:
            copy.users -= 1
            copy.receivers -= 1
            worker.transfer_outgoing_count -= 1
        return Status.dont_reply

    async def hand_slices(self, comm: Any, chain: str, flow: int, who: str) -> Any:
        """Send the requested pieces of a value as they arrive to `who`; `flow` 0 is the first comm of a transfer."""
        copy, worker = self.copies.get(chain), self._worker()
        if copy is None or worker is None or copy.failed:
            return {"status": "gone"}
        copy.users += 1
        copy.receivers += not flow
        worker.transfer_outgoing_count += not flow
        worker.transfer_outgoing_count_total += not flow
        try:
            await comm.write({"status": "OK", "whole": copy.whole, "alone": not measured.sends()})
            sent = await slices.send(comm, copy, counted=not flow)
            self._counts["pieces"] += sent
        except (OSError, pieces.GoneError) as e:
            logger.debug("slices for %s: %r", comm.peer_address, e)
            comm.abort()
            if not flow:
                self.took(chain, who, whole=False)
        finally:
            copy.users -= 1
            copy.receivers -= not flow
            worker.transfer_outgoing_count -= not flow
        return Status.dont_reply

    async def lend(self, comm: Any, chain: str, who: str) -> Any:
        """Send a value to the worker `who` of this host when it is complete; the comm lends it."""
        copy = self.copies.get(chain)
        if copy is None:
            return {"status": "gone"}
        copy.users += 1
        try:
            value = await copy.made()
            await comm.write({"status": "OK", "data": {"": _to_serialize(value)}})
            await comm.read()
        except pieces.GoneError:
            return {"status": "gone"}
        except OSError as e:
            logger.debug("a value for %s: %r", comm.peer_address, e)
            comm.abort()
            self.took(chain, who, whole=False)
        finally:
            copy.users -= 1
        return Status.dont_reply

    def took(self, chain: str, who: str, *, whole: bool) -> None:
        """Record that a member has all of a value, or no longer wants it."""
        for known in self._offers.values():
            offered = known.result() if known.done() and not known.cancelled() and known.exception() is None else None
            if offered is not None and offered.name == chain:
                if whole:
                    offered.chain.has_it(who)
                else:
                    offered.chain.leave(who)

    def close(self) -> None:
        """Withdraw all offers; workers that still receive pieces fail over."""
        for copy in self.copies.values():
            copy.fail()
        self.copies.clear()
        self._offers.clear()


def _later(seconds: float, function: Callable[..., None], *arguments: Any) -> None:
    asyncio.get_running_loop().call_later(seconds, function, *arguments)


def _to_serialize(value: object) -> Any:
    return cast("Any", Serialize)(value)


def _is_busy(worker: Any) -> bool:
    """Return whether Dask would refuse another request for values (worker.py:1641)."""
    most = worker.transfer_outgoing_count_limit
    return bool(most is not False and worker.transfer_outgoing_count >= most)
