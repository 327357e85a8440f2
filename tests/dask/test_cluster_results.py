# SPDX-License-Identifier: BSD-3-Clause
"""Whole Dask clusters over ``ucx://``: right results, by the right lanes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from tests.dask.clusters import TIMEOUT_S, local_cluster, workers_of

import weft.dask


@pytest.fixture(scope="module", params=[pytest.param("processes", marks=pytest.mark.slow), "one process"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Two workers, in processes of their own or in this one."""
    with local_cluster(processes=request.param == "processes") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        yield client


# ---- results ------------------------------------------------------------------------------------------------

ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "scalar": lambda: np.array(3.5),
    "empty": lambda: np.empty((0, 3)),
    "small": lambda: np.arange(10.0),
    "64 KiB": lambda: np.arange(8192.0),
    "1 MB": lambda: np.random.default_rng(0).random((500, 250)),
    "40 MB": lambda: np.arange(5_000_000.0),
    "Fortran": lambda: np.asfortranarray(np.random.default_rng(1).random((300, 400))),
    "strided": lambda: np.arange(400_000).reshape(400, 1000)[::2, ::3],
    "int8": lambda: np.arange(100_001, dtype="i1"),
    "strings": lambda: np.array(["a", "bcd", ""] * 1000),
    "objects": lambda: np.array([None, "x", 1.5, (1, 2)] * 100, dtype=object),
    "records": lambda: np.zeros(5000, dtype=[("a", "f8"), ("b", "i4", 3)]),
    "times": lambda: np.arange("2020-01", "2026-01", dtype="datetime64[h]"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_come_from_the_other_worker_as_they_were(client: Client, kind: str) -> None:
    here, there = workers_of(client)
    expected = ARRAYS[kind]()
    made = client.submit(ARRAYS[kind], workers=here, pure=False)
    moved = client.submit(np.copy, made, workers=there, pure=False)  # order "K": strides are compared too
    got = moved.result(timeout=TIMEOUT_S)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


def make_frame(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(rows)
    return pd.DataFrame(
        {
            "i": np.arange(rows),
            "f": rng.random(rows),
            "s": rng.choice(["weft", "warp", "", "naïve"], rows) if rows else pd.Series([], dtype=str),
            "c": pd.Categorical(rng.choice(["x", "y"], rows)),
            "t": pd.date_range("2026-01-01", periods=rows, freq="s"),
            "n": pd.array(rng.integers(0, 9, rows), dtype="Int64"),
        }
    )


@pytest.mark.parametrize("rows", [0, 1, 1000, 50_000])
def test_frames_come_from_the_other_worker_as_they_were(client: Client, rows: int) -> None:
    here, there = workers_of(client)
    made = client.submit(make_frame, rows, workers=here, pure=False)
    moved = client.submit(lambda frame: frame, made, workers=there, pure=False)
    pd.testing.assert_frame_equal(moved.result(timeout=TIMEOUT_S), make_frame(rows))


def test_scattered_data_arrive_everywhere(client: Client) -> None:
    sent = np.random.default_rng(3).random(1_000_000)
    client.amm.stop()  # every two seconds it drops copies that no task needs
    future = client.scatter(sent, broadcast=True, timeout=TIMEOUT_S)
    assert len(client.who_has([future])[future.key]) == 2
    client.amm.start()
    for direct in (True, False):
        np.testing.assert_array_equal(client.gather(future, direct=direct), sent)


def test_a_transposed_sum(client: Client) -> None:
    x = dask.array.random.default_rng(4).random((2000, 2000), chunks=500)
    whole = client.compute(x).result(timeout=TIMEOUT_S)
    got = client.compute(x + x.T).result(timeout=TIMEOUT_S)
    np.testing.assert_array_equal(got, whole + whole.T)


@pytest.mark.slow
def test_a_merge_and_a_shuffle(client: Client) -> None:
    rng = np.random.default_rng(5)
    left = pd.DataFrame({"key": rng.integers(0, 5000, 100_000), "x": rng.random(100_000)})
    right = pd.DataFrame({"key": np.arange(5000), "y": rng.random(5000)})
    big = dask.dataframe.from_pandas(left, npartitions=8)
    small = dask.dataframe.from_pandas(right, npartitions=4)

    merged = client.compute(big.merge(small, on="key", shuffle_method="p2p")).result(timeout=TIMEOUT_S)
    order = ["key", "x"]
    expected = left.merge(right, on="key").sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(merged.sort_values(order, ignore_index=True), expected)

    shuffled = client.compute(big.shuffle("key", shuffle_method="p2p")).result(timeout=TIMEOUT_S)
    pd.testing.assert_frame_equal(shuffled.sort_index(), left)


def _changed(x: np.ndarray) -> np.ndarray:
    x += 1
    return x


@pytest.mark.parametrize("size", [100, 100_000, 3_000_000])
def test_what_was_fetched_stays_as_it_was(client: Client, size: int) -> None:
    """Tasks that change their input in place, as Dask asks them not to, and as programs do."""
    here, there = workers_of(client)
    step, fetched, seen = client.submit(np.zeros, size, workers=[here]), [], []
    for number in range(1, 6):
        step = client.submit(_changed, step, workers=[here], pure=False)
        fetched.append(step.result())
        seen.append(client.submit(lambda x: x, step, workers=[there], pure=False))
        assert seen[-1].result()[0] == number
    assert [set(map(float, x)) for x in fetched] == [{1.0}, {2.0}, {3.0}, {4.0}, {5.0}]
    assert [float(x.result().max()) for x in seen] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_actor(client: Client) -> None:
    class Counter:
        n = 0

        def add(self, array: np.ndarray) -> float:
            self.n += 1
            return float(array.sum()) + self.n

    counter = client.submit(Counter, actor=True).result(timeout=TIMEOUT_S)
    assert counter.add(np.ones(100_000)).result(timeout=TIMEOUT_S) == 100_001
    assert counter.add(np.ones(1)).result(timeout=TIMEOUT_S) == 2 + 1


# ---- lanes and addresses ------------------------------------------------------------------------------------


def test_every_address_is_ucx_and_every_lane_is_shared_memory(client: Client) -> None:
    here, there = workers_of(client)
    made = client.submit(np.arange, 1000.0, workers=here, pure=False)
    assert client.submit(np.sum, made, workers=there, pure=False).result(timeout=TIMEOUT_S) == 499_500
    of_workers = client.run(weft.dask.lanes)
    of_scheduler = client.run_on_scheduler(weft.dask.lanes)
    assert sorted(of_workers) == [here, there]
    assert here in of_workers[there] or there in of_workers[here]  # whoever asked has the other's address
    assert client.scheduler.address in weft.dask.lanes()
    for lanes in (*of_workers.values(), of_scheduler, weft.dask.lanes()):
        assert lanes
        for address, transports in lanes.items():
            assert address.startswith("ucx://")
            assert transports
            for transport in transports:
                assert transport.partition("/")[0] in ("ring", "lent")


def test_a_second_client(client: Client) -> None:
    published = client.submit(np.arange, 50_000.0, pure=False)
    client.publish_dataset(shared=published)
    try:
        with Client(client.scheduler.address, set_as_default=False) as second:
            assert second.submit(sum, [1, 2]).result(timeout=TIMEOUT_S) == 3
            got = second.get_dataset("shared").result(timeout=TIMEOUT_S)
            np.testing.assert_array_equal(got, np.arange(50_000.0))
        assert client.submit(sum, [3, 4]).result(timeout=TIMEOUT_S) == 7
    finally:
        client.unpublish_dataset("shared")


def python(code: str, *args: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter that shows every warning."""
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", textwrap.dedent(code), *args],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.slow
def test_a_client_in_another_process(client: Client) -> None:
    code = """
        import sys
        import numpy as np
        from distributed import Client

        with Client(sys.argv[1]) as client:
            array = np.random.default_rng(6).random(1_000_000)
            got = client.submit(np.negative, client.scatter(array)).result(timeout=100)
            assert (got == -array).all()
            print(type(client.scheduler_comm.comm).__module__)
    """
    done = python(code, client.scheduler.address)
    assert (done.stdout, done.stderr, done.returncode) == ("weft.dask.comm\n", "", 0)


async def test_a_cluster_in_this_loop() -> None:
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    async with (
        LocalCluster(protocol="ucx", processes=False, asynchronous=True, **options) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        made = client.map(np.full, [100_000, 200_000], [1.0, 2.0])
        assert await client.submit(lambda x, y: float(x.sum() + y.sum()), *made) == 500_000
