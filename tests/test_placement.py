# SPDX-License-Identifier: BSD-3-Clause
"""What lies on a device travels by itself, into memory of the receiver's choice. The device's memory is the host's."""

import asyncio
import threading

import pytest
from tests.native.dlpack import CudaArray
from tests.placed import NOISE, Allocator, Placed, on
from tests.test_peer import pair, run

import weft

SIZES = [[1], [8, 0, 100_000], [300_000, 1, 5 << 20], [10] * 600]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)}x{max(sizes)}")
def test_buffers_arrive_in_the_memory_that_was_allocated(sizes):
    async def main():
        buffers = [b"head", *(on(i % 200, NOISE[i : i + n]) for i, n in enumerate(sizes)), bytes(70_000), b"tail"]
        allocate = Allocator()
        async with pair() as (a, b):
            sent = a.send_frames(buffers)
            got = await b.recv_frames(allocate)
            await sent
        assert got == buffers
        assert [type(x) for x in got[1:-2]] == [Placed] * len(sizes)
        assert allocate.calls == [(n, i % 200, "") for i, n in enumerate(sizes)]

    run(main())


def test_the_library_is_told():
    async def main():
        async with pair() as (a, b):
            allocate = Allocator()
            for name in ("cupy", "numba", "torch", "rmm", "jaxlib"):
                kind = type("Array", (Placed,), {"__module__": f"{name}.core"})
                sent = a.send_frames([kind(b"x")])
                await b.recv_frames(allocate)
                await sent
            assert [library for _, _, library in allocate.calls] == ["cupy", "numba", "torch", "rmm", ""]

    run(main())


def test_host_memory_is_what_a_receiver_gets_who_asks_for_nothing():
    async def main():
        async with pair() as (a, b):
            sent = a.send_frames([on(1, b"device")])
            [got] = await b.recv_frames()
            await sent
            assert (type(got), got) == (bytearray, b"device")

    run(main())


def test_two_readers_do_not_take_each_others():
    async def main():
        async with pair() as (a, b):
            allocate = Allocator()
            first, second = b.recv_frames(allocate), b.recv_frames(allocate)
            sent = [a.send_frames([on(0, b"one"), b"1"]), a.send_frames([on(0, b"two..."), b"2"])]
            assert await second == [b"two...", b"2"]
            assert await first == [b"one", b"1"]
            for each in sent:
                await each

    run(main())


def test_ordinary_messages_keep_their_order_around_it():
    async def main():
        async with pair() as (a, b):
            sent = [a.send(b"before"), a.send_frames([on(0, NOISE)]), a.send(b"after"), a.send(NOISE)]
            assert await b.recv() == b"before"
            frames = b.recv_frames(Allocator())
            after, large = b.recv(), b.recv()
            assert await after == b"after"  # although nobody waits for the device's yet
            assert await large == NOISE
            assert await frames == [NOISE]
            for each in sent:
                await each

    run(main())


def test_a_close_waits_until_it_has_arrived():
    async def main():
        async with pair() as (a, b):
            a.send_frames([on(0, NOISE)])
            closing = a.close()
            frames = b.recv_frames(Allocator())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(_of(closing))), 0.05)
            assert await frames == [NOISE]
            with pytest.raises(weft.PeerClosedError):
                await b.recv()
            assert a.closed

    async def _of(request):
        return await request

    run(main())


@pytest.mark.parametrize("who", ["reader", "writer"])
def test_giving_it_up_halfway_aborts(who):
    async def main():
        async with pair() as (a, b):
            if who == "writer":
                waiting = asyncio.ensure_future(_of(a.send_frames([on(0, NOISE)])))
                await asyncio.sleep(0)
                await b.recv()  # the table: the rest stays where it is
            else:
                places = a._channel.next_place
                a._channel.send(*weft._frames.pack([on(0, NOISE)], places)[:2])  # names what never comes
                waiting = asyncio.ensure_future(_of(b.recv_frames(Allocator())))
                await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (a if who == "writer" else b).closed
            with pytest.raises(weft.PeerLostError):
                await (b if who == "writer" else a).recv()

    async def _of(pending):
        return await pending

    run(main())


