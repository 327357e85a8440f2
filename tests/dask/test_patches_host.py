# SPDX-License-Identifier: BSD-3-Clause
"""How many requests for values a worker serves at once: Dask's own ``get_data`` decides, with as much as it reads."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status, Worker
from tests.dask.test_patches import readers_of, source

from weft.dask import patches, patches_host

HERE, BESIDE, FAR = "ucx://10.0.0.1:1", "ucx://10.0.0.1:2", "ucx://10.0.0.2:1"


class Server:
    """As much of a worker as ``Worker.get_data`` reads, with one small value."""

    def __init__(self, serving: int, nbytes: int = 0, limit: int = 10) -> None:
        self.address = HERE
        self.status = Status.running
        self.data = {"x": b"value"}
        self.state = SimpleNamespace(tasks={"x": SimpleNamespace(nbytes=5)})
        self.transfer_outgoing_count_limit = limit
        self.transfer_outgoing_count, self.transfer_outgoing_count_total = serving, 0
        self.transfer_outgoing_bytes, self.transfer_outgoing_bytes_total = nbytes, 0
        self.transfer_outgoing_log: list[Any] = []
        self.scheduler_delay = 0.0

    def digest_metric(self, name: object, value: float) -> None:
        """Nobody reads it."""


class Comm:
    """Takes what is written, and says that it came."""

    def __init__(self, peer_address: str) -> None:
        self.peer_address = peer_address

    async def write(self, message: object, serializers: object = None) -> int:
        return 5

    async def read(self, deserializers: object = None) -> str:
        return "OK"


async def refuses(server: Server, peer: str) -> bool:
    answer = await Worker.get_data(server, Comm(peer), keys=["x"], who=peer)  # type: ignore[arg-type]
    assert answer in ({"status": "busy"}, Status.dont_reply)
    return answer != Status.dont_reply


@pytest.mark.parametrize("serving", [0, 9, 10, 19, 20, 500])
async def test_no_worker_of_the_host_is_refused_while_little_is_on_its_way(serving: int) -> None:
    server = Server(serving)
    assert await refuses(server, BESIDE) == (serving >= 20)
    patches_host.serve_host_freely(server)
    assert not await refuses(server, BESIDE)
    assert await refuses(server, FAR) == (serving >= 10)


async def test_with_much_on_its_way_the_limit_is_dasks() -> None:
    much = patches_host.FREELY_NBYTES
    for serving, nbytes in ((19, much), (20, much - 1), (20, much)):
        server = Server(serving, nbytes)
        patches_host.serve_host_freely(server)
        assert await refuses(server, BESIDE) == (serving >= 20 and nbytes >= much)


async def test_with_very_many_requests_the_limit_is_dasks() -> None:
    for serving, refused in ((patches_host.FREELY_COUNT - 1, False), (patches_host.FREELY_COUNT, True), (10**7, True)):
        server = Server(serving)
        patches_host.serve_host_freely(server)
        assert await refuses(server, BESIDE) == refused


async def test_a_paused_worker_serves_one() -> None:
    server = Server(1)
    patches_host.serve_host_freely(server)
    server.status = Status.paused
    assert await refuses(server, BESIDE)


@pytest.mark.parametrize("limit", [1, 11])
async def test_what_the_user_has_chosen_stays(limit: int) -> None:
    server = Server(22, limit=limit)
    patches_host.serve_host_freely(server)
    assert type(server.transfer_outgoing_count_limit) is int
    assert await refuses(server, BESIDE)


def test_a_worker_without_such_a_limit_stays(caplog: pytest.LogCaptureFixture) -> None:
    patches._warn.cache_clear()  # pyright: ignore[reportPrivateUsage]
    server = SimpleNamespace()
    with caplog.at_level(logging.WARNING, "weft"):
        patches_host.serve_host_freely(server)
    assert vars(server) == {}
    assert "Worker.transfer_outgoing_count_limit" in caplog.text


def test_distributed_is_as_it_was_read() -> None:
    assert readers_of(Worker, "transfer_outgoing_count_limit") == {"get_data"}
    assert "max_connections = max_connections * 2" in source(Worker.get_data)
    assert "max_connections is not False and self.transfer_outgoing_count >= max_connections" in source(Worker.get_data)
