# SPDX-License-Identifier: BSD-3-Clause
"""A large value that several workers want goes from one to the next, whoever dies; at worst it comes as Dask has it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest
from distributed import Worker, core
from distributed.comm import CommClosedError
from tests.dask.hosts import NBYTES, Hosts, MiB, hosts, run, total

from weft.dask.learn import fanout, measured, offers, pieces
from weft.links.model import LinkModel


@pytest.fixture(autouse=True)
def no_lending_between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """These hosts are one process, which shares one report: what is lent within one would count for all of them."""
    monkeypatch.setattr(LinkModel, "observe_lent", lambda *_: True)


@pytest.fixture(autouse=True)
def short_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_LINGER_S", 0.05)


def hold_until_joined(monkeypatch: pytest.MonkeyPatch, here: Hosts, future: Any, members: int) -> None:
    """Let no worker send pieces before so many have joined: those that are late may get the value by another chain."""
    stock = pieces.send

    async def send(comm: Any, copy: Any, begin: int) -> None:
        while len(here.part(0).offers._offers[future.key].result().chain._members) < members:
            await asyncio.sleep(0.001)
        await stock(comm, copy, begin)

    monkeypatch.setattr(pieces, "send", send)


def test_a_value_goes_once_into_each_host_and_is_lent_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with hosts(6) as here:
            future = await here.made()
            hold_until_joined(monkeypatch, here, future, 4)
            await here.summed(future, 2, 3, 4, 5)
            assert sum(here.count("received")) == 2
            assert sum(here.count("borrowed")) == 2
            assert sum(here.count("pieces")) == 2 * 16
            assert here.count("pieces")[0] == 16, "the one that made it sent it once"
            assert sum(here.count("lost")) == sum(here.count("given_up")) == 0
            async with asyncio.timeout(30):
                while any(here.part(i).offers.copies or here.part(i).offers._offers for i in range(6)):
                    await asyncio.sleep(0.01)

    run(test)


def test_copies_go_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with hosts(6) as here:
            future = await here.made()
            hold_until_joined(monkeypatch, here, future, 4)
            await here.client.replicate(future)
            assert len((await here.client.who_has(future))[future.key]) == 6
            assert here.count("pieces")[0] == 16
            assert sum(here.count("received")) == 2
            await here.summed(future, *range(6))

    run(test)


def test_one_that_comes_late_gets_the_value_from_those_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = offers.Offers.join

    async def test() -> None:
        async with hosts(6) as here:

            async def join(self: Any, who: str, *args: Any, **what: Any) -> Any:
                while "127.0.0.4" in who and sum(here.count("received")) < 1:
                    await asyncio.sleep(0.001)
                return await stock(self, who, *args, **what)

            monkeypatch.setattr(offers, "_LINGER_S", 2.0)
            monkeypatch.setattr(offers.Offers, "join", join)
            future = await here.made()
            await here.client.replicate(future)
            assert sum(here.count("received")) == 2
            assert here.count("pieces")[0] == 16, "the one that made it sent it once"

    run(test)


def test_those_behind_a_dead_one_go_on_with_the_piece_that_they_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []
    coming: list[pieces.Copy] = []
    stock, stock_receive, stock_hand_on = pieces.send, pieces.receive, offers.Offers.hand_on

    async def receive(comm: Any, copy: Any, *, timed: bool) -> None:
        coming.append(copy)
        await stock_receive(comm, copy, timed=timed)

    async def send(comm: Any, copy: Any, begin: int) -> None:
        if copy.value is not None and len(begins) == 1:  # the first: it stops until the second is dead
            halted = pieces.Copy(copy.frames, MiB)
            halted.have = 5
            sending = asyncio.ensure_future(stock(comm, halted, begin))
            while len(begins) < 4:
                await asyncio.sleep(0.001)
            halted.have = copy.have
            halted.change()
            await sending
        elif copy.value is None and len(begins) == 2:  # the second
            for number in range(5):
                await comm.send_piece(await copy.until(number))
            while min(each.have for each in coming) < 3:
                await asyncio.sleep(0.001)
            raise pieces.GoneError
        else:
            await stock(comm, copy, begin)

    async def hand_on(self: Any, comm: Any, chain: str, begin: int, who: str) -> Any:
        begins.append(begin)
        return await stock_hand_on(self, comm, chain, begin, who)

    monkeypatch.setattr(pieces, "receive", receive)
    monkeypatch.setattr(pieces, "send", send)
    monkeypatch.setattr(offers.Offers, "hand_on", hand_on)

    async def test() -> None:
        async with hosts(8) as here:
            future = await here.made()
            await here.summed(future, 2, 4, 6)
            assert sum(here.count("received")) == 3
            assert sum(here.count("given_up")) == 0
            assert sum(here.count("lost")) == 1
            assert sum(3 <= begin <= 5 for begin in begins) == 1, begins

    run(test)


def test_a_receiver_that_was_lost_is_nobodys_parent_and_holds_no_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor on the host would try to connect to it for 30 s, and the source would keep the value for 60."""
    chains: list[Any] = []

    async def dead(*_: object) -> None:
        await asyncio.sleep(100)

    async def test() -> None:
        async with hosts(4) as here:
            future = await here.made()

            async def send(*_: object) -> None:
                chains.append(here.part(0).offers._offers[future.key].result().chain)
                assert chains[0].under_way
                raise CommClosedError("the process was killed")

            monkeypatch.setattr(pieces, "send", send)
            monkeypatch.setattr(fanout.Fanout, "_tell_one", dead)
            summing = asyncio.ensure_future(here.summed(future, 2))
            async with asyncio.timeout(30):
                while not chains or chains[0].under_way:
                    await asyncio.sleep(0.001)
                while future.key in here.part(0).offers._offers:
                    await asyncio.sleep(0.001)
            assert [member.left for member in chains[0]._members.values()] == [True]
            summing.cancel()

    run(test)


