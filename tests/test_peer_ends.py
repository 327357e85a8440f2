# SPDX-License-Identifier: BSD-3-Clause
"""How a connection within one process ends: closed, aborted, dropped. Both ends are cranked by one loop."""

import asyncio
import contextlib
import gc
import sys
import threading
from concurrent import futures

import numpy as np
import pytest
from tests.test_peer import pair, run
from tests.tls_pair import tls_pair

import weft


def test_all_that_was_sent_before_close_is_received_later():
    async def main():
        async with pair() as (a, b):
            sends = [a.send(bytes([i]) * size) for i, size in enumerate([1, 1 << 20, 10, 3 << 20, 0])]
            closing = a.close()
            got = [await b.recv() for _ in sends]
            assert [g.nbytes for g in got] == [1, 1 << 20, 10, 3 << 20, 0]
            await closing
            with pytest.raises(weft.PeerClosedError):
                await b.recv()
            with pytest.raises(weft.PeerLostError):
                await b.send(b"x")
            assert b.ended
            assert not b.closed
            await b.close()

    run(main())


def test_close_returns_before_a_late_reader_reads():
    async def main():
        async with pair() as (a, b):
            await a.send(b"small")
            await a.send(bytes(2 << 20))
            await a.close()
            assert await b.recv() == b"small"
            assert (await b.recv()).nbytes == 2 << 20
            with pytest.raises(weft.PeerClosedError):
                await b.recv()

    run(main())


@pytest.mark.parametrize("tls", [None, "tcp"], ids=["ring", "ucx"])
@pytest.mark.parametrize("nbytes", [70_000, 300_000, 5 << 20])
def test_an_abort_between_a_goodbye_and_its_acknowledgement_ends_the_close(nbytes, tls):
    """The goodbye is acknowledged once all has arrived, and a large message arrives when it is asked for."""

    async def main():
        async with pair(settings={"TLS": tls} if tls else None) as (a, b):
            sent = a.send(bytes(nbytes))
            closing = a.close()
            while not b.ended:
                await asyncio.sleep(0)
            b.abort()
            with contextlib.suppress(weft.PeerLostError):  # or it was acknowledged before
                await asyncio.wait_for(closing, 20)
            with contextlib.suppress(weft.Error):
                await asyncio.wait_for(sent, 20)

    run(main())


def test_use_after_close_is_the_own_fault():
    async def main():
        async with pair() as (a, _):
            waiting = a.recv()
            await a.close()
            with pytest.raises(weft.ClosedError):
                await waiting
            for use in (lambda: a.send(b"x"), a.recv):
                with pytest.raises(weft.ClosedError):
                    use()
            await a.close()
            a.abort()
            assert a.closed

    run(main())


def test_both_sides_close_at_once():
    async def main():
        for _ in range(20):
            async with pair() as (a, b):
                a.send(b"1")
                b.send(b"2")
                await asyncio.gather(a.close(), b.close())

    run(main())


def test_abort_reaches_the_other_side():
    async def main():
        async with pair() as (a, b):
            await a.send(b"first")
            waiting = [b.recv(), b.recv()]
            assert await waiting[0] == b"first"
            a.abort()
            with pytest.raises(weft.PeerLostError, match="aborted"):
                await waiting[1]
            with pytest.raises(weft.PeerLostError):
                await b.send(b"x")

    run(main())


def test_a_peer_that_is_dropped_is_aborted():
    async def main():
        peers = []

        async def handler(peer):
            peers.append(peer)
            with pytest.raises(weft.PeerLostError):
                await peer.recv()
            peers.append("lost")

        async with weft.listen("127.0.0.1:0", handler) as listener:
            peer = await weft.connect(listener.address)
            await asyncio.sleep(0.05)  # all is quiet: nothing but the drop can wake the worker
            del peer
            gc.collect()
            async with asyncio.timeout(10):  # UCX's own keepalive would do it after 20
                while "lost" not in peers:
                    await asyncio.sleep(0.001)

    run(main())


