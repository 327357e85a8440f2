# SPDX-License-Identifier: BSD-3-Clause
"""A worker short of memory: the pool gives back what it keeps warm, so that Dask's spilling and pausing work."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client, wait
from distributed.system_monitor import SystemMonitor
from tests.dask.clusters import TIMEOUT_S, local_cluster, workers_of
from tornado.ioloop import PeriodicCallback

from weft import _native
from weft.dask.memory import limits
from weft.dask.memory.limits import WorkerCount, count_in_nanny, count_worker
from weft.dask.memory.shared_pages import NOTHING, Borrowed, Reader

MIB = 1 << 20
LIMIT = 640 * MIB


class FakeWorker:
    def __init__(self, limit: int | None, target: float | bool, spill: float | bool = False) -> None:
        self.monitor = SystemMonitor()
        self.nanny: str | None = None
        self.data: dict[str, Any] = {}
        self.extensions: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.memory_manager = self
        self.memory_limit = limit
        self.memory_target_fraction, self.memory_spill_fraction = target, spill

    async def get_metrics(self) -> dict[str, Any]:
        return self.metrics


@pytest.fixture(autouse=True)
def cap() -> Iterator[None]:
    before = _native.pool_statistics()["cap_nbytes"]
    yield
    _native.pool_set_hold(0)
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
    count_worker(worker)
    assert worker.monitor.get_process_memory() > warm
    assert _native.pool_statistics()["idle_nbytes"] == warm


@pytest.mark.parametrize(("target", "spill"), [(0.6, 0.7), (False, 0.7), (0.6, False)])
def test_a_worker_that_is_short_of_it_gets_the_pool_s(warm: int, target: float | bool, spill: float | bool) -> None:
    worker = FakeWorker(1 << 30, target, spill)
    worker.memory_limit = int(SystemMonitor().get_process_memory() / 0.7)
    before = worker.monitor.get_process_memory()
    count = WorkerCount(leaves_out=True, plenty_nbytes=before - warm)
    after = count.process_memory(worker.monitor.get_process_memory)
    assert _native.pool_statistics()["idle_nbytes"] == 0
    assert after <= before - warm // 2


@pytest.mark.parametrize(("limit", "target"), [(None, 0.6), (1 << 30, False)])
def test_without_limits_the_pool_keeps_its_memory(warm: int, limit: int | None, target: float | bool) -> None:
    worker = FakeWorker(limit, target)
    count_worker(worker)
    assert worker.monitor.get_process_memory() > warm
    assert _native.pool_statistics()["idle_nbytes"] == warm


def test_a_pool_that_is_not_used_for_a_while_keeps_nothing_warm(warm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(None, False)
    count_worker(worker)
    now = time.monotonic()
    monkeypatch.setattr(limits.time, "monotonic", lambda: now)
    worker.monitor.get_process_memory()
    now += 1.9
    worker.monitor.get_process_memory()
    assert _native.pool_statistics()["idle_nbytes"] == warm
    _native.pool_allocate(MIB)
    now += 1.9
    worker.monitor.get_process_memory()
    assert _native.pool_statistics()["idle_nbytes"] == warm
    now += 2.1
    worker.monitor.get_process_memory()
    assert _native.pool_statistics()["idle_nbytes"] == 0


@pytest.mark.parametrize(("left", "kept"), [(1 << 40, 8), (64, 4), (0, 0)])
def test_a_host_that_is_short_of_memory_gets_the_pool_s(
    warm: int, monkeypatch: pytest.MonkeyPatch, left: int, kept: int
) -> None:
    worker = FakeWorker(None, False)
    count_worker(worker)
    monkeypatch.setattr(limits.Available, "nbytes", lambda _: left * MIB)
    worker.monitor.get_process_memory()
    assert kept * MIB - _native.pool_statistics()["idle_nbytes"] in range(2 * MIB)  # huge pages go whole


def test_a_worker_that_tries_several_ports_gets_it_once() -> None:
    worker = FakeWorker(1 << 40, 0.6)
    count_worker(worker)
    ask = worker.monitor.get_process_memory
    count_worker(worker)
    assert worker.monitor.get_process_memory is ask


def test_a_small_worker_keeps_little_warm(warm: int) -> None:
    count_worker(FakeWorker(64 * MIB, False))
    assert _native.pool_statistics()["cap_nbytes"] == MIB // 2
    assert _native.pool_statistics()["idle_nbytes"] <= 2 * MIB


def test_what_a_worker_had_in_use_and_has_not_used_again_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_HOLD_S", 0.02)
    worker = FakeWorker(64 * MIB, False)
    count_worker(worker)
    _native.pool_trim(0)
    kept, *gone = [_native.pool_allocate(MIB) for _ in range(9)]
    gone.clear()
    until = time.monotonic() + 10
    while _native.pool_statistics()["idle_nbytes"] > 2 * MIB and time.monotonic() < until:
        worker.monitor.get_process_memory()
    assert _native.pool_statistics()["idle_nbytes"] <= 2 * MIB
    del kept


def test_what_leaves_a_worker_far_from_its_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_HOLD_S", 1e-9)
    asked: list[tuple[float, int, int]] = []
    monkeypatch.setattr(_native, "pool_set_hold", lambda *values: asked.append(values))
    for limit in (1600 * MIB, None):
        count_worker(FakeWorker(limit, 0.6))
    assert [(seconds, low) for seconds, _, low in asked] == [(1e-9, 300 * MIB), (1e-9, 0)]


class Lent:
    """Stands for what is borrowed: 300 MiB, of which others count 200, 150 of them resident."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = Borrowed(150 * MIB, 200 * MIB)
        self.nbytes = 300 * MIB
        self.asked: list[int | str] = []
        monkeypatch.setattr(Reader, "read", self.read)
        statistics = _native.pool_statistics
        monkeypatch.setattr(_native, "pool_statistics", lambda: {**statistics(), "borrowed_nbytes": self.nbytes})

    def read(self, pid: int | str, resident: int) -> Borrowed:
        self.asked.append(pid)
        return self.seen


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Lent:
    return Lent(monkeypatch)


