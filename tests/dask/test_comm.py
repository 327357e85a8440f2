# SPDX-License-Identifier: BSD-3-Clause
"""The ``ucx://`` comm against what distributed expects of a comm, said and unsaid.

Every coroutine runs in asyncio's and in uvloop's loop. Most tests of a pair of comms run twice more: both ends in
one loop, where UCX only copies, and in the loops of two threads, where there is a link that can break.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed.comm import (
    CommClosedError,
    connect,
    get_address_host,
    get_address_host_port,
    get_local_address_for,
    listen,
    parse_address,
    parse_host_port,
    resolve_address,
)
from distributed.comm.core import BaseListener, Comm
from distributed.comm.registry import get_backend
from distributed.protocol import Serialized, deserialize, serialize, to_serialize
from distributed.protocol.serialize import families, register_serialization_family
from distributed.utils import get_ip

import weft
import weft.dask
from weft.connect import connect as weft_connect

LOOPBACK = "ucx://127.0.0.1"
KIB, MIB = 1024, 1024**2


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 on the loopback")


@pytest.fixture(autouse=True)
def no_comms_left() -> Iterator[None]:
    """Every comm that a test opened is closed at its end."""
    yield
    gc.collect()  # dropped ones are open until then
    assert [comm for comm in Comm._instances if not comm.closed()] == []


# ---- a pair of comms ----------------------------------------------------------------------------------------


class Elsewhere:
    """A comm in another thread's loop, used from this one's."""

    def __init__(self, comm: Comm, loop: asyncio.AbstractEventLoop) -> None:
        self.comm, self.loop = comm, loop

    def run(self, work: Awaitable[Any]) -> Awaitable[Any]:
        async def there() -> Any:
            return await work

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self.loop))

    def ask(self, question: Callable[[], Any]) -> Any:
        async def there() -> Any:
            return question()

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(10)

    async def read(self) -> Any:
        return await self.run(self.comm.read())

    async def write(self, msg: Any, **kwargs: Any) -> int:
        return await self.run(self.comm.write(msg, **kwargs))

    async def close(self) -> None:
        await self.run(self.comm.close())

    def abort(self) -> None:
        self.ask(self.comm.abort)

    def closed(self) -> bool:
        return self.ask(self.comm.closed)

    def __repr__(self) -> str:
        # pytest shows it when all is over, too.
        return object.__repr__(self) if self.loop.is_closed() else self.ask(lambda: repr(self.comm))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.ask(lambda: getattr(self.comm, name))


@contextlib.contextmanager
def second_loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[asyncio.AbstractEventLoop]:
    """Run another loop in another thread."""
    loop: asyncio.AbstractEventLoop | None = None
    stop: asyncio.Event | None = None
    ready = threading.Event()

    async def main() -> None:
        nonlocal loop, stop
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await stop.wait()

    def target() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    thread = threading.Thread(target=target)
    thread.start()
    assert ready.wait(10)
    assert loop is not None
    assert stop is not None
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()


@contextlib.asynccontextmanager
async def pair_here(address: str = LOOPBACK, **both: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A connector's and a listener's comm, both in this loop."""
    accepted = asyncio.get_running_loop().create_future()

    async def handler(comm: Comm) -> None:
        accepted.set_result(comm)

    async with listen(address, handler, **both) as listener:
        connected = await connect(listener.contact_address, **both)
        other = await accepted
    try:
        yield connected, other
    finally:
        connected.abort()
        other.abort()


@contextlib.asynccontextmanager
async def pair_across(
    factory: Callable[[], asyncio.AbstractEventLoop], address: str = LOOPBACK, **both: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """The connector's comm in this loop, the listener's in another thread's."""
    with second_loop(factory) as loop:
        accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()
        here = accepted.get_loop()

        async def handler(comm: Comm) -> None:
            here.call_soon_threadsafe(accepted.set_result, comm)

        async def start() -> Any:
            return await listen(address, handler, **both)

        async def stop() -> None:
            listener.stop()

        listener = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), loop))
        connected = await connect(listener.contact_address, **both)
        other = Elsewhere(await accepted, loop)
        await other.run(stop())
        try:
            yield connected, other
        finally:
            connected.abort()
            other.abort()


Pair = Callable[..., contextlib.AbstractAsyncContextManager[tuple[Any, Any]]]


