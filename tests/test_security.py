# SPDX-License-Identifier: BSD-3-Clause
"""What a stranger can do who is on this host, or knows an address: as little as docs/security.md says."""

import asyncio
import contextlib
import os
import socket

import pytest
from tests.certificates import authority

import weft
from weft._connect import admission, handshake, links
from weft._connect.admission import PREFIX, SameHostListener

NOBODY = 65534

AS_NOBODY = f"""
import ipaddress, os, sys, socket, weft
"".encode("idna")  # what is imported later may lie where only this user may look
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
"""


@pytest.fixture
def as_nobody(spawn):
    """Run code as another user."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    return lambda code, *arguments: spawn(AS_NOBODY + code, *arguments)


async def echo(peer):
    with contextlib.suppress(weft.PeerClosedError):
        while True:
            await peer.send(await peer.recv())


def test_another_user_is_turned_away_by_the_same_host_listener(as_nobody):
    listener = SameHostListener()
    code = """
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
    caller.connect(chr(0) + sys.argv[1])
    caller.send(b"n" * 16)
    print("called", flush=True)
    try:
        print(caller.recv(1) or "turned away", flush=True)
    except ConnectionResetError:
        print("turned away", flush=True)
"""
    with contextlib.closing(listener):
        stranger = as_nobody(code, listener.name)
        assert stranger.line() == "called"
        assert listener.accept(b"n" * 16) is None
        assert stranger.line() == "turned away"


def test_another_users_listener_is_shown_no_nonce(as_nobody):
    code = f"""
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as theirs:
    theirs.bind(chr(0) + "{PREFIX}" + sys.argv[1])
    theirs.listen()
    print("listens", flush=True)
    caller, _ = theirs.accept()
    print(caller.recv(1), flush=True)
"""
    name = os.urandom(8).hex()
    stranger = as_nobody(code, name)
    assert stranger.line() == "listens"
    hello = {"unix": PREFIX + name, "nonce": "00" * 16, "spaces": admission.own_namespaces()}
    assert handshake._prove_same_host(hello, "connect") is None
    assert stranger.line() == "b''"


def test_another_user_on_this_host_gets_no_shared_memory(as_nobody):
    code = """
try:
    weft.connect(sys.argv[1], timeout=100).open()
except weft.UnreachableError as e:
    print(e, flush=True)
"""

    async def main():
        async with weft.listen("127.0.0.1:0", echo) as listener:
            stranger = as_nobody(code, listener.address)
            assert "not this user" in await asyncio.to_thread(stranger.line)

    asyncio.run(main())


def test_a_message_for_no_connection_is_dropped_and_counted():
    async def main():
        async with weft.listen("127.0.0.1:0", echo) as listener, weft.connect(listener.address) as peer:
            (worker,) = (await links.workers_of_loop())._workers.values()
            (link,) = worker.links.values()
            assert worker.native.dropped_messages == 0
            stranger = link.native.open(handshake.new_channel_id(), 12345, "a stranger")
            for i in range(3):
                await stranger.send(b"x" * 10)
                await peer.send(b"legitimate")
                assert await peer.recv() == b"legitimate"
                assert worker.native.dropped_messages == i + 1
            stranger.abort()

    asyncio.run(main())


def test_ids_are_not_guessed():
    assert len({handshake.new_channel_id() for _ in range(1000)}) == 1000
    assert max(handshake.new_channel_id() for _ in range(100)).bit_length() > 56


def test_connections_have_neither_remote_access_nor_atomics():
    """Where a transport has no remote access of its own, UCX writes where a message says."""

    async def main():
        ucx = {"TLS": "posix,self"}
        async with (
            weft.listen("127.0.0.1:0", echo, settings=ucx) as listener,
            weft.connect(listener.address, settings=ucx) as peer,
        ):
            await peer.send(b"x")
            contexts = {links._context(settings) for _, settings, _ in (await links.workers_of_loop())._workers}
            assert [context.features for context in contexts] == [["am"]]

    asyncio.run(main())
    assert weft.Context({"TLS": "self"}, features=["rma", "amo", "stream"]).features == [
        *("am", "amo", "rma", "stream", "tag")
    ]


@pytest.mark.parametrize("garbage", [b"\0", b"x" * 100_000])
def test_garbage_on_a_tls_port_ends_the_caller_only(garbage, caplog):
    async def main():
        async with weft.listen("127.0.0.1:0", echo, ssl=authority().listener()) as listener:
            host, port = listener.address.split(":")
            with socket.create_connection((host, int(port))) as caller:
                caller.sendall(garbage)
                async with weft.connect(listener.address, ssl=authority().connector()) as peer:
                    await peer.send(b"x")
                    assert await peer.recv() == b"x"
            async with asyncio.timeout(100):
                while "rejected a connection" not in caplog.text:
                    await asyncio.sleep(0.001)
        assert "does not speak TLS" in caplog.text

    asyncio.run(main())
