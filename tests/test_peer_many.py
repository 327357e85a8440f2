# SPDX-License-Identifier: BSD-3-Clause
"""``send_many`` and ``recv_many``: one request for many messages, which are messages like any other."""

import asyncio
import gc

import numpy as np
import pytest
from tests.native.dlpack import DLPackArray
from tests.test_peer import pair, run
from tests.tls_pair import tls_pair

import weft

PAIRS = pytest.mark.parametrize("pair_of", [pair, tls_pair], ids=["native", "tls"])


def numbered(count, nbytes=4):
    return [number.to_bytes(4, "little") * (nbytes // 4) for number in range(count)]


@PAIRS
@pytest.mark.parametrize(("count", "nbytes"), [(0, 8), (1, 8), (1000, 8), (200, 5000), (20, 300_000)])
def test_many_both_ways(pair_of, count, nbytes):
    async def main():
        async with pair_of() as (a, b):
            sent = numbered(count, nbytes)
            request = a.send_many(sent)
            assert [bytes(each) for each in await b.recv_many(count)] == sent
            assert await request is None
            taking = b.recv_many(count)
            await a.send_many(tuple(sent))
            assert [bytes(each) for each in await taking] == sent

    run(main())


@PAIRS
def test_order_holds_across_one_and_many(pair_of):
    async def main():
        async with pair_of() as (a, b):
            messages = numbered(60)
            a.send(messages[0])
            a.send_many(messages[1:40])
            a.send(messages[40])
            sent = a.send_many(messages[41:])
            got = [await b.recv(), *await b.recv_many(50), *[await b.recv() for _ in range(5)], *await b.recv_many(4)]
            assert [bytes(each) for each in got] == messages
            await sent

    run(main())


@PAIRS
def test_each_is_writable_aligned_and_lives_by_itself(pair_of):
    async def main():
        async with pair_of() as (a, b):
            await a.send_many([b"x" * 100] * 10)
            kept = (await b.recv_many(10))[3]
            gc.collect()
            await a.send_many([b"y" * 100] * 10)
            await b.recv_many(10)
            assert kept == b"x" * 100
            kept[0] = 1
            assert np.asarray(kept).ctypes.data % 64 == 0

    run(main())


@PAIRS
def test_frames_among_many(pair_of):
    async def main():
        async with pair_of() as (a, b):
            await a.send_frames([b"small", bytes(100_000)])
            await a.send(b"x")
            apart, single = await b.recv_many(2)
            assert isinstance(apart, tuple)
            assert apart[1].nbytes == 100_000
            assert single == b"x"

    run(main())


def test_unread_messages_suspend_many():
    async def main():
        async with pair() as (a, b):
            messages = [bytes(60_000)] * 200  # three windows
            request = a.send_many(messages)
            for _ in range(50):
                await asyncio.sleep(0)
            assert not request.done()
            assert b._channel.unread_nbytes <= 5 << 20
            got = 0
            while got < 200:
                got += len(await b.recv_many(20))
            await request

    run(main())


def test_more_than_a_window_is_collected():
    """What a recv_many has taken counts as read, or a sender would wait for it for ever."""

    async def main():
        async with pair() as (a, b):
            sent = a.send_many([bytes(60_000)] * 200)
            assert len(await b.recv_many(200)) == 200
            await sent

    run(main())


@pytest.mark.parametrize("kind", ["list", "generator", "one"])
def test_what_is_no_sequence_of_buffers(kind):
    async def main():
        async with pair() as (a, b):
            wrong = {"list": [b"a", "text"], "generator": [b"a", np.zeros((4, 4))[:, ::2]], "one": 5}[kind]
            with pytest.raises((TypeError, weft.NotContiguousError)):
                a.send_many(wrong)
            await a.send(b"next")
            assert await b.recv() == b"next"
            with pytest.raises(TypeError):
                b.recv_many(-1)

    run(main())


def test_an_export_that_closes_the_connection():
    async def main():
        async with pair() as (a, _):
            array = DLPackArray(bytearray(8))
            kind = {"__dlpack__": lambda self, **_: a.abort() or DLPackArray.__dlpack__(self, max_version=(1, 0))}
            array.__class__ = type("Closing", (DLPackArray,), kind)
            with pytest.raises(weft.ClosedError):
                a.send_many([b"a", array])
            assert array.deleted == 1

    run(main())


@PAIRS
def test_buffers_are_held_until_all_have_left(pair_of):
    async def main():
        async with pair_of() as (a, b):
            buffers = [bytearray(60_000) for _ in range(300)]
            request = a.send_many(buffers)
            with pytest.raises(BufferError):
                buffers[-1].append(0)
            await asyncio.gather(request, b.recv_many(300))
            for buffer in buffers:
                buffer.append(0)

    run(main())


@PAIRS
def test_a_cancelled_send_withdraws_those_that_wait(pair_of):
    async def main():
        async with pair_of() as (a, b):
            buffers = [bytearray(number.to_bytes(4, "little") * 15_000) for number in range(1000)]
            request = a.send_many(buffers)
            for _ in range(20):
                await asyncio.sleep(0)
            assert request.cancel()
            last = a.send(b"last")
            got = []
            while (message := bytes(await b.recv())) != b"last":
                got.append(message)
            assert 0 < len(got) < 1000
            assert got == [bytes(each) for each in buffers[: len(got)]]
            await last
            for buffer in buffers:
                buffer.append(0)

    run(main())


@PAIRS
@pytest.mark.parametrize("nbytes", [8, 100_000, 600_000])
def test_a_cancelled_recv_many_loses_nothing(pair_of, nbytes):
    async def take(peer):
        return [bytes(each) for each in await peer.recv_many(5)]

    async def main():
        async with pair_of() as (a, b):
            partly = 0
            for phase in range(30):
                task = asyncio.create_task(take(b))
                await asyncio.sleep(0)
                messages = [each * (nbytes // 4) for each in numbered(5)]
                sent = [a.send(each) for each in messages[: 1 + phase % 5]]
                for _ in range(phase % 7):
                    await asyncio.sleep(0)
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                sent += [a.send(each) for each in messages[len(sent) :]]
                if isinstance(outcome, asyncio.CancelledError):
                    partly += 1
                    outcome = [bytes(await b.recv()), *(bytes(each) for each in await b.recv_many(4))]
                assert outcome == messages
                await asyncio.gather(*sent)
            assert partly

    run(main())


def test_one_that_was_dropped_unread_gives_all_back():
    async def main():
        async with pair() as (a, b):
            await a.send_many(numbered(5))
            while not (request := b.recv_many(3)).done():
                request.cancel()
                await asyncio.sleep(0.001)
            del request
            assert [bytes(each) for each in await b.recv_many(5)] == numbered(5)

    run(main())


def test_a_view_that_got_about_does_not_come_back():
    async def main():
        async with pair() as (a, b):
            await a.send_many(numbered(3))
            while not (request := b.recv_many(2)).done():
                request.cancel()
                await asyncio.sleep(0.001)
            kept = request.result()[0]
            with pytest.raises(asyncio.CancelledError):
                request.throw(asyncio.CancelledError())
            with pytest.raises(weft.CanceledError, match="went back"):
                request.result()
            assert [bytes(each) for each in await b.recv_many(2)] == numbered(3)[1:]
            assert bytes(kept) == numbered(1)[0]

    run(main())


@PAIRS
@pytest.mark.parametrize("how", ["close", "abort"])
def test_what_arrived_before_the_end_is_for_the_next(pair_of, how):
    async def main():
        async with pair_of() as (a, b):
            many, one, other = b.recv_many(5), b.recv(), b.recv()
            await a.send_many(numbered(3))
            await asyncio.sleep(0.01)
            closing = a.close() if how == "close" else a.abort()
            with pytest.raises(weft.PeerLostError):
                await many
            assert [bytes(await one), bytes(await other)] == numbered(2)
            assert bytes(await b.recv()) == numbered(3)[2]
            with pytest.raises(weft.PeerLostError):
                await b.recv_many(1)
            if closing is not None:
                await closing

    run(main())


@pytest.mark.parametrize("how", ["abort", "close", "theirs"])
def test_a_send_many_under_way_ends_with_the_connection(how):
    async def main():
        async with pair() as (a, b):
            buffers = [bytearray(300_000) for _ in range(200)]
            request = a.send_many(buffers)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not request.done()
            if how == "close":
                closing = a.close()  # waits for its turn
                assert len(await b.recv_many(200)) == 200
                await asyncio.gather(request, closing)
            else:
                (a if how == "abort" else b).abort()
                with pytest.raises((weft.ClosedError, weft.PeerLostError)):
                    await request
            for _ in range(2000):
                gc.collect()
                try:
                    for buffer in buffers:
                        buffer.append(0)
                    break
                except BufferError:
                    await asyncio.sleep(0.001)
            else:
                raise AssertionError("a buffer is still held")

    run(main())


def test_both_faces():
    async def main():
        async with pair() as (a, b):
            sent = a.send_many(numbered(10))
            assert [bytes(each) for each in b.recv_many(10).wait()] == numbered(10)
            sent.wait()
            assert b.recv_many(0).wait() == []

    run(main())


@pytest.mark.parametrize("drop", [False, True], ids=["cancel", "drop"])
@pytest.mark.parametrize("operation", ["recv", "recv_into", "recv_many"])
def test_readers_cancelled_in_one_step_lose_nothing(operation, drop):
    """What the first had collected would go to the second, which is cancelled before a turn of the loop."""

    async def main():
        async with pair() as (a, b):
            many = b.recv_many(8)
            sent = numbered(5)
            await a.send_many(sent)
            for _ in range(20):
                await asyncio.sleep(0.001)
            arguments = {"recv": (), "recv_into": (bytearray(4),), "recv_many": (2,)}[operation]
            second = getattr(b, operation)(*arguments)
            later = [b.recv() for _ in range(5)]
            if drop:
                del many, second
            else:
                assert many.cancel()
                assert second.cancel()
            assert [bytes(await each) for each in later] == sent

    run(main())
