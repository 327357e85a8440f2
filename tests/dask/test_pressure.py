# SPDX-License-Identifier: BSD-3-Clause
"""A worker short of memory: the pool gives back what it keeps warm, so that Dask's spilling and pausing work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.system_monitor import SystemMonitor
from tests.dask.clusters import TIMEOUT_S, local_cluster

from weft import _native
from weft.dask.pressure import _Resident, live_within_limits

MIB = 1 << 20
LIMIT = 640 * MIB


class FakeWorker:
    def __init__(self, limit: int | None, target: float | bool, spill: float | bool = False) -> None:
        self.monitor = SystemMonitor()
        self.memory_manager = self
        self.memory_limit = limit
        self.memory_target_fraction, self.memory_spill_fraction = target, spill


@pytest.fixture(autouse=True)
def cap() -> Iterator[None]:
    before = _native.pool_statistics()["cap_nbytes"]
    yield
    _native.pool_set_cap(before)


@pytest.fixture
def warm() -> Iterator[int]:
    """Some memory that the pool keeps, in bytes."""
    _native.pool_trim(0)
    kept, gone = _native.pool_allocate(MIB), _native.pool_allocate(8 * MIB)
    gone[:] = bytes(8 * MIB)
    del gone
    assert _native.pool_statistics()["idle_nbytes"] == 8 * MIB
    yield 8 * MIB
    del kept


def test_plenty_of_memory_leaves_the_pool_alone(warm: int) -> None:
    worker = FakeWorker(1 << 40, 0.6)
    live_within_limits(worker)
    assert worker.monitor.get_process_memory() > warm
    assert _native.pool_statistics()["idle_nbytes"] == warm


@pytest.mark.parametrize(("target", "spill"), [(0.6, 0.7), (False, 0.7), (0.6, False)])
def test_a_worker_that_is_short_of_it_gets_the_pool_s(warm: int, target: float | bool, spill: float | bool) -> None:
    worker = FakeWorker(1 << 30, target, spill)
    worker.memory_limit = int(SystemMonitor().get_process_memory() / 0.7)
    before = worker.monitor.get_process_memory()
    worker.monitor.get_process_memory = _Resident(worker.monitor, before - warm)
    after = worker.monitor.get_process_memory()
    assert _native.pool_statistics()["idle_nbytes"] == 0
    assert after <= before - warm // 2


@pytest.mark.parametrize(("limit", "target"), [(None, 0.6), (1 << 30, False)])
def test_without_limits_the_monitor_is_dask_s(limit: int | None, target: float | bool) -> None:
    worker = FakeWorker(limit, target)
    live_within_limits(worker)
    assert "get_process_memory" not in vars(worker.monitor)


def test_a_small_worker_keeps_little_warm(warm: int) -> None:
    live_within_limits(FakeWorker(64 * MIB, False))
    assert _native.pool_statistics()["cap_nbytes"] == 2 * MIB
    assert _native.pool_statistics()["idle_nbytes"] <= 2 * MIB


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    config = {"distributed.worker.memory.monitor-interval": "20ms"}
    with local_cluster(n_workers=1, memory_limit=LIMIT, config=config) as cluster, Client(cluster) as client:
        client.wait_for_workers(1, timeout=TIMEOUT_S)
        yield client


def state(dask_worker: Any) -> dict[str, Any]:
    data = dask_worker.data
    memory = dask_worker.monitor.get_process_memory()
    counts = {"disk": len(data.disk), "fast": len(data.fast)}
    idle = _native.pool_statistics()["idle_nbytes"]
    return {"status": dask_worker.status.name, "memory": memory, "idle": idle, **counts}


def only(answers: dict[str, Any]) -> Any:
    (answer,) = answers.values()
    return answer


@pytest.mark.slow
def test_spilling_makes_room(client: Client) -> None:
    arrays = client.map(lambda i: np.full(2 * MIB, i, dtype="f8"), range(50), pure=False)  # 16 MiB each, 800 in all
    assert client.gather(client.map(np.sum, arrays)) == [2 * MIB * i for i in range(50)]
    seen = only(client.run(state))
    assert seen["disk"] > 0
    assert seen["fast"] > 0  # it stopped when there was room, and did not spill all for memory that the pool kept
    assert seen["memory"] < LIMIT
    assert seen["idle"] <= LIMIT // 32
    assert client.gather(client.map(np.sum, arrays, pure=False)) == [2 * MIB * i for i in range(50)]


def hold(nbytes: int, dask_worker: Any) -> None:
    """Hold arrays until the process has so much memory, whatever else comes and goes."""
    dask_worker.held = getattr(dask_worker, "held", [])
    for _ in range(LIMIT // (8 * MIB)):
        if dask_worker.monitor.get_process_memory() >= nbytes:
            return
        dask_worker.held.append(np.ones(MIB))


def wait_for(client: Client, status: str) -> dict[str, Any]:
    for _ in range(200):
        if (seen := only(client.run(state)))["status"] == status:
            break
        time.sleep(0.05)
    return seen


@pytest.mark.slow
def test_a_paused_worker_goes_on_when_arrays_are_freed(client: Client) -> None:
    for _ in range(50):
        client.run(hold, int(LIMIT * 0.88))
        time.sleep(0.05)
        if (seen := only(client.run(state)))["status"] == "paused":
            break
    assert seen["status"] == "paused"
    client.run(lambda dask_worker: dask_worker.held.clear())
    assert wait_for(client, "running")["status"] == "running"
    assert client.submit(sum, [1, 2], pure=False).result(timeout=TIMEOUT_S) == 3