@pytest.fixture(params=["one loop", "two threads"])
def pair(request: pytest.FixtureRequest, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Pair:
    """``async with pair(address, **listen_and_connect_args) as (a, b)``."""
    if request.param == "one loop":
        return pair_here
    return lambda *args, **kwargs: pair_across(loop_factory, *args, **kwargs)


CHILD = """
import asyncio, contextlib, sys
from distributed.comm import CommClosedError, listen

async def main():
    async def handler(comm):
        with contextlib.suppress(CommClosedError):
            while sys.argv[1] != "sit":
                msg = await comm.read()
                if sys.argv[1] == "echo": await comm.write(msg)
            await asyncio.Event().wait()
    async with listen("ucx://127.0.0.1", handler, deserialize=False) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


def start_listening(mode: str) -> tuple[str, subprocess.Popen[str]]:
    """Start a process that listens and echoes, reads or just sits there; return its address and itself."""
    command = [sys.executable, "-c", CHILD, mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address.startswith("ucx://"):
        process.kill()
        process.communicate(timeout=10)
        pytest.fail(f"no listener: {address}")
    return address, process


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """The address of a process that sends back what it gets."""
    address, process = start_listening("echo")
    yield address
    process.communicate("", timeout=10)
    assert process.returncode == 0


async def until(true: Callable[[], bool], timeout: float = 5.0) -> None:
    """Wait until `true` says so; there is no event for a comm that its peer has left."""
    async with asyncio.timeout(timeout):
        while not true():
            await asyncio.sleep(0.001)


def host_is(host: str) -> Callable[[str], bool]:
    """Check an address: that host, and a port that can be connected to."""

    def check(address: str) -> bool:
        scheme, rest = parse_address(address)
        there, port = parse_host_port(rest)
        return scheme == "ucx" and there == host and 0 < port < 65536

    return check


# ---- addresses and registration -----------------------------------------------------------------------------


def test_the_scheme_is_weft_s() -> None:
    assert isinstance(get_backend("ucx"), weft.dask.UCXBackend)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("ucx://127.0.0.1:80", "127.0.0.1", 80),
        ("ucx://a.name:8786", "a.name", 8786),
        ("ucx://[::1]:123", "::1", 123),
        ("ucx://[fe80::1]:9", "fe80::1", 9),
    ],
)
def test_host_and_port_of_an_address(address: str, host: str, port: int) -> None:
    assert get_address_host(address) == host
    assert get_address_host_port(address) == (host, port)


@pytest.mark.parametrize(
    ("address", "resolved"),
    [
        ("ucx://127.0.0.1:123", "ucx://127.0.0.1:123"),
        ("ucx://0.0.0.0:456", "ucx://0.0.0.0:456"),
        ("ucx://localhost:789", "ucx://127.0.0.1:789"),
        pytest.param("ucx://[::1]:123", "ucx://[::1]:123", marks=ipv6),
        pytest.param("ucx://[::]:123", "ucx://[::]:123", marks=ipv6),
    ],
)
def test_resolve_address(address: str, resolved: str) -> None:
    assert resolve_address(address) == resolved


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("ucx://127.0.0.1:80", "ucx://127.0.0.1"),
        pytest.param(
            "ucx://[::1]:123",
            "ucx://[::1]",
            marks=ipv6,
        ),
    ],
)
def test_local_address_towards_another(address: str, local: str) -> None:
    assert get_local_address_for(address) == local


def test_local_address_towards_the_outside() -> None:
    assert get_local_address_for("ucx://8.8.8.8:4444") == f"ucx://{get_ip()}"


@pytest.mark.parametrize("address", ["ucx://127.0.0.1", "ucx://[::1]", "ucx://127.0.0.1:http"])
async def test_connect_needs_a_port(address: str) -> None:
    with pytest.raises(ValueError, match=r"port|invalid literal"):
        await connect(address, timeout=1)


# ---- listener and connector ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "bound", "contact"),
    [
        ("ucx://", "0.0.0.0", None),
        ("ucx://:0", "0.0.0.0", None),
        ("ucx://0.0.0.0", "0.0.0.0", None),
        ("ucx://0.0.0.0:0", "0.0.0.0", None),
        ("ucx://127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("ucx://127.0.0.1:0", "127.0.0.1", "127.0.0.1"),
        ("ucx://localhost:0", "127.0.0.1", "127.0.0.1"),
        pytest.param("ucx://[::1]", "::1", "::1", marks=ipv6),
        pytest.param("ucx://[::1]:0", "::1", "::1", marks=ipv6),
    ],
)
async def test_clients_of_a_listener(address: str, bound: str, contact: str | None) -> None:
    served = []

    async def handler(comm: Comm) -> None:
        assert parse_address(comm.peer_address)[0] == "ucx"
        question = await comm.read()
        await comm.write({"op": "answer", "key": question["key"]})
        assert await comm.read() == {"op": "thanks"}
        served.append(question["key"])
        await comm.close()

    async def ask(key: int) -> None:
        comm = await connect(listener.contact_address, unknown="is ignored")
        assert comm.peer_address == listener.contact_address
        await comm.write({"op": "question", "key": key})
        await comm.write({"op": "thanks"})
        assert await comm.read() == {"op": "answer", "key": key}
        with pytest.raises(CommClosedError):
            await comm.read()
        await comm.close()

    async with listen(address, handler, unknown="is ignored") as listener:
        assert host_is(bound)(listener.listen_address)
        assert host_is(contact or get_ip())(listener.contact_address)
        assert get_address_host_port(listener.listen_address) == listener.get_host_port()
        await ask(0)
        await asyncio.gather(*(ask(key) for key in range(1, 21)))
    assert sorted(served) == list(range(21))


@ipv6
async def test_a_wildcard_of_ipv6_takes_the_loopback() -> None:
    async with listen("ucx://[::]:0", lambda comm: comm.close()) as listener:
        host, port = listener.get_host_port()
        assert host == "::"
        comm = await connect(f"ucx://[::1]:{port}")
        with pytest.raises(CommClosedError):
            await comm.read()


async def test_a_given_default_host_is_the_wildcard_s_contact() -> None:
    async with listen("ucx://", lambda comm: comm.close(), default_host="127.0.0.1") as listener:
        assert host_is("0.0.0.0")(listener.listen_address)
        assert host_is("127.0.0.1")(listener.contact_address)


async def test_the_listener_is_what_a_server_uses() -> None:
    listener = get_backend("ucx").get_listener("127.0.0.1:0", lambda comm: comm.close(), True)
    assert isinstance(listener, BaseListener)
    assert listener.prefix == "ucx://"
    for ask in ("get_host_port", "listen_address", "contact_address"):
        with pytest.raises(ValueError, match="non-started"):
            value = getattr(listener, ask)
            value()
    await listener.start()
    listener.stop()
    listener.stop()


async def test_a_given_port_is_bound_once() -> None:
    async with listen("ucx://127.0.0.1:0", lambda comm: comm.close()) as listener:
        with pytest.raises(OSError, match="choose another port") as e:
            await listen(listener.listen_address, lambda comm: comm.close())
        assert e.value.errno == errno.EADDRINUSE
    async with listen(listener.listen_address, lambda comm: comm.close()) as again:
        assert again.listen_address == listener.listen_address


@pytest.mark.parametrize("address", ["ucx://127.0.0.1", "ucx://0.0.0.0", "ucx://"])
async def test_a_hundred_listeners(address: str) -> None:
    listeners = [await listen(address, lambda comm: comm.close()) for _ in range(100)]
    assert len({listener.listen_address for listener in listeners}) == 100
    assert len({listener.contact_address for listener in listeners}) == 100
    for listener in listeners:
        listener.stop()


async def test_comms_outlive_their_listener() -> None:
    async with pair_here() as (a, b):
        await a.write("x")  # the listener was stopped before this
        assert await b.read() == "x"


async def test_nobody_is_taken_after_stop() -> None:
    listener = await listen(LOOPBACK, lambda comm: comm.close())
    listener.stop()
    with pytest.raises(OSError, match="Timed out"):
        await connect(listener.contact_address, timeout=0.15)


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_connect_where_nobody_listens() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(OSError, match="Timed out"):
        await connect(f"ucx://{address}", timeout=0.15)
    assert 0.1 < loop.time() - start < 2
    with pytest.raises(weft.UnreachableError, match="nobody listens"):
        await weft.dask.UCXConnector().connect(address)


async def test_connect_where_nobody_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        with pytest.raises(OSError, match="Timed out"):
            await connect(f"ucx://127.0.0.1:{silent.getsockname()[1]}", timeout=0.15)


async def test_connect_where_something_else_listens() -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(OSError, match="Timed out"):
            await connect(f"ucx://{address}", timeout=0.15)
        with pytest.raises(weft.HandshakeError):
            await weft.dask.UCXConnector().connect(address)


async def test_connect_is_retried_until_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = asyncio.Event()
    once = weft.dask.UCXConnector.connect

    async def connect_once(self: Any, *args: Any, **kwargs: Any) -> Comm:
        try:
            return await once(self, *args, **kwargs)
        except OSError:
            failed.set()
            raise

    monkeypatch.setattr(weft.dask.UCXConnector, "connect", connect_once)
    address = f"ucx://127.0.0.1:{free_port()}"
    connecting = asyncio.create_task(connect(address, timeout=10))
    await failed.wait()
    async with listen(address, lambda comm: comm.write("late")):
        comm = await connecting
        assert await comm.read() == "late"
        await comm.close()


async def test_a_cancelled_connect_leaves_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        address = f"ucx://127.0.0.1:{silent.getsockname()[1]}"
        counts = []
        for _ in range(10):
            connecting = asyncio.create_task(connect(address, timeout=10))
            await asyncio.wait([connecting], timeout=0.005)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[-1] == counts[1]


async def test_encryption_that_is_required_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"encryption required.*ucx://127\.0\.0\.1:9'.*use tls://"):
        await connect("ucx://127.0.0.1:9", timeout=1, require_encryption=True)
    with pytest.raises(RuntimeError, match=r"encryption required.*ucx://127\.0\.0\.1'.*use tls://"):
        await listen(LOOPBACK, lambda comm: comm.close(), require_encryption=True)
    async with listen(LOOPBACK, lambda comm: comm.close(), require_encryption=False) as listener:
        await (await connect(listener.contact_address, require_encryption=False)).close()


# ---- the handshake ------------------------------------------------------------------------------------------


async def test_both_sides_know_each_other(pair: Pair) -> None:
    async with pair() as (a, b):
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


async def test_repr_tells_addresses_and_state(pair: Pair) -> None:
    async with pair() as (a, b):
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
    async with asyncio.timeout(5):
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


async def test_who_does_not_speak_dask_is_no_comm() -> None:
    async with listen(LOOPBACK, never) as listener:
        peer = await weft_connect(parse_address(listener.contact_address)[1])
        await peer.recv_frames()
        await peer.send_frames([b"\xc1 is no msgpack"])
        try:
            async with asyncio.timeout(1):
                with pytest.raises(weft.PeerLostError):
                    await peer.recv()
        finally:
            peer.abort()


# ---- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "msg",
    [
        {},
        "text",
        b"",
        None,
        12345678901234567890,
        {"op": "x", "nested": [{"a": (1, 2.5, None, True)}], "b": b"\0" * 1000},
        {"long": b"x" * 1_000_000},
    ],
    ids=["empty", "str", "bytes", "none", "int", "nested", "1MB"],
)
async def test_a_message_arrives(pair: Pair, msg: Any) -> None:
    async with pair() as (a, b):
        assert isinstance(await a.write(msg), int)
        got = await b.read()
        assert got == msg or got == {"op": "x", "nested": ({"a": (1, 2.5, None, True)},), "b": b"\0" * 1000}
        await b.write(got)
        assert await a.read() == got


async def test_messages_come_one_by_one_and_in_order(pair: Pair) -> None:
    sizes = [8, 300 * KIB, 0, 1, 64 * KIB, 64 * KIB - 1, 255 * KIB, 16] * 3
    async with pair() as (a, b):

        async def write() -> None:
            for number, size in enumerate(sizes):
                await a.write({"number": number, "x": to_serialize(np.full(size, number, dtype="u1"))})

        writing = asyncio.create_task(write())
        for number, size in enumerate(sizes):
            msg = await b.read()
            assert msg["number"] == number
            assert msg["x"].nbytes == size
            assert (msg["x"] == number).all()
        await writing


async def test_write_is_a_coroutine_and_returns_the_size(pair: Pair) -> None:
    async with pair() as (a, b):
        assert inspect.iscoroutinefunction(weft.dask.UCX.write)
        writing = weft.dask.UCX.write(a, "x")
        assert inspect.iscoroutine(writing)
        writing.close()  # distributed's BatchedSend does; nothing was sent
        nbytes = await a.write(to_serialize(np.zeros(25_000)))
        assert type(nbytes) is int
        assert 200_000 < nbytes < 201_000
        assert (await b.read()).nbytes == 200_000


def frames_of(sizes: list[int]) -> list[bytes]:
    noise = np.random.default_rng(0).bytes(max(sizes) + len(sizes))
    return [noise[i : i + size] for i, size in enumerate(sizes)]


SMALL_FRAMES = [
    [0],
    [0, 0, 0],
    [0, 5, 0, 100_000, 0],
    [100_000, 0, 100_000],
    [16 * KIB] * 10,
    [8] * 10_000,
]
LARGE_FRAMES = [
    [(0, 1, 63, 64, 65, 1000)[i % 6] for i in range(10_000)],
    [70_000 if i % 100 == 7 else 100 for i in range(10_000)],
    [64 * KIB + i for i in range(512)],
    [64 * KIB + i % 5 for i in range(513)],
    [64 * KIB + 7 * i for i in range(600)],
    [64 * KIB, 30 * MIB, 8, 3 * MIB],
]


def shape(sizes: list[int]) -> str:
    return f"{len(sizes)}x{min(sizes)}..{max(sizes)}"


async def frames_arrive(writer: Any, reader: Any, sizes: list[int]) -> None:
    frames = frames_of(sizes)
    writing = asyncio.create_task(writer.write({"x": Serialized({"serializer": "test"}, list(frames))}))
    got = (await reader.read())["x"]
    assert await writing >= sum(sizes)
    assert isinstance(got, Serialized)
    assert [bytes(frame) for frame in got.frames] == frames


@pytest.mark.parametrize("sizes", SMALL_FRAMES, ids=shape)
async def test_frames_arrive_as_they_were(pair: Pair, sizes: list[int]) -> None:
    async with pair(deserialize=False) as (a, b):
        await frames_arrive(a, b, sizes)


@pytest.mark.parametrize("sizes", LARGE_FRAMES, ids=shape)
async def test_many_and_large_frames_arrive_as_they_were(sizes: list[int]) -> None:
    async with pair_here(deserialize=False) as (a, b):
        await frames_arrive(a, b, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [*SMALL_FRAMES, *LARGE_FRAMES], ids=shape)
async def test_frames_come_back_from_another_process(echo: str, sizes: list[int]) -> None:
    comm = await connect(echo, deserialize=False)
    await frames_arrive(comm, comm, sizes)
    await comm.close()


async def test_frames_of_any_kind_are_sent(pair: Pair) -> None:
    kinds = [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(np.arange(100_000.0)),
        memoryview(np.arange(6.0).reshape(2, 3)),
        memoryview(b""),
    ]
    async with pair(deserialize=False) as (a, b):
        nbytes = await a.write({"x": Serialized({"serializer": "test"}, list(kinds))})
        assert nbytes > 800_000
        got = (await b.read())["x"].frames
        assert [bytes(frame) for frame in got] == [bytes(frame) for frame in kinds]


def plain(value: Any) -> Any:
    """What a ``to_serialize`` or ``Serialized`` value stands for."""
    return deserialize(value.header, value.frames) if isinstance(value, Serialized) else value


@pytest.mark.parametrize("payload", [456, b"x" * (2 * MIB)], ids=["small", "large"])
@pytest.mark.parametrize("at_listener", [True, False])
@pytest.mark.parametrize("at_connector", [True, False])
async def test_deserialize_is_each_side_s_own(at_listener: bool, at_connector: bool, payload: Any) -> None:
    msg = {"op": "update", "x": b"abc", "to": [to_serialize(payload)], "done": Serialized(*serialize(payload))}

    def check(got: dict[str, Any], deserialized: bool) -> None:
        assert (got["op"], got["x"]) == ("update", b"abc")
        for value in (*got["to"], got["done"]):
            assert isinstance(value, Serialized) is not deserialized
            assert plain(value) == payload

    async def handler(comm: Comm) -> None:
        got = await comm.read()
        check(got, at_listener)
        await comm.write(got if not at_listener else msg)
        await comm.close()

    async with listen(LOOPBACK, handler, deserialize=at_listener) as listener:
        comm = await connect(listener.contact_address, deserialize=at_connector)
        await comm.write(msg)
        check(await comm.read(), at_connector)
        await comm.close()


@pytest.mark.parametrize("flag", [True, False])
async def test_deserialize_round_trip(flag: bool) -> None:
    payload = np.random.default_rng(1).bytes(4 * MIB)
    async with pair_here(deserialize=flag) as (a, b):
        await a.write({"x": payload, "to": [to_serialize(payload)], "done": Serialized(*serialize(payload))})
        await b.write(await b.read())
        got = await a.read()
        assert got["x"] == payload
        for value in (*got["to"], got["done"]):
            assert isinstance(value, Serialized) is not flag
            assert plain(value) == payload


def raise_eof() -> None:
    raise EOFError


class EndsEarly:
    """Unpickling this fails as a truncated message does."""

    def __reduce__(self) -> Any:
        return raise_eof, ()


async def test_a_truncated_message_closes_the_comm(pair: Pair) -> None:
    async with pair() as (a, b):
        await a.write({"x": to_serialize(EndsEarly())})
        with pytest.raises(CommClosedError, match="truncated"):
            await b.read()
        assert b.closed()
        with pytest.raises(CommClosedError):
            await a.read()


async def test_what_cannot_be_serialized_leaves_the_comm_alone(pair: Pair) -> None:
    async with pair() as (a, b):
        with pytest.raises(TypeError):
            await a.write({"x": to_serialize(threading.Lock())}, on_error="raise")
        await a.write("still here")
        assert await b.read() == "still here"


async def test_serializers_are_told_both_ends(pair: Pair) -> None:
    contexts = []

    def dumps(x: object, context: Any = None) -> Any:
        contexts.append(context)
        return {}, [b"abc"]

    register_serialization_family("weft-test", dumps, lambda header, frames: bytes(frames[0]))
    try:
        async with pair() as (a, b):
            await a.write({"x": to_serialize(object())}, serializers=["weft-test"])
            assert (await b.read())["x"] == b"abc"
            (context,) = contexts
            assert context["sender"]["address"] == a.local_address
            assert context["recipient"]["address"] == a.peer_address
            assert context["pickle-protocol"] == pickle.HIGHEST_PROTOCOL
    finally:
        del families["weft-test"]


# ---- memory -------------------------------------------------------------------------------------------------


def whole(array: np.ndarray) -> object:
    """The object whose memory an array shows."""
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        inner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if inner is None:
            break
        owner = inner
    return owner


async def test_received_arrays_are_aligned_and_writable(pair: Pair) -> None:
    counts = [1, 7, 100, 8191, 8192, 10_000, 20_000]
    async with pair() as (a, b):
        for count in counts:
            sent = np.arange(float(count))
            await a.write({"x": to_serialize(sent), "y": to_serialize(sent[: count // 2 + 1])})
            msg = await b.read()
            for got in (msg["x"], msg["y"]):
                assert np.array_equal(got, sent[: len(got)])
                assert got.flags.aligned
                assert got.flags.writeable
                if got.nbytes >= 64 * KIB:
                    assert got.ctypes.data % 64 == 0
                got += 1
                assert got[0] == 1


async def large_arrive(writer: Any, reader: Any) -> None:
    frame = pd.DataFrame({"i": np.arange(100_000), "f": np.arange(100_000.0), "s": ["a", "b"] * 50_000})
    array = np.arange(9_000_000.0)  # longer than distributed's shards and offloading
    writing = asyncio.create_task(writer.write({"frame": to_serialize(frame), "array": to_serialize(array)}))
    got = await reader.read()
    await writing
    pd.testing.assert_frame_equal(got["frame"], frame)
    assert np.array_equal(got["array"], array)
    assert got["array"].ctypes.data % 64 == 0
    assert got["array"].flags.writeable
    assert type(whole(got["array"])) is not np.ndarray, "the array was copied out of what arrived"


async def test_large_objects_are_views_of_what_arrived() -> None:
    async with pair_here() as (a, b):
        await large_arrive(a, b)


@pytest.mark.slow
async def test_large_objects_come_back_from_another_process(echo: str) -> None:
    comm = await connect(echo)
    await large_arrive(comm, comm)
    await comm.close()


@pytest.mark.parametrize("count", [2, 100_000])
async def test_two_objects_do_not_share_memory(pair: Pair, count: int) -> None:
    async with pair() as (a, b):
        await a.write({"x": [to_serialize(np.zeros(count)), to_serialize(np.zeros(count))]})
        x, y = (await b.read())["x"]
        assert whole(x) is not whole(y)
        assert not np.shares_memory(x, y)
        x += 1
        assert not y.any()


async def test_two_receivers_and_the_sender_do_not_share_memory() -> None:
    sent = np.zeros(100_000)
    async with pair_here() as (a, b), pair_here() as (c, d):
        await a.write(to_serialize(sent))
        await c.write(to_serialize(sent))
        x, y = await b.read(), await d.read()
        x += 1
        assert not y.any()
        assert not sent.any()


async def test_an_array_outlives_its_comm(pair: Pair) -> None:
    sent = np.arange(200_000.0)
    async with pair() as (a, b):
        await a.write(to_serialize(sent))
        got = await b.read()
        await a.write(to_serialize(sent + 1))
        assert np.array_equal(await b.read(), sent + 1)
    assert np.array_equal(got, sent)


async def test_a_sent_array_may_be_changed_at_once(pair: Pair) -> None:
    async with pair() as (a, b):
        for nbytes in (100, 100_000, 600_000):
            sent = np.full(nbytes, 1, dtype="u1")
            reading = asyncio.create_task(b.read())
            await a.write(to_serialize(sent))
            sent[:] = 2
            assert (await reading == 1).all()


# ---- both directions at once --------------------------------------------------------------------------------


async def test_one_reader_and_one_writer_at_once(pair: Pair) -> None:
    count = 30
    sent = np.random.default_rng(2).integers(0, 256, 200_000, dtype="u1")

    async def write(comm: Any) -> None:
        for number in range(count):
            await comm.write({"number": number, "x": to_serialize(sent)})

    async def read(comm: Any) -> None:
        for number in range(count):
            msg = await comm.read()
            assert msg["number"] == number
            assert np.array_equal(msg["x"], sent)

    async with pair() as (a, b):
        await asyncio.gather(write(a), write(b), read(a), read(b))


async def test_write_during_a_pending_read(pair: Pair) -> None:
    async with pair() as (a, b):
        reading = asyncio.create_task(a.read())
        await asyncio.sleep(0)
        await a.write("ping")
        assert await b.read() == "ping"
        assert not reading.done()
        await b.write("pong")
        assert await reading == "pong"


async def test_close_during_a_pending_read(pair: Pair) -> None:
    async with pair() as (a, b):
        here, there = asyncio.create_task(a.read()), asyncio.create_task(b.read())
        await asyncio.sleep(0)
        await a.close()
        for reading in (here, there):
            with pytest.raises(CommClosedError):
                await reading


@pytest.mark.parametrize("nbytes", [100, 200_000, 1_000_000])
async def test_what_was_written_before_a_close_arrives(pair: Pair, nbytes: int) -> None:
    """Also while this side waits for a message, as distributed's servers always do, and before the other reads."""
    async with pair() as (a, b):
        reading = asyncio.create_task(a.read())
        await asyncio.sleep(0)
        sent = np.ones(nbytes, dtype="u1")

        async def write_and_close() -> None:
            await a.write(to_serialize(sent))
            await a.close()

        closing = asyncio.create_task(write_and_close())
        await asyncio.wait([closing], timeout=0.02)
        assert np.array_equal(await b.read(), sent)
        await closing
        with pytest.raises(CommClosedError):
            await reading
        with pytest.raises(CommClosedError) as e:
            await b.read()
        assert isinstance(e.value.__cause__, weft.PeerClosedError), "the close was an abort"


@pytest.mark.parametrize("beside", ["nothing", "a read", "another close"])
async def test_close_waits_for_a_write_that_waits_for_the_other_side(pair: Pair, beside: str) -> None:
    async with pair() as (a, b):
        writing = []
        while not writing or writing[-1].done():  # until one hangs, as the other side does not read
            writing.append(asyncio.create_task(a.write(to_serialize(np.full(100_000, len(writing), dtype="u1")))))
            await asyncio.wait(writing[-1:], timeout=0.05)
        reading = asyncio.create_task(a.read()) if beside == "a read" else None
        await asyncio.sleep(0)
        closing = [asyncio.create_task(a.close()) for _ in range(1 + (beside == "another close"))]
        await asyncio.wait(closing, timeout=0.02)
        try:
            for number in range(len(writing)):
                assert (await b.read() == number).all()
        finally:
            outcomes = await asyncio.gather(*writing, *closing, return_exceptions=True)
            if reading is not None:
                with pytest.raises(CommClosedError):
                    await reading
        assert [outcome for outcome in outcomes if isinstance(outcome, BaseException)] == []
        with pytest.raises(CommClosedError):
            await b.read()


# ---- endings ------------------------------------------------------------------------------------------------


async def test_a_handler_that_closes_ends_reads_and_writes() -> None:
    async with listen(LOOPBACK, lambda comm: comm.close()) as listener:
        comm = await connect(listener.contact_address)
        with pytest.raises(CommClosedError):
            await comm.write({})
            await comm.read()
        comm = await connect(listener.contact_address)
        with pytest.raises(CommClosedError):
            await comm.read()
        assert comm.closed()


async def test_a_closed_comm_is_closed_for_everything(pair: Pair) -> None:
    async with pair() as (a, b):
        readings = a.read(), b.read()  # not begun
        await a.close()
        for end in (*readings, a.read(), b.read(), a.write({}), b.write({})):
            with pytest.raises(CommClosedError):
                await end
        assert a.closed()
        assert b.closed()
        for comm in (a, b, a, b):
            await comm.close()
            comm.abort()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_closed_tells_that_the_peer_went(pair: Pair, how: str) -> None:
    async with pair() as (a, b):
        assert not a.closed()
        if how == "close":
            await b.close()
        else:
            b.abort()
        await until(a.closed, 1.0)
        with pytest.raises(CommClosedError):
            await a.read()
        with pytest.raises(CommClosedError):
            await a.write("x")


async def test_an_abort_ends_the_other_s_pending_read_and_write(pair: Pair) -> None:
    async with pair() as (a, b):
        reading = asyncio.create_task(a.read())
        writing = asyncio.create_task(a.write(to_serialize(np.ones(4_000_000))))  # nobody reads it
        await asyncio.sleep(0)
        assert not writing.done()
        b.abort()
        for end in (reading, writing):
            async with asyncio.timeout(1):
                with pytest.raises(CommClosedError):
                    await end
        assert a.closed()


async def test_a_read_that_is_cancelled_aborts_the_comm(pair: Pair) -> None:
    async with pair() as (a, b):
        reading = asyncio.create_task(a.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert a.closed()
        with pytest.raises(CommClosedError):
            await b.read()


async def test_a_read_that_times_out_aborts_the_comm(pair: Pair) -> None:
    async with pair() as (a, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(a.read(), 0.01)
        assert a.closed()


async def test_a_write_that_is_cancelled_aborts_the_comm(pair: Pair) -> None:
    async with pair() as (a, b):
        sent = np.ones(4_000_000)  # 32 MB, which are not taken before somebody reads
        writing = asyncio.create_task(a.write(to_serialize(sent)))
        done, _ = await asyncio.wait([writing], timeout=0.05)
        assert not done
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert a.closed()
        with pytest.raises(CommClosedError):
            await b.read()


class Unusual(BaseException):
    """Neither an Exception nor one that asyncio knows."""


@pytest.mark.parametrize("kind", [BufferError, MemoryError, Unusual])
@pytest.mark.parametrize("op", ["send_frames", "recv_frames"])
async def test_any_error_below_aborts_the_comm_and_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, op: str, kind: type[BaseException]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise kind("below")

    async with pair() as (a, b):
        monkeypatch.setattr(a._peer, op, fail, raising=True)
        with pytest.raises(kind, match="below"):
            await (a.read() if op == "recv_frames" else a.write("x"))
        assert a.closed()
        with pytest.raises(CommClosedError):
            await b.read()


async def test_distributed_may_hang_things_on_a_comm() -> None:
    async with pair_here() as (a, _):
        a.name = "a name"
        a._pool = weakref.ref(a)
        a.allow_offload = False
        assert a in Comm._instances
        assert "a name" in repr(a)


async def test_offloading_is_the_listener_s_choice() -> None:
    comms = []

    async def handler(comm: Comm) -> None:
        comms.append(comm)
        await comm.close()

    async with listen(LOOPBACK, handler, allow_offload=False) as listener:
        comm = await connect(listener.contact_address)
        with pytest.raises(CommClosedError):
            await comm.read()
    assert comm.allow_offload
    assert not comms[0].allow_offload


# ---- descriptors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["close", "abort", "drop"])
async def test_connections_in_turn_leave_descriptors_flat(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], leave: str
) -> None:
    counts = []

    async def echo(comm: Comm) -> None:
        with contextlib.suppress(CommClosedError):
            while True:
                await comm.write(await comm.read())

    with second_loop(loop_factory) as loop:

        async def start() -> Any:
            return await listen(LOOPBACK, echo)

        listener = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), loop))
        for number in range(200):
            comm = await connect(listener.contact_address)
            await comm.write(number)
            assert await comm.read() == number
            if leave == "close":
                await comm.close()
            elif leave == "abort":
                comm.abort()
            del comm
            counts.append(len(os.listdir("/proc/self/fd")))
        loop.call_soon_threadsafe(listener.stop)
    # Both sides' sockets of a bootstrap may still be on their way out when they are counted.
    assert max(counts[-20:]) <= max(counts[3:20]) + 2


