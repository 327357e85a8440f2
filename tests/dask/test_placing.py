# SPDX-License-Identifier: BSD-3-Clause
"""What the scheduler decides by the model of links: a cluster of one process whose workers are said to be elsewhere."""

from __future__ import annotations

import inspect
import logging
import operator
import time
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import pytest
from dask.delayed import Delayed
from distributed import Client, Scheduler, wait
from distributed.active_memory_manager import ActiveMemoryManagerExtension
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import SchedulerState
from distributed.shuffle import ShuffleSchedulerPlugin
from distributed.stealing import WorkStealing
from tests.dask.clusters import local_cluster

import weft.dask
from weft.dask import patches, patches_decisions, set_links, why
from weft.dask.learn.collect import SchedulerLinks
from weft.dask.observe.traffic import EXTENSION
from weft.errors import InvalidParamError
from weft.links import Place

MiB = 1 << 20
FAST, SLOW = 100e6, 1e6


class Islands:
    """Four workers of two islands: fast within, slow between."""

    def __init__(self, cluster: Any, client: Client) -> None:
        self.client, self.scheduler = client, cluster.scheduler
        self.links: SchedulerLinks = self.scheduler.extensions[EXTENSION].links
        self.workers = sorted(self.scheduler.workers)
        self.links.mode = "learn"

    def teach(self, *, islands: tuple[str, ...] = ("0", "0", "1", "1"), between: float = SLOW) -> None:
        """Have each worker be a host of its own, and each pair known."""
        model = self.links.model
        for i, address in enumerate(self.workers):
            model.place(address, Place(f"host {i}"))
        now = time.monotonic()
        for a, here in zip(self.workers, islands, strict=True):
            for b, there in zip(self.workers, islands, strict=True):
                for _ in range(5 if a != b else 0):
                    rate = FAST if here == there else between
                    assert model.observe(a, b, 8 * MiB, 8 * MiB / rate, now)
        self.links.placing.switch(self.links.decides)

    def put(self, nbytes: int, *at: int) -> Any:
        """Have a value at these workers, and return its state at the scheduler."""
        addresses = [self.workers[i] for i in at]
        future = self.client.submit(bytes, nbytes, workers=addresses[:1], pure=False)
        future.result()
        for other in addresses[1:]:
            self.client.submit(len, future, workers=[other], pure=False).result()
        ts = self.scheduler.tasks[future.key]
        self.kept = [*getattr(self, "kept", []), future]
        deadline = time.monotonic() + 60
        while {ws.address for ws in ts.who_has} < set(addresses) and time.monotonic() < deadline:
            time.sleep(0.01)
        return ts

    def task(self, *needs: Any) -> Any:
        """Return as much of a task as is looked at where one decides about it."""
        prefix = SimpleNamespace(name="work", duration_average=1.0)
        return SimpleNamespace(
            key="task",
            prefix=prefix,
            dependencies=set(needs),
            actor=False,
            processing_on=None,
            worker_restrictions=None,
            host_restrictions=None,
            resource_restrictions=None,
            loose_restrictions=False,
            get_nbytes_deps=lambda: sum(each.get_nbytes() for each in needs),
        )

    def cost(self, ts: Any, i: int) -> float:
        return float(self.scheduler.get_comm_cost(ts, self.scheduler.workers[self.workers[i]]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, Client]]:
    # `set_links` changes the configuration of its processes, which here is this one
    with (
        dask.config.set({"weft.links": dask.config.get("weft.links")}),
        local_cluster(n_workers=4, processes=False) as cluster,
        cluster.get_client() as client,
    ):
        client.wait_for_workers(4)
        yield cluster, client


@pytest.fixture
def islands(cluster: tuple[Any, Client]) -> Iterator[Islands]:
    islands = Islands(*cluster)
    yield islands
    islands.links.placing.switch(False)
    islands.links.model.__init__()  # type: ignore[misc]


def is_stock(scheduler: Scheduler) -> bool:
    return not {"get_comm_cost", "decide_worker_non_rootish", "gather_on_worker"} & set(vars(scheduler))


