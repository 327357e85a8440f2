# SPDX-License-Identifier: BSD-3-Clause
"""A receive that is cancelled after the program has looked at its result: what is still in use does not go back."""

import asyncio
import contextlib
import weakref

import pytest
from tests.test_peer import pair, run

import weft

#: What a program may do to the list that a recv_many gave.
CHANGES = {
    "emptied": list.clear,
    "shortened": list.pop,
    "longer": lambda views: views.append(None),
    "other things": lambda views: views.__setitem__(0, 5),
    "other memory": lambda views: views.__setitem__(0, memoryview(bytearray(views[0].nbytes))),
    "another order": list.reverse,
}
HOLDS = {
    "a part": lambda view: view[:10],
    "another view": memoryview,
    "a cast": lambda view: view.cast("b"),
    "a part of a part": lambda view: view[:20][:10],
}
SIZES = [64, 100_000]


async def received(receive, send):
    """The request for a message that it waited for."""
    request = receive()
    await send()
    await asyncio.wait({request})
    return request


async def found(receive, send):
    """The request for a message that was there."""
    await send()
    while not (request := receive()).done():
        request.cancel()
        await asyncio.sleep(0.001)
    return request


ARRIVALS = pytest.mark.parametrize("arrival", [received, found])


def cancel(request):
    """What a cancelled task does with the request that it awaits."""
    with contextlib.suppress(asyncio.CancelledError):
        request.throw(asyncio.CancelledError())


async def expect_next(a, b, nbytes):
    """What has been given to the program is not given again, and its memory is used by no other message."""
    for letter in b"BCDEFGH":
        data = bytes([letter]) * nbytes
        await a.send(data)
        assert await b.recv() == data


@ARRIVALS
@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
@pytest.mark.parametrize("nbytes", SIZES)
def test_memory_that_is_still_shown_does_not_go_back(nbytes, hold, arrival):
    async def main():
        async with pair() as (a, b):
            request = await arrival(b.recv, lambda: a.send(b"A" * nbytes))
            kept = hold(request.result())
            cancel(request)
            await expect_next(a, b, nbytes)
            assert bytes(kept) == b"A" * kept.nbytes

    run(main())


@ARRIVALS
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_part_that_was_let_go_of_keeps_nothing(nbytes, arrival):
    async def main():
        async with pair() as (a, b):
            request = await arrival(b.recv, lambda: a.send(b"A" * nbytes))
            assert request.result()[:1] == b"A"
            cancel(request)
            assert await b.recv() == b"A" * nbytes

    run(main())


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_many_go_back_but_for_those_that_are_still_shown(hold):
    async def main():
        async with pair() as (a, b):
            for nbytes in SIZES:
                sent = [bytes([letter]) * nbytes for letter in b"ABC"]
                request = await found(lambda: b.recv_many(3), lambda sent=sent: a.send_many(sent))
                kept = hold(request.result()[1])
                cancel(request)
                assert [bytes(each) for each in await b.recv_many(2)] == [sent[0], sent[2]]
                await expect_next(a, b, nbytes)
                assert bytes(kept) == b"B" * kept.nbytes

    run(main())


@pytest.mark.parametrize("number", range(3))
def test_segments_go_back_all_or_none(number):
    async def main():
        async with pair() as (a, b):
            sent = [b"first", b"A" * 100_000, b"B" * 70_000]
            receive = b._channel.recv
            request = await received(receive, lambda: a._channel.send(sent[0], sent[1:]))
            kept = request.result()[number][:5]
            cancel(request)
            await expect_next(a, b, 100_000)
            assert bytes(kept) == sent[number][:5]
            request = await received(receive, lambda: a._channel.send(sent[0], sent[1:]))
            assert [bytes(each) for each in request.result()] == sent
            cancel(request)
            assert [bytes(each) for each in await receive()] == sent

    run(main())


async def released(count):
    async with pair() as (a, b):
        for nbytes in SIZES:
            for arrival in (received, found):
                sent = [bytes([letter]) * nbytes for letter in b"ABC"[:count]]
                if count == 1:
                    request = await arrival(b.recv, lambda sent=sent: a.send(sent[0]))
                    request.result().release()
                else:
                    request = await arrival(lambda: b.recv_many(count), lambda sent=sent: a.send_many(sent))
                    request.result()[0].release()
                cancel(request)
                assert [bytes(each) for each in await b.recv_many(count - 1)] == sent[1:]
                del request
                await expect_next(a, b, nbytes)


@pytest.mark.parametrize("count", [1, 3])
def test_a_message_whose_view_was_released_is_gone(spawn, count):
    """In a process of its own: it crashed."""
    child = spawn(f"from tests import test_peer_looked_at as t; t.run(t.released({count}))")
    assert child.wait() == 0


async def watched():
    async with pair() as (a, b):
        for nbytes in SIZES:
            for arrival in (received, found):
                request = await arrival(b.recv, lambda nbytes=nbytes: a.send(b"A" * nbytes))
                ended = weakref.ref(request.result(), lambda _, request=request: cancel(request))
                cancel(request)
                await expect_next(a, b, nbytes)
                assert ended() == b"A" * nbytes


def test_a_message_whose_view_is_watched_does_not_go_back(spawn):
    """In a process of its own: told of its end, the program may use the request."""
    child = spawn("from tests import test_peer_looked_at as t; t.run(t.watched())")
    assert child.wait() == 0


async def changed(how):
    async with pair() as (a, b):
        for nbytes in ((8, 64, 1000), (70_000, 100_000, 140_000)):
            sent = [bytes([letter]) * n for letter, n in zip(b"ABC", nbytes, strict=True)]
            request = await found(lambda: b.recv_many(3), lambda sent=sent: a.send_many(sent))
            CHANGES[how](request.result())
            cancel(request)
            await a.send(b"end")
            into = bytearray(200_000)
            while (n := await b.recv_into(into)) != 3:  # each that comes is one of those
                assert bytes(into[:n]) in sent
            assert into[:3] == b"end"
            with contextlib.suppress(weft.CanceledError):
                request.result()


@pytest.mark.parametrize("how", CHANGES)
def test_a_list_that_was_changed_gives_back_no_more_than_it_has(spawn, how):
    """In a process of its own: it crashed."""
    child = spawn(f"from tests import test_peer_looked_at as t; t.run(t.changed({how!r}))")
    assert child.wait() == 0
