# SPDX-License-Identifier: BSD-3-Clause
"""Fan-out: a large value that several workers fetch passes from worker to worker, and once to each host.

A worker that wants such a value asks its holder to join (`weft_join`). The holder answers with the small frames, the
sizes of the large ones, and the parent to get them from: itself, or another worker that is receiving them now
(``weft.links.fanout`` decides). `weft_pieces` sends the pieces, starting with the first missing one; a worker on the
parent's host waits for the whole value and borrows it (`weft_borrow`). Over a slow link pieces may come through a third
worker (``relays``) and over several connections (``slices``). A worker that loses its parent joins again, and those
behind it just wait. All other failures end in Dask's own request to the holder, as do smaller values. The sending side
is in ``offers``; ``pieces`` sends and receives pieces.

Values must not be changed in place, as Dask demands: this worker may be sending the input of a task to others.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any

from distributed.comm.core import connect
from distributed.comm.utils import from_frames
from distributed.core import send_recv

from weft.dask.learn import measured, pieces, relays, slices
from weft.dask.learn.arrivals import Arrivals, Turn
from weft.dask.learn.hosts import place_of
from weft.dask.learn.offers import Offers
from weft.dask.offload import read_offloads
from weft.links import LinkModel
from weft.links.fanout import LEAST_NBYTES
from weft.links.flows import Flows
from weft.links.route import Pace

if TYPE_CHECKING:
    from distributed.worker import Worker

logger = logging.getLogger("weft")

#: Seconds without a piece after which a parent is asked whether it is alive; also the timeout for its answer.
_STALLED_S = 10.0
#: Seconds to connect to the source again, or to a parent: it may be dead, and Dask's own connect would try for 30 s.
_REJOIN_S = 3.0
_BUSY_S = 0.15
#: A transfer predicted to take this long, or this large, may use several connections.
_SLICED_S, _SLICED_NBYTES = 1.0, 64 << 20
#: The holder is told the measured rates of this many hosts.
_MOST_HOSTS = 64

Fetch = Callable[..., Awaitable[dict[str, Any]]]
#: Called with the current seconds per byte; returns whether to give a transfer up.
Slow = Callable[[float], Awaitable[bool]]
Keeping = tuple[Pace, Slow]


class _SourceLostError(OSError):
    """The holder that Dask chose is lost: Dask asks another, or has the value computed again."""


class _SlowError(pieces.GoneError):
    """The transfer was given up because it is slow."""


async def _always(_: float) -> bool:
    return True


@functools.cache
def _warn() -> None:
    logger.warning("fan-out failed; the value is fetched by Dask's own request instead", exc_info=True)


class Fanout:
    """The part of one worker in all chains.

    Parameters
    ----------
    worker : Worker
    model : LinkModel
        The worker's measurements of its links.

    Attributes
    ----------
    counts : dict
        Values that were ``received`` in pieces or ``borrowed``, ``pieces`` that were sent, parents that were ``lost``,
        and values that Dask's own request fetched in the end (``given_up``). Values that started ``by_relay``, relays
        that were lost or too slow (``relays_lost``), and additional connections that were opened (``flows``).
    flows : Flows
        The number of connections for values of each host.
    """

    def __init__(self, worker: Worker, model: LinkModel) -> None:
        self._worker: Callable[[], Any] = weakref.ref(worker)
        self._model = model
        self._telling: set[asyncio.Task[None]] = set()
        self._pulling = 0
        self.flows = Flows()
        self._arrivals = Arrivals()
        self._relays = relays.Relays(self._worker, model, self._pull)
        counted = ("received", "borrowed", "pieces", "lost", "given_up", "by_relay", "relays_lost", "flows")
        self.counts: dict[str, int] = dict.fromkeys(counted, 0)
        self.offers = Offers(self._worker, self.counts)

    def relay(self, source: str, chain: str, frames: list[int], piece: int) -> dict[str, Any]:
        """Agree or decline to relay a value that this worker does not want itself."""
        agreed = self._relays.agree(source, chain, frames, piece, self.offers.copies)
        return {"status": "OK" if agreed else "no"}

    # ---- receiving ---------------------------------------------------------------------------------------------------

    async def fetch(self, stock: Fetch, *, rpc: Any, keys: Collection[Any], worker: str, **options: Any) -> Any:
        """Replace Dask's ``get_data_from_worker``, which still fetches values that are not sent in pieces."""
        here = self._worker()
        large = self._large(keys)
        if here is None or not large or place_of(worker).host == place_of(here.address).host:
            return await stock(rpc=rpc, keys=keys, worker=worker, **options)
        tasks = [ts for key in large if (ts := here.state.tasks.get(key)) is not None]
        async with self._arrivals.turn(here.address, worker, tasks) as turn:
            answer = await self._join(rpc, worker, large)
            if answer.get("status") == "busy":
                return answer
            if all(told["lent"] for _, told in answer.get("answers", ())):  # nothing comes through the port
                turn.end()
            took = await self._get_all(rpc, worker, answer.get("answers", ()), options.get("deserializers"), turn)
        rest = [key for key in keys if key not in took]
        if not rest:
            return {"status": "OK", "data": took}
        response = await stock(rpc=rpc, keys=rest, worker=worker, **options)
        while took and response["status"] == "busy":
            await asyncio.sleep(_BUSY_S)
            response = await stock(rpc=rpc, keys=rest, worker=worker, **options)
        if took:
            response["data"].update(took)
        return response

    async def _join(self, rpc: Any, worker: str, keys: list[Any]) -> dict[str, Any]:
        """Ask a holder from where to get values."""
        comm = await rpc.connect(worker)
        try:
            joins = comm.remote_info.get(measured.JOINS)
            if not joins:
                return {}
            return await self._ask(
                comm, "weft_join", keys=keys, rates=self._rates(worker), **self._beside(worker, joins)
            )
        except OSError:  # Dask handles it
            raise
        except Exception:  # noqa: BLE001 - Dask has its own way to fetch it
            _warn()
            return {}
        finally:
            rpc.reuse(worker, comm)

    def _beside(self, source: str, joins: object) -> dict[str, int]:
        """Return what to tell a holder of what comes from others, if the holder's version understands it."""
        understood = isinstance(joins, int) and joins >= measured.BESIDE
        return {"beside": self._arrivals.beside(source)} if understood else {}

    async def _get_all(
        self, rpc: Any, worker: str, answers: Collection[Any], deserializers: Any, turn: Turn
    ) -> dict[Any, Any]:
        """Receive values as their holder has answered; those that Dask's own request must fetch are left out."""
        each = (self._get(rpc, worker, key, told, deserializers, turn) for key, told in answers)
        got = await asyncio.gather(*each, return_exceptions=True)
        took: dict[Any, Any] = {}
        for (key, _), value in zip(answers, got, strict=True):
            if isinstance(value, BaseException):
                raise value
            if value is not None:
                took[key] = value[0]
        return took

    def _large(self, keys: Collection[Any]) -> list[Any]:
        """Return the keys that may be large; if this worker does not know the size of a key, its holder does."""
        here = self._worker()
        assert here is not None, "it asks"
        tasks = here.state.tasks
        return [key for key in keys if (ts := tasks.get(key)) is None or ts.nbytes is None or ts.nbytes >= LEAST_NBYTES]

    def _rates(self, source: str) -> dict[str, float]:
        """Return the known seconds per byte to here, by host; "" is for the holder's, and for unknown hosts."""
        here, now = self._address(), time.monotonic()
        model = self._model
        rates: dict[str, float] = {"": model.predict(source, here, now).seconds_per_byte}
        for other, place in list(model.workers().items())[: 4 * _MOST_HOSTS]:
            if place.host not in rates and len(rates) < _MOST_HOSTS:
                known = model.predict(other, here, now)
                if known.source in ("pair", "hosts"):
                    rates[place.host] = known.seconds_per_byte
        return rates

    def _address(self) -> str:
        here = self._worker()
        return "" if here is None else here.address

    async def _ask(self, comm: Any, op: str, **what: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await send_recv(comm, op=op, who=self._address(), **what)
        return answer

    async def _get(
        self, rpc: Any, source: str, key: Any, told: dict[str, Any], deserializers: Any, turn: Turn
    ) -> tuple[Any] | None:
        """Receive one value, whichever workers die meanwhile; None: Dask's own request must fetch it."""
        chain = told["chain"]
        try:
            known = self.offers.copies.get(chain)
            if known is not None:  # another request of this worker is for the same value
                return (await known.made(),)
            value = await self._follow(rpc, source, key, told, deserializers, turn)
        except _SourceLostError:
            self.counts["given_up"] += 1
            raise
        except Exception as e:  # noqa: BLE001 - Dask has its own way to fetch it
            logger.debug("%r comes as Dask has it: %r", key, e)
            if not isinstance(e, OSError | pieces.GoneError):
                _warn()
            self.counts["given_up"] += 1
            if isinstance(e, OSError):  # lost, or only the comm?
                rpc.reuse(source, await self._again(rpc, source))
            self._tell(rpc, source, chain, whole=False)
            return None
        self._tell(rpc, source, chain, whole=True)
        return (value,)

    async def _follow(
        self, rpc: Any, source: str, key: Any, told: dict[str, Any], deserializers: Any, turn: Turn
    ) -> Any:
        chain, failed = told["chain"], list[str]()
        frames, piece = told["frames"], told["piece"]
        parent, lent = told["parent"], told["lent"]
        copy: pieces.Copy | None = None
        try:
            while True:
                try:
                    if lent:
                        return await self._borrow(rpc, parent, chain, deserializers)
                    if copy is None:
                        copy = self.offers.copies[chain] = pieces.Copy(frames, piece, turn.landed)
                    await self._come(rpc, source, parent, chain, copy)
                    break
                except (OSError, pieces.GoneError) as e:
                    if parent == source and isinstance(e, OSError):
                        raise
                    logger.debug("%r: lost %s: %r", key, parent, e)
                    self.counts["lost"] += 1
                    failed.append(parent)
                parent, lent = await self._join_again(rpc, source, key, chain, failed)
            return await self._make(copy, deserializers)
        except BaseException:
            if copy is not None:
                self.offers.copies.pop(chain, None)
                copy.fail()
            raise
        finally:
            if copy is not None:
                self.offers.linger(chain)

    async def _come(self, rpc: Any, source: str, parent: str, chain: str, copy: pieces.Copy) -> None:
        """Receive the missing pieces from a parent, on the path that is predicted to be fastest."""
        if parent != source or self._arrivals.beside(source):  # it receives the value itself, or the port is shared
            await self._pull(rpc, parent, chain, copy)
            return
        through = await self._relays.find(rpc, source, chain, copy)
        while True:
            if through is not None:
                self.counts["by_relay"] += 1
                relay = through.worker
                try:
                    await self._pull(rpc, relay, chain, copy, (through.pace, _always))
                    return
                except (OSError, pieces.GoneError) as e:
                    logger.debug("%s: not by way of %s any more: %r", chain, relay, e)
                    self.counts["relays_lost"] += 1
                    self._relays.avoid(relay)
            found: list[relays.Through] = []

            async def slow(seconds_per_byte: float, found: list[relays.Through] = found) -> bool:
                other = await self._relays.find(rpc, source, chain, copy, seconds_per_byte)
                found += [other] if other is not None else []
                return bool(found)

            try:
                pace = self._relays.direct_pace(source, copy)
                await self._pull(rpc, source, chain, copy, None if pace is None else (pace, slow))
                return
            except _SlowError:
                through = found[0]

    async def _join_again(
        self, rpc: Any, source: str, key: Any, chain: str, failed: Collection[str]
    ) -> tuple[str, bool]:
        while True:
            comm = await self._again(rpc, source)
            try:
                rates = self._rates(source)
                told = self._beside(source, comm.remote_info.get(measured.JOINS))
                answer = await self._ask(comm, "weft_join", keys=[key], rates=rates, failed=failed, chain=chain, **told)
            finally:
                rpc.reuse(source, comm)
            if answer["status"] != "busy":
                break
            await asyncio.sleep(_BUSY_S)
        if not answer["answers"]:
            raise pieces.GoneError
        told = answer["answers"][0][1]
        return told["parent"], told["lent"]

    async def _again(self, rpc: Any, source: str) -> Any:
        """Connect to the source again, or raise that it is lost."""
        try:
            return await rpc.connect(source, timeout=_REJOIN_S)
        except OSError as e:
            raise _SourceLostError(str(e)) from e

    async def _make(self, copy: pieces.Copy, deserializers: Any) -> Any:
        size = sum(map(len, copy.frames))
        offload = read_offloads(copy.frames, size)
        message = await from_frames(copy.frames, deserializers=deserializers, allow_offload=offload)
        copy.value = message["data"]
        copy.change()
        self.counts["received"] += 1
        return copy.value

    async def _pull(self, rpc: Any, parent: str, chain: str, copy: pieces.Copy, keeping: Keeping | None = None) -> None:
        comm = await rpc.connect(parent, timeout=_timeout_to(parent, chain))
        self._pulling += 1
        try:
            sliced = measured.routes(comm) and self._may_slice(parent, copy)
            if sliced:
                answer = await send_recv(comm, op="weft_slices", chain=chain, who=self._address())
            else:
                answer = await send_recv(comm, op="weft_pieces", chain=chain, begin=copy.have, who=self._address())
            if answer["status"] != "OK":
                raise pieces.GoneError
            if sliced:
                coming = self._slices(rpc, comm, parent, chain, copy, answer)
            else:
                coming = pieces.receive(comm, copy, timed=answer["whole"])
            if keeping is not None:
                coming = self._at_pace(coming, copy, *keeping)
            await self._watch(rpc, parent, coming, lambda: copy.have)
        finally:
            self._pulling -= 1
            rpc.reuse(parent, comm)

    def _may_slice(self, parent: str, copy: pieces.Copy) -> bool:
        nbytes = sum(map(len, copy.pieces[copy.have :]))
        if self.flows.best(place_of(parent).host) > 1 or nbytes >= _SLICED_NBYTES:
            return True
        known = self._model.predict(parent, self._address(), time.monotonic())
        return nbytes * known.seconds_per_byte >= _SLICED_S

    async def _slices(
        self, rpc: Any, comm: Any, parent: str, chain: str, copy: pieces.Copy, answer: dict[str, Any]
    ) -> None:
        host, model = place_of(parent).host, self._model
        egress = model.port_seconds_per_byte("egress", host)
        port = max(egress, model.port_seconds_per_byte("ingress", place_of(self._address()).host))
        nbytes = sum(map(len, copy.pieces[copy.have :]))
        alone = self._pulling == 1 and bool(answer.get("alone")) and bool(answer.get("whole"))
        trial = self.flows.begin(host, nbytes, may_try=alone, port_Bps=1 / port if port else 0.0)

        async def another(number: int) -> Any:
            other = await connect(parent, deserialize=rpc.deserialize, weft_flow=number, **rpc.connection_args)
            self.counts["flows"] += 1
            told = await send_recv(other, op="weft_slices", chain=chain, flow=number)
            if told["status"] != "OK":
                other.abort()
                raise OSError(f"{parent} has no {chain}")
            return other

        receiving = slices.Receiving(copy, trial, another)
        await receiving.run(comm, timed=bool(answer["whole"]))
        if receiving.ending is not None:
            self._background(receiving.ending)

    async def _at_pace(self, coming: Coroutine[Any, Any, None], copy: pieces.Copy, pace: Pace, slow: Slow) -> None:
        """Await pieces while they keep the pace; when they do not, ask whether to give up.

        Raises
        ------
        _SlowError
            The transfer was given up.
        """
        task = asyncio.ensure_future(coming)
        try:
            while not task.done():
                before, began = copy.have_nbytes, time.monotonic()
                await asyncio.wait({task}, timeout=pace.window_s)
                now = time.monotonic()
                if task.done() or pace.kept(copy.have_nbytes, now):
                    continue
                if await slow((now - began) / max(1, copy.have_nbytes - before)) and not task.done():
                    raise _SlowError
            task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _borrow(self, rpc: Any, parent: str, chain: str, deserializers: Any) -> Any:
        comm = await rpc.connect(parent, timeout=_timeout_to(parent, chain))
        try:
            asked = send_recv(comm, op="weft_borrow", chain=chain, who=self._address(), deserializers=deserializers)
            answer = await self._watch(rpc, parent, asked, lambda: 0)
            if answer["status"] != "OK":
                raise pieces.GoneError
            await comm.write("OK")
        finally:
            rpc.reuse(parent, comm)
        self.counts["borrowed"] += 1
        return answer["data"][""]

    async def _watch(self, rpc: Any, parent: str, coming: Coroutine[Any, Any, Any], progress: Callable[[], int]) -> Any:
        """Await something from a parent; without progress, only while the parent says that it is alive.

        Raises
        ------
        OSError
            The parent is lost, or does not answer.
        """
        task = asyncio.ensure_future(coming)
        try:
            while True:
                before = progress()
                done, _ = await asyncio.wait({task}, timeout=_STALLED_S)
                if done:
                    return task.result()
                if progress() == before:
                    async with asyncio.timeout(_STALLED_S):
                        await rpc(parent).weft_there()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def _tell(self, rpc: Any, source: str, chain: str, *, whole: bool) -> None:
        self._background(asyncio.ensure_future(self._tell_one(rpc, source, chain, whole)))

    def _background(self, task: asyncio.Task[None]) -> None:
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_one(self, rpc: Any, source: str, chain: str, whole: bool) -> None:
        try:
            await rpc(source).weft_took(chain=chain, who=self._address(), whole=whole)
        except (OSError, RuntimeError) as e:  # the holder forgets the chain by itself; or this worker closes
            logger.debug("%s was not told of %s: %r", source, chain, e)

    def close(self) -> None:
        """Stop sending and relaying."""
        self._relays.close()
        self.offers.close()


def _timeout_to(parent: str, chain: str) -> float | None:
    source = chain.rpartition(" ")[0]
    return None if parent == source else _REJOIN_S
