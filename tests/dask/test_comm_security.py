# SPDX-License-Identifier: BSD-3-Clause
"""``ucx://`` under distributed's ``Security``; and both ends of it with whom they were not made to talk to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, Scheduler, Worker
from distributed.comm import CommClosedError, connect, listen
from distributed.comm.core import Comm, FatalCommClosedError
from distributed.protocol import to_serialize
from tests.certificates import security, stranger
from tests.dask.clusters import local_cluster, workers_of
from tests.dask.ends import LOOPBACK

import weft.dask
from weft._connect import handshake

pytestmark = pytest.mark.usefixtures("no_comms_left")


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody proves to be on the other's host."""
    monkeypatch.setattr(handshake, "_prove_same_host", lambda hello, what: None)


async def never(_: Comm) -> None:
    pytest.fail("a handler was called")


@contextlib.asynccontextmanager
async def secured(**options: Any) -> AsyncIterator[tuple[Any, Any]]:
    accepted = asyncio.get_running_loop().create_future()

    async def handler(comm: Comm) -> None:
        accepted.set_result(comm)

    both = security(**options)
    async with listen(LOOPBACK, handler, **both.get_listen_args("scheduler")) as listener:
        a = await connect(listener.contact_address, **both.get_connection_args("worker"))
        b = await accepted
    yield a, b
    a.abort()
    b.abort()


async def test_with_tls_shared_memory_is_still_used() -> None:
    async with secured() as (a, b):
        await a.write({"x": 1})
        assert await b.read() == {"x": 1}
        assert a.transports == b.transports  # of one process, to itself
        assert not any(lane.startswith("tls") for lane in a.transports)


async def test_payload_over_the_network_is_refused_unless_told(two_hosts: None, caplog: Any) -> None:
    for required in (True, False):
        with pytest.raises(FatalCommClosedError, match=r"unencrypted, and this side refuses.*weft\.encrypted-payload"):
            async with secured(require_encryption=required):
                pass


async def test_payload_over_tls(two_hosts: None) -> None:
    with dask.config.set({"weft.encrypted-payload": "tls"}):
        async with secured() as (a, b):
            assert a.transports == b.transports == ["tls/lo"]
            array = np.arange(500_000)
            msg = {"status": "OK", "data": to_serialize(array), "many": list(range(1000))}
            reading = asyncio.ensure_future(b.read())
            assert await a.write(msg) > array.nbytes
            got = await reading
            assert (got["data"] == array).all()
            assert got["data"].flags.writeable
            await b.write("back")
            assert await a.read() == "back"
            await a.close()
            assert a.closed()
            with pytest.raises(CommClosedError):
                await b.read()
            assert b.closed()


async def test_a_comm_over_tls_notices_the_other_end(two_hosts: None) -> None:
    with dask.config.set({"weft.encrypted-payload": "tls"}):
        async with secured() as (a, b):
            a.abort()
            with pytest.raises(CommClosedError):
                await b.read()
        async with secured() as (a, b):
            reading = asyncio.ensure_future(b.read())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert b.closed()
            with pytest.raises(CommClosedError):
                await a.read()


async def test_clear_is_not_what_requires_encryption(two_hosts: None) -> None:
    expected = pytest.raises(RuntimeError, match=r"encryption required.*weft\.encrypted-payload is 'clear'")
    with dask.config.set({"weft.encrypted-payload": "clear"}), expected:
        async with secured():
            pass


@pytest.mark.parametrize("case", ["no TLS here", "no TLS there", "another authority"])
async def test_sides_that_do_not_agree_are_told_at_once(case: str, caplog: Any) -> None:
    ours = security() if case != "no TLS here" else None
    theirs = security(stranger()) if case == "another authority" else security() if case == "no TLS here" else None
    listen_args = theirs.get_listen_args("scheduler") if theirs else {}
    connect_args = ours.get_connection_args("client") if ours else {}
    text = {
        "no TLS here": "the other side requires TLS, and this side has no `ssl`",
        "no TLS there": "the other side does not speak TLS",
        "another authority": "refuses the other's certificate",
    }[case]
    async with listen(LOOPBACK, never, **listen_args) as listener:
        with pytest.raises(FatalCommClosedError, match=text):
            await connect(listener.contact_address, timeout=100, **connect_args)


async def test_a_tcp_client_at_a_ucx_port(caplog: Any) -> None:
    async with listen(LOOPBACK, never) as listener:
        with pytest.raises(CommClosedError):
            await connect(listener.contact_address.replace("ucx://", "tcp://"), timeout=5)
        async with asyncio.timeout(100):
            while "does not speak weft" not in caplog.text:
                await asyncio.sleep(0.001)


async def test_a_ucx_client_at_a_tcp_port(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker goes on trying; it is told why once, as it does not say so itself."""
    monkeypatch.setattr(logging.getLogger("tornado.application"), "disabled", True)
    async with listen("tcp://127.0.0.1", never) as listener:
        for _ in range(3):
            with pytest.raises(FatalCommClosedError, match="does not speak weft"):
                await connect(listener.contact_address.replace("tcp://", "ucx://"), timeout=100)
    assert [record.levelname for record in caplog.records if "does not speak weft" in record.message] == ["WARNING"]


@pytest.mark.slow
def test_a_cluster_whose_messages_go_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``UCX_TLS`` has a network transport, shared memory is not all there is: then TLS carries the messages."""
    monkeypatch.setenv("UCX_TLS", "tcp,posix,self")
    monkeypatch.setenv("DASK_WEFT__ENCRYPTED_PAYLOAD", "tls")
    dask.config.refresh()
    both = security(require_encryption=True)
    try:
        with local_cluster(security=both) as cluster, Client(cluster) as client:
            one, other = workers_of(client)
            x = client.submit(np.ones, 1_000_000, workers=[one])
            assert client.submit(np.sum, x, workers=[other]).result(100) == 1_000_000
            lanes = client.run(lambda: sorted({lane for lanes in weft.dask.lanes().values() for lane in lanes}))
            assert list(lanes.values()) == [["tls/lo"]] * 2
    finally:
        monkeypatch.undo()
        dask.config.refresh()


async def test_a_ucx_worker_of_a_tcp_scheduler() -> None:
    async with (
        Scheduler(host="127.0.0.1", protocol="tcp", dashboard_address=":0", port=0) as scheduler,
        Worker(scheduler.address, protocol="ucx", dashboard=False, host="127.0.0.1") as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        assert scheduler.address.startswith("tcp://")
        assert worker.address.startswith("ucx://")
        assert await client.submit(sum, [1, 2]) == 3


WITHOUT_WEFT = """
import contextlib, importlib, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "weft":
            raise ModuleNotFoundError(name)
for metadata in ("importlib.metadata", "importlib_metadata"):  # dask takes the latter for Python 3.11
    with contextlib.suppress(ImportError):
        found = importlib.import_module(metadata).Distribution
        discover = found.discover
        found.discover = lambda discover=discover, **k: (d for d in discover(**k) if d.metadata["Name"] != "weft-ucx")
sys.meta_path.insert(0, Hidden())
from distributed.comm import listen
try:
    listen("ucx://127.0.0.1", None)
except FutureWarning as e:
    print(e)
"""


@pytest.mark.slow
def test_what_distributed_says_where_weft_is_not_installed() -> None:
    """As docs/security.md quotes it: weft has no say there."""
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_WEFT]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.stdout.startswith("The 'ucx' protocol was removed from Distributed"), told.stderr
