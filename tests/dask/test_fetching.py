# SPDX-License-Identifier: BSD-3-Clause
"""From where a worker fetches, where its links differ; and how one that was refused learns that there is room."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Worker
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    GatherDep,
    GatherDepBusyEvent,
    GatherDepSuccessEvent,
    RetryBusyWorkerEvent,
    WorkerState,
)
from tests.dask.clusters import local_cluster

from weft.dask import patches, patches_decisions
from weft.dask.learn import fetch, measured
from weft.dask.learn.fetch import Fetching, Turns

MiB = 1 << 20
HERE, NEAR, FAR, OTHER = (f"ucx://10.0.0.{i}:1" for i in range(1, 5))
FAST, SLOW = 100e6, 1e6


class FakeWorker:
    """As much of a worker as is looked at, with a state machine of Dask's own."""

    def __init__(self) -> None:
        self.address = self.address_safe = HERE
        self.state = WorkerState(nthreads=1, address=HERE, validate=True, transfer_incoming_bytes_limit=1 << 40)
        self.fetching = Fetching(self)  # type: ignore[arg-type]
        self.undo = patches_decisions.steer_fetching(self, select=self.fetching.select)  # type: ignore[arg-type]

    def learn(self, source: str, rate: float) -> None:
        news = measured.Measured()
        news.transfers.append((8 * MiB, 8 * MiB / rate, 1.0))
        for _ in range(5):
            self.fetching.heard(source, news)

    def need(self, nbytes: int, *holders: str, key: str = "x", priority: int = 0) -> dict[str, set[Any]]:
        """Have a task come that needs a value; return what is then fetched from where."""
        event = ComputeTaskEvent.dummy(
            f"task of {key}",
            who_has={key: list(holders)},
            nbytes={key: nbytes},
            priority=(priority,),
            stimulus_id="test",
        )
        return gathered(self.state.handle_stimulus(event))


def gathered(instructions: list[Any]) -> dict[str, set[Any]]:
    return {each.worker: set(each.to_gather) for each in instructions if isinstance(each, GatherDep)}


def test_sources_that_left_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, now = FakeWorker(), [0.0]
    monkeypatch.setattr(fetch.time, "monotonic", lambda: now[0])
    model = worker.fetching.model
    for i in range(500):
        worker.learn(f"ucx://10.1.{i // 250}.{i % 250}:1", FAST)
        worker.learn(NEAR, FAST)
        now[0] += 60.0
    assert len(model.workers()) < 70, "an hour's, the one that stays, and this worker"
    assert NEAR in model.workers()
    assert all(len(each) < 70 for each in (model.pairs, model.hosts, model.workers_by_host()))
    assert model.predict(NEAR, HERE, now[0]).source == "pair"


@pytest.fixture
def worker() -> FakeWorker:
    worker = FakeWorker()
    worker.learn(NEAR, FAST)
    worker.learn(FAR, SLOW)
    return worker


def test_the_faster_source_is_asked(worker: FakeWorker) -> None:
    for i in range(20):  # Dask would toss a coin
        assert worker.need(MiB, NEAR, FAR, key=f"x{i}") in ({NEAR: {f"x{i}"}}, {})
    assert FAR not in worker.state.in_flight_workers


def test_what_is_only_far_is_fetched_from_there_at_the_same_time(worker: FakeWorker) -> None:
    assert worker.need(MiB, NEAR, FAR) == {NEAR: {"x"}}
    assert worker.need(MiB, FAR, key="y") == {FAR: {"y"}}


def test_a_fast_source_is_waited_for_where_that_is_sooner(worker: FakeWorker) -> None:
    assert worker.need(2 * MiB, NEAR) == {NEAR: {"x"}}
    assert worker.need(2 * MiB, NEAR, FAR, key="y") == {}, "two in a row are sooner than one from far away"
    done = GatherDepSuccessEvent(worker=NEAR, total_nbytes=2 * MiB, data={"x": 1}, stimulus_id="done")
    assert gathered(worker.state.handle_stimulus(done)) == {NEAR: {"y"}}


def test_a_slow_source_is_taken_where_the_fast_one_is_busy_for_long(worker: FakeWorker) -> None:
    assert worker.need(2000 * MiB, NEAR) == {NEAR: {"x"}}
    assert worker.need(2 * MiB, NEAR, FAR, key="y") == {FAR: {"y"}}