def test_a_closed_worker_is_kept_by_nobody() -> None:
    closed: list[weakref.ref[Worker]] = []
    before = list(measured.listeners)  # of workers of earlier tests

    async def test() -> None:
        async with hosts(2) as here:
            await here.summed(await here.made(), 1)
            closed.extend(weakref.ref(worker) for worker in here.workers)

    run(test)
    core._expects_comm.cache_clear()  # Dask's own memory of handlers keeps the workers that they belong to
    gc.collect()
    assert [worker() for worker in closed] == [None, None]
    assert [listener for listener in measured.listeners if listener not in before] == []


def test_what_goes_wrong_ends_in_dasks_own_way(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async def wrong(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        async with hosts(4) as here:
            future = await here.made()

            async def gone(*_: object, **__: object) -> dict[str, str]:
                # one that asks when the other has it, which is on its host, borrows it in Dask's own way
                while len(here.part(0).offers._offers[future.key].result().chain._members) < 2:
                    await asyncio.sleep(0.001)
                return {"status": "gone"}

            monkeypatch.setattr(offers.Offers, "hand_on", gone)
            await here.summed(future, 2, 3)
            assert here.count("given_up") == [0, 0, 1, 1]
            monkeypatch.setattr(fanout.Fanout, "_follow", wrong)
            fanout._warn.cache_clear()
            with caplog.at_level(logging.WARNING, "weft"):
                await here.summed(await here.made(), 2, 3)
                await here.summed(await here.made(), 2, 3)
            assert len([r for r in caplog.records if r.name == "weft"]) == 1
            assert sum(here.count("received")) == 0
            monkeypatch.setattr(offers.Offers, "_offer", wrong)  # at the holder
            await here.summed(await here.made(), 2, 3)

    run(test)


@pytest.mark.parametrize("lost", ["while it sends", "when it is asked again"])
def test_the_loss_of_the_source_is_left_to_dask(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """Asking it once more would take as long as Dask tries to connect to what is dead: 30 s."""

    async def come(*_: object) -> None:
        raise pieces.GoneError if lost == "when it is asked again" else OSError("lost")

    async def connect(address: str, timeout: float | None = None) -> None:
        raise OSError(f"nothing listens at {address}, and that is tried for {timeout} s")

    async def stock(**_: object) -> None:
        pytest.fail("it was asked once more")

    async def test() -> None:
        async with hosts(4) as here:
            future = await here.made()
            rpc, source = here.workers[2].rpc, here.workers[0].address
            with monkeypatch.context() as inner:
                inner.setattr(fanout.Fanout, "_come", come)
                join = fanout.Fanout._join

                async def join_once(*args: Any) -> Any:
                    answer = await join(*args)
                    inner.setattr(rpc, "connect", connect)
                    return answer

                inner.setattr(fanout.Fanout, "_join", join_once)
                with pytest.raises(OSError, match="tried for 3"):
                    await here.part(2).fetch(stock, rpc=rpc, keys=[future.key], worker=source)
            assert here.count("given_up") == [0, 0, 1, 0]
            await here.summed(future, 2)

    run(test)


@pytest.mark.parametrize(("mode", "nbytes"), [("observe", NBYTES), ("learn", 4 * MiB)])
def test_without_learning_and_small_values_come_as_dask_has_it(mode: str, nbytes: int) -> None:
    async def test() -> None:
        async with hosts(4, mode) as here:
            future = await here.made(nbytes)
            sums = [here.client.submit(total, future, i, workers=[here.workers[i].address]) for i in (2, 3)]
            assert len(set(await here.client.gather(sums))) == 1
            assert sum(here.count("received")) == sum(here.count("pieces")) == sum(here.count("given_up")) == 0

    run(test)


def test_a_worker_without_pieces_is_asked_as_dask_does() -> None:
    async def test() -> None:
        async with hosts(3) as here:
            for op in [op for op in here.workers[0].handlers if op.startswith("weft_")]:
                del here.workers[0].handlers[op]
            future = await here.made()
            stock = here.part(2).fetch

            async def fetch(*args: Any, rpc: Any, worker: str, **options: Any) -> Any:
                comm = await rpc.connect(worker)
                comm.remote_info.pop("weft-joins", None)  # as of an older weft
                rpc.reuse(worker, comm)
                return await stock(*args, rpc=rpc, worker=worker, **options)

            from weft.dask import patches_decisions

            patches_decisions._fetchers[here.workers[2].rpc] = fetch
            await here.summed(future, 2)
            assert sum(here.count("received")) == 0

    run(test)
