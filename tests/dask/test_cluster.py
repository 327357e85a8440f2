# SPDX-License-Identifier: BSD-3-Clause
"""Whole Dask clusters over ``ucx://``: right results, the right lanes, and nothing left behind or left hanging."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Client, Event, KilledWorker, LocalCluster, wait

import weft.dask

TIMEOUT_S = 30


@contextlib.contextmanager
def local_cluster(**kwargs: Any) -> Iterator[LocalCluster]:
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(protocol="ucx", **(options | kwargs)) as cluster:
        yield cluster


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


def workers_of(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


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
    future = client.scatter(sent, broadcast=True, timeout=TIMEOUT_S)
    assert len(client.who_has([future])[future.key]) == 2
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
                assert transport.partition("/")[0] in ("posix", "self")


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
            got = client.submit(np.negative, client.scatter(array)).result(timeout=30)
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


# ---- losses -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_retired_workers_hand_over_and_scaling_goes_both_ways() -> None:
    with local_cluster() as cluster, Client(cluster) as client:
        here, there = workers_of(client)
        made = client.submit(np.arange, 1_000_000.0, workers=here)
        wait(made, timeout=TIMEOUT_S)
        client.retire_workers([here], close_workers=False)
        assert list(client.who_has([made])[made.key]) == [there]
        cluster.scale(3)
        client.wait_for_workers(2, timeout=TIMEOUT_S)  # the retired one does not count
        cluster.scale(1)
        np.testing.assert_array_equal(made.result(timeout=TIMEOUT_S), np.arange(1_000_000.0))


@pytest.mark.slow
def test_a_restart_goes_on() -> None:
    with local_cluster() as cluster, Client(cluster) as client:
        before = client.submit(os.getpid, pure=False).result(timeout=TIMEOUT_S)
        client.restart(timeout=TIMEOUT_S)
        after = client.gather([client.submit(os.getpid, workers=w, pure=False) for w in workers_of(client)])
        assert len(set(after)) == 2
        assert before not in after


def hold(array: np.ndarray, name: str) -> float:
    """Say that this task runs, and wait to be let go."""
    Event(f"{name}-running").set()
    assert Event(f"{name}-go").wait(timeout=TIMEOUT_S)
    return float(array.sum())


@pytest.mark.slow
@pytest.mark.parametrize("forgiving", [True, False], ids=["retried", "KilledWorker"])
def test_a_worker_killed_in_a_job(forgiving: bool) -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 3 if forgiving else 0}),
        local_cluster() as cluster,
        Client(cluster) as client,
    ):
        victim, survivor = workers_of(client)
        pids = client.run(os.getpid)
        inputs = client.map(np.full, [100_000] * 8, range(8), pure=False)
        wait(inputs, timeout=TIMEOUT_S)
        held = client.submit(hold, inputs[1], "job", workers=victim, allow_other_workers=True, pure=False)
        assert Event("job-running").wait(timeout=TIMEOUT_S)
        os.kill(pids[victim], signal.SIGKILL)
        if forgiving:
            Event("job-go").set()
            assert held.result(timeout=TIMEOUT_S) == 100_000
        else:
            with pytest.raises(KilledWorker):
                held.result(timeout=TIMEOUT_S)
        sums = client.map(np.sum, inputs, pure=False)
        assert client.gather(sums) == [100_000 * n for n in range(8)]
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        assert pids[survivor] in client.run(os.getpid).values()
        assert pids[victim] not in client.run(os.getpid).values()


@pytest.mark.slow
def test_a_worker_killed_while_it_is_read() -> None:
    """The reader of a large array gets it from a worker that dies in the midst: computed again, not hung."""
    with local_cluster(memory_limit="4 GiB") as cluster, Client(cluster) as client:
        victim, survivor = workers_of(client)
        pids = client.run(os.getpid)
        big = client.submit(np.ones, 60_000_000, workers=victim, allow_other_workers=True, pure=False)
        wait(big, timeout=TIMEOUT_S)
        total = client.submit(lambda x: float(x.sum()), big, workers=survivor, pure=False)
        killing = threading.Timer(0.05, os.kill, (pids[victim], signal.SIGKILL))
        killing.start()
        try:
            assert total.result(timeout=60) == 60_000_000
        finally:
            killing.join()


@pytest.mark.slow
def test_a_killed_scheduler_ends_its_workers(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    dask_command = str(Path(sys.executable).with_name("dask"))
    options = ["--no-dashboard", "--host", "127.0.0.1"]
    scheduler = worker = None
    try:
        scheduler = subprocess.Popen(
            [dask_command, "scheduler", "--protocol", "ucx", "--port", "0", *options, "--scheduler-file", str(file)],
            stderr=subprocess.DEVNULL,
        )
        worker = subprocess.Popen(
            [dask_command, "worker", "--no-nanny", "--death-timeout", "5", *options, "--scheduler-file", str(file)],
            stderr=subprocess.DEVNULL,
            env=os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"},
        )
        with Client(scheduler_file=str(file), timeout=TIMEOUT_S) as client:
            client.wait_for_workers(1, timeout=TIMEOUT_S)
            scheduler.kill()
            worker.wait(20)
    finally:
        for process in (scheduler, worker):
            if process is not None:
                process.kill()
                process.wait(10)


# ---- quiet --------------------------------------------------------------------------------------------------


def switches(pid: int) -> int:
    """How often the process went to sleep, or was put to it, so far."""
    counts = psutil.Process(pid).num_ctx_switches()
    return int(counts.voluntary + counts.involuntary)


@pytest.mark.slow
def test_an_idle_cluster_sleeps() -> None:
    """An event loop that polls turns thousands of times a second, and never waits: see its CPU time."""
    with local_cluster() as cluster, Client(cluster) as client:
        here, there = workers_of(client)
        made = client.submit(np.arange, 1_000_000.0, workers=here, pure=False)
        client.submit(np.sum, made, workers=there, pure=False).result(timeout=TIMEOUT_S)
        pids = [os.getpid(), *client.run(os.getpid).values()]
        time.sleep(1)  # whatever the job left to do

        def used() -> list[float]:
            return [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]

        cpu, slept = used(), [switches(pid) for pid in pids]
        time.sleep(2)  # the idleness that is measured
        for before, after in zip(cpu, used(), strict=True):
            assert after - before < 0.5
        for before, pid in zip(slept, pids, strict=True):
            assert switches(pid) - before < 2000


def noise(stderr: str) -> str:
    """What was written to stderr, but for what distributed says of tcp:// too.

    Its scheduler may write to a client just as that leaves, and logs the error, at INFO, with a traceback.
    """
    records = re.split(r"(?m)^(?=\d{4}-\d\d-\d\d )", stderr)
    return "".join(r for r in records if " - distributed.batched - INFO - Batched Comm Closed " not in r)


RUN = """
    import gc, os, sys
    import numpy as np
    import psutil
    from distributed import Client, LocalCluster

    def turn():
        cluster = LocalCluster(
            protocol="ucx", n_workers=2, threads_per_worker=1, processes=sys.argv[1] == "True", dashboard_address=":0"
        )
        client = Client(cluster)
        here, there = sorted(client.scheduler_info()["workers"])
        made = client.submit(np.arange, 1_000_000.0, workers=here, pure=False)
        assert client.submit(np.sum, made, workers=there, pure=False).result(timeout=30) == 499_999_500_000
        del made
        return client, cluster

    def children():
        every = psutil.Process().children(recursive=True)
        return [p for p in every if "resource_tracker" not in " ".join(p.cmdline())]

    if __name__ == "__main__":
        counts = []
        for _ in range(int(sys.argv[2])):
            client, cluster = turn()
            client.close()
            cluster.close()
            assert children() == [], children()
            del client, cluster
            gc.collect()
            counts.append(len(os.listdir("/proc/self/fd")))
        if counts:
            assert counts[-1] <= counts[1], counts
        else:
            held = turn()  # and out, with everything open
        print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("turns", [4, 0], ids=["closed", "left open at exit"])
@pytest.mark.parametrize("processes", [True, False], ids=["processes", "one process"])
def test_shutdown_is_complete_and_quiet(tmp_path: Path, processes: bool, turns: int) -> None:
    script = tmp_path / "run.py"  # a file: what multiprocessing spawns reads it again
    script.write_text(textwrap.dedent(RUN))
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(script), str(processes), str(turns)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, noise(done.stderr), done.returncode) == ("done\n", "", 0)
