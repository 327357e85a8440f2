# SPDX-License-Identifier: BSD-3-Clause
"""Tasks that fork: pools of processes inside a worker harm neither what it holds nor what it sends."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import dask
import numpy as np
import pytest
from distributed import Client
from tests.dask.clusters import TIMEOUT_S, local_cluster, workers_of

COUNT = 500_000  # 4 MB: lent, not copied

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    # a daemon may not have children, and Dask makes its workers daemons unless told otherwise
    config = dask.config.set({"distributed.worker.daemon": False})
    with config, local_cluster() as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        yield client


_seen: np.ndarray | None = None


def _sum_and_spoil(part: slice) -> float:
    """What the children do: read the parent's array, then write to it."""
    assert _seen is not None
    total = float(_seen[part].sum())
    _seen[part] = -1
    return total


def in_a_pool(array: np.ndarray, kind: str) -> tuple[float, float]:
    """Sum an array in forked children that spoil what they see of it; then again here."""
    global _seen
    _seen = array
    context = multiprocessing.get_context("fork")
    parts = [slice(i * COUNT // 4, (i + 1) * COUNT // 4) for i in range(4)]
    if kind == "multiprocessing":
        with context.Pool(2) as pool:
            sums = pool.map(_sum_and_spoil, parts, chunksize=1)
    else:
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            sums = list(executor.map(_sum_and_spoil, parts))
    _seen = None
    return sum(sums), float(array.sum())


@pytest.mark.parametrize("kind", ["multiprocessing", "concurrent.futures"])
@pytest.mark.parametrize("where", ["its own array", "a fetched array"])
def test_children_read_and_spoil_only_their_own_copy(client: Client, kind: str, where: str) -> None:
    here, there = workers_of(client)
    array = client.submit(np.arange, float(COUNT), workers=here, pure=False)
    runs_at = here if where == "its own array" else there
    ours = client.submit(in_a_pool, array, kind, workers=runs_at, pure=False)
    expected = COUNT * (COUNT - 1) / 2
    assert ours.result(timeout=TIMEOUT_S) == (expected, expected)
    for worker in (here, there):
        assert client.submit(np.sum, array, workers=worker, pure=False).result(timeout=TIMEOUT_S) == expected


def test_transfers_go_on_while_a_task_forks(client: Client) -> None:
    here, there = workers_of(client)
    array = client.submit(np.arange, float(COUNT), workers=here, pure=False)
    forking = [client.submit(in_a_pool, array, "multiprocessing", workers=there, pure=False) for _ in range(3)]
    for i in range(30):
        made = client.submit(np.full, COUNT, float(i), workers=here, pure=False)
        assert client.gather(made, direct=True)[-1] == i
    expected = COUNT * (COUNT - 1) / 2
    assert [task.result(timeout=TIMEOUT_S) for task in forking] == [(expected, expected)] * 3
    assert sorted(workers_of(client)) == [here, there]  # neither was lost
