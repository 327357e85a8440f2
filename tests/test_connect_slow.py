# SPDX-License-Identifier: BSD-3-Clause
"""Callers that take their time: nobody waits for one for longer than a handshake, or once the listener is closed."""

import asyncio
import contextlib
import select
import socket
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.certificates import authority
from tests.test_connect import ECHO

import weft
from weft._connect import handshake, local, message

HANG_S = 60
LISTEN, CONNECT = sys.modules["weft.listen"], sys.modules["weft.connect"]  # of weft, the names are functions
#: How a message of the handshake begins.
WEFT = message.MAGIC + message.VERSION.to_bytes(2, "little")

SLOW = {
    "silent": b"",
    "half a head": WEFT[:5],
    "half a hello": WEFT + b'\x0c\0\0\0{"in',
    "half a handshake": WEFT + b'\x0c\0\0\0{"info": {}}',
}


@pytest.mark.parametrize("said", SLOW)
def test_a_slow_caller_is_turned_away_in_time_and_delays_nobody(said, monkeypatch, caplog):
    async def main():
        async def handler(peer):
            await peer.send(await peer.recv())

        async with weft.listen("127.0.0.1:0", handler) as listener:
            host, port = listener.address.split(":")
            with monkeypatch.context() as patch, socket.create_connection((host, int(port))) as slow:
                patch.setattr(LISTEN, "HANDSHAKE_TIMEOUT_S", 0.1)
                slow.sendall(SLOW[said])
                while "within 0.1 s" not in caplog.text:
                    await asyncio.sleep(0.005)
                slow.settimeout(100)
                with contextlib.suppress(ConnectionResetError):
                    while slow.recv(1000):
                        pass
            with socket.create_connection((host, int(port))) as slow:
                slow.sendall(SLOW[said])
                async with weft.connect(listener.address) as peer:
                    await peer.send(b"meanwhile")
                    assert await peer.recv() == b"meanwhile"

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_blocking_listener_waits_for_a_slow_caller_and_then_takes_the_next(spawn, monkeypatch, caplog):
    """It takes one handshake at a time: who is slow delays the others by 10 s at most, here by less."""
    code = "import sys, weft\nwith weft.connect(sys.argv[1]) as peer: peer.send(b'x').wait(100)"
    with weft.listen("127.0.0.1:0") as listener:
        host, port = listener.address.split(":")
        with monkeypatch.context() as patch, socket.create_connection((host, int(port))) as slow:
            patch.setattr(LISTEN, "HANDSHAKE_TIMEOUT_S", 0.1)
            slow.sendall(b"WEFT")

            def next_one():
                while "no handshake within 0.1 s" not in caplog.text:
                    time.sleep(0.001)
                patch.undo()  # the next has the usual time
                return spawn(code, listener.address)

            with ThreadPoolExecutor(1) as pool:
                calling = pool.submit(next_one)
                peer = listener.accept(100)
                client = calling.result(100)
        with peer:
            assert peer.recv().wait(100) == b"x"
            with pytest.raises(weft.PeerClosedError):
                peer.recv().wait(100)
        assert client.wait() == 0


def test_a_caller_is_told_of_with_the_time_that_it_had(caplog):
    """Not with that of a handshake, where the wait for callers ends before."""
    with weft.listen("127.0.0.1:0") as listener:
        host, port = listener.address.split(":")
        with socket.create_connection((host, int(port))), pytest.raises(weft.TimedOutError):
            listener.accept(0.5)
    assert "no handshake within 1.0 s; " in caplog.text


def test_a_caller_that_says_nothing_is_not_taken_for_a_listener(caplog, monkeypatch):
    """Both kinds of listeners say the same, and ask nothing that only a caller could ask."""
    monkeypatch.setattr(LISTEN, "HANDSHAKE_TIMEOUT_S", 0.1)
    with weft.listen("127.0.0.1:0") as listener:
        host, port = listener.address.split(":")
        with socket.create_connection((host, int(port))), pytest.raises(weft.TimedOutError):
            listener.accept(1)

    async def main():
        async with weft.listen("127.0.0.1:0", lambda peer: peer.close()) as listener:
            reader, writer = await asyncio.open_connection(*listener.address.split(":"))
            await reader.read()  # until the listener has given up
            writer.close()

    asyncio.run(asyncio.wait_for(main(), 100))
    blocking, in_loop = [m for m in caplog.messages if m.startswith("rejected a connection: accept from 127.0.0.1:")]
    end = ": no handshake within 0.1 s; the caller is no weft process, or it is stopped"
    assert blocking.endswith(end)
    assert in_loop.endswith(end)


def test_accept_without_time_takes_who_waits_already(spawn):
    code = "import sys, weft\nwith weft.connect(sys.argv[1]) as peer: peer.send(b'x').wait(100)"
    with weft.listen("127.0.0.1:0") as listener:
        for timeout in (0, -1, 1e-9):
            with pytest.raises(weft.TimedOutError, match=f"within {timeout} s"):
                listener.accept(timeout)
        child = spawn(code, listener.address)
        select.select(listener._sockets, [], [])  # it has called, and waits for an answer
        with listener.accept(0) as peer:
            assert peer.recv().wait(100) == b"x"
        assert child.wait() == 0