async def talk(*, close: bool) -> None:
    """Listen, connect and exchange a message; leave the comms to the loop's end, or close them."""
    served: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

    async def handler(comm: Comm) -> None:
        served.set_result(comm)

    async with listen(LOOPBACK, handler) as listener:
        comm = await connect(listener.contact_address)
        other = await served
    await comm.write("x")
    assert await other.read() == "x"
    if close:
        await comm.close()
        await other.close()


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("close", [True, False], ids=["closed", "left open"])
@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "abrupt"])
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_event_loops_in_turn_leave_descriptors_flat(kind: str, orderly: bool, close: bool, count: int) -> None:
    """Orderly as ``asyncio.run`` ends a loop; abrupt as old programs do, which just close it."""
    new_event_loop = pytest.importorskip(kind).new_event_loop
    counts = []
    for _ in range(count):
        loop = new_event_loop()
        loop.run_until_complete(talk(close=close))
        if orderly:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[2]


# ---- a process that is killed -------------------------------------------------------------------------------


@pytest.fixture
def child() -> Iterator[Any]:
    """``child(mode)`` starts a process that listens, and gives its address and itself."""
    processes = []

    def start(mode: str) -> tuple[str, subprocess.Popen[str]]:
        address, process = start_listening(mode)
        processes.append(process)
        return address, process

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.slow
@pytest.mark.parametrize("doing", ["reading", "writing", "idle"])
@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
async def test_a_killed_process_is_noticed_within_a_second(child: Any, doing: str, reaped: bool) -> None:
    address, process = child("sit")
    comm = await connect(address)
    assert comm.transports
    loop = asyncio.get_running_loop()
    task = None
    if doing == "reading":
        task = asyncio.create_task(comm.read())
    elif doing == "writing":
        task = asyncio.create_task(comm.write(to_serialize(np.ones(8_000_000))))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not comm.closed()
    assert task is None or not task.done()
    start = loop.time()
    process.send_signal(signal.SIGKILL)
    if reaped:
        process.wait(10)
    if task is not None:
        with pytest.raises(CommClosedError):
            await task
    await until(comm.closed, 2.0)
    assert loop.time() - start < 1.0
    with pytest.raises(CommClosedError):
        await comm.write("x")


@pytest.mark.slow
async def test_a_process_killed_in_mid_transfer(child: Any) -> None:
    address, process = child("read")
    comm = await connect(address)
    sent = to_serialize(np.ones(2_000_000))
    killing = asyncio.get_running_loop().call_later(0.1, process.kill)
    start = asyncio.get_running_loop().time()
    with pytest.raises(CommClosedError):
        while True:
            await comm.write(sent)
    assert asyncio.get_running_loop().time() - start < 1.1
    assert comm.closed()
    killing.cancel()
