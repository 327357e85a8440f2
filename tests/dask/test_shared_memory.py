# SPDX-License-Identifier: BSD-3-Clause
"""What workers of one host share is counted once, by the workers, their nannies and the scheduler, at real limits."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client, Future, LocalCluster, wait
from tests.dask.clusters import TIMEOUT_S, local_cluster, workers_of

from weft import _native

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT = 320 * MIB
BLOCK = 32 * MIB
#: What else comes and goes in a process, and pages that the kernel counts late.
NOISE = 8 * MIB


def cluster_of(count: int) -> contextlib.AbstractContextManager[LocalCluster]:
    config = {"distributed.worker.memory.monitor-interval": "20ms"}
    return local_cluster(n_workers=count, memory_limit=LIMIT, config=config)


@contextlib.contextmanager
def connected(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        client.wait_for_workers(len(cluster.workers), timeout=TIMEOUT_S)
        client.amm.stop()  # it would drop replicas
        small = client.submit(np.ones, 1 << 16, pure=False)
        for _ in range(2):  # so that what connections cost is not taken for what a block costs
            client.replicate(small)
            client.gather(client.map(np.sum, [small] * 8, pure=False))
        yield client


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with cluster_of(4) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with connected(cluster) as client:
        yield client


def make(client: Client, worker: str, nbytes: int = BLOCK) -> Future:
    block = client.submit(np.full, nbytes // 8, 1.0, workers=[worker], pure=False)
    wait(block, timeout=TIMEOUT_S)
    return block


def use(client: Client, blocks: list[Future], workers: list[str]) -> None:
    """Fetch the blocks, and touch all of them."""
    client.replicate(blocks, workers=workers)
    sums = [client.submit(np.sum, block, workers=[worker], pure=False) for worker in workers for block in blocks]
    wait(sums, timeout=TIMEOUT_S)


def look(dask_worker: Any) -> dict[str, Any]:
    dask_worker.monitor.get_process_memory.function.__self__._reader._until = 0  # look anew
    spilled = dask_worker.data.spilled_total.memory if hasattr(dask_worker.data, "spilled_total") else 0
    return {
        "pid": os.getpid(),
        "counted": dask_worker.monitor.get_process_memory(),
        "resident": dask_worker.monitor.proc.memory_info().rss,
        "spilled": spilled,
        "status": dask_worker.status.name,
    }


def seen(client: Client, workers: list[str] | None = None) -> dict[str, dict[str, Any]]:
    return client.run(look, workers=workers)


def until(client: Client, worker: str, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    for _ in range(200):
        if right(state := seen(client, [worker])[worker]):
            break
        time.sleep(0.05)
    assert right(state), state
    return state


def physical(pids: list[int]) -> int:
    """What these processes cost the machine: each page is divided by those that have it."""
    total = 0
    for pid in pids:
        (line,) = [x for x in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if x.startswith("Pss:")]
        total += int(line.split()[1]) << 10
    return total


def test_a_broadcast_costs_and_counts_one_copy(cluster: LocalCluster, client: Client) -> None:
    nbytes = 2 * BLOCK
    workers = workers_of(client)
    before = seen(client)
    pids = [state["pid"] for state in before.values()]
    cost = physical(pids)
    block = make(client, workers[0], nbytes)
    use(client, [block], workers)
    after = seen(client)
    assert nbytes - NOISE <= physical(pids) - cost <= 1.2 * nbytes
    resident = sum(after[w]["resident"] - before[w]["resident"] for w in workers)
    assert resident > 3.5 * nbytes  # they do have it all
    rises = {w: after[w]["counted"] - before[w]["counted"] for w in workers}
    assert 0.9 * nbytes <= sum(rises.values()) <= 1.2 * nbytes
    assert rises[workers[0]] > 0.9 * nbytes  # the owner's


def test_the_scheduler_sees_one_copy_managed(cluster: LocalCluster, client: Client) -> None:
    workers = workers_of(client)
    block = make(client, workers[0], 2 * BLOCK)
    use(client, [block], workers)
    owner, *borrowers = [cluster.scheduler.workers[w] for w in workers]
    for _ in range(200):  # heartbeats come when they like
        memory = {ws.address: ws.memory for ws in (owner, *borrowers)}
        managed = [memory[ws.address].managed for ws in borrowers]
        unmanaged = [m.unmanaged for m in memory.values()]
        right = sum(managed) < BLOCK // 4 and max(unmanaged) < min(unmanaged) + BLOCK
        if right and memory[owner.address].managed > 1.9 * BLOCK:
            break
        time.sleep(0.05)
    assert sum(managed) < BLOCK // 4, memory
    assert memory[owner.address].managed > 1.9 * BLOCK, memory
    assert max(unmanaged) < min(unmanaged) + BLOCK, memory


def borrow_much(client: Client) -> tuple[str, list[Future]]:
    """Have one worker borrow more than its limit of the three others."""
    *owners, borrower = workers_of(client)
    blocks = [make(client, owners[i % 3]) for i in range(9)]
    use(client, blocks, [borrower])
    return borrower, blocks


def test_who_has_borrowed_more_than_its_limit_lives_and_keeps_it(client: Client) -> None:
    pid = seen(client)[workers_of(client)[-1]]["pid"]
    borrower, _kept = borrow_much(client)
    for _ in range(20):  # of the nanny's and the worker's looks
        state = seen(client, [borrower])[borrower]
        assert state["status"] == "running"
        time.sleep(0.02)
    assert state["pid"] == pid
    assert state["resident"] > LIMIT
    assert state["counted"] < 0.5 * LIMIT
    assert state["spilled"] == 0


def hold(nbytes: int, dask_worker: Any) -> None:
    """Hold memory that nobody shares, until the process has so much."""
    dask_worker.held = getattr(dask_worker, "held", [])
    for _ in range(LIMIT // (4 * MIB)):
        if dask_worker.monitor.get_process_memory() >= nbytes:
            return
        dask_worker.held.append(np.ones(MIB // 2))


def test_its_own_memory_pauses_it_and_what_is_spilled_is_its_own(client: Client) -> None:
    borrower, _kept = borrow_much(client)
    mine = make(client, borrower)
    client.run(hold, int(0.75 * LIMIT), workers=[borrower])
    until(client, borrower, lambda state: state["spilled"] > 0)
    client.run(hold, int(0.88 * LIMIT), workers=[borrower])
    state = until(client, borrower, lambda state: state["status"] == "paused")
    assert BLOCK <= state["spilled"] < 1.5 * BLOCK  # its own; to spill the others would make no room
    client.run(lambda dask_worker: dask_worker.held.clear(), workers=[borrower])
    until(client, borrower, lambda state: state["status"] == "running")
    assert client.submit(np.sum, mine, workers=[borrower], pure=False).result(timeout=TIMEOUT_S) == BLOCK // 8


def drop(key: str, dask_worker: Any) -> None:
    """Spill a key, as Dask does when it is short of memory."""
    dask_worker.data.fast.evict(key)
    _native.pool_trim(0)


def test_an_owner_that_spills_is_rid_of_it(client: Client) -> None:
    owner, borrower, *_ = workers_of(client)
    block = make(client, owner)
    use(client, [block], [borrower])
    before = seen(client)
    client.run(drop, block.key, workers=[owner])
    after = seen(client)
    assert abs(before[owner]["counted"] - after[owner]["counted"] - BLOCK) < NOISE
    assert abs(after[borrower]["counted"] - before[borrower]["counted"] - BLOCK) < NOISE


def pool() -> dict[str, int]:
    return _native.pool_statistics()


def test_what_was_spilled_is_lent_again(client: Client) -> None:
    owner, borrower, *_ = workers_of(client)
    block = client.submit(lambda: np.random.default_rng(0).random(BLOCK // 8), workers=[owner], pure=False)
    wait(block, timeout=TIMEOUT_S)
    client.run(drop, block.key, workers=[owner])
    before = client.run(pool, workers=[owner])[owner]
    use(client, [block], [borrower])
    after = client.run(pool, workers=[owner])[owner]
    assert after["lent_total_nbytes"] - before["lent_total_nbytes"] == BLOCK
    assert after["staged_total_nbytes"] == before["staged_total_nbytes"]


def fill(key: str, dask_worker: Any) -> tuple[int, int]:
    """Take as much memory as the worker may have before it spills, while its monitor has no turn.

    Return how much was taken and how much the process grew by, both once the key was spilled.
    """
    process = psutil.Process()
    dask_worker.data.fast.evict(key)
    before = process.memory_info().rss
    blocks = []
    while len(blocks) * 8 * MIB < 0.6 * LIMIT:
        blocks.append(_native.pool_allocate(8 * MIB))
        blocks[-1][:] = bytes(8 * MIB)
    return len(blocks) * 8 * MIB, process.memory_info().rss - before


def test_a_task_that_fills_its_worker_is_rid_at_once_of_what_others_still_borrow(client: Client) -> None:
    owner, borrower, *_ = workers_of(client)
    block = make(client, owner)
    use(client, [block], [borrower])
    taken, grown = client.run(fill, block.key, workers=[owner])[owner]
    assert abs(taken - grown - BLOCK) < NOISE


def write(key: str, dask_worker: Any) -> None:
    block = dask_worker.data[key]
    block[: len(block) // 2] = 2


def test_who_writes_counts_what_it_wrote(client: Client) -> None:
    owner, borrower, *_ = workers_of(client)
    block = make(client, owner)
    use(client, [block], [borrower])
    before = seen(client, [borrower])[borrower]["counted"]
    client.run(write, block.key, workers=[borrower])
    after = seen(client, [borrower])[borrower]["counted"]
    assert abs(after - before - BLOCK // 2) < NOISE


def take(nbytes: int) -> None:
    held = np.ones(nbytes // 8)
    time.sleep(TIMEOUT_S)
    del held


def test_after_a_death_the_holders_count_it_and_who_takes_too_much_itself_is_killed() -> None:
    async def start_no_other() -> None:
        pass

    with cluster_of(3) as cluster, connected(cluster) as client:
        for nanny in cluster.workers.values():
            nanny.instantiate = start_no_other
        owner, *holders = workers_of(client)
        block = make(client, owner, 2 * BLOCK)
        before = seen(client, holders)
        use(client, [block], holders)
        os.kill(seen(client, [owner])[owner]["pid"], signal.SIGKILL)
        for _ in range(200):
            after = seen(client, holders)
            rise = sum(after[w]["counted"] - before[w]["counted"] for w in holders)
            if rise > 1.8 * BLOCK:
                break
            time.sleep(0.05)
        assert 1.8 * BLOCK <= rise <= 2.4 * BLOCK
        holder = holders[0]
        client.submit(take, LIMIT, workers=[holder], pure=False)
        for _ in range(200):
            if holder not in (left := workers_of(client)):
                break
            time.sleep(0.05)
        assert holder not in left
        assert holders[1] in left