def test_what_others_count_is_left_out(lent: Lent) -> None:
    count = WorkerCount(leaves_out=True, plenty_nbytes=float("inf"))
    assert count.read_borrowed(1000 * MIB) == lent.seen
    assert count.borrowed_nbytes() == 200 * MIB
    lent.nbytes += 8 * MIB  # what comes is another's until the next look
    assert count.borrowed_nbytes() == 208 * MIB
    lent.nbytes = 100 * MIB
    assert count.read_borrowed(1000 * MIB) == Borrowed(100 * MIB, 100 * MIB)  # of an old reading, no more than there is
    lent.nbytes = 0
    assert count.read_borrowed(1000 * MIB) == NOTHING
    assert count.borrowed_nbytes() == 0
    assert lent.asked == ["self"] * 2


def test_under_a_nanny_without_weft_nothing_is_left_out(lent: Lent) -> None:
    for nanny, counted in (("tcp://127.0.0.1:1", False), ("ucx://127.0.0.1:1", True), (None, True)):
        worker = FakeWorker(1 << 40, 0.6)
        worker.nanny = nanny
        lent.asked.clear()
        count_worker(worker)
        worker.monitor.get_process_memory()
        assert bool(lent.asked) is counted


def test_keys_that_others_count_are_not_managed(lent: Lent) -> None:
    worker = FakeWorker(1 << 40, 0.6)
    count_worker(worker)
    worker.monitor.get_process_memory()
    for managed, spilled, expected in ((1000, 300, 500), (500, 400, 500), (100, 300, 300)):
        worker.metrics = {"managed_bytes": managed * MIB, "spilled_bytes": {"memory": spilled * MIB, "disk": 7}}
        metrics = asyncio.run(worker.get_metrics())
        assert metrics["spilled_bytes"] == {"memory": expected * MIB, "disk": 7}
        assert metrics["managed_bytes"] == managed * MIB


class FakeNanny:
    """With a worker that has what this process has."""

    def __init__(self, fraction: float, limit: int) -> None:
        self.looked = 0
        self.memory_manager = self
        self.memory_limit, self.memory_terminate_fraction = limit, fraction
        self.process: Any = self
        self.pid: int | None = os.getpid()
        self.env: dict[str, str] = {}
        self.periodic_callbacks = {"memory_monitor": PeriodicCallback(self.look, 100)}

    def look(self) -> None:
        self.looked += 1


@pytest.mark.parametrize(
    ("spare", "looks", "reads"),
    # Of memory limits: more than is resident; less, but more than what others do not count; less than that.
    [(50, 0, 0), (-100, 0, 1), (-200, 1, 1)],
)
def test_a_nanny_counts_as_its_worker_does(lent: Lent, spare: int, looks: int, reads: int) -> None:
    lent.seen = Borrowed(150 * MIB, 0)
    resident = 1000 * MIB
    nanny = FakeNanny(0.95, int((resident + spare * MIB) / 0.95))
    count_in_nanny(nanny)
    count_in_nanny(nanny)  # for another port
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil.Process, "memory_info", lambda process: SimpleNamespace(rss=resident))
        nanny.periodic_callbacks["memory_monitor"].callback()
    assert (nanny.looked, len(lent.asked)) == (looks, reads)


def test_a_nanny_whose_worker_is_gone_looks_itself() -> None:
    nanny = FakeNanny(0.95, 1)
    count_in_nanny(nanny)
    look = nanny.periodic_callbacks["memory_monitor"].callback
    for process, pid in ((None, None), (nanny, None), (nanny, 2**22 + 1)):
        nanny.process, nanny.pid = process, pid
        look()
    assert nanny.looked == 3


def test_a_nanny_without_a_limit_is_left_alone() -> None:
    nanny = FakeNanny(0.95, 1)
    nanny.periodic_callbacks.clear()
    count_in_nanny(nanny)
    assert nanny.periodic_callbacks == {}


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


@pytest.mark.slow
def test_spilling_what_is_lent_makes_room() -> None:
    """Its block is the borrower's then: Dask need not spill all else for nothing."""
    config = {"distributed.worker.memory.monitor-interval": "20ms"}
    with local_cluster(n_workers=2, memory_limit=LIMIT, config=config) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        client.amm.stop()  # it would drop one of two replicas
        here, there = workers_of(client)
        room = int(0.68 * LIMIT) - client.run(state, workers=[here])[here]["memory"]
        lent = client.map(lambda i: np.full(2 * MIB, i, "f8"), range(room // (16 * MIB)), workers=[here], pure=False)
        wait(lent, timeout=TIMEOUT_S)
        client.replicate(lent, workers=[there])
        assert client.run(state, workers=[here])[here]["disk"] == 0
        more = []
        for i in range(200):
            if not (seen := client.run(state, workers=[here])[here])["disk"] and len(more) < 8:
                more.append(client.submit(np.full, 2 * MIB, i, "f8", workers=[here], pure=False))
                wait(more, timeout=TIMEOUT_S)
            elif seen["memory"] < 0.61 * LIMIT:
                break
            time.sleep(0.05)
        assert seen["disk"] > 0
        assert seen["fast"] > len(lent) // 3
        for worker in (there, here):
            ends = client.map(lambda x: x[-1], lent, workers=[worker], pure=False)
            assert client.gather(ends) == list(range(len(lent)))
