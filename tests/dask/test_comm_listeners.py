# SPDX-License-Identifier: BSD-3-Clause
"""Addresses of ``ucx://``, who listens at them, and how one connects: what succeeds, and each way to be turned away."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Scheduler, Worker
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
from distributed.comm.core import BaseListener, Comm, FatalCommClosedError
from distributed.comm.registry import get_backend
from distributed.utils import get_ip
from tests.dask.ends import LOOPBACK, ends_here

import weft
import weft.dask
from weft._connect.route import NoRouteError

pytestmark = pytest.mark.usefixtures("no_comms_left")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 on the loopback")


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "wildcard"), [("127.0.0.1", "0.0.0.0"), pytest.param("::1", "::", marks=ipv6)], ids=["IPv4", "IPv6"]
)
async def test_a_worker_everywhere_is_reached_where_its_scheduler_is(host: str, wildcard: str) -> None:
    options = {"dashboard_address": ":0", "protocol": "ucx"}
    host_in_url = f"[{host}]" if ":" in host else host
    async with (
        Scheduler(host=host_in_url, **options) as scheduler,
        Worker(scheduler.address, nthreads=1) as worker,
    ):
        assert host_is(wildcard)(worker.listener.listen_address)
        assert host_is(host)(worker.address)


@pytest.mark.slow
async def test_a_worker_goes_on_to_the_next_port_of_its_range() -> None:
    async with listen("ucx://127.0.0.1:0", lambda comm: comm.close()) as taken:
        first = parse_host_port(parse_address(taken.listen_address)[1])[1]
        options = {"host": "127.0.0.1", "dashboard_address": ":0", "protocol": "ucx"}
        async with (
            Scheduler(**options) as scheduler,
            Worker(scheduler.address, nthreads=1, port=f"{first}:{first + 9}") as worker,
        ):
            assert first < worker.port <= first + 9
            assert worker.monitor.get_process_memory() > 0


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
    async with ends_here() as (a, b):
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
    assert loop.time() - start > 0.1
    with pytest.raises(weft.UnreachableError, match="nothing listens"):
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
        with pytest.raises(FatalCommClosedError, match="does not speak weft; it began with b'SSH"):
            await connect(f"ucx://{address}", timeout=100)


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
    connecting = asyncio.create_task(connect(address, timeout=100))
    await failed.wait()
    async with listen(address, lambda comm: comm.write("late")):
        comm = await connecting
        assert await comm.read() == "late"
        await comm.close()


@pytest.mark.parametrize("error", [weft.NoMemoryError, weft.UnsupportedError, weft.Error])
async def test_connect_is_retried_when_this_side_has_no_room(
    monkeypatch: pytest.MonkeyPatch, error: type[weft.Error]
) -> None:
    """distributed retries what is an OSError; a task that waits for data hangs for ever after anything else."""
    once = weft.dask.comm.connect
    tried = []

    async def connect_later(*args: Any, **kwargs: Any) -> weft.Peer:
        tried.append(args)
        if len(tried) == 1:
            raise error("3 descriptors are left")
        return await once(*args, **kwargs)

    monkeypatch.setattr(weft.dask.comm, "connect", connect_later)
    async with listen(LOOPBACK, lambda comm: comm.write("late")) as listener:
        comm = await connect(listener.contact_address, timeout=60)
        assert await comm.read() == "late"
        await comm.close()
    assert len(tried) == 2


@pytest.mark.parametrize("error", [weft.InvalidParamError, NoRouteError])
async def test_connect_is_not_retried_when_that_cannot_help(
    monkeypatch: pytest.MonkeyPatch, error: type[weft.Error]
) -> None:
    async def refuse(*args: Any, **kwargs: Any) -> weft.Peer:
        raise error("no such setting")

    monkeypatch.setattr(weft.dask.comm, "connect", refuse)
    with pytest.raises(FatalCommClosedError, match="no such setting"):
        await connect("ucx://127.0.0.1:9", timeout=60)


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
    with pytest.raises(RuntimeError, match=r"encryption required.*ucx://127\.0\.0\.1:9'.*no TLS is"):
        await connect("ucx://127.0.0.1:9", timeout=1, require_encryption=True)
    with pytest.raises(RuntimeError, match=r"encryption required.*ucx://127\.0\.0\.1'.*no TLS is"):
        await listen(LOOPBACK, lambda comm: comm.close(), require_encryption=True)
    async with listen(LOOPBACK, lambda comm: comm.close(), require_encryption=False) as listener:
        await (await connect(listener.contact_address, require_encryption=False)).close()