def test_what_is_overdue_is_not_waited_for(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    now = fetch.time.monotonic()
    assert worker.need(2 * MiB, NEAR) == {NEAR: {"x"}}
    assert worker.need(2 * MiB, NEAR, FAR, key="y") == {}
    monkeypatch.setattr(fetch, "time", SimpleNamespace(monotonic=lambda: now + 5))
    again = RetryBusyWorkerEvent(worker=HERE, stimulus_id="again")
    assert gathered(worker.state.handle_stimulus(again)) == {FAR: {"y"}}


async def test_a_choice_to_wait_is_looked_at_again(worker: FakeWorker) -> None:
    """Without that a transfer that never ends would keep what another source has."""
    looked = asyncio.Event()
    worker.handle_stimulus = lambda *_: looked.set()  # type: ignore[attr-defined]
    worker.need(MiB, NEAR)
    worker.need(MiB, NEAR, FAR, key="y")
    await asyncio.wait_for(looked.wait(), 60)


def test_a_busy_source_is_waited_for_where_it_is_sooner(worker: FakeWorker) -> None:
    worker.need(2 * MiB, NEAR)
    refused = GatherDepBusyEvent(worker=NEAR, total_nbytes=2 * MiB, stimulus_id="busy")
    worker.state.handle_stimulus(refused)
    assert worker.need(2 * MiB, NEAR, FAR, key="y") == {}
    free = RetryBusyWorkerEvent(worker=NEAR, stimulus_id="free")
    assert gathered(worker.state.handle_stimulus(free)) == {NEAR: {"x", "y"}}


def test_the_highest_priority_comes_first_wherever_it_is(worker: FakeWorker) -> None:
    worker.state.transfer_incoming_count_limit = 0
    worker.state.transfer_incoming_bytes_throttle_threshold = 0
    worker.need(MiB, NEAR, key="low", priority=5)
    worker.need(MiB, FAR, key="high", priority=1)
    worker.state.transfer_incoming_count_limit = 1
    again = RetryBusyWorkerEvent(worker=HERE, stimulus_id="again")
    assert gathered(worker.state.handle_stimulus(again)) == {FAR: {"high"}}


def test_where_links_are_alike_dask_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker()
    worker.learn(NEAR, FAST)
    worker.learn(FAR, FAST)

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(worker.fetching, "_by_time", never)
    assert worker.need(MiB, NEAR, FAR) in ({NEAR: {"x"}}, {FAR: {"x"}})


def test_a_source_that_may_be_better_is_tried_once_in_a_hundred_bytes() -> None:
    """`OTHER` was never seen; by its kind it is worse than the best, but may be better."""
    worker = FakeWorker()
    worker.learn(NEAR, 3 * SLOW)
    worker.learn(FAR, SLOW)
    asked: list[str] = []
    for i in range(300):
        took = worker.need(MiB, NEAR, OTHER, key=f"x{i}")
        asked += took
        for source, keys in took.items():
            news = measured.Measured()
            news.moved_nbytes = MiB
            worker.fetching.heard(source, news)
            done = GatherDepSuccessEvent(
                worker=source, total_nbytes=MiB, data=dict.fromkeys(keys, 1), stimulus_id=f"done {i}"
            )
            asked += gathered(worker.state.handle_stimulus(done))
    assert set(asked) == {NEAR, OTHER}
    assert 2 <= asked.count(OTHER) <= 3


def test_giving_it_back(worker: FakeWorker) -> None:
    assert type(worker.state) is not WorkerState
    for each in worker.undo:
        each()
    assert type(worker.state) is WorkerState


def test_a_state_machine_of_another_kind_stays(caplog: pytest.LogCaptureFixture) -> None:
    class Other:
        def _select_workers_for_gather(self, host: str) -> None: ...

    other = Other()
    patches._warn.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with caplog.at_level(logging.WARNING, "weft"):
        assert patches_decisions.steer_fetching(SimpleNamespace(state=other), select=print) == []  # type: ignore[arg-type]
    assert type(other) is Other
    assert "_select_workers_for_gather" in caplog.text


# ---- being told -----------------------------------------------------------------------------------------------------


class Server:
    """As much of a worker as turns are about: its requests to others are kept."""

    def __init__(self) -> None:
        self.address = NEAR
        self.told: list[str] = []

    def rpc(self, who: str) -> Any:
        async def tell(*, source: str) -> None:
            assert source == NEAR
            self.told.append(who)

        return SimpleNamespace(weft_free=tell)


async def serve(turns: Turns, who: str, answer: Any, *, can_be_told: bool = True) -> None:
    async def stock(comm: Any, **request: Any) -> Any:
        assert request == {"keys": ["x"], "who": who, "serializers": None}
        return answer

    comm = SimpleNamespace(remote_info={measured.TOLD: can_be_told})
    assert await turns.get_data(stock, comm, keys=["x"], who=who, serializers=None) == answer
    for _ in range(3):
        await asyncio.sleep(0)


async def test_who_was_refused_is_told_when_there_is_room_one_at_a_time() -> None:
    server = Server()
    turns = Turns(server)  # type: ignore[arg-type]
    for who in ("a", "b", "a"):
        await serve(turns, who, {"status": "busy"})
    await serve(turns, "old", {"status": "busy"}, can_be_told=False)
    assert server.told == []
    await serve(turns, "c", "done")
    assert server.told == ["a"]
    await serve(turns, "c", "done")
    await serve(turns, "c", "done")
    assert server.told == ["a", "b"]


async def test_a_worker_that_is_told_goes_on_at_once_and_one_that_is_not_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(Server())  # type: ignore[arg-type]
    turns.told(NEAR)  # too early: nobody waits
    monkeypatch.setattr(fetch, "BUSY_S", 3600)
    waiting = asyncio.ensure_future(turns.wait(NEAR))
    await asyncio.sleep(0)
    turns.told(NEAR)
    await asyncio.wait_for(waiting, 60)
    monkeypatch.setattr(fetch, "BUSY_S", 0)
    await turns.wait(NEAR)
    assert turns._freed == {}  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("error", [OSError("the peer is gone"), RuntimeError("ConnectionPool is closing")])
async def test_a_worker_that_died_or_while_this_one_closes_is_told_in_vain(error: Exception) -> None:
    class Gone(Server):
        def rpc(self, who: str) -> Any:
            async def tell(*, source: str) -> None:
                telling.append(asyncio.current_task())
                raise error

            return SimpleNamespace(weft_free=tell)

    telling: list[Any] = []
    server = Gone()
    turns = Turns(server)  # type: ignore[arg-type]
    await serve(turns, "a", {"status": "busy"})
    await serve(turns, "b", "done")
    assert turns._telling == set()  # pyright: ignore[reportPrivateUsage]
    (task,) = telling
    assert task.exception() is None, "nobody retrieves it"


def test_handlers_of_others_stay_when_a_worker_is_no_longer_steered() -> None:
    class Steered:
        def __init__(self) -> None:
            self.handlers: dict[str, Any] = {"get_data": self.get_data}

        async def get_data(self, comm: Any, keys: Any, who: Any = None, serializers: Any = None) -> None: ...
        async def retry_busy_worker_later(self, worker: str) -> None: ...

    def steer(worker: Any) -> list[Any]:
        return patches_decisions.steer_busy(worker, get_data=Turns.get_data, wait=print, tell="free", told=print)  # type: ignore[arg-type]

    worker = Steered()
    theirs = worker.handlers["get_data"] = lambda comm, keys: None
    (undo,) = steer(worker)
    assert worker.handlers["get_data"] is not theirs
    undo()
    assert worker.handlers["get_data"] is theirs
    (undo,) = steer(worker)
    later = worker.handlers["get_data"] = lambda comm, keys: None
    undo()
    assert worker.handlers["get_data"] is later
    dropped = Steered()
    here = weakref.ref(dropped)
    undos = steer(dropped)
    del dropped
    gc.collect()
    assert here() is None, "an undo function keeps its worker"
    undos[0]()


@pytest.mark.slow
def test_a_cluster_whose_workers_are_busy_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot at each source: most requests are refused, and each is told in its turn."""
    config = {"distributed.worker.connections.incoming": 1, "weft.links": "learn"}
    import dask

    with (
        dask.config.set(config),
        local_cluster(n_workers=5, processes=False) as cluster,
        cluster.get_client() as client,
    ):
        workers = [cluster.workers[name] for name in cluster.workers]
        assert all("weft_free" in worker.handlers for worker in workers)
        told: list[str] = []
        tell = Turns.told
        monkeypatch.setattr(Turns, "told", lambda self, source: (told.append(source), tell(self, source))[1])
        values = [client.submit(bytes, 3 * MiB + i, workers=[workers[0].address], pure=False) for i in range(10)]
        sums = [
            client.submit(lambda *parts: sum(map(len, parts)), *values, workers=[w.address], pure=False)
            for w in workers[1:]
        ]
        assert client.gather(sums) == [sum(3 * MiB + i for i in range(10))] * 4


def test_distributed_is_as_it_was_read() -> None:
    """Canaries: the parts that are replaced."""
    import inspect

    assert list(inspect.signature(Worker.get_data).parameters)[1:] == ["comm", "keys", "who", "serializers"]
    assert list(inspect.signature(Worker.retry_busy_worker_later).parameters)[1:] == ["worker"]
    assert "await asyncio.sleep(0.15)" in inspect.getsource(Worker.retry_busy_worker_later)
    assert inspect.isgeneratorfunction(WorkerState._select_workers_for_gather)
    assert "in self._select_workers_for_gather():" in inspect.getsource(WorkerState._ensure_communicating)
    assert "self.data_needed[worker].remove(ts)" in inspect.getsource(WorkerState._select_keys_for_gather)
    assert "self.retry_busy_worker_later," in inspect.getsource(inspect.getmodule(WorkerState))  # type: ignore[arg-type]


def test_a_choice_that_fails_is_dasks(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(worker.fetching, "_entry", fails)
    patches_decisions._warn_failed.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with caplog.at_level(logging.WARNING, "weft"):
        assert worker.need(MiB, NEAR) == {NEAR: {"x"}}
        assert worker.need(MiB, FAR, key="y") == {FAR: {"y"}}
    assert len(caplog.records) == 1