def test_where_links_are_alike_dask_decides(islands: Islands) -> None:
    assert is_stock(islands.scheduler)
    islands.teach(between=FAST)
    assert not islands.links.decides
    assert is_stock(islands.scheduler)


def test_where_they_differ_the_model_decides_until_it_is_told_not_to(islands: Islands) -> None:
    islands.teach()
    assert not is_stock(islands.scheduler)
    islands.links.set_mode("observe")
    assert is_stock(islands.scheduler)
    assert "steal_time_ratio" not in vars(islands.scheduler.extensions["stealing"])
    islands.links.set_mode("learn")
    assert not is_stock(islands.scheduler)


def test_costs_are_those_of_the_best_source(islands: Islands) -> None:
    islands.teach()
    ts = islands.task(islands.put(2 * MiB, 0))
    assert islands.cost(ts, 0) == 0
    assert islands.cost(ts, 1) == pytest.approx(2 * MiB / FAST, rel=0.2)
    assert islands.cost(ts, 2) == pytest.approx(2 * MiB / SLOW, rel=0.2)
    both = islands.task(islands.put(2 * MiB, 0, 2))
    assert islands.cost(both, 3) == pytest.approx(2 * MiB / FAST, rel=0.2)


def test_a_task_goes_where_it_can_start_first_not_where_most_bytes_are(islands: Islands) -> None:
    """Worker 2 has more of it. But from 2 to 0 it goes fast, and from 0 to 2 slowly."""
    zero, _, two, _ = islands.workers
    ts = islands.task(islands.put(3 * MiB, 0), islands.put(4 * MiB, 2))
    assert islands.scheduler.decide_worker_non_rootish(ts).address == two
    islands.teach(between=FAST)
    for _ in range(5):
        islands.links.model.observe(zero, two, 8 * MiB, 8 * MiB / SLOW, time.monotonic())
    islands.links.placing.switch(islands.links.decides)
    assert islands.scheduler.decide_worker_non_rootish(ts).address == zero
    told = islands.links.placing.decisions["task"]
    assert told["worker"] == zero
    assert told["fetch_s"][zero] < 0.1 < 1 < told["fetch_s"][two]


def test_an_idle_neighbour_is_asked_where_the_holder_is_busy(islands: Islands, monkeypatch: pytest.MonkeyPatch) -> None:
    islands.teach()
    model = islands.links.model
    for i, address in enumerate(islands.workers):
        model.place(address, Place(f"island {i // 2}"))
    ts = islands.task(islands.put(4 * MiB, 0))
    holder = islands.scheduler.workers[islands.workers[0]]
    assert islands.scheduler.decide_worker_non_rootish(ts) is holder, "it is idle"
    monkeypatch.setattr(type(holder), "occupancy", property(lambda ws: 10.0 if ws is holder else 0.0))
    assert islands.scheduler.decide_worker_non_rootish(ts).address == islands.workers[1]
    ts.worker_restrictions = {islands.workers[0]}
    assert islands.scheduler.decide_worker_non_rootish(ts) is holder, "nowhere else"


