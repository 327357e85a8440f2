# SPDX-License-Identifier: BSD-3-Clause
"""A large value comes by way of a third worker, or over several connections; whatever fails on the way, it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.dask.ends import until
from tests.dask.hosts import NBYTES, Hosts, MiB, hosts
from tests.dask.hosts import run as run_here

from weft.dask.learn import fanout, measured, offers, pieces, slices
from weft.dask.observe.traffic import EXTENSION
from weft.links import flows
from weft.links import route as routes

SLOW, FAST = 1.25e6, 12.5e6  # bytes a second: 10 and 100 Mb/s
ROUTED = {(0, 1): SLOW, (0, 2): FAST, (2, 1): FAST}


def run(test: Callable[[Hosts], Coroutine[Any, Any, None]], count: int = 3) -> None:
    async def on_hosts() -> None:
        async with hosts(count, each=1) as here:
            await test(here)

    run_here(on_hosts)


def teach(here: Hosts, rates: dict[tuple[int, int], float]) -> None:
    """Teach the scheduler, and each receiver, what links deliver."""
    extension: Any = here.scheduler.extensions[EXTENSION]
    for (a, b), rate in rates.items():
        source, destination = here.workers[a].address, here.workers[b].address
        for model in (extension.links.model, here.part(b)._model):
            for worker in (source, destination):
                model.place(worker, fanout.place_of(worker))
            for _ in range(4):
                model.observe(source, destination, NBYTES, NBYTES / rate, fanout.time.monotonic())


async def fetched(here: Hosts, nbytes: int = NBYTES) -> None:
    """Have worker 1 sum what worker 0 has made."""
    await here.summed(await here.made(nbytes), 1, nbytes=nbytes)


def halt(monkeypatch: pytest.MonkeyPatch, after: int, *, relayed: bool) -> asyncio.Event:
    """Have the first that sends pieces, as a relay or as the holder, stop after some until the event is set."""
    stock, freed, halted = pieces.send, asyncio.Event(), list[Any]()

    async def send(comm: Any, copy: Any, begin: int) -> None:
        if (copy.value is None) is relayed and not halted:
            halted.append(copy)
            for number in range(after):
                await comm.send_piece(await copy.until(number))
            await freed.wait()
        await stock(comm, copy, begin)

    monkeypatch.setattr(pieces, "send", send)
    monkeypatch.setattr(routes, "_LEAST_WINDOW_S", 0.01)
    monkeypatch.setattr(routes, "_WINDOW_PIECES", 0)
    return freed


@pytest.fixture(autouse=True)
def short_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_LINGER_S", 0.05)
    monkeypatch.setattr(fanout, "_SLICED_S", 1e9)


def test_a_value_comes_by_way_of_a_third_worker_which_keeps_nothing() -> None:
    async def test(here: Hosts) -> None:
        teach(here, ROUTED)
        await fetched(here)
        await until(lambda: here.part(2).counts["pieces"] and here.part(0).counts["pieces"])  # counted a little later
        assert here.part(1).counts["by_relay"] == here.part(1).counts["received"] == 1
        assert here.part(2).counts["pieces"] == here.part(0).counts["pieces"] == 16
        assert here.part(2).counts["received"] == 0
        assert not here.workers[2].data
        async with asyncio.timeout(30):
            while here.part(2).offers.copies or here.part(2)._relays._relaying:
                await asyncio.sleep(0.01)
        await fetched(here, 4 * MiB)  # too small for pieces
        assert here.part(1).counts["by_relay"] == 1

    run(test)


def test_a_relay_that_dies_is_done_without_from_the_piece_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []
    stock, stock_hand_on = pieces.send, offers.Offers.hand_on

    async def send(comm: Any, copy: Any, begin: int) -> None:
        if copy.value is None:  # the relay's
            for number in range(5):
                await comm.send_piece(await copy.until(number))
            raise pieces.GoneError
        await stock(comm, copy, begin)

    async def hand_on(self: Any, comm: Any, chain: str, begin: int, who: str) -> Any:
        begins.append(begin)
        return await stock_hand_on(self, comm, chain, begin, who)

    monkeypatch.setattr(pieces, "send", send)
    monkeypatch.setattr(offers.Offers, "hand_on", hand_on)

    async def test(here: Hosts) -> None:
        teach(here, ROUTED)
        await fetched(here)
        assert here.part(1).counts["relays_lost"] == here.part(1).counts["received"] == 1
        assert here.part(1).counts["given_up"] == here.part(1).counts["lost"] == 0
        assert begins[:2] == [0, 0]
        assert 0 < begins[2] <= 5
        await fetched(here)
        assert here.part(1).counts["by_relay"] == 1, "it is avoided for a while"

    run(test)


def test_a_relay_that_is_slow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = halt(monkeypatch, 1, relayed=True)

    async def test(here: Hosts) -> None:
        teach(here, ROUTED)
        await fetched(here)
        freed.set()
        assert here.part(1).counts["relays_lost"] == here.part(1).counts["received"] == 1

    run(test)


def test_a_link_that_becomes_slow_in_the_middle_is_left_for_a_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = halt(monkeypatch, 3, relayed=False)

    async def test(here: Hosts) -> None:
        teach(here, {(0, 1): FAST, (0, 2): FAST, (2, 1): FAST})
        await fetched(here)
        freed.set()
        assert here.part(1).counts["by_relay"] == here.part(1).counts["received"] == 1
        await until(lambda: here.part(2).counts["pieces"])  # counted a little later
        assert here.part(2).counts["pieces"] == 13, "the three that were here came once"

    run(test)


def test_a_link_that_was_never_used_is_not_left_for_others_that_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = pieces.send

    async def send(comm: Any, copy: Any, begin: int) -> None:
        coming = pieces.Copy(copy.frames, MiB)
        coming.have = 0
        sending = asyncio.ensure_future(stock(comm, coming, begin))
        while not coming.whole:  # slower than any prior
            await asyncio.sleep(0.02)
            coming.have += 1
            coming.change()
        await sending

    monkeypatch.setattr(pieces, "send", send)
    monkeypatch.setattr(routes, "_LEAST_WINDOW_S", 0.01)
    monkeypatch.setattr(routes, "_WINDOW_PIECES", 0)

    async def test(here: Hosts) -> None:
        await fetched(here)
        assert here.part(1).counts["received"] == 1
        assert here.part(1).counts["by_relay"] == 0

    run(test)


@pytest.mark.parametrize("number", [2, -1], ids=["relay", "scheduler"])
def test_whoever_knows_nothing_of_relays_is_not_asked(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(here: Hosts) -> None:
        teach(here, ROUTED)
        server: Any = here.scheduler if number < 0 else here.workers[number]
        for op in [op for op in server.handlers if op in ("weft_route", "weft_relay")]:
            del server.handlers[op]
        monkeypatch.setattr(measured, "routes", lambda comm: comm.peer_address != server.address)
        await fetched(here)
        assert here.part(1).counts["by_relay"] == 0
        assert here.part(1).counts["received"] == 1

    run(test)


def test_a_worker_that_gets_a_value_for_itself_relays_it_when_it_has_it() -> None:
    async def test(here: Hosts) -> None:
        part, source = here.part(2), here.workers[0].address
        part.offers.copies["coming"] = pieces.Copy([MiB], MiB)  # maybe from whoever asks
        part.offers.copies["whole"] = pieces.Copy([bytes(MiB)], MiB)
        assert part.relay(source, "coming", [MiB], MiB) == {"status": "no"}
        assert part.relay(source, "whole", [MiB], MiB) == {"status": "OK"}
        assert part.relay(source, "c", [MiB], MiB) == part.relay(source, "c", [MiB], MiB) == {"status": "OK"}
        async with asyncio.timeout(30):
            while part._relays._relaying:  # the source has no such chain
                await asyncio.sleep(0.01)

    run(test)


def test_a_worker_relays_no_more_than_it_has_room_for() -> None:
    async def test(here: Hosts) -> None:
        part = here.part(2)
        source = here.workers[0].address
        here.workers[2].memory_manager.memory_limit = 64 * MiB
        for sizes, piece in (([9 * MiB], MiB), ([-1], MiB), ([MiB], 0), ([], MiB), (["x"], MiB), ([1 << 70], MiB)):
            assert part.relay(source, "c", sizes, piece) == {"status": "no"}, sizes
        assert part.relay(source, "c1", [MiB], MiB) == part.relay(source, "c2", [MiB], MiB) == {"status": "OK"}
        assert part.relay(source, "c3", [MiB], MiB) == {"status": "no"}
        async with asyncio.timeout(30):
            while part.offers.copies:  # the source has no such chains
                await asyncio.sleep(0.01)

    run(test)


def test_a_question_that_is_nonsense_has_no_relay_for_an_answer() -> None:
    async def test(here: Hosts) -> None:
        teach(here, ROUTED)
        a, b, c = (worker.address for worker in here.workers)
        extension: Any = here.scheduler.extensions[EXTENSION]
        asked: dict[str, Any] = {"source": a, "destination": b, "nbytes": NBYTES}
        assert extension.links.route(**asked)["relay"] == c
        nonsense: list[dict[str, Any]] = [
            {"source": "x"},
            {"nbytes": -1},
            {"nbytes": 1e30},
            {"seconds_per_byte": float("inf")},
            {"seconds_per_byte": -1.0},
            {"avoid": [c]},
        ]
        for wrong in nonsense:
            assert extension.links.route(**{**asked, **wrong}) == {"relay": ""}

    run(test)


def test_slices_come_over_as_many_connections_as_bring_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = slices.send

    async def test(here: Hosts) -> None:
        part = here.part(1)
        monkeypatch.setattr(fanout, "_SLICED_S", 0.0)
        await fetched(here)
        assert part.counts["flows"] == 0, "one is all that a small value is worth"
        part.flows._hosts["127.0.0.2"].best = 4

        async def send(comm: Any, copy: Any, *, counted: bool) -> int:
            while part.counts["flows"] < 3:  # else one of them may bring it before the others are there
                await asyncio.sleep(0.001)
            return await stock(comm, copy, counted=counted)

        monkeypatch.setattr(slices, "send", send)
        await fetched(here, 32 * MiB)
        assert part.counts["flows"] == 3
        assert part.counts["received"] == 2
        async with asyncio.timeout(30):
            while here.part(0).counts["pieces"] < 16 + 32:
                await asyncio.sleep(0.01)
        assert here.part(0).counts["pieces"] == 16 + 32, "each piece once"

    run(test, 2)


def passed_on(here: Hosts, number: int) -> bool:
    return any(copy.receivers for copy in here.part(number).offers.copies.values())


def test_a_value_that_is_passed_on_comes_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = slices.send
    monkeypatch.setattr(fanout, "_SLICED_S", 0.0)
    monkeypatch.setattr(flows, "_LARGE_S", 0.0)
    monkeypatch.setattr(flows, "_FULL", 1e9)

    async def test(here: Hosts) -> None:
        async def send(comm: Any, copy: Any, *, counted: bool) -> int:
            while copy.value is not None and not any(passed_on(here, i) for i in (1, 2)):
                await asyncio.sleep(0.001)
            return await stock(comm, copy, counted=counted)

        with monkeypatch.context() as patched:
            patched.setattr(slices, "send", send)
            await here.summed(await here.made(32 * MiB), 1, 2, nbytes=32 * MiB)
        assert here.count("received") == [0, 1, 1]
        assert here.count("flows") == [0, 0, 0]
        await fetched(here, 32 * MiB)
        assert here.part(1).counts["flows"] > 0

    run(test)


def test_what_a_connection_that_breaks_did_not_bring_comes_over_another(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = slices.send

    async def send(comm: Any, copy: Any, *, counted: bool) -> int:
        if counted:
            return await stock(comm, copy, counted=True)
        await asyncio.sleep(0.01)
        comm.abort()
        raise OSError("broken")

    async def test(here: Hosts) -> None:
        part = here.part(1)
        monkeypatch.setattr(slices, "send", send)
        part.flows.begin("127.0.0.2", 0)
        part.flows._hosts["127.0.0.2"].best = 4
        await fetched(here)
        assert part.counts["received"] == 1
        assert part.counts["given_up"] == part.counts["lost"] == 0

    run(test, 2)


def test_a_piece_that_does_not_exist_ends_the_comm_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = slices.Receiving._receive

    async def receive(self: Any, flow: Any, number: int) -> None:
        await flow.comm.send_piece(memoryview((1 << 40).to_bytes(8, "little")))
        await stock(self, flow, number)

    async def test(here: Hosts) -> None:
        part = here.part(1)
        part.flows.begin("127.0.0.2", 0)
        part.flows._hosts["127.0.0.2"].best = 2
        monkeypatch.setattr(slices.Receiving, "_receive", receive)
        await fetched(here)
        assert part.counts["given_up"] == 1
        assert part.counts["received"] == 0

    run(test, 2)