def test_fifty_connections_both_ways_half_of_them_aborted():
    async def main():
        servers = [[], []]

        def handler_of(index):
            async def handler(peer):
                servers[index].append(peer)
                with contextlib.suppress(weft.PeerLostError):
                    while True:
                        await peer.send(await peer.recv())

            return handler

        async with weft.listen("127.0.0.1:0", handler_of(0)) as one, weft.listen("127.0.0.1:0", handler_of(1)) as two:
            peers = await asyncio.gather(*(weft.connect((one, two)[i % 2].address)._open() for i in range(50)))

            async def talk(number, peer):
                data = np.full(3 << 20, number, "u1")
                sent = peer.send(data)
                if number % 2:
                    peer.abort()
                    with pytest.raises(weft.Error):
                        await sent
                    return 0
                got = np.frombuffer(await peer.recv(), "u1")
                assert (got == data).all()
                await peer.close()
                return 1

            assert sum(await asyncio.gather(*(talk(i, p) for i, p in enumerate(peers)))) == 25

    run(main())


@contextlib.asynccontextmanager
async def lost_inside(how, raised):
    """Enter a peer's block, end the connection from the other side in it, and leave it."""
    async with pair() as (a, b):
        if how == "abort":
            b.abort()
        else:
            await b.close()
        while not a.ended:
            await asyncio.sleep(0.001)
        if raised:
            with pytest.raises(weft.PeerLostError):
                await a.recv()
        yield a


@pytest.mark.parametrize("face", ["block", "await"])
@pytest.mark.parametrize("raised", [True, False])
def test_a_loss_is_raised_once(face, raised):
    async def main():
        async with lost_inside("abort", raised) as peer:
            expected = contextlib.nullcontext() if raised else pytest.raises(weft.PeerLostError)
            with expected:
                if face == "block":
                    with peer:
                        pass
                else:
                    async with peer:
                        pass
            assert peer.closed

    run(main())


@pytest.mark.parametrize("raised", [True, False])
def test_a_goodbye_is_no_loss(raised):
    async def main():
        async with lost_inside("close", raised) as peer:
            async with peer:
                pass
            assert peer.closed

    run(main())


def test_a_peer_that_closed_and_then_ended_its_process_is_no_loss():
    code = "import sys, weft\nwith weft.connect(sys.argv[1]) as peer: peer.send(b'x').wait()"

    async def main():
        ended = asyncio.get_running_loop().create_future()

        async def handler(peer):
            try:
                async with peer:
                    assert await peer.recv() == b"x"
                    assert await process.wait() == 0
                    await asyncio.sleep(0.05)  # the loop sees the end of its socket
                    assert peer.ended
                ended.set_result(True)
            except Exception as e:
                ended.set_exception(e)

        async with weft.listen("127.0.0.1:0", handler) as listener:
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, listener.address)
            await ended

    run(main(), 60)


def test_a_loss_that_a_failed_send_raised_is_raised_once():
    async def main():
        async with pair() as (a, b):
            async with a:
                waiting = a.recv()
                b.abort()
                outcome = await asyncio.gather(waiting, return_exceptions=True)
                assert isinstance(outcome[0], weft.PeerLostError)
            assert a.closed

    run(main())


def test_closing_still_tells_of_a_loss():
    async def main():
        async with lost_inside("abort", raised=True) as peer:
            with pytest.raises(weft.PeerLostError):
                await peer.close()

    run(main())


@pytest.mark.parametrize("how", ["ring", "tls"])
def test_a_close_that_was_given_up_can_be_awaited_again(how):
    async def main():
        async with pair() if how == "ring" else tls_pair() as (a, b):
            sent = a.send(bytes(40 << 20))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(a.close(), 0.05)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(a.close(), 0.05)
            again, and_again = asyncio.ensure_future(a.close()), asyncio.ensure_future(a.close())
            assert (await b.recv()).nbytes == 40 << 20
            await asyncio.gather(sent, again, and_again)
            await a.close()

    run(main())


def test_a_blocking_close_that_timed_out_is_waited_for_again():
    def late(listener):
        with listener.accept(100) as peer:
            assert timed_out.wait(100)
            return peer.recv().wait(100).nbytes

    timed_out = threading.Event()
    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(1) as thread:
        received = thread.submit(late, listener)
        peer = weft.connect(listener.address).open()
        peer.send(bytes(40 << 20))
        with pytest.raises(weft.TimedOutError):
            peer.close().wait(0.05)
        timed_out.set()
        peer.close().wait(100)
        assert received.result() == 40 << 20
