# SPDX-License-Identifier: BSD-3-Clause
"""Whole Dask clusters over ``ucx://`` that lose their processes, idle or end: nothing left behind or left hanging."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, Event, KilledWorker, wait
from tests.dask.clusters import TIMEOUT_S, local_cluster, workers_of

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


def out_of_descriptors_until_a_connect_fails() -> None:
    """Leave this worker no descriptor, as a task does that opens many, until it could not connect."""
    from weft.dask import comm

    limits, once = resource.getrlimit(resource.RLIMIT_NOFILE), comm.connect
    lowest = os.dup(0)
    os.close(lowest)

    async def connect_once(*args: Any, **kwargs: Any) -> Any:
        try:
            return await once(*args, **kwargs)
        except BaseException:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            comm.connect = once
            raise

    comm.connect = connect_once  # type: ignore[assignment]
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))


@pytest.mark.slow
def test_a_worker_out_of_descriptors_for_a_while_gets_its_data() -> None:
    with local_cluster() as cluster, Client(cluster) as client:
        here, there = workers_of(client)
        made = client.submit(np.ones, 100_000, workers=here)
        wait(made, timeout=TIMEOUT_S)
        client.run(out_of_descriptors_until_a_connect_fails, workers=[there])
        assert client.submit(np.sum, made, workers=there).result(timeout=TIMEOUT_S) == 100_000


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
            worker.wait(100)
    finally:
        for process in (scheduler, worker):
            if process is not None:
                process.kill()
                process.wait(100)


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
        start = time.monotonic()
        time.sleep(2)  # the idleness that is measured: longer on a busy machine
        for before, after in zip(cpu, used(), strict=True):
            assert after - before < 0.25 * (time.monotonic() - start)
        for before, pid in zip(slept, pids, strict=True):
            assert switches(pid) - before < 1000 * (time.monotonic() - start)


def noise(stderr: str) -> str:
    """What was written to stderr, but for what distributed says of tcp:// too.

    Its scheduler may write to a client just as that leaves, and logs the error, at INFO, with a traceback.
    """
    records = re.split(r"(?m)^(?=\d{4}-\d\d-\d\d )", stderr)
    records = [r for r in records if " - distributed.batched - INFO - Batched Comm Closed " not in r]
    # From 3.12 on distributed's loops are asyncio's own, and in -X dev they tell what held them for 0.1 s.
    return re.sub(r"^Executing <.*> took \d+\.\d+ seconds\n", "", "".join(records), flags=re.MULTILINE)


RUN = """
    import gc, os, sys, time
    import numpy as np
    import psutil
    from distributed import Client, LocalCluster

    def turn():
        cluster = LocalCluster(
            protocol="ucx", n_workers=2, threads_per_worker=1, processes=sys.argv[1] == "True", dashboard_address=":0"
        )
        client = Client(cluster)
        here, there = sorted(client.nthreads())
        made = client.submit(np.arange, 1_000_000.0, workers=here, pure=False)
        assert client.submit(np.sum, made, workers=there, pure=False).result(timeout=60) == 499_999_500_000
        del made
        for _ in range(500):  # else workers that end at once leave results behind, and Dask says so
            if not cluster.scheduler.tasks: break
            time.sleep(0.01)
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
        timeout=110,
    )
    assert (done.stdout, noise(done.stderr), done.returncode) == ("done\n", "", 0)
