# SPDX-License-Identifier: BSD-3-Clause
"""What heartbeats carry, what the scheduler makes of it, and what Dask makes of it without."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Scheduler, Worker

from weft.dask.learn.measured import Report
from weft.dask.observe import traffic
from weft.dask.observe.attach import attach
from weft.dask.observe.scheduler import KeepUp, SchedulerTraffic
from weft.dask.observe.traffic import EXTENSION
from weft.dask.observe.worker import WorkerTraffic


def peer(process: str) -> Any:
    return SimpleNamespace(remote={"process": process}, transports=["tcp/eth0"], lent_nbytes=(0, 0))


def test_a_heartbeat_tells_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "by_process", {})
    quiet, busy = (traffic.CommTraffic(peer(name), "ucx://them:1") for name in ("quiet", "busy"))
    for comm in (quiet, busy):
        comm.sent(3, time.perf_counter())
    extension = WorkerTraffic(Report())
    assert set(extension.heartbeat()["peers"]) == {"quiet", "busy"}
    assert extension.heartbeat() == {"process": traffic.PROCESS, "peers": {}}
    busy.received(5)
    told = extension.heartbeat()["peers"]
    assert list(told) == ["busy"]
    assert (told["busy"]["sent_nbytes"], told["busy"]["received_nbytes"]) == (3, 5)  # totals
    busy.with_process.errors += 1
    assert list(extension.heartbeat()["peers"]) == ["busy"]


@pytest.mark.parametrize(("scheduler", "told"), [("ucx://h:8786", True), ("tcp://h:8786", False)])
def test_only_a_scheduler_that_is_weft_s_is_told(scheduler: str, told: bool) -> None:
    # Another's heartbeat handler would look the extension up, fail, and the worker would close itself.
    worker = object.__new__(Worker)
    worker.extensions, worker.handlers, worker.scheduler = {}, {}, SimpleNamespace(address=scheduler)
    worker.rpc = SimpleNamespace(connection_args={})
    attach(worker)
    assert (EXTENSION in worker.extensions) is told
    assert "weft_join" in worker.handlers  # an unknown request would never be answered


class Workers:
    """As much of a scheduler as its extension looks at, and the heartbeats of its workers."""

    def __init__(self, *names: str) -> None:
        self.workers = {f"ucx://{name}": SimpleNamespace(address=f"ucx://{name}", name=name) for name in names}
        self.bandwidth_workers: dict[tuple[str, str], float] = {}
        self.bandwidth_types: dict[str, float] = {}
        self.traffic = SchedulerTraffic(self)

    def lose(self, name: str) -> None:
        del self.workers[f"ucx://{name}"]
        KeepUp(self.traffic).remove_worker(self, f"ucx://{name}", stimulus_id="")  # type: ignore[arg-type]

    def heartbeat(self, name: str, *, seen: tuple[str, float, int] | None = None, **sent: int) -> None:
        """Say what worker `name` saw from whom: sum and count; and sent to whom."""
        ws = self.workers[f"ucx://{name}"]
        other, total, count = seen or ("", 0, 0)
        told = {f"ucx://{other}": (total, count)} if seen else {}
        ws.metrics = {"bandwidth": {"workers": told, "types": {"bytes": (total, count)} if seen else {}}}
        counted = traffic.Traffic("", "")
        rows = {}
        for to, nbytes in sent.items():
            rows[f"process {to}"] = counted.row() | {"sent_messages": 1, "sent_nbytes": nbytes}
        self.traffic.heartbeat(ws, {"process": f"process {name}", "peers": rows})


def test_pairs_are_of_the_workers_that_are_here() -> None:
    cluster = Workers("a", "b", "c")
    cluster.heartbeat("a", b=100, c=200, scheduler=300)
    cluster.heartbeat("b", a=400)
    cluster.heartbeat("c")
    assert [(p.source, p.destination, p.nbytes) for p in cluster.traffic.pairs()] == [
        ("b", "a", 400),
        ("a", "c", 200),
        ("a", "b", 100),
    ]
    cluster.lose("b")
    assert [(p.source, p.destination) for p in cluster.traffic.pairs()] == [("a", "c")]
    cluster.heartbeat("a", c=250)
    assert [(p.source, p.destination, p.nbytes) for p in cluster.traffic.pairs()] == [("a", "c", 250)]


def test_a_mean_is_weighed_by_its_count() -> None:
    cluster = Workers("a", "b")
    cluster.heartbeat("a", seen=("b", 30.0, 3))
    assert cluster.bandwidth_workers == {("ucx://a", "ucx://b"): 10.0}
    cluster.heartbeat("a", seen=("b", 90.0, 3))  # 30 on average; half of the weight goes with each
    assert cluster.bandwidth_workers["ucx://a", "ucx://b"] == pytest.approx(10 / 8 + 30 * 7 / 8)
    assert cluster.bandwidth_types["bytes"] == pytest.approx(10 / 8 + 30 * 7 / 8)
    cluster.heartbeat("b")
    assert cluster.traffic.seen_by_dask() == {("b", "a"): pytest.approx(27.5)}


def test_who_has_left_is_forgotten() -> None:
    cluster = Workers("a", "b")
    cluster.heartbeat("b")
    cluster.heartbeat("a", seen=("b", 30.0, 3))
    cluster.lose("b")
    assert cluster.traffic.seen_by_dask() == {}  # before the next heartbeat, too
    assert set(cluster.traffic.names().values()) == {"a"}
    cluster.heartbeat("a")
    assert cluster.traffic.seen_by_dask() == {}
    assert cluster.traffic._means == {}


def test_who_has_left_without_a_report_of_its_own_is_forgotten() -> None:
    cluster = Workers("a", "silent")
    cluster.heartbeat("a", seen=("silent", 30.0, 3))
    cluster.lose("silent")
    assert cluster.traffic._means == {}


def test_who_has_left_does_not_come_back_with_late_news() -> None:
    cluster = Workers("left", "other", "late")
    for name in ("left", "other", "late"):
        cluster.heartbeat(name)
    cluster.lose("left")
    cluster.heartbeat("other")
    cluster.heartbeat("late", seen=("left", 30.0, 3), left=100, other=200)
    assert set(cluster.traffic._reports["ucx://late"]["peers"]) == {"process other"}
    assert cluster.traffic._means == {}
    assert cluster.bandwidth_workers == {}


def test_news_of_a_worker_that_has_not_told_yet_is_kept() -> None:
    cluster = Workers("a", "new")
    cluster.heartbeat("a", new=100)
    cluster.heartbeat("new")
    cluster.heartbeat("a")  # nothing new
    assert [(p.source, p.destination, p.nbytes) for p in cluster.traffic.pairs()] == [("a", "new", 100)]


def test_a_worker_at_the_address_of_an_old_one_is_another() -> None:
    cluster = Workers("a", "b")
    cluster.heartbeat("b")
    cluster.heartbeat("a", b=100)
    cluster.traffic.heartbeat(cluster.workers["ucx://a"], {"process": "a's successor", "peers": {}})
    assert cluster.traffic.pairs() == []


def test_a_scheduler_without_a_dashboard_gets_the_rest() -> None:
    scheduler = object.__new__(Scheduler)
    scheduler.extensions, scheduler.http_application = {}, SimpleNamespace(applications=[])
    scheduler.plugins, scheduler.handlers = {}, {}
    attach(scheduler)
    first = scheduler.extensions[EXTENSION]
    attach(scheduler)
    assert scheduler.extensions == {EXTENSION: first}
