# SPDX-License-Identifier: BSD-3-Clause
"""Memory, shared memory and descriptors that run out: a named error, and everything works again with room."""

import asyncio
import contextlib
import socket
import time

import pytest

import weft

HANG_S = 20

SMALL_SHM = """
import ctypes, os, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x20000
if libc.unshare(CLONE_NEWNS) != 0:
    print("skip: no mount namespace: " + os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"], check=True)
def fill():
    with open("/dev/shm/fill", "wb", 0) as f:
        try:
            while True:
                f.write(bytes(1 << 20))
        except OSError:
            pass
"""

FULL_SHM = (
    SMALL_SHM
    + """
import weft
context = weft.Context({"TLS": "posix,self"})
fill()
try:
    weft.Worker(context)
except weft.NoMemoryError as e:
    print(e, flush=True)
with weft.listen("127.0.0.1:0") as listener:
    def client():
        try:
            weft.connect(listener.address, timeout=20).open()
        except weft.Error as e:
            print(type(e).__name__, e, flush=True)
    thread = threading.Thread(target=client)
    thread.start()
    try:
        listener.accept(0.5)
    except weft.TimedOutError:
        pass
    thread.join()
    os.unlink("/dev/shm/fill")
    thread = threading.Thread(target=client)
    thread.start()
    listener.accept(100).abort()
    thread.join()
    print("works again", flush=True)
"""
)


def test_full_shm_is_a_named_error(spawn):
    """In a mount namespace of the child's own, with a small /dev/shm."""
    child = spawn(FULL_SHM)
    line = child.line()
    if line.startswith("skip"):
        pytest.skip(line)
    assert line.startswith("Worker: /dev/shm has ")
    assert "remount" in line
    line = child.line()
    assert "/dev/shm has " in line
    assert child.line() == "works again"
    assert child.wait(HANG_S) == 0


FULL_LATER = (
    SMALL_SHM
    + '''
ECHO = """
import sys, weft
with weft.connect(sys.argv[1]) as peer:
    try:
        while True:
            peer.send(peer.recv().wait(60)).wait(60)
    except weft.PeerLostError:
        pass
"""
import weft
with weft.listen("127.0.0.1:0") as listener:
    other = subprocess.Popen([sys.executable, "-c", ECHO, listener.address])
    with listener.accept(100) as peer:
        fill()
        print(*peer.transports, os.statvfs("/dev/shm").f_bavail, flush=True)
        for nbytes, count in ((8, 1), (1024, 5000), (100_000, 200), (1 << 20, 50), (64 << 20, 3)):
            data = os.urandom(nbytes)
            received = [peer.recv() for _ in range(count)]
            sent = [peer.send(data) for _ in range(count)]
            assert all(request.wait(60) is None for request in sent)
            assert all(request.wait(60) == data for request in received)
            print(nbytes, flush=True)
    other.wait(60)
'''
)


def test_connections_outlast_a_full_shm(spawn):
    """UCX takes what it needs there when it connects."""
    child = spawn(FULL_LATER)
    line = child.line()
    if line.startswith("skip"):
        pytest.skip(line)
    assert line == "posix/memory 0"
    assert [child.line() for _ in range(5)] == ["8", "1024", "100000", "1048576", "67108864"]
    assert child.wait(HANG_S) == 0


READER = """
import resource, sys, weft
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    peer = listener.accept(100)
    assert peer.recv().wait(30) == b"start"
    in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (64 << 20), resource.RLIM_INFINITY))
    try:
        peer.recv().wait(30)
    except MemoryError as e:
        print(type(e).__name__, e, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    peer.abort()
    with listener.accept(100) as peer:
        print(peer.recv().wait(30).nbytes, flush=True)
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
    assert line.endswith("no memory for a message of 268435456 B")
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
            assert int(count) > 10

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
