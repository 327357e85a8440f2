# SPDX-License-Identifier: BSD-3-Clause
"""Death in every phase. The survivor gets a named error; the time limits here only bound a hang."""

import asyncio
import contextlib
import os
import resource
import signal
import socket

import pytest

import weft

HANG_S = 20

VICTIM = """
import os, sys, time, weft
phase, how = sys.argv[1:3]
if how.startswith("127."):
    peer = weft.connect(how).open()
else:
    listener = weft.listen("127.0.0.1:0")
    listener.__enter__()
    print(listener.address, flush=True)
    peer = listener.accept(100)
if how == "fork":
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
print("ready", flush=True)
data = bytes(64 << 20)
while True:
    if phase == "idle":
        peer.recv().wait(60)
    if phase == "eager":
        peer.send(peer.recv().wait(60)).wait(60)
    if phase == "it receives":
        peer.recv().wait(60)
    if phase == "it sends":
        peer.send(data).wait(60)
    if phase == "it does not read":
        input()
"""


@contextlib.contextmanager
def meet(spawn, phase, role):
    """Give a victim in its phase, which listens or connects, and the peer that will survive it."""
    if role == "connects":
        with weft.listen("127.0.0.1:0") as listener:
            victim = spawn(VICTIM, phase, listener.address)
            peer = listener.accept(100)
    else:
        victim = spawn(VICTIM, phase, role)
        peer = weft.connect(victim.line()).open()
    try:
        if role != "fork":
            assert victim.line() == "ready"
        yield victim, peer
    finally:
        peer.abort()


def lose(peer, victim, phase, *, reap):
    """Work with the victim, kill it in mid-work, and return the error of the operation that was under way."""
    data = bytes(64 << 20)
    with pytest.raises(weft.PeerLostError) as caught:
        if phase == "idle":
            request = peer.recv()
            victim.kill(reap=reap)
            request.wait(HANG_S)
        for i in range(1_000_000):
            if i == 5:
                victim.kill(reap=reap)
            if phase == "eager":
                peer.send(b"x" * 100).wait(HANG_S)
                peer.recv().wait(HANG_S)
            elif phase == "it receives":
                peer.send(data).wait(HANG_S)
            elif phase == "it sends":
                peer.recv().wait(HANG_S)
            elif phase == "it does not read":
                if i < 5:
                    requests = [peer.send(data) for _ in range(3)]
                    with pytest.raises(weft.TimedOutError):
                        requests[-1].wait(0.01)
                else:
                    for request in requests:
                        request.wait(HANG_S)
    return caught.value


PHASES = ["idle", "eager", "it receives", "it sends", "it does not read"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("role", "reap"), [("listens", True), ("listens", False), ("connects", False)])
def test_sigkill(spawn, phase, role, reap):
    """A victim that is not reaped is a zombie, which UCX takes for alive."""
    with meet(spawn, phase, role) as (victim, peer):
        error = lose(peer, victim, phase, reap=reap)
        assert isinstance(error, ConnectionError)
        for later in (lambda: peer.send(b"x"), peer.recv):
            with pytest.raises(weft.PeerLostError):
                later().wait(HANG_S)
        with pytest.raises(weft.PeerLostError):
            peer.close().wait(HANG_S)


@pytest.mark.parametrize("phase", ["idle", "it sends"])
def test_sigkill_while_a_forked_child_of_the_victim_lives(spawn, phase):
    with meet(spawn, phase, "fork") as (victim, peer):
        child = int(victim.line())
        try:
            assert victim.line() == "ready"
            lose(peer, victim, phase, reap=False)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_killed_connector_frees_the_listener(spawn, fds):
    code = """
        import sys, weft
        peer = weft.connect(sys.argv[1]).open()
        peer.send(bytes(1000)).wait(100)
        print("ready", flush=True)
        peer.send(bytes(100 << 20)).wait(60)
    """

    async def main():
        lost = asyncio.Queue()

        async def handler(peer):
            assert (await peer.recv()).nbytes == 1000
            try:
                while True:
                    await peer.recv()
            except weft.PeerLostError as e:
                lost.put_nowait(e)

        async with weft.listen("127.0.0.1:0", handler) as listener:
            for i in range(6):
                victim = await asyncio.to_thread(spawn, code, listener.address)
                await asyncio.to_thread(victim.line)
                victim.kill()
                await asyncio.wait_for(lost.get(), HANG_S)
                victim.end()
                if i == 2:
                    before = fds()
            while fds() > before:  # the last handler's peer goes in its own time
                await asyncio.sleep(0.001)

    asyncio.run(main())


def test_a_connector_killed_while_connecting(spawn):
    """Half a handshake, then death: the listener goes on."""

    async def main():
        async def handler(peer):
            await peer.send(await peer.recv())

        async with weft.listen("127.0.0.1:0", handler) as listener:
            host, port = listener.address.split(":")
            for sent in (b"", b"WEFT\1\0\x0c\0\0\0", b'WEFT\1\0\x0c\0\0\0{"info": {}}'):
                s = socket.create_connection((host, int(port)))
                s.sendall(sent)
                await asyncio.sleep(0.01)
                s.close()
            async with weft.connect(listener.address) as peer:
                await peer.send(b"alive")
                assert await peer.recv() == b"alive"

    asyncio.run(asyncio.wait_for(main(), HANG_S))


