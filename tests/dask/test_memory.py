# SPDX-License-Identifier: BSD-3-Clause
"""Which results are born where other workers can read them, and that nobody can tell from the values."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster, wait
from tests.dask.clusters import workers_of

from weft import _native

pytestmark = pytest.mark.slow

N = 1 << 18  # elements: 2 MiB


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, protocol="ucx", dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=100)
        yield client


def borrowed() -> int:
    return _native.pool_statistics()["borrowed_total_nbytes"]


def staged() -> int:
    return _native.pool_statistics()["staged_total_nbytes"]


def fetch(client: Client, make: Any) -> tuple[int, Any]:
    """Make something on one worker and use it on the other: the bytes that were lent, and what arrived."""
    here, there = workers_of(client)
    result = client.submit(make, workers=[here], pure=False)
    before = client.run(borrowed, workers=[there])[there]
    arrived = client.submit(lambda x: x, result, workers=[there], pure=False).result()
    return client.run(borrowed, workers=[there])[there] - before, arrived


def in_a_thread() -> np.ndarray:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(np.arange, N).result()


def strings() -> pd.Series:
    return pd.Series([f"{n:012}" for n in range(N)], dtype="str")  # offsets of 8 B


MAKERS: dict[str, tuple[Any, int]] = {
    "array": (lambda: np.arange(N), 8 * N),
    "result": (lambda: np.arange(N) + np.arange(N)[::-1], 8 * N),
    "Fortran": (lambda: np.asfortranarray(np.arange(N).reshape(512, 512)), 8 * N),
    "part": (lambda: np.arange(2 * N)[100 : 100 + N], 8 * N),
    "zeros": (lambda: np.zeros(N), 8 * N),
    "small": (lambda: np.arange(1000), 0),
    "frame": (lambda: pd.DataFrame({"a": np.arange(N), "b": np.arange(N)}), 16 * N),
    "Arrow strings": (strings, 12 * N + 8 * (N + 1)),
    "list of arrays": (lambda: [np.arange(N), "x", np.arange(N)], 16 * N),
    # A thread begins with an empty context, and NumPy's allocator is in the context.
    "array of a task's own thread": (in_a_thread, 0),
    "bytes": (lambda: bytes(N), 0),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_where_results_are_born(client: Client, kind: str) -> None:
    make, expected = MAKERS[kind]
    lent, arrived = fetch(client, make)
    assert lent == expected
    value = make()
    if isinstance(value, list):
        arrived, value = arrived[0], value[0]
    if isinstance(value, bytes):
        assert arrived == value
    elif isinstance(value, pd.Series):
        assert arrived.equals(value)
    else:
        assert np.array_equal(np.asarray(arrived), np.asarray(value))


def test_a_table_is_written_into_the_pool(client: Client) -> None:
    """Dask writes it as a stream of Arrow's, into one of Arrow's buffers."""
    lent, arrived = fetch(client, lambda: pa.table({"a": range(N)}))
    assert 8 * N < lent < 8 * N + 4096
    assert arrived == pa.table({"a": range(N)})


def test_what_was_fetched_is_lent_on_and_not_copied(client: Client) -> None:
    here, there = workers_of(client)
    before = client.run(staged)
    made = client.submit(strings, workers=[here], pure=False)
    fetched = client.submit(lambda x: x, made, workers=[there], pure=False)
    wait(fetched)
    assert client.submit(lambda x: x.equals(strings()), fetched, workers=[here], pure=False).result()
    assert client.run(staged) == before


class Counter:
    def __init__(self) -> None:
        self.array = np.zeros(N)

    def where(self) -> bool:
        return _native.pool_statistics()["live_nbytes"] >= self.array.nbytes

    def state(self) -> np.ndarray:
        return self.array

    def add(self) -> None:
        self.array += 1


def test_what_an_actor_returns_is_a_copy_of_its_state(client: Client) -> None:
    here, there = workers_of(client)
    actor = client.submit(Counter, actor=True, workers=[here]).result()
    assert actor.where().result()  # it could be lent
    states = []
    for _ in range(3):
        states.append(actor.state().result())
        actor.add().result()
    assert [set(state.tolist()) for state in states] == [{0.0}, {1.0}, {2.0}]

    def ask(actor: Any) -> list[np.ndarray]:
        before = actor.state().result()
        actor.add().result()
        return [float(before.min()), float(before.max())]

    assert client.submit(ask, actor, workers=[there]).result() == [3.0, 3.0]


def change(array: np.ndarray) -> int:
    array[:] = -1
    return int(array[0])


def test_a_task_that_changes_what_it_fetched_changes_its_own_copy(client: Client) -> None:
    here, there = workers_of(client)
    client.amm.stop()  # of two replicas it may drop the one that is unchanged, over tcp as well
    try:
        made = client.submit(np.arange, N, workers=[here], pure=False)
        assert client.submit(change, made, workers=[there], pure=False).result() == -1
        assert (client.submit(lambda x: x, made, workers=[here], pure=False).result() == np.arange(N)).all()
    finally:
        client.amm.start()


def test_what_a_worker_fetched_is_lent_on(client: Client) -> None:
    here, there = workers_of(client)
    made = client.submit(np.arange, N, workers=[here], pure=False)
    fetched = client.submit(lambda x: x, made, workers=[there], pure=False)
    wait(fetched)
    before = borrowed()
    assert (fetched.result() == np.arange(N)).all()
    assert borrowed() - before == 2 * 8 * N  # the scheduler, and the client of it; both are this process


def test_what_was_fetched_outlives_its_worker() -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, protocol="ucx", dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=100)
        here, there = workers_of(client)
        made = client.submit(np.arange, N, workers=[here], pure=False)
        kept = client.submit(lambda x: x, made, workers=[there], pure=False)
        assert client.submit(len, kept).result() == N
        del made
        client.retire_workers([here], close_workers=True, remove=True)
        assert (kept.result() == np.arange(N)).all()


@pytest.mark.parametrize("option", ["weft.arrays-in-pool", "weft.lend"])
def test_switched_off(option: str) -> None:
    with (
        dask.config.set({option: False}),
        LocalCluster(n_workers=2, threads_per_worker=1, protocol="ucx", dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=100)
        lent, arrived = fetch(client, lambda: np.arange(N))
        assert lent == 0
        assert (arrived == np.arange(N)).all()
