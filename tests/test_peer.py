# SPDX-License-Identifier: BSD-3-Clause
"""A connection within one process: order, bounds, cancellation, closing. Both ends are cranked by one loop."""

import asyncio
import contextlib
import sys
import threading
from concurrent import futures

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.native.dlpack import DLPackArray

import weft


@contextlib.asynccontextmanager
async def pair(info=None, settings=None):
    """Two ends of a connection: (connector, listener's)."""
    accepted = asyncio.get_running_loop().create_future()
    release = asyncio.Event()

    async def handler(peer):
        accepted.set_result(peer)
        await release.wait()

    async with weft.listen("127.0.0.1:0", handler, info=info, settings=settings) as listener:
        peer = await weft.connect(listener.address, info=info, settings=settings)
        other = await accepted
        try:
            yield peer, other
        finally:
            peer.abort()
            other.abort()
            release.set()


def run(coroutine, timeout=100):
    return asyncio.run(asyncio.wait_for(coroutine, timeout))


def test_messages_both_ways():
    async def main():
        async with pair() as (a, b):
            await a.send(b"there")
            assert bytes(await b.recv()) == b"there"
            await b.send(b"and back")
            assert await a.recv() == b"and back"
            await a.send(b"")
            assert (await b.recv()).nbytes == 0

    run(main())


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20])
@pytest.mark.parametrize("how", ["send", "lend"])
def test_an_array_without_the_buffer_protocol(how, nbytes):
    async def main():
        async with pair() as (a, b):
            array = DLPackArray(bytearray(b"x" * nbytes))
            sent = getattr(a, how)(array)
            assert bytes(await b.recv()) == array.memory
            await sent
            assert array.deleted == 1

    run(main())


@pytest.mark.parametrize("how", ["send", "lend"])
def test_an_array_whose_export_closes_the_connection_is_not_sent(how):
    async def main():
        async with pair() as (a, _):
            array = DLPackArray(bytearray(8))
            kind = {"__dlpack__": lambda self, **_: a.abort() or DLPackArray.__dlpack__(self, max_version=(1, 0))}
            array.__class__ = type("Closing", (DLPackArray,), kind)
            with pytest.raises(weft.ClosedError):
                getattr(a, how)(array)
            assert array.deleted == 1

    run(main())


@pytest.mark.parametrize("nbytes", [1, 63, 64 << 10, (1 << 20) + 3, 40 << 20])
def test_a_message_lands_aligned_and_writable(nbytes):
    async def main():
        async with pair() as (a, b):
            data = np.random.default_rng(1).integers(0, 256, nbytes, "u1")
            sent = a.send(data)
            got = await b.recv()
            await sent
            assert not got.readonly
            array = np.frombuffer(got, "u1")
            assert (array == data).all()
            assert array.__array_interface__["data"][0] % 64 == 0

    run(main())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 8, 1000, 8_000, 8_100, 8_192, 8_300, 70_000, 262_143, 262_144, 600_000]), max_size=40
    )
)
def test_order_holds_across_eager_and_rendezvous(sizes):
    async def main():
        async with pair() as (a, b):

            async def send():
                requests = [a.send(np.full(size, i % 251, "u1")) for i, size in enumerate(sizes)]
                await asyncio.gather(*requests)

            task = asyncio.create_task(send())
            for i, size in enumerate(sizes):
                got = np.frombuffer(await b.recv(), "u1")
                assert got.size == size
                assert (got == i % 251).all()
            await task

    run(main())


@pytest.mark.parametrize("frames", [[], None])
def test_what_is_no_object_is_refused(frames):
    async def main():
        async with pair() as (a, b):
            await (a.send(b"x") if frames is None else a.send_frames(frames))
            with pytest.raises(weft.HandshakeError, match="not sent by send_"):
                await b.recv_obj()
            await a.send_obj("next")
            assert await b.recv_obj() == "next"

    run(main())


def test_objects_with_large_buffers():
    async def main():
        async with pair() as (a, b):
            obj = {"x": np.arange(100_000.0), "small": np.arange(5), "text": "weft", "none": None}
            sent = a.send_obj(obj)
            got = await b.recv_obj()
            await sent
            assert (got["x"] == obj["x"]).all()
            assert got["x"].flags.writeable
            assert got["x"].flags.aligned
            assert (got["small"] == obj["small"]).all()
            assert (got["text"], got["none"]) == ("weft", None)

    run(main())