@pytest.mark.parametrize("timeout", [None, 100])
def test_a_listener_that_is_closed_ends_accept_in_another_thread(timeout):
    with weft.listen("127.0.0.1:0") as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, timeout)
        while "_next" not in stack_of(pool):
            time.sleep(0.001)
        listener.stop()
        with pytest.raises(weft.ClosedError, match="the listener was closed"):
            accepting.result(100)


def stack_of(pool):
    """Name the functions that the pool's thread is in."""
    frames = sys._current_frames()
    frame = next((frames[thread.ident] for thread in pool._threads if thread.ident in frames), None)
    return [entry.f_code.co_name for entry, _ in traceback.walk_stack(frame)] if frame else []


@pytest.mark.parametrize("said", ["silent", "half a hello", "half a handshake"])
def test_a_caller_that_says_no_more_is_turned_away_at_once(said, caplog):
    """Half-closed: it still reads, but what it owes can never come."""

    async def main():
        async def handler(peer):
            raise AssertionError

        async with weft.listen("127.0.0.1:0", handler) as listener:
            host, port = listener.address.split(":")
            with socket.create_connection((host, int(port))) as half:
                half.sendall(SLOW[said])
                half.shutdown(socket.SHUT_WR)
                while "closed the socket in the middle of the handshake" not in caplog.text:
                    await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 100))


@pytest.mark.parametrize("ssl", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("claims", [True, False], ids=["host", "network"])
def test_a_listener_that_is_closed_in_mid_handshake_says_so(claims, ssl, monkeypatch, caplog):
    """The caller cannot show that it is on this host any more, which is not for want of a namespace or a user."""
    prove = handshake._prove_same_host

    async def main():
        mine, theirs = (authority().connector(), authority().listener()) if ssl else (None, None)
        async with weft.listen("127.0.0.1:0", lambda peer: peer.close(), ssl=theirs) as listener:

            def prove_too_late(hello, what):
                if claims:
                    unix = prove(hello, what)
                    listener.stop()
                    return unix
                listener.stop()
                return prove(hello, what)

            monkeypatch.setattr(handshake, "_prove_same_host", prove_too_late)
            monkeypatch.setattr(local, "reach", lambda family, sockaddr: None)  # over TCP
            # whom the side door is closed to believes it is elsewhere, where no way leads
            with pytest.raises(ConnectionError, match="the listener was closed"):
                await weft.connect(listener.address, timeout=HANG_S, ssl=mine)
            while listener._tasks:
                await asyncio.wait(listener._tasks, timeout=HANG_S)

    with caplog.at_level("INFO", "weft"):
        asyncio.run(main())
    assert [record.levelname for record in caplog.records if "the listener was closed" in record.message] == ["INFO"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def closed_again(connecting):
    async with connecting:
        pass


@contextlib.contextmanager
def silent_address():
    """A listening socket whose backlog is full: the kernel drops what else comes, as a firewall does."""
    with contextlib.ExitStack() as held:
        listening = held.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(8):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listening.getsockname())
        yield listening.getsockname()


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_a_silent_address_leaves_time_for_the_others_of_the_name(awaited, spawn, monkeypatch):
    child = spawn(ECHO)
    host, port = child.line().split(":")

    def resolve(*_, **__):
        return [(socket.AF_INET, silent)] + 79 * [(socket.AF_INET, (host, int(port)))]

    with silent_address() as silent:
        monkeypatch.setattr(CONNECT, "resolve", resolve)
        connecting = weft.connect(f"several:{port}", timeout=40)
        if awaited:
            asyncio.run(closed_again(connecting))
        else:
            connecting.open().close()
    assert child.line() == "goodbye"


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_all_addresses_of_a_name_are_silent(awaited, monkeypatch):
    with silent_address() as silent:
        monkeypatch.setattr(CONNECT, "resolve", lambda *_, **__: 2 * [(socket.AF_INET, silent)])
        connecting = weft.connect("several:1", timeout=0.1)
        with pytest.raises(weft.TimedOutError, match=r"connect to several:1: no answer within 0\.1 s"):
            asyncio.run(closed_again(connecting)) if awaited else connecting.open()


def test_a_blocking_connect_says_that_it_stops_the_loop():
    async def main():
        async with weft.listen("127.0.0.1:0", lambda peer: peer.recv()) as listener:
            why = (
                r"no answer within 0\.2 s; .* This thread's event loop stood still meanwhile: `async with` lets it run"
            )
            with pytest.raises(weft.TimedOutError, match=why):
                weft.connect(listener.address, timeout=0.2).open()

    asyncio.run(asyncio.wait_for(main(), 100))
