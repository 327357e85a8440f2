# SPDX-License-Identifier: BSD-3-Clause
"""Making connections: both faces, what is exposed, and what is left behind."""

import asyncio
import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest
import uvloop

import weft

ECHO = """
import sys, weft
with weft.listen(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    with listener.accept(100) as peer:
        try:
            while True:
                peer.send(peer.recv().wait(100)).wait(100)
        except weft.PeerClosedError:
            print("goodbye", flush=True)
"""


def listening(pid="self"):
    """The (address, port) pairs on which this process's network namespace listens, in hex as the kernel writes them."""
    found = set()
    inodes = {
        os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]")
        for fd in os.listdir(f"/proc/{pid}/fd")
        if _is_socket(pid, fd)
    }
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(tuple(fields[1].split(":")))
    return found


def _is_socket(pid, fd):
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
    return False


def test_blocking_in_two_processes(spawn):
    child = spawn(ECHO)
    with weft.connect(child.line()) as peer:
        assert peer.transports == ["ring/memory"]
        for size in (0, 5, 10_000, 3 << 20):
            data = os.urandom(size)
            peer.send(data).wait(100)
            assert bytes(peer.recv().wait(100)) == data
    assert child.line() == "goodbye"
    assert child.wait() == 0


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_asyncio_to_a_blocking_process(spawn, factory):
    child = spawn(ECHO)

    async def main():
        async with weft.connect(child.line()) as peer:
            for size in (5, 3 << 20):
                sent = peer.send(bytes(size))
                assert (await peer.recv()).nbytes == size
                await sent

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(main(), 100))
    assert child.line() == "goodbye"


def test_blocking_in_two_threads():
    with weft.listen("127.0.0.1:0") as listener:
        address = listener.address

        def client():
            with weft.connect(address) as peer:
                peer.send(b"from a thread").wait(100)
                assert peer.recv().wait(100).nbytes == 4 << 20

        thread = threading.Thread(target=client)
        thread.start()
        with listener.accept(100) as peer:
            assert peer.recv().wait(100) == b"from a thread"
            peer.send(bytes(4 << 20)).wait(100)
            with pytest.raises(weft.PeerClosedError):
                peer.recv().wait(100)
        thread.join(100)


def test_ipv6(spawn):
    child = spawn(ECHO, "[::1]:0")
    address = child.line()
    assert address.startswith("[::1]:")
    with weft.connect(address) as peer:
        peer.send(b"six").wait(100)
        assert peer.recv().wait(100) == b"six"
        assert peer.remote_address == address


@pytest.mark.parametrize("wildcard", ["0.0.0.0:0", "", ":0", "[::]:0"])
def test_a_wildcard_tells_an_address_that_others_can_use(wildcard):
    with weft.listen(wildcard) as listener:
        host, _, port = listener.address.rpartition(":")
        assert host.strip("[]") not in ("0.0.0.0", "::", "")
        assert int(port) > 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_binds_only_the_address_given_and_nothing_of_ucx(host):
    before = listening()

    async def main():
        async def handler(peer):
            await peer.recv()

        async with weft.listen(f"{host}:0", handler) as listener, weft.connect(listener.address) as peer:
            await peer.send(b"x")
            new = listening() - before
            packed = socket.inet_aton(host)[::-1].hex().upper()
            assert new == {(packed, f"{int(listener.address.rpartition(':')[2]):04X}")}

    asyncio.run(main())


def test_200_sequential_connects_leave_no_descriptor(spawn, fds):
    child = spawn(
        """
        import asyncio, os, weft
        async def handler(peer):
            await peer.send(await peer.recv())
            try:
                await peer.recv()
            except weft.PeerClosedError:
                pass
        async def main():
            async with weft.listen("127.0.0.1:0", handler) as listener:
                print(listener.address, flush=True)
                while await asyncio.to_thread(input) == "count":
                    print(len(os.listdir("/proc/self/fd")), flush=True)
        asyncio.run(main())
        """
    )
    address = child.line()

    def count():
        child.say("count")
        return int(child.line())

    def once():
        with weft.connect(address) as peer:
            peer.send(b"x").wait(100)
            assert peer.recv().wait(100) == b"x"

    for _ in range(3):
        once()
    before = fds(), count()
    for _ in range(200):
        once()
    after = fds(), count()
    assert after[0] <= before[0]  # a link to a child of another test may have been swept meanwhile
    assert after[1] == before[1]
    child.say("stop")
    assert child.wait() == 0


def test_event_loops_in_turn_leave_no_descriptor(fds):
    async def main():
        async def handler(peer):
            await peer.send(await peer.recv())

        async with weft.listen("127.0.0.1:0", handler) as listener, weft.connect(listener.address) as peer:
            await peer.send(b"x")
            await peer.recv()

    asyncio.run(main())
    before = fds()
    for _ in range(30):
        asyncio.run(main())
    assert fds() == before


def test_loops_closed_with_everything_open_are_swept(fds):
    async def main():
        async def handler(peer):
            await asyncio.sleep(60)

        listener = weft.listen("127.0.0.1:0", handler)
        await listener.start()
        kept.append(await weft.connect(listener.address))
        await kept[-1].send(b"x")
        listener.stop()

    kept = []
    for i in range(10):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        if i == 2:
            before = fds()
    assert fds() <= before + 2
