# SPDX-License-Identifier: BSD-3-Clause
"""What two comms know of each other once they are connected, and what becomes of a handshake that is cut or refused."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
from typing import Any

import pytest
from distributed import Scheduler, Worker
from distributed.comm import CommClosedError, connect, listen, parse_address
from distributed.comm.core import Comm
from tests.dask.ends import LOOPBACK, Ends

import weft
import weft.dask
from weft.connect import connect as weft_connect
from weft.dask.learn import measured

pytestmark = pytest.mark.usefixtures("no_comms_left")


async def test_both_sides_know_each_other(ends: Ends) -> None:
    async with ends() as (a, b):
        assert a.peer_address == b.local_address
        assert b.peer_address == a.local_address
        assert a.remote_info["address"] == b.local_info["address"] == a.peer_address
        assert a.local_info["address"] == b.remote_info["address"] == a.local_address
        assert a.handshake_options == b.handshake_options
        assert a.handshake_options == {"pickle-protocol": pickle.HIGHEST_PROTOCOL, "compression": None}
        assert a.same_host
        assert a.extra_info == {}
        assert a._local_addr == a.local_address
        assert a._peer_addr == a.peer_address


async def test_repr_tells_addresses_and_state(ends: Ends) -> None:
    async with ends() as (a, b):
        for comm in (a, b):
            assert a.local_address in repr(comm)
            assert b.local_address in repr(comm)
            assert "closed" not in repr(comm)
        await a.close()
        assert "closed" in repr(a)
        await b.close()
        assert "closed" in repr(b)
        assert a.local_address in repr(b)


async def test_a_slow_handshake_is_not_cut_by_the_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout_s, slow_s = 0.5, 0.3  # each of two steps
    loop = asyncio.get_running_loop()

    class Slow(weft.dask.UCX):
        async def read(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(slow_s)
            return await super().read(*args, **kwargs)

        async def write(self, *args: Any, **kwargs: Any) -> int:
            await asyncio.sleep(slow_s)
            return await super().write(*args, **kwargs)

    async def handler(comm: Comm) -> None:
        await comm.write("here")
        await comm.close()

    async with listen(LOOPBACK, handler) as listener:
        with monkeypatch.context() as patch:
            patch.setattr("weft.dask.comm.UCX", Slow)
            start = loop.time()
            comm = await connect(listener.contact_address, timeout=timeout_s)
        assert loop.time() - start > timeout_s
        assert await comm.read() == "here"
        await comm.close()


async def never(_: Comm) -> None:
    pytest.fail("a handler was called")


async def test_a_listener_stopped_under_a_connection_cuts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await listen(LOOPBACK, never)
    on_peer = listener._on_peer

    async def stop_first(peer: weft.Peer) -> None:
        listener.stop()
        await on_peer(peer)

    monkeypatch.setattr(listener._listener, "_on_peer", stop_first)
    async with asyncio.timeout(20):
        with pytest.raises(CommClosedError):
            await connect(listener.contact_address)


async def test_a_server_that_closes_cuts_handshakes() -> None:
    listener = await listen(LOOPBACK, never)
    peer = await weft_connect(parse_address(listener.contact_address)[1])
    await peer.recv_frames()  # the listener's half of distributed's handshake; ours never comes
    listener.stop()
    listener.abort_handshaking_comms()
    with pytest.raises(weft.PeerLostError):
        await peer.recv()
    peer.abort()


async def test_who_leaves_in_the_handshake_is_no_comm() -> None:
    async with listen(LOOPBACK, never) as listener:
        host, port = listener.get_host_port()
        with socket.create_connection((host, port)):
            pass  # says nothing
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""  # shown the door
            writer.close()
            await writer.wait_closed()
        async with weft_connect(f"{host}:{port}") as peer:  # weft, but not Dask
            await peer.recv_frames()


async def is_lost(peer: weft.Peer) -> None:
    """See that the listener has ended the connection, and abort this end."""
    try:
        async with asyncio.timeout(20):
            with pytest.raises(weft.PeerLostError):
                await peer.recv()
    finally:
        peer.abort()


async def test_who_does_not_speak_dask_is_no_comm() -> None:
    async with listen(LOOPBACK, never) as listener:
        peer = await weft_connect(parse_address(listener.contact_address)[1])
        await peer.recv_frames()
        await peer.send_frames([b"\xc1 is no msgpack"])
        await is_lost(peer)


@pytest.mark.parametrize(("by_worker", "messages"), [(True, 0), (False, 1)])
async def test_dasks_handshake_comes_with_wefts(
    by_worker: bool, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's connection takes no message of its own for it; another's half may yet be changed, and takes one."""
    sent = 0
    send_packed = weft.Peer.send_packed

    def counted(self: weft.Peer, *args: Any, **kwargs: Any) -> Any:
        nonlocal sent
        sent += 1
        return send_packed(self, *args, **kwargs)

    monkeypatch.setattr(weft.Peer, "send_packed", counted)
    accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

    async def handler(comm: Comm) -> None:
        accepted.set_result(comm)

    async with listen(LOOPBACK, handler) as listener:
        arguments = {measured.REPORT: measured.Report()} if by_worker else {}
        a = await connect(listener.contact_address, **arguments)
        b = await accepted
    assert sent == messages
    for comm, other in ((a, b), (b, a)):
        theirs = {name: value for name, value in other.local_info.items() if name not in ("address", "python")}
        assert {name: comm.remote_info[name] for name in theirs} == theirs
        assert comm.handshake_options == {"pickle-protocol": pickle.HIGHEST_PROTOCOL, "compression": None}
    await a.write("first")
    await b.write("first, too")
    assert (await b.read(), await a.read()) == ("first", "first, too")
    a.abort()
    b.abort()


async def test_what_a_client_changes_in_the_handshake_is_heard() -> None:
    accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

    async def handler(comm: Comm) -> None:
        accepted.set_result(comm)

    async with listen(LOOPBACK, handler) as listener:
        a = await connect(listener.contact_address, handshake_overrides={"pickle-protocol": 4})
        b = await accepted
    assert a.handshake_options["pickle-protocol"] == b.handshake_options["pickle-protocol"] == 4
    a.abort()
    b.abort()


@pytest.mark.parametrize("heard", [{}, [], "nonsense", 5, {"pickle-protocol": "5", "compression": None}])
async def test_a_handshake_that_is_not_dasks_is_refused(heard: object, caplog: pytest.LogCaptureFixture) -> None:
    async with listen(LOOPBACK, never) as listener:
        address = parse_address(listener.contact_address)[1]
        peer = await weft_connect(address, info={"process": "p", "handshake": heard})
        await is_lost(peer)
    assert "its handshake is not a Dask message" in caplog.text


async def test_a_workers_connections_have_no_overrides() -> None:
    """Which is why its half of the handshake may be told beforehand."""
    async with (
        Scheduler(protocol="ucx", port=0, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard_address=":0") as worker,
    ):
        assert measured.REPORT in worker.rpc.connection_args
        assert "handshake_overrides" not in worker.rpc.connection_args