def test_shuffles_give_neighbouring_outputs_to_one_island(islands: Islands) -> None:
    scheduler, workers = islands.scheduler, islands.workers
    joined = list(scheduler.workers)  # the order in which they came, by which Dask goes
    islands.workers = [joined[i] for i in (0, 2, 1, 3)]  # so the islands alternate in it
    try:
        for taught in (False, True):
            if taught:
                islands.teach()
            outputs = shuffled_to(islands)
            turns = sum(islands.workers.index(a) // 2 != islands.workers.index(b) // 2 for a, b in pairwise(outputs))
            assert set(outputs) == set(joined)
            assert turns in ((1, 2) if taught else (3,)), outputs
        islands.links.placing.switch(False)
        assert "_calculate_worker_for" not in vars(scheduler.extensions["shuffle"])
    finally:
        islands.workers = workers


def shuffled_to(islands: Islands) -> list[str]:
    """Rechunk an array by P2P, and return the worker of each chunk of the result in their order."""
    array = da.ones((8, 8), chunks=(1, 8)).rechunk((8, 1), method="p2p")
    seen: list[dict[Any, str]] = []
    shuffles = islands.scheduler.extensions["shuffle"]
    create = shuffles._create

    def noted(*arguments: Any) -> Any:
        spec = create(*arguments)
        seen.append(spec.worker_for)
        return spec

    shuffles._create = noted
    try:
        assert islands.client.compute(array.sum(), optimize_graph=False).result() == 64
    finally:
        del shuffles._create
    (worker_for,) = seen
    return [worker_for[chunk] for chunk in sorted(worker_for)]


def test_stealing_goes_by_predicted_time(islands: Islands, monkeypatch: pytest.MonkeyPatch) -> None:
    stealing = islands.scheduler.extensions["stealing"]
    monkeypatch.setattr(islands.scheduler, "_get_prefix_duration", lambda prefix: 1.0)
    ts = islands.task(islands.put(8 * MiB, 0))
    ts.processing_on = islands.scheduler.workers[islands.workers[0]]
    near = stealing.steal_time_ratio(ts)
    islands.teach(islands=("0", "1", "2", "3"), between=1e6)
    islands.links.model.place(islands.workers[0], Place("x"))  # nobody beside it, and all far
    for a, b in ((0, 1), (1, 2)):  # so that links differ
        for _ in range(5):
            islands.links.model.observe(islands.workers[a + 1], islands.workers[b], MiB, MiB / FAST, time.monotonic())
    islands.links.placing.switch(True)
    multiplier, level = stealing.steal_time_ratio(ts)
    assert near[0] < 0.5
    assert multiplier > 5
    assert level > near[1]


def test_copies_of_large_values_are_asked_for_at_once(islands: Islands, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    stock = type(islands.scheduler).replicate

    async def replicate(self: Scheduler, keys: Any, branching_factor: int = 2, **options: Any) -> Any:
        rounds.append(min(branching_factor, 100))
        return await stock(self, keys, branching_factor=branching_factor, **options)

    replicate.__signature__ = inspect.signature(stock)  # type: ignore[attr-defined]
    islands.links.placing.switch_copies(False)
    monkeypatch.setattr(type(islands.scheduler), "replicate", replicate)
    handler = islands.scheduler.handlers["replicate"]
    islands.links.placing.switch_copies(True)
    assert islands.scheduler.handlers["replicate"] is not handler
    large, small = (islands.client.submit(bytes, n, workers=islands.workers[:1], pure=False) for n in (8 * MiB, MiB))
    wait([large, small])
    islands.client.replicate([large, small])
    assert rounds == [100, 2]
    assert {len(held) for held in islands.client.who_has([large, small]).values()} == {4}
    islands.links.placing.switch_copies(False)
    assert islands.scheduler.handlers["replicate"] is handler
    islands.client.replicate([large])
    monkeypatch.undo()
    islands.links.placing.switch_copies(True)


async def test_copies_of_many_values_look_at_each_key_a_few_times(
    islands: Islands, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Key:
        hashed = 0

        def __hash__(self) -> int:
            Key.hashed += 1
            return id(self)

    asked: list[list[Any]] = []

    async def stock(*, keys: list[Any], **_: Any) -> None:
        asked.append(keys)

    keys = [Key() for _ in range(200)]
    sizes = [8 * MiB, MiB] * 100
    tasks = {key: SimpleNamespace(get_nbytes=lambda n=n: n) for key, n in zip(keys, sizes, strict=True)}
    placing = islands.links.placing
    monkeypatch.setattr(placing, "_scheduler", SimpleNamespace(tasks=tasks))
    Key.hashed = 0
    await placing.replicate(stock, keys)
    assert asked == [keys[::2], keys[1::2]]
    assert Key.hashed <= 5 * len(keys)


def test_the_memory_manager_copies_to_a_near_worker(islands: Islands) -> None:
    islands.teach()
    manager = islands.scheduler.extensions["amm"]
    manager.workers_memory = dict.fromkeys(islands.scheduler.workers.values(), 0)
    ts = islands.put(MiB, 2)
    manager.workers_memory[islands.scheduler.workers[islands.workers[3]]] = 100 * MiB
    assert manager._find_recipient(ts, None, set()).address == islands.workers[3]
    manager.workers_memory = {}


# ---- where graphs begin ---------------------------------------------------------------------------------------------


class Ran(SchedulerPlugin):  # type: ignore[misc] # distributed has no types
    """Where tasks ran first."""

    def __init__(self) -> None:
        self.at: dict[Any, str] = {}

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if (start, finish) == ("processing", "memory"):
            self.at.setdefault(key, kwargs["worker"])


@pytest.fixture
def ran(islands: Islands) -> Iterator[Ran]:
    ran = Ran()
    islands.scheduler.add_plugin(ran, name="ran")
    yield ran
    islands.scheduler.remove_plugin("ran")


def tree(leaves: int) -> tuple[Any, list[str]]:
    """Sums in pairs, and the names of the leaves."""
    graph: dict[str, Any] = {f"leaf-{leaves}-{i}": (int, i) for i in range(leaves)}
    row, all_leaves = list(graph), list(graph)
    for level in range(20):
        if len(row) == 1:
            break
        row = [_add(graph, f"add-{leaves}-{level}-{i}", row[i : i + 2]) for i in range(0, len(row), 2)]
    return Delayed(row[0], graph), all_leaves


def _add(graph: dict[str, Any], name: str, pair: list[str]) -> str:
    graph[name] = (operator.add, *pair)
    return name


@pytest.mark.parametrize("leaves", [8, 32])
def test_what_meets_begins_on_one_island(islands: Islands, ran: Ran, leaves: int) -> None:
    """Of 32 most wait in the scheduler's queue; of 8 none does."""
    islands.teach()
    root, all_leaves = tree(leaves)
    assert islands.client.compute(root, optimize_graph=False).result() == leaves * (leaves - 1) // 2
    island = {address: i // 2 for i, address in enumerate(islands.workers)}
    at = [island[ran.at[key]] for key in all_leaves]
    assert leaves // 4 <= sum(at) <= leaves - leaves // 4
    assert sum(at[i] != at[i + 1] for i in range(0, leaves, 2)) <= (leaves > 8) * 3, "an idle island helps the other"
    assert not islands.links.placing.roots._plan


def test_roots_that_may_not_run_anywhere_are_dasks(islands: Islands, ran: Ran) -> None:
    islands.teach()
    root, all_leaves = tree(8)
    islands.client.compute(root, optimize_graph=False, workers=islands.workers[3:]).result()
    assert {ran.at[key] for key in all_leaves} == {islands.workers[3]}


def test_both_of_a_pair_go_where_the_first_went(islands: Islands) -> None:
    """As in x + x.T: each of two tasks needs both of two values that lie on two islands."""
    islands.teach()
    scheduler = islands.scheduler
    a, b = islands.put(4 * MiB, 0), islands.put(4 * MiB, 2)
    first = scheduler.decide_worker_non_rootish(islands.task(a, b))
    coming = a if first.address == islands.workers[2] else b
    first._inc_needs_replica(coming)
    try:
        assert islands.cost(islands.task(a, b), islands.workers.index(first.address)) == 0
        assert scheduler.decide_worker_non_rootish(islands.task(a, b)) is first
    finally:
        first._dec_needs_replica(coming)


def test_transfers_take_both_directions(islands: Islands) -> None:
    """Six pairs of values, each with one on each island: not all go the same way."""
    islands.teach()
    pairs = [(islands.put(4 * MiB + i, i % 2), islands.put(4 * MiB + i, 2 + i % 2)) for i in range(6)]
    went = [islands.scheduler.decide_worker_non_rootish(islands.task(*pair)).address for pair in pairs]
    assert sum(address in islands.workers[:2] for address in went) == 3


# ---- asked by people ------------------------------------------------------------------------------------------------


def test_why_a_task_went_where_it_did(islands: Islands) -> None:
    client, (zero, _, two, _) = islands.client, islands.workers
    alone = client.submit(bytes, 3 * MiB, workers=[zero], pure=False)
    other = client.submit(bytes, 4 * MiB, workers=[two], pure=False)
    wait([alone, other])
    assert why(client, alone).reason == "the task has no inputs to fetch"
    stock = client.submit(lambda a, b: len(a) + len(b), alone, other, pure=False)
    stock.result()
    assert why(client, stock).decided_by == "dask"
    assert "not known to differ" in why(client, stock).reason
    islands.teach(between=FAST)
    for _ in range(5):
        islands.links.model.observe(zero, two, 8 * MiB, 8 * MiB / SLOW, time.monotonic())
    islands.links.placing.switch(islands.links.decides)
    alone = client.submit(bytes, 3 * MiB + 1, workers=[zero], pure=False)
    other = client.submit(bytes, 4 * MiB + 1, workers=[two], pure=False)
    wait([alone, other])  # those before have been copied
    ours = client.submit(lambda a, b: len(a) - len(b), alone, other, pure=False)
    ours.result()
    told = why(client, ours.key)
    names = {address: str(ws.name) for address, ws in islands.scheduler.workers.items()}
    assert told.decided_by == "links"
    assert set(told.fetch_s) >= {names[zero], names[two]}
    assert told.fetch_s[names[zero]] < told.fetch_s[names[two]]
    assert "ms to fetch" in str(told)
    assert why(client, "no such task").reason == "the scheduler does not know this task"
    set_links(client, "observe")
    try:
        assert is_stock(islands.scheduler)
        assert weft.dask.links(client).mode == "observe"
        assert why(client, other).reason == "weft.links is 'observe'"
    finally:
        set_links(client, "learn")
    assert not is_stock(islands.scheduler)
    with pytest.raises(InvalidParamError, match="'maybe'"):
        set_links(client, "maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["get_comm_cost", "decide_worker_non_rootish", "gather_on_worker", "replicate"])
def test_a_method_that_differs_stays_and_is_told_of(part: str, caplog: pytest.LogCaptureFixture) -> None:
    class Other:
        extensions: dict[str, Any]
        handlers: dict[str, Any]

        def __init__(self) -> None:
            self.extensions, self.handlers = {}, {}

        def get_comm_cost(self, ts: Any, ws: Any) -> None: ...
        def decide_worker_non_rootish(self, ts: Any) -> None: ...
        def gather_on_worker(self, worker_address: Any, who_has: Any) -> None: ...
        def replicate(
            self, keys: Any, n: Any, workers: Any, branching_factor: Any, delete: Any, stimulus_id: Any
        ) -> None: ...

    def differs(self: Any, something: Any) -> None: ...

    setattr(Other, part, differs)
    scheduler: Any = Other()
    patches._warn.cache_clear()  # pyright: ignore[reportPrivateUsage]
    names = ("get_comm_cost", "decide_worker_non_rootish", "gather_on_worker")
    with caplog.at_level(logging.WARNING, "weft"):
        for _ in range(2):
            undo = patches_decisions.steer_scheduler(
                scheduler, steal_time_ratio=print, find_recipient=print, **dict.fromkeys(names, print)
            )
            undo += patches_decisions.steer_replicate(scheduler, print)
            assert set(vars(scheduler)) & {*names, "replicate"} == {*names, "replicate"} - {part}
            for each in undo:
                each()
    assert [part in record.getMessage() for record in caplog.records] == [True]
    assert not set(vars(scheduler)) & {*names, "replicate"}


def test_an_estimate_that_fails_leaves_dasks(islands: Islands, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    islands.teach()
    ts = islands.task(islands.put(2 * MiB, 0))
    monkeypatch.setattr("weft.dask.learn.placing.fetch_seconds", fails)
    patches_decisions._warn_failed.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with caplog.at_level(logging.WARNING, "weft"):
        costs = {islands.cost(ts, 1), islands.cost(ts, 2)}
    assert costs == {2 * MiB / islands.scheduler.bandwidth}
    assert len(caplog.records) == 1


class Steered:
    """A server with a method to replace: Dask's own, which may fail, and counts its calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def decide(self, ts: int) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop()
        return -ts

    async def copy(self, ts: int) -> int:
        return self.decide(ts)


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Warnings of replacements that failed, from the first on."""
    patches_decisions._warn_failed.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with caplog.at_level(logging.WARNING, "weft"):
        yield caplog
    patches_decisions._warn_failed.cache_clear()  # pyright: ignore[reportPrivateUsage]


async def decided(server: Any, replacement: Any) -> int:
    """Ask a server whose method is replaced: the function by a function, the coroutine function by one."""
    name = "copy" if inspect.iscoroutinefunction(replacement) else "decide"
    (undo,) = patches_decisions.steer(server, name, replacement, ("ts",), "Steered")
    try:
        answer = getattr(server, name)(5)
        return int(await answer if inspect.isawaitable(answer) else answer)
    finally:
        undo()


def fails_before(stock: Any, ts: int) -> Any:
    raise ZeroDivisionError


def fails_after(stock: Any, ts: int) -> Any:
    return stock(ts) / 0


def asks(stock: Any, ts: int) -> Any:
    return stock(ts)


async def fails_before_it_waits(stock: Any, ts: int) -> Any:
    raise ZeroDivisionError


async def fails_after_it_waited(stock: Any, ts: int) -> Any:
    return await stock(ts) / 0


async def waits(stock: Any, ts: int) -> Any:
    return await stock(ts)


@pytest.mark.parametrize(
    "replacement", [fails_before, fails_after, fails_before_it_waits, fails_after_it_waited], ids=lambda f: f.__name__
)
async def test_a_replacement_that_fails_leaves_dasks_answer_asked_for_once(replacement: Any, failures: Any) -> None:
    server = Steered()
    assert await decided(server, replacement) == -5
    assert server.calls == 1
    assert len(failures.records) == 1


@pytest.mark.parametrize("replacement", [asks, waits])
async def test_an_error_of_dasks_own_is_raised_and_dask_is_not_asked_again(replacement: Any, failures: Any) -> None:
    server = Steered(KeyError("theirs"))
    with pytest.raises(KeyError, match="theirs"):
        await decided(server, replacement)
    assert server.calls == 1
    assert failures.records == []


async def test_what_returns_dasks_own_awaitable_is_awaited_too(failures: Any) -> None:
    """As the replacement of ``gather_on_worker`` does."""
    server: Any = Steered(KeyError("theirs"))
    (undo,) = patches_decisions.steer(server, "copy", asks, ("ts",), "Steered")
    with pytest.raises(KeyError, match="theirs"):
        await server.copy(5)
    assert await server.copy(5) == -5
    undo()
    (undo,) = patches_decisions.steer(server, "copy", fails_before, ("ts",), "Steered")
    assert await server.copy(5) == -5
    undo()
    assert server.calls == 3
    assert len(failures.records) == 1


def test_distributed_is_as_it_was_read() -> None:
    """Canaries: the parts that are replaced."""
    expected = {
        Scheduler.get_comm_cost: ["ts", "ws"],
        Scheduler.decide_worker_non_rootish: ["ts"],
        Scheduler.gather_on_worker: ["worker_address", "who_has"],
        Scheduler.replicate: ["keys", "n", "workers", "branching_factor", "delete", "stimulus_id"],
        WorkStealing.steal_time_ratio: ["ts"],
        ActiveMemoryManagerExtension._find_recipient: ["ts", "candidates", "pending_repl"],
        ShuffleSchedulerPlugin._calculate_worker_for: ["spec"],
    }
    for method, parameters in expected.items():
        assert list(inspect.signature(method).parameters)[1:] == parameters, method
    coroutines = {method for method in expected if inspect.iscoroutinefunction(method)}
    assert coroutines == {Scheduler.gather_on_worker, Scheduler.replicate}
    assert "spec.pick_worker(partition, workers)" in inspect.getsource(ShuffleSchedulerPlugin._calculate_worker_for)
    source = inspect.getsource(WorkStealing.steal_time_ratio)
    assert "transfer_time = nbytes / self.scheduler.bandwidth + LATENCY" in source
    assert "level = round(log2(cost_multiplier) + 6)" in source
    assert "self.get_comm_cost(ts, ws)" in inspect.getsource(Scheduler.worker_objective)
    assert "self.decide_worker_non_rootish(ts)" in inspect.getsource(SchedulerState)