def test_no_memory_aborts():
    async def main():
        async with pair() as (a, b):
            sent = a.send_frames([on(0, b"x")])

            def full(*_):
                raise MemoryError("full")

            with pytest.raises(MemoryError, match="full"):
                await b.recv_frames(full)
            with pytest.raises(weft.PeerLostError):
                await sent

    run(main())


def test_memory_of_another_size_is_an_error():
    async def main():
        async with pair() as (a, b):
            a.send_frames([on(0, b"12345")])
            with pytest.raises(weft.TruncatedError, match="the message has 5 B"):
                await b.recv_frames(lambda *_: Placed(4))

    run(main())


def test_what_ucx_does_not_reach_is_refused_before_anything_is_sent():
    class Unreachable(CudaArray):
        nbytes = 6

        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **_):
            raise AssertionError("not asked")

    async def main():
        async with pair() as (a, b):
            with pytest.raises(weft.UnsupportedError, match="is in CUDA memory"):
                a.send_frames([b"head", on(0, b"x"), Unreachable(bytearray(6))])
            sent = a.send_frames([b"next", on(0, b"y")])
            assert await b.recv_frames() == [b"next", b"y"]
            await sent

    run(main())


def test_the_blocking_face_with_time_limits():
    with weft.listen("127.0.0.1:0") as listener:

        def other():
            with weft.connect(listener.address) as peer:
                peer.send_frames([b"a", on(1, NOISE)]).wait(100)
                peer.recv().wait(100)

        thread = threading.Thread(target=other)
        thread.start()
        with listener.accept(100) as peer:
            pending = peer.recv_frames(Allocator())
            while True:
                try:
                    got = pending.wait(0.001)
                    break
                except TimeoutError:
                    continue
            assert got == [b"a", NOISE]
            assert pending.done()
            peer.send(b"done").wait(100)
        thread.join(100)


PEER = """
import sys, weft
from tests.placed import NOISE, Allocator, on
with weft.connect(sys.argv[1]) as peer:
    if sys.argv[2] == "echo":
        got = peer.recv_frames(Allocator()).wait(100)
        peer.send_frames(got).wait(100)
        peer.recv().wait(100)
    elif sys.argv[2] == "sends":
        sent = peer.send_frames([on(0, NOISE)])
        print("sent", flush=True)
        sent.wait(100)
    else:
        peer.recv().wait(100)  # of a message with device memory, the table alone
        print("read", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("tls", ["", "tcp,self"])
def test_between_processes(spawn, tls, monkeypatch):
    if tls:
        monkeypatch.setenv("UCX_TLS", tls)
    buffers = [b"head", *(on(i, NOISE[: 3_000_000 * i + 1]) for i in range(4)), bytes(70_000)]
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(PEER, listener.address, "echo")
        with listener.accept(100) as peer:
            sent = peer.send_frames(buffers)
            sent.wait(100)
            assert peer.recv_frames(Allocator()).wait(100) == buffers
            assert any(tls.partition(",")[0] in lane for lane in peer.transports)
            peer.send(b"done").wait(100)
        assert child.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("side", ["sends", "receives"])
def test_a_killed_peer_ends_both_halves(spawn, side):
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(PEER, listener.address, side)
        peer = listener.accept(100)
        if side == "sends":
            child.line()
            child.stop()  # it will not answer the rendezvous
            pending = peer.recv_frames(Allocator())
            with pytest.raises(TimeoutError):
                pending.wait(0.05)
        else:
            pending = peer.send_frames([on(0, NOISE)])
            with pytest.raises(TimeoutError):  # UCX 1.23 sends nothing before there was progress
                pending.wait(0.5)
            child.line()
        child.kill()
        with pytest.raises(weft.PeerLostError):
            pending.wait(100)
        peer.abort()
