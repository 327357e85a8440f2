# SPDX-License-Identifier: BSD-3-Clause
"""``recv_into``: where a message lands, what is too long, and what becomes of a waiter that goes; also over TLS."""

import asyncio
import contextlib
import gc
import sys
from array import array

import numpy as np
import pytest
from tests.native.dlpack import DLPackArray
from tests.test_peer import pair, run
from tests.tls_pair import tls_pair

import weft
from weft import _native

SIZES = [0, 8, 4096, 4097, 100_000, 256 << 10, 3 << 20]
PAIRS = pytest.mark.parametrize("pair_of", [pair, tls_pair], ids=["native", "tls"])


def noise(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, "u1").tobytes()


@PAIRS
@pytest.mark.parametrize("first", ["send", "recv"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_message_lands_in_the_buffer(pair_of, nbytes, first):
    async def main():
        async with pair_of() as (a, b):
            data, buffer = noise(nbytes), bytearray(b"-" * (nbytes + 5))
            if first == "send":
                sent = a.send(data)
                request = b.recv_into(buffer)
            else:
                request = b.recv_into(buffer)
                sent = a.send(data)
            assert await request == nbytes
            assert buffer == data + b"-----"
            await sent
            buffer.append(0)  # nothing holds it any more, though `request` is there

    run(main())


def test_a_large_message_lands_without_a_block():
    async def main():
        async with pair() as (a, b):
            data = noise(3 << 20)
            before = _native.pool_statistics()["live_nbytes"] + _native.pool_statistics()["idle_nbytes"]
            buffer = bytearray(len(data))
            request = b.recv_into(buffer)
            await a.send(data)
            assert await request == len(data)
            assert buffer == data
            after = _native.pool_statistics()["live_nbytes"] + _native.pool_statistics()["idle_nbytes"]
            assert after - before < len(data)

    run(main())


@PAIRS
@pytest.mark.parametrize("nbytes", SIZES[1:])
def test_a_message_that_is_too_long_stays(pair_of, nbytes):
    async def main():
        async with pair_of() as (a, b):
            data, buffer = noise(nbytes), bytearray(nbytes - 1)
            request = b.recv_into(buffer)
            sent = a.send(data)
            with pytest.raises(weft.TruncatedError, match=f"has {nbytes} B; it stays"):
                await request
            assert not any(buffer)
            buffer.append(0)
            assert await b.recv_into(buffer) == nbytes
            assert buffer == data
            await sent

    run(main())


@PAIRS
def test_those_behind_get_what_was_too_long(pair_of):
    async def main():
        async with pair_of() as (a, b):
            waiting = [b.recv_into(bytearray(2)), b.recv(), b.recv_into(bytearray(3))]
            for data in (b"123", b"456"):
                await a.send(data)
            with pytest.raises(weft.TruncatedError):
                await waiting[0]
            assert await waiting[1] == b"123"
            assert await waiting[2] == 3

    run(main())


@PAIRS
def test_frames_arrive_as_one(pair_of):
    async def main():
        async with pair_of() as (a, b):
            large = noise(200_000)
            await a.send_frames([b"small", large])
            await a.send_frames([b"small", large])
            apart = await b.recv()
            buffer = bytearray(300_000)
            nbytes = await b.recv_into(buffer)
            assert buffer[:nbytes] == b"".join(apart)

    run(main())


def test_what_is_lent_is_copied():
    async def main():
        async with pair() as (a, b), weft.listen("127.0.0.1:0", lambda _: None):
            with weft.arrays_in_pool():
                lent = np.frombuffer(bytearray(noise(1 << 20)), "u1").copy()
            buffer = bytearray(1 << 20)
            await a.lend(lent)
            assert await b.recv_into(buffer) == 1 << 20
            assert buffer == lent.tobytes()
            assert b.lent_nbytes[1] == 1 << 20

    run(main())


@PAIRS
@pytest.mark.parametrize(
    ("buffer", "error"),
    [(b"read-only", weft.ReadOnlyError), (np.zeros((4, 4))[:, ::2], weft.NotContiguousError)],
    ids=["read-only", "strided"],
)
def test_a_buffer_that_cannot_be_filled(pair_of, buffer, error):
    async def main():
        async with pair_of() as (a, b):
            await a.send(b"x")
            with pytest.raises(error, match="recv_into"):
                b.recv_into(buffer)
            assert await b.recv() == b"x"

    run(main())


def test_any_contiguous_buffer():
    async def main():
        async with pair() as (a, b):
            for buffer in (array("d", [0.0] * 3), np.zeros((3, 1), order="F"), memoryview(bytearray(24)).cast("d")):
                await a.send(np.arange(3.0))
                assert await b.recv_into(buffer) == 24
                assert list(np.asarray(buffer).ravel()) == [0, 1, 2]

    run(main())


@PAIRS
def test_a_cancelled_one_loses_no_message(pair_of):
    async def main():
        async with pair_of() as (a, b):
            got, buffer = [], bytearray(4)
            for number in range(200):
                await a.send(number.to_bytes(4, "little"))
                while True:
                    try:
                        await asyncio.wait_for(b.recv_into(buffer), 0 if len(got) % 2 else 0.000001)
                        got.append(int.from_bytes(buffer, "little"))
                        break
                    except TimeoutError:
                        await asyncio.sleep(0)
            assert got == list(range(200))

    run(main())


@PAIRS
@pytest.mark.parametrize("nbytes", [1, 100_000, 1 << 20])
def test_a_message_whose_task_was_cancelled_goes_back(pair_of, nbytes):
    async def take(peer):
        buffer = bytearray(nbytes)
        assert await peer.recv_into(buffer) == nbytes
        return bytes(buffer)

    async def main():
        async with pair_of() as (a, b):
            went_back = 0
            for number in range(80):
                task = asyncio.create_task(take(b))
                await asyncio.sleep(0)
                data = noise(nbytes, number)
                sent = a.send(data)
                for _ in range(number % 10):  # cancel in every turn of the message's way to the task
                    await asyncio.sleep(0)
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(outcome, asyncio.CancelledError):
                    went_back += 1
                    outcome = bytes(await b.recv()) if number % 2 else await take(b)
                assert outcome == data
                await sent
            assert went_back

    run(main())


def test_a_buffer_is_held_until_what_lands_there_has_landed():
    """Cancelled in the midst of its transfer: the message goes to the next, the buffer is the carrier's until then."""

    async def main():
        async with pair() as (a, b):
            data = noise(16 << 20)
            phases = set()
            for number in range(40):
                buffer = bytearray(len(data))
                references = sys.getrefcount(buffer)
                request = b.recv_into(buffer)
                sent = a.send(data)
                for _ in range(number % 8):
                    await asyncio.sleep(0)
                phases.add(request.cancel())
                if request.cancelled():
                    del request
                    got = await b.recv()
                    assert np.array_equal(got, np.frombuffer(data, "u1"))
                    del got
                else:
                    assert await request == len(data)
                    assert buffer == data
                    del request
                await sent
                gc.collect()
                assert sys.getrefcount(buffer) == references
                buffer.append(0)
            assert True in phases

    run(main())


@pytest.mark.parametrize("phase", range(6))
def test_an_older_message_that_comes_back_goes_first(phase):
    async def main():
        async with pair() as (a, b):
            await a.send(b"old")
            while not (request := b.recv()).done():
                request.cancel()
                await asyncio.sleep(0.001)
            data = noise(64 << 20)
            buffer = bytearray(len(data))
            into = b.recv_into(buffer)  # what lands there is the second message
            sent = a.send(data)
            for _ in range(phase):
                await asyncio.sleep(0)
            del request  # the first one comes back
            if await into == 3:
                assert buffer[:3] == b"old"
                assert np.array_equal(await b.recv(), np.frombuffer(data, "u1"))
            else:
                assert buffer == data
                assert await b.recv() == b"old"
            await sent

    run(main())


@PAIRS
@pytest.mark.parametrize("how", ["close", "abort", "drop"])
def test_a_waiting_one_ends_with_the_connection(pair_of, how):
    async def main():
        async with pair_of() as (a, b):
            buffer = bytearray(1 << 20)
            request = b.recv_into(buffer)
            await asyncio.sleep(0)
            if how == "close":
                await a.close()
            elif how == "abort":
                a.abort()
            else:
                b.abort()
            with pytest.raises(weft.ClosedError if how == "drop" else weft.PeerLostError):
                await request
            buffer.append(0)

    run(main())


def test_an_abort_while_data_lands_lets_go_of_the_buffer():
    async def main():
        lost = 0
        for number in range(6):
            async with pair() as (a, b):
                buffer = bytearray(64 << 20)
                references = sys.getrefcount(buffer)
                request = b.recv_into(buffer)
                a.send(bytes(64 << 20))
                for _ in range(number):
                    await asyncio.sleep(0)
                (a if number % 2 else b).abort()
                try:
                    await request
                except (weft.ClosedError, weft.PeerLostError):
                    lost += 1
                del request
                for _ in range(1000):
                    await asyncio.sleep(0.001)
                    gc.collect()
                    if sys.getrefcount(buffer) == references:
                        break
                assert sys.getrefcount(buffer) == references
                buffer.append(0)
        assert lost

    run(main())


class Ending(DLPackArray):
    """Its deleter ends the request that it was received with."""

    def _delete(self, _):
        super()._delete(_)
        with contextlib.suppress(asyncio.CancelledError):
            self.request.throw(asyncio.CancelledError())


async def ended_twice(how):
    sent = b"x" * (1 << 20)
    async with pair() as (a, b):
        for _ in range(5):
            into = Ending(bytearray(1 << 20))
            request = into.request = b.recv_into(into)
            await a.send(sent)
            await asyncio.wait({request})
            if how == "received":
                assert request.wait() == 1 << 20
                assert into.memory == sent
            else:
                with contextlib.suppress(asyncio.CancelledError):
                    request.throw(asyncio.CancelledError())
                assert await b.recv() == sent
            assert into.deleted == 1
            await a.send(b"next")
            assert await b.recv() == b"next"


@pytest.mark.parametrize("how", ["received", "cancelled"])
def test_a_buffer_whose_release_ends_the_request(spawn, how):
    """In a process of its own: it crashed."""
    child = spawn(f"from tests import test_peer_into as t; t.run(t.ended_twice({how!r}))")
    assert child.wait() == 0