def test_objects_are_sent_pickled_alone():
    """Their array is nothing but pointers."""
    array = np.array([{"a": 1}, "b", None] * 10_000, dtype=object)

    async def main():
        async with pair() as (a, b):
            for large in (array, array[:3], array.reshape(2, -1, order="F")):
                for send in (
                    lambda large=large: a.send(large),
                    lambda large=large: a.lend(large),
                    lambda large=large: a.send_frames([b"head", large]),
                    lambda large=large: a.send_frames([large], lend=True, stage=True),
                ):
                    with pytest.raises(weft.InvalidParamError, match=r"Python objects.* pickle"):
                        send()
            await a.send_obj(array)
            assert (await b.recv_obj() == array).all()

    run(main())


def test_what_is_no_message_is_refused_by_the_operations_name():
    gaps, objects = np.zeros((3, 6))[:, ::2], np.array([{}])

    async def main():
        async with pair() as (a, _):
            for wrong in (None, [None], [b"fine", "text"]):
                with pytest.raises(TypeError, match=r"send_frames: .*; pass a sequence of contiguous buffers"):
                    a.send_frames(wrong)
            for wrong, error in ((gaps, weft.NotContiguousError), (objects, weft.InvalidParamError)):
                with pytest.raises(error, match=r"^send_frames: "):
                    a.send_frames([wrong])
            with pytest.raises(TypeError, match=r"send_packed: pass a message of Peer\.pack, not NoneType"):
                a.send_packed(None)

    run(main())


def test_frames_of_every_kind():
    async def main():
        async with pair() as (a, b):
            buffers = [b"", b"x", np.arange(10_000.0), bytearray(65_536), memoryview(bytes(200_000)), b"end"]
            sent = a.send_frames(buffers)
            got = await b.recv_frames()
            await sent
            assert [bytes(g) for g in got] == [bytes(memoryview(x).cast("B")) for x in buffers]
            many = [bytes(100_000)] * 700
            sent = a.send_frames(many)
            assert [len(g) for g in await b.recv_frames()] == [100_000] * 700
            await sent

    run(main())


def test_what_the_sides_know_of_each_other():
    async def main():
        async with pair({"name": "both"}) as (a, b):
            assert a.remote == b.remote == {"name": "both"}
            assert a.same_host
            assert b.same_host
            assert a.local_address == b.remote_address
            assert a.remote_address == b.local_address
            assert a.transports == b.transports == ["ring/memory"]

    run(main())


@pytest.mark.slow
def test_a_cancelled_recv_loses_no_message():
    rounds, gap = 100_000, 997

    async def main():
        async with pair() as (a, b):
            got = []
            sent = 0
            for i in range(rounds):
                if i % gap == 0:
                    await a.send(sent.to_bytes(4, "little"))
                    sent += 1
                with contextlib.suppress(TimeoutError):
                    # 0 expires at once, at every phase of the wait
                    got.append(int.from_bytes(await asyncio.wait_for(b.recv(), 0 if i % 2 else 0.000001), "little"))
            while len(got) < sent:
                got.append(int.from_bytes(await b.recv(), "little"))
            assert got == list(range(sent))

    run(main(), 110)


def test_a_message_whose_task_was_cancelled_goes_back():
    async def take(peer):
        return bytes(await peer.recv())

    async def main():
        async with pair() as (a, b):
            for size in (1, 1 << 20):
                for number in range(50):
                    task = asyncio.create_task(take(b))
                    await asyncio.sleep(0)
                    sent = a.send(bytes([number]) * size)
                    # Cancel in every turn of the message's way to the task.
                    for _ in range(number % 8):
                        await asyncio.sleep(0)
                    task.cancel()
                    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                    if isinstance(outcome, asyncio.CancelledError):
                        outcome = await take(b)
                    assert outcome == bytes([number]) * size
                    await sent

    run(main())


def test_a_dropped_request_gives_its_message_back():
    async def main():
        async with pair() as (a, b):
            await a.send(b"1")
            await a.send(b"2")
            while not (request := b.recv()).done():
                request.cancel()
                await asyncio.sleep(0.001)
            del request
            assert [bytes(await b.recv()), bytes(await b.recv())] == [b"1", b"2"]

    run(main())


def test_a_request_that_gave_its_message_back_has_no_result():
    async def main():
        async with pair() as (a, b):
            await a.send(b"1")
            while not (request := b.recv()).done():
                request.cancel()
                await asyncio.sleep(0.001)
            with pytest.raises(asyncio.CancelledError):
                request.throw(asyncio.CancelledError())
            with pytest.raises(weft.CanceledError, match="went back"):
                request.result()
            assert bytes(await b.recv()) == b"1"

    run(main())


