# SPDX-License-Identifier: BSD-3-Clause
"""Memory and descriptors that run out: a named error, and everything works again with room."""

import asyncio
import contextlib
import socket
import time

import pytest

import weft

HANG_S = 20

READER = """
import resource, sys, weft
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    peer = listener.accept(100)
    assert peer.recv().wait(100) == b"start"
    in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (64 << 20), resource.RLIM_INFINITY))
    try:
        peer.recv().wait(100)
    except MemoryError as e:
        print(type(e).__name__, e, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    peer.abort()
    with listener.accept(100) as peer:
        print(peer.recv().wait(100).nbytes, flush=True)
"""


def test_a_message_that_does_not_fit_into_memory(spawn):
    """The reader has a named error and goes on with others; the sender has lost its peer."""
    reader = spawn(READER)
    address = reader.line()
    data = bytes(256 << 20)
    peer = weft.connect(address).open()
    peer.send(b"start").wait(HANG_S)
    with pytest.raises(weft.PeerLostError):
        peer.send(data).wait(HANG_S)
        peer.recv().wait(HANG_S)
    line = reader.line()
    assert line.startswith("NoMemoryError ")
    assert line.endswith("cannot allocate 268435456 B for a message")
    peer.abort()
    with weft.connect(address) as peer:
        peer.send(data).wait(HANG_S)
        assert reader.line() == "268435456"
    assert reader.wait() == 0


# ---- descriptors ----------------------------------------------------------------------------------------------

LIMIT = """
import asyncio, logging, os, resource, socket, sys, time, weft
def room_for(count):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
"""

CONNECTOR = (
    LIMIT
    + """
address = sys.argv[1]
def open_one():
    asyncio.run(connected())
async def connected():
    async with weft.connect(address, timeout=10) as peer:
        await peer.send(b"x")
        assert await peer.recv() == b"x"
open_one()
for count in range(3, 60):  # the event loop itself takes 3
    room_for(count)
    try:
        open_one()
    except weft.Error as e:
        print(count, type(e).__name__, e, flush=True)
    else:
        print(count, "connected", flush=True)
        break
"""
)


def test_a_connector_out_of_descriptors(spawn, fds):
    """Wherever in its way they run out: a named error, and the listener goes on."""

    async def main():
        async def echo(peer):
            with contextlib.suppress(weft.PeerLostError):
                while True:
                    await peer.send(await peer.recv())

        async with weft.listen("127.0.0.1:0", echo) as listener:
            child = spawn(CONNECTOR, listener.address)
            count, kind = 0, ""
            while kind != "connected":
                assert kind in {"", "NoMemoryError", "UnreachableError"}
                count, kind, *_ = (await asyncio.to_thread(child.line)).split()
            assert int(count) > 5

    asyncio.run(asyncio.wait_for(main(), 3 * HANG_S))


LISTENER = (
    LIMIT
    + """
records = []
class Count(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())
        if len(records) == 1:
            print("full", flush=True)
logging.getLogger("weft").addHandler(Count())
async def echo(peer):
    await peer.send(await peer.recv())
async def main():
    async with weft.listen("127.0.0.1:0", echo) as listener:
        print(listener.address, flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        room_for(0)
        await reader.readline()
        print(len(records), records[0], flush=True)
        room_for(100)
        await reader.readline()
asyncio.run(main())
"""
)


def test_a_listener_out_of_descriptors_waits_for_room(spawn):
    """Its loop must not spin, nor its log grow, while callers wait."""
    child = spawn(LISTENER)
    address = child.line()
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert child.line() == "full"
        time.sleep(0.3)  # in which it would spin
        child.say()
        count, text = child.line().split(maxsplit=1)
        assert 1 <= int(count) <= 2
        assert "Too many open files" in text
        with weft.connect(address, timeout=HANG_S) as peer:
            peer.send(b"x").wait(HANG_S)
            assert peer.recv().wait(HANG_S) == b"x"
    child.say()
    assert child.wait() == 0
