# SPDX-License-Identifier: BSD-3-Clause
"""On one host a side may leave once the other has all messages in its memory, whether or not it calls weft again."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from concurrent import futures

import pytest

import weft

#: Leaves as soon as it has sent what it was asked for: messages of these sizes.
BLOCKING = """
import sys, weft
with weft.connect(sys.argv[1]) as peer:
    for nbytes in sys.argv[2:]:
        peer.send(bytes(int(nbytes))).wait(100)
"""
AWAITING = """
import asyncio, sys, weft
async def main():
    async with weft.connect(sys.argv[1]) as peer:
        for nbytes in sys.argv[2:]:
            await peer.send(bytes(int(nbytes)))
asyncio.run(main())
"""
#: Of one record, of pieces, of pieces after an answer, more than the area has at once; many at once.
SIZES = [[], [8], [70_000], [300_000], [20 << 20], [8] * 300, [8, 5 << 20, 70_000, 8]]


@pytest.mark.parametrize("code", [BLOCKING, AWAITING], ids=["blocking", "awaiting"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)} of {max(sizes, default=0)}")
def test_a_process_ends_while_the_other_waits_for_its_end_inside_the_block(sizes, code):
    with weft.listen("127.0.0.1:0") as listener:
        child = subprocess.Popen([sys.executable, "-c", code, listener.address, *map(str, sizes)])
        try:
            with listener.accept(30) as peer:
                assert [peer.recv().wait(30).nbytes for _ in sizes] == sizes
                assert child.wait(30) == 0
                with pytest.raises(weft.PeerClosedError):
                    peer.recv().wait(30)
        finally:
            child.kill()
            child.wait()


def test_a_thread_ends_while_the_other_joins_it_inside_the_block():
    def send():
        with weft.connect(listener.address) as peer:
            peer.send(b"result").wait(30)

    with weft.listen("127.0.0.1:0") as listener:
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        with listener.accept(30) as peer:
            assert peer.recv().wait(30) == b"result"
            thread.join(30)
            assert not thread.is_alive()


def test_the_other_side_leaves_as_well():
    def both(connection, sends):
        with connection as peer:
            if sends:
                peer.send(b"there").wait(30)
            else:
                assert peer.recv().wait(30) == b"there"
        return peer.closed

    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(1) as thread:
        for i in range(200):
            other = thread.submit(lambda i=i: both(weft.connect(listener.address), i % 2))
            assert both(listener.accept(30), 1 - i % 2)
            assert other.result(30)


def test_a_close_waits_for_messages_that_the_other_side_has_not_in_its_memory():
    """What was sent stays in the ring until the other thread calls weft."""

    def accept_and_hold():
        with listener.accept(30) as peer:
            assert peer.recv().wait(30) == b"first"
            has_first.set()
            assert goes_on.wait(30)
            return bytes(peer.recv().wait(30))

    has_first, goes_on = threading.Event(), threading.Event()
    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(1) as thread:
        held = thread.submit(accept_and_hold)
        peer = weft.connect(listener.address).open()
        peer.send(b"first").wait(30)
        assert has_first.wait(30)
        peer.send(b"second").wait(30)
        with pytest.raises(weft.TimedOutError):
            peer.close().wait(0.3)
        goes_on.set()
        peer.close().wait(30)
        assert held.result(30) == b"second"


def test_a_link_with_another_connection_goes_on():
    async def main():
        got = []

        async def handler(peer):
            with contextlib.suppress(weft.PeerClosedError):
                while True:
                    got.append(bytes(await peer.recv()))

        async with weft.listen("127.0.0.1:0", handler) as listener:
            async with weft.connect(listener.address) as stays:
                for i in range(50):
                    async with weft.connect(listener.address) as leaves:
                        await leaves.send(b"%d" % i)
                    await stays.send(b"stays")
            while len(got) < 100:
                await asyncio.sleep(0.01)
        assert sorted(got) == sorted([b"%d" % i for i in range(50)] + [b"stays"] * 50)

    asyncio.run(asyncio.wait_for(main(), 60))
