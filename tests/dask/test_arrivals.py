# SPDX-License-Identifier: BSD-3-Clause
"""Turns of large values: few at a time, in the worker's own order, and none is lost with a request that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from weft.dask.learn.arrivals import Arrivals
from weft.links.intake import LEAST, distance

HERE = "ucx://10.0.0.1:1"
SOURCES = [f"ucx://10.0.0.{i}:1" for i in range(2, 8)]
NBYTES = 80


def value(priority: int = 0) -> Any:
    return SimpleNamespace(get_nbytes=lambda: NBYTES, priority=(priority,))


async def ask(arrivals: Arrivals, source: str, begun: list[str], go: asyncio.Event, priority: int = 0) -> None:
    async with arrivals.turn(HERE, source, [value(priority)]):
        begun.append(source)
        await go.wait()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_made_at_once_begin_in_the_order_of_the_ring() -> None:
    async def test() -> None:
        arrivals, begun, go = Arrivals(), list[str](), asyncio.Event()
        asked = [asyncio.ensure_future(ask(arrivals, source, begun, go)) for source in SOURCES]
        await settle()
        order = sorted(SOURCES, key=lambda source: distance(HERE, source))
        assert set(begun) == set(order[:LEAST])
        assert arrivals.beside(order[0]) == NBYTES * (len(SOURCES) - 1), "of those that wait, too"
        go.set()
        await asyncio.gather(*asked)
        assert begun[LEAST:] == order[LEAST:]
        assert arrivals.beside(order[0]) == 0

    run(test)


def test_the_urgent_begin_first() -> None:
    async def test() -> None:
        arrivals, begun, go = Arrivals(), list[str](), asyncio.Event()
        asked = [asyncio.ensure_future(ask(arrivals, each, begun, go, -i)) for i, each in enumerate(SOURCES)]
        await settle()
        assert set(begun) == set(SOURCES[-LEAST:])
        go.set()
        await asyncio.gather(*asked)

    run(test)


def test_one_that_is_cancelled_gives_its_turn_away() -> None:
    async def test() -> None:
        arrivals, begun, go = Arrivals(), list[str](), asyncio.Event()
        asked = [asyncio.ensure_future(ask(arrivals, source, begun, go)) for source in SOURCES]
        await settle()
        order = sorted(SOURCES, key=lambda source: distance(HERE, source))
        for gone in (order[0], order[LEAST]):  # one that runs, and one that waits
            asked[SOURCES.index(gone)].cancel()
        await settle()
        assert begun[LEAST:] == [order[LEAST + 1]]
        go.set()
        await asyncio.gather(*asked, return_exceptions=True)
        assert begun[LEAST:] == order[LEAST + 1 :]

    run(test)


def test_the_next_begins_before_one_has_arrived() -> None:
    async def test() -> None:
        arrivals, begun, go = Arrivals(), list[str](), asyncio.Event()
        async with arrivals.turn(HERE, SOURCES[0], [value()]) as turn:
            asked = [asyncio.ensure_future(ask(arrivals, source, begun, go)) for source in SOURCES[1:]]
            await settle()
            assert len(begun) == LEAST - 1
            turn.landed(NBYTES // 2)
            await settle()
            assert len(begun) == LEAST - 1
            turn.landed(NBYTES // 4)
            await settle()
            assert len(begun) == LEAST
        await settle()
        assert len(begun) == LEAST, "its turn was over before"
        go.set()
        await asyncio.gather(*asked)

    run(test)
