# SPDX-License-Identifier: BSD-3-Clause
"""Two processes and the RDMA device between them: each byte there and back, and which lane has carried it."""

import asyncio
import os
import pickle
import select
import subprocess
import sys
import time

import pytest

import weft

#: The transport by UCX's own name; none where UCX is to choose.
TRANSPORT = {"rc_v": "rc_verbs", "ud_v": "ud_verbs"}.get(os.environ.get("UCX_TLS"))
ADDRESS = os.environ.get("WEFT_ADDRESS", "127.0.0.1:0")
#: Seconds for whatever should happen: the guest is slow, and may have a busy host. After 20 s UCX's keepalive would
#: wake who has missed a message.
SOON_S = 15
SIZES = [0, 1, 8, 1000, 4096, 65_536, 262_144, 1_000_003, 8 << 20]

ECHO = """
import ctypes, faulthandler, os, resource, sys, weft
faulthandler.dump_traceback_later(100, exit=True)
if "WEFT_ADDRESS" in os.environ:
    # Another user's process shares no memory, and is on another host to weft.
    for device in os.listdir("/dev/infiniband"):
        os.chmod(f"/dev/infiniband/{device}", 0o666)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.unshare(os.CLONE_NEWIPC)
    os.setuid(65534)
with weft.listen(sys.argv[1]) as listener:
    print(listener.address, flush=True)
    with listener.accept(30) as peer:
        print(peer.same_host, *peer.transports, flush=True)
        try:
            while True:
                peer.send(peer.recv().wait(60)).wait(60)
        except weft.PeerClosedError:
            print("goodbye", flush=True)
"""


@pytest.fixture
def echo():
    """A process that sends all back."""
    child = subprocess.Popen([sys.executable, "-c", ECHO, ADDRESS], stdout=subprocess.PIPE, text=True)
    with child.stdout:
        yield child
        child.kill()
        child.wait(SOON_S)


def line(child):
    said = child.stdout.readline().strip()
    assert said, "the child ended without a word"
    return said


def assert_lanes(transports):
    assert transports
    names = {name.partition("/")[0] for name in transports}
    assert {name.partition("/")[2] for name in transports if "verbs" in name} == {"rxe0:1"}, transports
    # rc is wired up by ud, which stays a lane; nothing but verbs where only verbs are allowed
    assert TRANSPORT is None or TRANSPORT in names <= {TRANSPORT, "ud_verbs"}, transports


def test_every_byte_blocking(echo):
    with weft.connect(line(echo), timeout=SOON_S) as peer:
        assert_lanes(peer.transports)
        same_host, *lanes = line(echo).split()
        assert same_host == str(peer.same_host) == str("WEFT_ADDRESS" not in os.environ)
        assert_lanes(lanes)
        for nbytes in SIZES:
            data = os.urandom(nbytes)
            sent = peer.send(data)
            assert bytes(peer.recv().wait(SOON_S)) == data, f"{nbytes} B came back changed"
            sent.wait(SOON_S)
        assert "verbs" in str(peer.explain())
    assert line(echo) == "goodbye"


def test_every_byte_in_a_loop(echo):
    async def main():
        async with asyncio.timeout(90), weft.connect(line(echo), timeout=SOON_S) as peer:
            many = [os.urandom(nbytes) for nbytes in SIZES]
            sends = [peer.send(data) for data in many]
            for data in many:
                assert bytes(await peer.recv()) == data, f"{len(data)} B came back changed"
            for sent in sends:
                await sent
            assert_lanes(peer.transports)

    asyncio.run(main())
    line(echo)
    assert line(echo) == "goodbye"


def test_a_peer_that_is_killed(echo):
    with pytest.raises(weft.PeerLostError), weft.connect(line(echo), timeout=SOON_S) as peer:  # noqa: PT012
        peer.send(b"there").wait(SOON_S)
        peer.recv().wait(SOON_S)
        answer = peer.recv()
        echo.kill()
        answer.wait(SOON_S)


OWNER = """
import faulthandler, pickle, sys, weft
faulthandler.dump_traceback_later(100, exit=True)
context = weft.Context(features=["rma"])
worker = weft.Worker(context)
memory = context.mem_alloc(1 << 20)
view = memoryview(memory)
view[:] = bytes(1 << 20)
back = worker.connect(bytes.fromhex(sys.stdin.readline()))
print(worker.address.hex(), pickle.dumps(memory.rkey_pack()).hex(), flush=True)
done = worker.tag_recv(bytearray(1), 1)
done.wait(60)
print(view[:100_000].hex() == "5a" * 100_000, any(view[100_000:]), flush=True)
back.tag_send(b"x", 2).wait(60), worker.flush().wait(60)
view.release(), worker.close(), memory.close()
"""


@pytest.mark.skipif(TRANSPORT is None, reason="the way is chosen by UCX_TLS")
def test_memory_of_another_process():
    context = weft.Context(features=["rma"])
    worker = weft.Worker(context)
    arguments = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", OWNER], **arguments) as owner:
        print(worker.address.hex(), file=owner.stdin, flush=True)
        address, key = map(bytes.fromhex, line(owner).split())
        endpoint = worker.connect(address)
        rkey = endpoint.rkey_unpack(pickle.loads(key))  # noqa: S301 (of this test's own child)
        endpoint.put(b"\x5a" * 100_000, rkey).wait(SOON_S)
        worker.flush().wait(SOON_S)
        got = bytearray(1 << 20)
        endpoint.get(got, rkey).wait(SOON_S)
        assert got == b"\x5a" * 100_000 + bytes((1 << 20) - 100_000)
        assert_lanes(endpoint.transports)
        received = worker.tag_recv(bytearray(1), 2)
        endpoint.tag_send(b"x", 1).wait(SOON_S)
        assert line(owner) == "True False"
        received.wait(SOON_S)
        until = time.monotonic() + SOON_S
        while owner.poll() is None and time.monotonic() < until:  # its flush ends with this side's acknowledgements
            worker.progress()
        assert owner.poll() == 0
        worker.close()


@pytest.mark.skipif(TRANSPORT is None, reason="the way is chosen by UCX_TLS")
def test_what_came_before_arming_is_found():
    """The device tells of a completion only where it comes after arming."""
    sender, receiver = weft.Worker(weft.Context()), weft.Worker(weft.Context())
    endpoint = sender.connect(receiver.address)
    warm = receiver.tag_recv(bytearray(1), 1)
    sent = endpoint.tag_send(b"x", 1)
    until = time.monotonic() + SOON_S
    while not (warm.done() and sent.done()) and time.monotonic() < until:
        sender.progress(), receiver.progress()
    for _ in range(5):
        received = receiver.tag_recv(bytearray(1), 2)
        while receiver.progress():
            pass
        sent, flushed = endpoint.tag_send(b"x", 2), sender.flush()
        while not flushed.done() and time.monotonic() < until:  # acknowledged: it lies in the receiver's queue
            sender.progress()
        assert sent.done()
        assert not receiver.arm() or select.select([receiver], [], [], 0)[0], "nothing would wake this worker"
        received.wait(SOON_S)
    sender.close(), receiver.close()