def test_unread_messages_suspend_the_sender():
    async def main():
        async with pair() as (a, b):
            before = weft._native.pool_statistics()["live_nbytes"]
            sends = [a.send(bytes(1024)) for _ in range(10_000)]
            large = [a.send(bytes(8 << 20)) for _ in range(5)]
            await asyncio.sleep(0.05)
            pending = sum(not s.done() for s in sends)
            assert 0 < pending < len(sends)
            assert not large[-1].done()
            assert weft._native.pool_statistics()["live_nbytes"] - before <= 24 << 20
            for _ in range(10_000):
                assert (await b.recv()).nbytes == 1024
            for _ in large:
                assert (await b.recv()).nbytes == 8 << 20
            await asyncio.gather(*sends, *large)

    run(main())


def test_a_queued_send_can_be_withdrawn():
    async def main():
        async with pair() as (a, b):
            sends = [a.send(bytes(60_000)) for _ in range(200)]
            data = bytearray(b"never")
            last = a.send(data)
            assert last.cancel()
            data.append(0)
            for _ in sends:
                assert (await b.recv()).nbytes == 60_000
            await a.send(b"end")
            assert await b.recv() == b"end"

    run(main())


def test_what_waits_behind_a_withdrawn_send_goes_on():
    async def main():
        async with pair() as (a, b):
            sends = [a.send(bytes(200_000)) for _ in range(21)]  # there is credit for 20
            small = a.send(b"small")
            assert sends[-1].cancel()
            await asyncio.wait_for(small, 10)
            for _ in sends[:-1]:
                assert (await b.recv()).nbytes == 200_000
            assert await b.recv() == b"small"

    run(main())


def test_a_reader_in_another_task_and_references():
    async def main():
        async with pair() as (a, b):
            data = bytearray(1 << 20)
            before = sys.getrefcount(data)
            for _ in range(20):
                sent = a.send(data)
                await b.recv()
                await sent
            del sent
            assert sys.getrefcount(data) == before

    run(main())


def test_a_small_message_does_not_undo_the_wait_for_room_of_larger_ones():
    """A receiver that computes; meanwhile the sender's loop sleeps, with messages that wait for room."""
    computed, done = threading.Event(), threading.Event()

    async def sender(address):
        async with weft.connect(address) as peer:
            larger = [asyncio.ensure_future(whole(peer, bytes(5000))) for _ in range(40)]
            await asyncio.sleep(0.1)
            assert not all(each.done() for each in larger)
            assert peer.send(b"fits").done()
            computed.set()
            await asyncio.gather(*larger)
            done.set()

    async def whole(peer, message):
        await peer.send(message)

    def receiver(listener):
        with listener.accept(timeout=100) as peer:
            assert computed.wait(100)
            assert sorted(peer.recv().wait(timeout=20).nbytes for _ in range(41)) == [4] + [5000] * 40
            assert done.wait(20)

    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(1) as thread:
        received = thread.submit(receiver, listener)
        run(sender(listener.address))
        received.result()


def test_one_connection_in_two_loops_one_after_the_other():
    async def main(peer):
        await peer.send(b"there")
        return bytes(await peer.recv())

    def echo(listener):
        with listener.accept(timeout=100) as peer:
            for _ in range(2):
                peer.send(peer.recv().wait(100)).wait(100)
            with pytest.raises(weft.PeerClosedError):
                peer.recv().wait(100)

    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(1) as thread:
        echoed = thread.submit(echo, listener)
        with weft.connect(listener.address) as peer:
            assert [run(main(peer)) for _ in range(2)] == [b"there"] * 2
        echoed.result()

    def call(address):
        with weft.connect(address) as peer:
            peer.send(b"later").wait(100)

    # and without a loop, by the thread whose worker has been in those
    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(1) as thread:
        called = thread.submit(call, listener.address)
        with listener.accept(timeout=100) as peer:
            assert bytes(peer.recv().wait(100)) == b"later"
        called.result()


def test_one_worker_in_two_loops_one_after_the_other():
    worker = weft.Worker(weft.Context())
    endpoint = worker.connect(worker.address)

    async def main():
        await endpoint.tag_send(b"hello", tag=1)
        return await worker.tag_recv(bytearray(5), tag=1)

    assert [run(main()) for _ in range(3)] == [(5, 1)] * 3
