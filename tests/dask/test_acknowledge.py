# SPDX-License-Identifier: BSD-3-Clause
"""Values that a worker sends: the "OK" that Dask's receiver answers with is sent for large ones only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Scheduler, Worker
from distributed.worker import get_data_from_worker
from tests.dask.test_patches import source

from weft.dask import acknowledge, handshake, patches
from weft.dask.comm import UCX

KIB, MIB = 1024, 1024**2
TIMEOUT_S = 100


def test_values_are_acknowledged_as_was_read() -> None:
    serve = source(Worker.get_data.__wrapped__)
    assert "compressed = await comm.write(msg, serializers=serializers)" in serve
    assert "response = await comm.read(deserializers=serializers)\n        assert response == 'OK'" in serve
    fetch = source(getattr(get_data_from_worker, "stock", get_data_from_worker))
    assert "if status == 'OK':\n                await comm.write('OK')\n        return response" in fetch


@asynccontextmanager
async def workers(kind: type[Worker] = Worker) -> AsyncIterator[tuple[Worker, Worker]]:
    """Start two workers of a cluster, the first of this kind."""
    async with (
        Scheduler(protocol="ucx", host="127.0.0.1", dashboard_address=":0") as scheduler,
        kind(scheduler.address, dashboard=False) as server,
        Worker(scheduler.address, dashboard=False) as asker,
    ):
        yield server, asker


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages about values that have left by comms: requests, values, acknowledgments."""
    messages: list[Any] = []
    write = UCX.write

    async def noted(self: UCX, msg: Any, *args: Any, **kwargs: Any) -> int:
        size = await write(self, msg, *args, **kwargs)
        about = (
            msg if isinstance(msg, str) else isinstance(msg, dict) and ("data" in msg or msg.get("op") == "get_data")
        )
        if about and size:
            messages.append(msg if isinstance(msg, str) else msg.get("op", "values"))
        return size

    monkeypatch.setattr(UCX, "write", noted)
    return messages


async def fetched(server: Worker, asker: Worker, value: object) -> Any:
    """Have `asker` fetch a value of `server`, until both have finished; return what arrived."""
    key = f"value-{len(server.data)}"
    server.update_data({key: value})
    async with asyncio.timeout(TIMEOUT_S):
        answer = await get_data_from_worker(asker.rpc, [key], server.address)
        while server.transfer_outgoing_count:
            await asyncio.sleep(0.001)
    return answer["data"][key]


ACKNOWLEDGED = ["get_data", "values", "OK"]


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (np.arange(10), ACKNOWLEDGED[:2]),
        (b"x" * 600 * KIB, ACKNOWLEDGED[:2]),
        (np.ones(MIB - KIB, dtype="u1"), ACKNOWLEDGED[:2]),
        (np.ones(MIB, dtype="u1"), ACKNOWLEDGED),
        (b"x" * 2 * MIB, ACKNOWLEDGED),
    ],
    ids=["small", "bytes", "under 1 MiB", "1 MiB", "large bytes"],
)
async def test_only_large_values_are_acknowledged(value: object, messages: list[str], sent: list[Any]) -> None:
    async with workers() as (server, asker):
        for _ in range(3):  # over one comm, which is in step after each
            sent.clear()
            np.testing.assert_array_equal(await fetched(server, asker, value), value)
            assert sent == messages
        assert server.transfer_outgoing_bytes == 0
        assert len(server.transfer_outgoing_log) == 3
        assert asker.rpc.open == 1


def test_only_who_sent_values_hears_of_them_and_only_once() -> None:
    comm: Any = SimpleNamespace(local_info={acknowledge.GIVEN: True}, remote_info={acknowledge.GIVEN: True})
    sender, receiver = acknowledge.Given(), acknowledge.Given()
    receiver.passed({"op": "get_data"}, 100, comm, sent=True)
    sender.passed({"op": "get_data"}, 100, comm, sent=False)
    sender.passed({"status": "OK", "data": {}}, 100, comm, sent=True)
    receiver.passed({"status": "OK", "data": {}}, 100, comm, sent=False)
    assert (sender.heard, sender.acknowledges("OK")) == (True, False)
    assert not receiver.heard
    assert [receiver.acknowledges(msg) for msg in ("other", "OK", "OK")] == [False, True, False]
    assert (sender.hear(), sender.heard) == ("OK", False)


async def test_values_of_both_kinds_take_turns(sent: list[Any]) -> None:
    small, large = np.arange(10), np.arange(MIB)
    async with workers() as (server, asker):
        for value in [small, large, large, small, small, large]:
            np.testing.assert_array_equal(await fetched(server, asker, value), value)
        assert asker.rpc.open == 1
    assert sent.count("OK") == 3


async def test_a_busy_worker_sent_no_values(sent: list[Any]) -> None:
    async with workers() as (server, asker):
        server.update_data({"x": 1})
        server.transfer_outgoing_count = server.transfer_outgoing_bytes = 10**9
        assert await get_data_from_worker(asker.rpc, ["x"], server.address) == {"status": "busy"}
        server.transfer_outgoing_count = server.transfer_outgoing_bytes = 0
        assert await fetched(server, asker, 2) == 2
        assert asker.rpc.open == 1


async def test_whoever_does_not_acknowledge_stays_in_step() -> None:
    """Dask's own workers would take the next request for the acknowledgment."""
    async with workers() as (server, asker):
        server.update_data({"x": 1})
        for _ in range(3):
            answer = await asker.rpc(server.address).get_data(keys=["x"])
            assert answer["data"]["x"] == 1
        assert asker.rpc.open == 1


@pytest.mark.parametrize("side", ["server", "asker"])
async def test_what_the_other_side_does_not_know_is_sent(
    side: str, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with an older weft says nothing of it in the handshake."""
    init, info = UCX.__init__, handshake.info

    def older(self: UCX, *args: Any, **kwargs: Any) -> None:
        kwargs["gives"] = False
        init(self, *args, **kwargs)

    if side == "server":
        monkeypatch.setattr(acknowledge, "gives", lambda server: False)
    else:
        monkeypatch.setattr(UCX, "__init__", older)
        monkeypatch.setattr(handshake, "info", lambda *, known, gives=True: info(known=known, gives=False))
    async with workers() as (server, asker):
        assert await fetched(server, asker, 5) == 5
    assert sent == ACKNOWLEDGED


class Other(Worker):
    async def get_data(self, comm: Any, keys: Any, who: Any = None, serializers: Any = None) -> Any:
        """Answer with values, and wait for nothing."""
        return {"status": "OK", "data": {key: self.data[key] for key in keys}}


async def test_a_worker_that_answers_in_its_own_way_is_left_alone() -> None:
    async with workers(Other) as (server, asker):
        server.update_data({"x": 7})
        for _ in range(3):
            answer = await asker.rpc(server.address).get_data(keys=["x"])
            assert answer["data"]["x"] == 7
        assert not acknowledge.gives(server)
        assert acknowledge.gives(asker)
        assert not acknowledge.gives(asker.rpc)


async def test_a_dask_that_acknowledges_otherwise_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    patches._warn.cache_clear()
    async with workers() as (_, asker):

        async def get_data(self: Worker, comm: Any, keys: Any, who: Any = None, serializers: Any = None) -> Any:
            return await comm.read() == "received"

        monkeypatch.setattr(Worker, "get_data", get_data)
        with caplog.at_level(logging.WARNING, logger="weft"):
            assert not acknowledge.gives(asker)
    assert "weft does not support Dask's Worker.get_data" in caplog.text
