# SPDX-License-Identifier: BSD-3-Clause
"""Messages of up to 4 KiB: their memory, and the view of it, serve the next one as soon as nobody has either."""

import gc
import random
import threading
import weakref

import numpy as np
import pytest
from tests.test_peer import pair, run

import weft

HOLDS = {
    "the view": lambda view: view,
    "a part of it": lambda view: view[:1],
    "another view of it": memoryview,
    "a cast of it": lambda view: view.cast("b"),
    "an array": lambda view: np.frombuffer(view, "u1"),
    "a part of an array": lambda view: np.frombuffer(view, "u1")[2:],
    "its block": lambda view: view.obj,
}


async def exchange(a, b, data, first="recv"):
    if first == "send":
        await a.send(data)
        return await b.recv()
    request = b.recv()
    await a.send(data)
    return await request


@pytest.mark.parametrize("first", ["recv", "send"])
@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
@pytest.mark.parametrize("nbytes", [8, 1000, 4000])
def test_what_somebody_has_is_not_written_to_again(nbytes, hold, first):
    async def main():
        async with pair() as (a, b):
            held = [hold(await exchange(a, b, bytes([number]) * nbytes, first)) for number in range(40)]
            for number, each in enumerate(held):
                kept = memoryview(each).cast("B")
                assert kept == bytes([number]) * kept.nbytes

    run(main())


def test_what_a_recv_many_gave_is_not_written_to_again():
    async def main():
        async with pair() as (a, b):
            held = []
            for turn in range(6):
                request = b.recv_many(100)
                await a.send_many([bytes([turn, number]) for number in range(100)])
                held.append((await request)[turn % 2 :: 2])  # the others are let go of
            for turn, views in enumerate(held):
                assert [bytes(each) for each in views] == [bytes([turn, n]) for n in range(turn % 2, 100, 2)]

    run(main())


@pytest.mark.parametrize("nbytes", [8, 1024, 4000])
def test_memory_that_was_let_go_of_is_used_again(nbytes):
    async def main():
        async with pair() as (a, b):
            addresses = set()
            for turn in range(300):
                view = await exchange(a, b, bytes(nbytes))
                if turn >= 150:  # what was received before is out of sight by now
                    addresses.add(view.obj.address)
            assert len(addresses) <= 16
            for turn in range(200):
                request = b.recv_many(50)
                await a.send_many([bytes(nbytes)] * 50)
                views = await request
                if turn >= 20:
                    addresses |= {view.obj.address for view in views}
            assert len(addresses) <= 16 + 4_500  # of 9,000: what a thread does not keep, the C library gives anew

    run(main())


def test_views_that_were_released_or_watched_are_left():
    async def main():
        async with pair() as (a, b):
            ended = []
            for number in range(50):
                view = await exchange(a, b, bytes([number]) * 8)
                assert view == bytes([number]) * 8
                if number % 2:
                    view.release()
                else:
                    weakref.finalize(view, ended.append, number)
            del view
            for _ in range(50):
                assert await exchange(a, b, b"........") == b"........"
            assert len(ended) >= 20  # whoever watches one is told of its end

    run(main())


def test_lengths_in_any_order():
    async def main():
        dice = random.Random(5)
        async with pair() as (a, b):
            kept = []
            for _ in range(1500):
                data = dice.randbytes(dice.choice((0, 1, 8, 8, 8, 127, 128, 129, 1023, 1024, 1025, 4064, 4065, 9000)))
                view = await exchange(a, b, data, dice.choice(("recv", "send")))
                assert view == data
                assert not view.readonly
                if dice.random() < 0.1:
                    kept.append((view, data))
            assert all(view == data for view, data in kept)

    run(main())


def test_views_that_are_dropped_in_another_thread():
    async def main():
        async with pair() as (a, b):
            for turn in range(10):
                views = [await exchange(a, b, bytes([number]) * 8) for number in range(100)]
                thread = threading.Thread(target=views.clear)
                thread.start()
                thread.join()
                assert await exchange(a, b, bytes([turn]) * 8) == bytes([turn]) * 8
            gc.collect()

    run(main())


def test_a_wait_that_is_over_leaves_the_others_their_messages():
    """Progress stops at the end of what is waited for: what came behind it is not lost on those that wait later."""

    async def main():
        async with pair() as (a, b):
            requests = [b.recv() for _ in range(200)]
            a.send_many([number.to_bytes(8, "big") for number in range(200)]).wait(10)
            for number in (150, *range(200)):
                assert int.from_bytes(requests[number].wait(10), "big") == number

    run(main())


def test_messages_before_and_after_a_full_ring():
    """What has no room waits, and what is sent behind it, one or many, stays behind it."""

    async def main():
        async with pair() as (a, b):
            sent = []
            for number in range(300):
                data = number.to_bytes(8, "big") * 100
                sent.append(a.send_many([data] * 3) if number % 3 else a.send(data))
            early = b.recv_many(10**6)
            with pytest.raises(weft.TimedOutError):
                early.wait(0.0)
            early.cancel()
            for number in range(300):
                for _ in range(3 if number % 3 else 1):
                    assert await b.recv() == number.to_bytes(8, "big") * 100
            for each in sent:
                await each

    run(main())