def test_a_listener_killed_while_connecting(spawn):
    code = """
        import socket
        s = socket.create_server(("127.0.0.1", 0))
        print("127.0.0.1:%d" % s.getsockname()[1], flush=True)
        c, _ = s.accept()
        c.recv(10)
        print("ready", flush=True)
        c.recv(100000)
        input()
    """
    victim = spawn(code)
    address = victim.line()

    async def main():
        connecting = asyncio.ensure_future(weft.connect(address)._open())
        await asyncio.to_thread(victim.line)
        victim.kill()
        with pytest.raises((weft.HandshakeError, weft.UnreachableError)):
            await connecting

    asyncio.run(asyncio.wait_for(main(), HANG_S))


@pytest.mark.parametrize(
    ("phase", "role"),
    [
        ("idle", "listens"),
        ("idle", "connects"),
        ("eager", "connects"),
        ("it sends", "connects"),
        ("it receives", "listens"),
    ],
)
def test_sigstop_is_not_death(spawn, phase, role):
    """What is under way waits, and goes on afterwards."""
    with meet(spawn, phase, role) as (victim, peer):
        victim.stop()
        data = bytes(64 << 20)
        if phase == "idle":
            peer.send(b"unread").wait(HANG_S)
        request = peer.close() if phase == "idle" else None
        with pytest.raises(weft.TimedOutError):
            for _ in range(1000):
                if phase == "eager":
                    peer.send(b"later").wait(HANG_S)
                if phase != "idle":
                    request = peer.send(data) if phase == "it receives" else peer.recv()
                request.wait(0.1)
        assert not request.done()
        os.kill(victim.pid, signal.SIGCONT)
        assert request.wait(HANG_S) == {"eager": b"later", "it sends": data}.get(phase)


def test_a_close_does_not_wait_for_a_stopped_process_that_has_everything(spawn):
    with meet(spawn, "eager", "connects") as (victim, peer):
        peer.send(b"there").wait(HANG_S)
        assert peer.recv().wait(HANG_S) == b"there"
        victim.stop()
        peer.close().wait(HANG_S)


def test_one_lost_peer_disturbs_no_other(spawn):
    victims = [spawn(VICTIM, "eager", "listens") for _ in range(3)]
    peers = [weft.connect(v.line()).open() for v in victims]
    victims[1].kill()
    with pytest.raises(weft.PeerLostError):
        peers[1].recv().wait(HANG_S)
    for index in (0, 2):
        for _ in range(100):
            peers[index].send(b"still").wait(HANG_S)
            assert peers[index].recv().wait(HANG_S) == b"still"
    for peer in peers:
        peer.abort()


def test_a_connection_to_a_new_process_on_the_old_port(spawn):
    code = """
        import sys, weft
        with weft.listen(sys.argv[1]) as listener:
            print(listener.address, flush=True)
            with listener.accept(100) as peer:
                peer.send(peer.recv().wait(100)).wait(100)
                input()
    """
    first = spawn(code, "127.0.0.1:0")
    address = first.line()
    for _ in range(3):
        peer = weft.connect(address).open()
        peer.send(b"x").wait(HANG_S)
        assert peer.recv().wait(HANG_S) == b"x"
        first.kill()
        with pytest.raises(weft.PeerLostError):
            peer.recv().wait(HANG_S)
        peer.abort()
        first = spawn(code, address)
        assert first.line() == address


READER = """
import resource, sys, weft
small, large = int(sys.argv[1]), int(sys.argv[2])
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    with listener.accept(100) as peer:
        assert peer.recv().wait(100) == b"start"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        input()  # stops: others send meanwhile
        try:
            peer.recv().wait(100)
        except Exception as e:
            raise SystemExit(repr(e))
        input()
        for i in range(small - 1):
            assert peer.recv().wait(100).nbytes == 1024
        for i in range(large):
            assert peer.recv().wait(100).nbytes == 8 << 20
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("small", "large"), [(1_000_000, 0), (1, 1000)])
def test_a_reader_that_stops_bounds_both_sides(spawn, small, large):
    reader = spawn(READER, str(small), str(large))

    async def main():
        async with weft.connect(await asyncio.to_thread(reader.line)) as peer:
            await peer.send(b"start")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            data = bytes(1024), bytes(8 << 20)

            async def send():
                for _ in range(small):
                    await peer.send(data[0])
                for _ in range(large):
                    await peer.send(data[1])

            sending = asyncio.create_task(send())
            await asyncio.sleep(0.2)
            reader.say()
            await asyncio.sleep(0.2)
            assert not sending.done()
            reader.say()
            await sending
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
            assert grown < 64, f"the sender grew by {grown} MiB"
            grown = int(await asyncio.to_thread(reader.line))
            assert grown < 64, f"the reader grew by {grown} MiB"

    asyncio.run(asyncio.wait_for(main(), 280))


def test_kills_in_mid_transfer_break_no_other_connection(spawn):
    """A killed writer leaves UCX's shared queue unusable; nobody else may depend on that queue."""
    steady = spawn(VICTIM, "eager", "listens")
    peer = weft.connect(steady.line()).open()
    for _ in range(8):
        victim = spawn(VICTIM, "it sends", "listens")
        doomed = weft.connect(victim.line()).open()
        for _ in range(3):
            doomed.recv().wait(HANG_S)
        victim.kill()
        with pytest.raises(weft.PeerLostError):
            while True:
                doomed.recv().wait(HANG_S)
        doomed.abort()
        peer.send(b"still there?").wait(HANG_S)
        assert peer.recv().wait(HANG_S) == b"still there?"
    peer.abort()
