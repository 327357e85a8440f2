# SPDX-License-Identifier: BSD-3-Clause
"""P2P's shards: kept in memory while there is room, on disk where there is none, and lent on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Client
from tests.dask.clusters import TIMEOUT_S, local_cluster

from weft import _native
from weft.dask.memory.shards import Room

MIB = 1 << 20


def test_shards_are_a_part_of_the_limit_at_most() -> None:
    room = Room(400, 1000, measure=lambda: 0)
    assert [room.take(60), room.take(60), room.take(40)] == [True, False, True]
    room.leave(60)
    assert room.take(60)


def test_above_what_is_plenty_nothing_is_kept() -> None:
    now, memory = [0.0], [50]
    room = Room(400, 100, measure=lambda: memory[0], clock=lambda: now[0])
    assert [room.take(30), room.take(30), room.take(20)] == [True, False, True]  # and what came since counts
    now[0], memory[0] = 1.0, 100
    assert not room.take(1)
    now[0], memory[0] = 2.0, 99
    assert room.take(1)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(n_workers=2, memory_limit=800 * MIB) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        yield client


def moved(dask_worker: Any) -> tuple[int, int]:
    """Return the bytes that a worker read back from P2P's files, and those that it lent, since it began."""
    totals = dask_worker.digests_total.items()
    read = sum(n for name, n in totals if name[0] == "p2p" and name[-2:] == ("disk-read", "bytes"))
    return int(read), _native.pool_statistics()["lent_total_nbytes"]


def leave_room_for(nbytes: int, dask_worker: Any) -> None:
    dask_worker.extensions["weft-shards"]._most = nbytes


def numbered(n: int, chunks: tuple[int, int]) -> Any:
    return da.fromfunction(lambda i, j: i * n + j, shape=(n, n), chunks=chunks, dtype="f8")


@pytest.mark.slow
@pytest.mark.parametrize(("n", "on_disk"), [(2048, False), (4096, True)])  # 32 and 128 MiB
def test_a_rechunk_lends_shards_and_keeps_them_while_there_is_room(client: Client, n: int, *, on_disk: bool) -> None:
    client.run(leave_room_for, 40 * MIB)  # in each of two workers
    before = client.run(moved)
    with dask.config.set({"array.rechunk.method": "p2p"}):
        y = numbered(n, (n, n // 8)).rechunk((n // 8, n))
    assert int((y != numbered(n, (n // 8, n))).sum().compute()) == 0
    after = client.run(moved)
    read, lent = (sum(after[w][i] - before[w][i] for w in after) for i in (0, 1))
    assert bool(read) is on_disk
    assert lent > n * n * 8 // 4
