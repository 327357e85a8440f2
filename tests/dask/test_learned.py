# SPDX-License-Identifier: BSD-3-Clause
"""What workers measure of their links, and what the scheduler makes of what they tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker
from tests.dask.clusters import local_cluster, workers_of

import weft.dask
from weft.dask.learn import measured
from weft.dask.learn.collect import SchedulerLinks
from weft.dask.learn.hosts import FORGOTTEN_S, place_of
from weft.dask.learn.view import Links, tell
from weft.dask.observe.traffic import EXTENSION
from weft.links import LinkModel, Place

MiB = 1 << 20


class FakePeer(SimpleNamespace):
    """As much of a peer as is measured."""

    def __init__(self, *, same_host: bool = False, round_trip_s: float = 0.0) -> None:
        super().__init__(landed=(0, 0.0, 0.0), lent_nbytes=(0, 0), same_host=same_host, round_trip_s=round_trip_s)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "listeners", [])


@pytest.fixture
def report() -> measured.Report:
    return measured.Report()


def comm_of(report: measured.Report, peer: Any, worker: str = "") -> measured.CommLinks:
    return measured.CommLinks(peer, "them", worker, report)


def test_a_transfer_is_told_once(report: measured.Report) -> None:
    peer = FakePeer()
    comm = comm_of(report, peer)
    peer.landed = (8 * MiB, 0.5, 1.5)
    comm.received(8 * MiB)
    assert report.take() == {"them": {"transfers": [[8 * MiB, 0.5, 3.0]], "received": [0, 8 * MiB]}}
    assert report.take() == {}


def test_small_messages_are_not_told(report: measured.Report) -> None:
    comm = comm_of(report, FakePeer())
    comm.received(1000)
    assert comm.begin_send(1000) is None
    assert report.take() == {}


def test_what_was_lent_took_no_time(report: measured.Report) -> None:
    peer = FakePeer(same_host=True)
    comm = comm_of(report, peer)
    peer.lent_nbytes = (0, 7 * MiB)
    comm.received(8 * MiB)
    assert report.take() == {"them": {"received": [7 * MiB, MiB]}}


def test_only_the_latest_transfers_and_peers_are_kept(report: measured.Report) -> None:
    peer = FakePeer()
    comm = comm_of(report, peer)
    for i in range(20):
        peer.landed = ((i + 1) * MiB, i + 1.0, i + 1.0)
        comm.received(MiB)
    assert len(report.take()["them"]["transfers"]) == measured.MOST_TRANSFERS
    for i in range(2 * measured.MOST_PEERS):
        measured.CommLinks(FakePeer(round_trip_s=0.1), str(i), "", report)
    assert len(report.take()) == measured.MOST_PEERS


def test_sends_at_the_same_time_are_counted_over_the_network_only(report: measured.Report) -> None:
    a, b = comm_of(report, FakePeer()), comm_of(report, FakePeer())
    began = a.begin_send(MiB), b.begin_send(MiB)
    a.end_send(began[0])
    b.end_send(began[1])
    assert 1 <= report.take()["them"]["sending"] <= 2
    assert comm_of(report, FakePeer(same_host=True)).begin_send(MiB) is None


def test_this_process_hears_of_workers_that_it_reached(report: measured.Report) -> None:
    heard: list[str] = []
    measured.listeners.append(lambda worker, _: heard.append(worker))
    comm_of(report, FakePeer(round_trip_s=0.1), "ucx://them:1")
    comm_of(report, FakePeer(round_trip_s=0.1))
    assert heard == ["ucx://them:1"]
    assert set(report.take()) == {"ucx://them:1", "them"}, "one that came by itself has no address that is known"


# ---- the scheduler --------------------------------------------------------------------------------------------------


class Workers:
    """As much of a scheduler as the collection looks at."""

    def __init__(self, *addresses: str, mode: Any = "learn", cluster: str | None = None) -> None:
        self.workers: dict[str, Any] = {address: SimpleNamespace(address=address) for address in addresses}
        self.extensions: dict[str, object] = {}
        self.links = SchedulerLinks(self, mode, cluster)  # type: ignore[arg-type]
        for address in addresses:
            self.tell(address, {})

    def add_plugin(self, plugin: object, **_: object) -> None: ...
    def remove_plugin(self, name: str) -> None: ...

    def tell(self, address: str, rows: Any) -> None:
        self.links.take(address, f"process of {address}", rows)

    def transfers(self, source: str, destination: str, rate: float, n: int = 8) -> None:
        rows = {"transfers": [[8 * MiB, 8 * MiB / rate, 1.0]] * n, "received": [0, 8 * MiB]}
        self.tell(destination, {f"process of {source}": rows})

    def rate(self, source: str, destination: str) -> float:
        return 1 / self.links.model.predict(source, destination, time.monotonic()).seconds_per_byte


A, B, C = "ucx://10.0.0.1:1", "ucx://10.0.0.2:1", "ucx://10.0.0.3:1"


def test_heartbeats_teach_the_model() -> None:
    cluster = Workers(A, B, C)
    cluster.transfers(A, B, 10e6)
    assert cluster.rate(A, B) == pytest.approx(10e6, rel=0.1)
    assert not cluster.links.decides
    cluster.transfers(A, C, 100e6)
    assert cluster.links.decides


def test_observing_decides_nothing_and_off_learns_nothing() -> None:
    for mode, samples in (("observe", 16), ("off", 0)):
        cluster = Workers(A, B, C, mode=mode)
        cluster.transfers(A, B, 10e6)
        cluster.transfers(A, C, 100e6)
        assert not cluster.links.decides
        assert cluster.links.model.samples == samples


@pytest.mark.parametrize(
    "rows",
    [
        {"transfers": [[8 * MiB, -1, 1]]},
        {"transfers": [[1e30, 1, 1]]},
        {"transfers": [[8 * MiB, math.inf, 1]]},
        {"transfers": [[8 * MiB, 1, math.nan]]},
        {"transfers": [["a", "b", "c"]]},
        {"transfers": [[1]]},
        {"transfers": 7},
        {"received": [-1, -1]},
        {"received": None},
        {"round_trip_s": -1},
        {"round_trip_s": "soon"},
        {"sending": 1e30},
        {"sending": []},
        [],
        None,
    ],
)
def test_nonsense_of_a_worker_changes_nothing_and_ends_nothing(rows: Any) -> None:
    cluster = Workers(A, B)
    cluster.transfers(A, B, 10e6)
    before = cluster.rate(A, B)
    cluster.tell(B, {f"process of {A}": rows})
    assert cluster.rate(A, B) == pytest.approx(before, rel=1e-6)
    assert cluster.links.malformed + cluster.links.model.refused == 1


def test_what_was_predicted_is_remembered_beside_what_was_observed() -> None:
    cluster = Workers(A, B)
    cluster.transfers(A, B, 10e6, n=4)
    cluster.tell(B, {f"process of {A}": {"transfers": [[8 * MiB, -1, 1], [8 * MiB, 0.25, 3.0]]}})
    first, *_, last = cluster.links.timed
    assert (first.source, first.destination, first.nbytes, first.known_from) == (A, B, 8 * MiB, "assumed")
    assert last.predicted_s == pytest.approx(8 * MiB / 10e6, rel=0.1)
    assert (last.observed_s, last.flows, last.known_from) == (0.25, 3.0, "pair")
    assert len(cluster.links.timed) == 5, "what was refused is not among them"
    for _ in range(70):
        cluster.transfers(A, B, 10e6)
    assert len(cluster.links.timed) == 500


def test_a_sender_tells_how_many_shared_its_port() -> None:
    cluster = Workers(A, B)
    cluster.tell(A, {f"process of {B}": {"sending": 4.0}})
    cluster.transfers(A, B, 5e6)
    assert 1 / cluster.links.model.port_seconds_per_byte("egress", "10.0.0.1") == pytest.approx(20e6, rel=0.1)


def test_workers_of_one_process_are_told_apart_by_their_addresses() -> None:
    cluster = Workers(A, B, C)
    slow, fast = ({"transfers": [[8 * MiB, 8 * MiB / rate, 1.0]] * 4} for rate in (10e6, 100e6))
    one = "a process of two workers"
    cluster.links.take(A, one, {})
    cluster.links.take(B, one, {})
    cluster.links.take(C, "another", {A: slow, B: fast})
    assert cluster.rate(A, C) == pytest.approx(10e6, rel=0.1)
    assert cluster.rate(B, C) == pytest.approx(100e6, rel=0.1)
    cluster.links.take(A, one, {"another": {"sending": 4.0}})
    cluster.links.take(C, "another", {A: {"transfers": [[8 * MiB, 8 * MiB / 5e6, 1.0]] * 4}})
    assert 1 / cluster.links.model.port_seconds_per_byte("egress", "10.0.0.1") == pytest.approx(20e6, rel=0.1)


def test_who_left_is_forgotten() -> None:
    cluster = Workers(A, B, C)
    cluster.transfers(A, B, 10e6)
    cluster.tell(A, {f"process of {B}": {"sending": 4.0}})
    del cluster.workers[A]
    cluster.links.forget(A)
    assert cluster.links.model.pairs == {}
    assert A not in cluster.links.model.workers()
    assert cluster.links._sending == {}  # pyright: ignore[reportPrivateUsage]
    cluster.tell(A, {f"process of {B}": {"round_trip_s": 0.1}})
    assert A not in cluster.links.model.workers(), "a heartbeat that comes late"
    cluster.tell(C, {f"process of {A}": {"round_trip_s": 0.1}})
    assert cluster.links.model.pairs == {}


def test_hosts_that_had_no_worker_for_an_hour_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    cluster = Workers(A, B, C)
    cluster.transfers(A, B, 10e6)
    cluster.transfers(C, B, 10e6)
    host_of_a, host_of_c = (str(place_of(address).host) for address in (A, C))
    del cluster.workers[A], cluster.workers[C]
    cluster.links.forget(A)
    cluster.links.forget(C)
    at = FORGOTTEN_S - 1
    cluster.workers[C] = SimpleNamespace(address=C)
    cluster.tell(C, {})
    hosts = {host for pair in cluster.links.model.hosts for host in pair[:2]}
    assert {host_of_a, host_of_c} <= hosts
    at = FORGOTTEN_S + 1
    cluster.tell(B, {})
    hosts = {host for pair in cluster.links.model.hosts for host in pair[:2]}
    assert host_of_a not in hosts
    assert host_of_c in hosts, "it has a worker again"


def test_a_named_cluster_keeps_what_it_learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cluster = Workers(A, B, cluster="mine")
    cluster.transfers(A, B, 10e6)
    cluster.links.save()
    other_port = "ucx://10.0.0.1:7"
    again = Workers(other_port, B, cluster="mine")
    assert again.rate(other_port, B) == pytest.approx(10e6, rel=0.2)
    assert Workers(other_port, B, cluster="another").rate(other_port, B) > 1e9


# ---- people ---------------------------------------------------------------------------------------------------------


def test_what_people_see() -> None:
    model = LinkModel()
    for worker, host in (("a", "h"), ("b", "i"), ("c", "h")):
        model.place(worker, Place(host))
    for i in range(8):
        model.observe("a", "b", 8 * MiB, 8 * MiB / 10e6, i)
        model.observe("b", "a", 8 * MiB, 8 * MiB / 100e6, i, ingress_flows=2)
    model.observe_lent("a", "c", 100 * MiB, 0)
    told = tell(model, {"a": "0", "b": "1", "c": "<2>"}, 8)
    shown = Links({**told, "mode": "learn", "decides": True})
    text = str(shown)
    assert "10 MB/s" in text
    assert "lent" in text
    assert "ingress of h: 202 MB/s" in text
    assert shown.heat_map().splitlines()[:3] == ["  0 .▁=", "  1 █..", "<2> ..."]
    assert "&lt;2&gt;" in shown._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert json.loads(shown.to_json())["links"] == shown.rows
    assert repr(shown) == "<weft.dask.Links, 3 links, learn>"
    empty = Links(
        {"links": [], "ports": [], "relayed": [], "samples": 0, "refused": 0, "mode": "off", "decides": False}
    )
    assert "'off'" in str(empty)


def test_people_see_around_which_link_large_values_go() -> None:
    """One measurement is enough for that, and not for placing tasks."""
    model = LinkModel()
    for worker in "abc":
        model.place(worker, Place(worker))
    for i in range(6):
        model.observe("a", "b", 20 * MiB, 20 * MiB / 45e6, i)
        model.observe("b", "c", 20 * MiB, 20 * MiB / 45e6, i)
    names = {"a": "0", "b": "1", "c": "2"}
    told = {**tell(model, names, 6), "mode": "learn", "decides": model.differ}
    assert "it is not certain that links differ: Dask places" in str(Links(told))
    assert Links(told).relayed == []
    model.observe("a", "c", 20 * MiB, 20 * MiB / 1.3e6, 6)
    shown = Links({**tell(model, names, 6), "mode": "learn", "decides": model.differ})
    assert shown.relayed == [{"source": "0", "destination": "2", "relay": "1"}]
    assert "large values from 0 to 2 go through 1" in str(shown)
    assert "large values" not in str(Links({**told, "mode": "observe"}))
    assert json.loads(shown.to_json())["relayed"] == shown.relayed


@pytest.mark.slow
def test_a_cluster_learns_by_itself() -> None:
    with local_cluster(n_workers=2) as cluster, cluster.get_client() as client:
        first, second = workers_of(client)
        blob = client.submit(bytes, 9 * MiB, workers=[first])
        assert client.submit(len, blob, workers=[second]).result() == 9 * MiB
        deadline = time.monotonic() + 60
        while not (shown := weft.dask.links(client)).links and time.monotonic() < deadline:
            time.sleep(0.1)
        assert {link.known_from for link in shown.links} <= {"assumed", "pair"}
        assert shown.mode == "observe"
        assert not shown.decides


def test_each_worker_of_a_process_tells_of_its_own_links() -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(
                Scheduler(protocol="ucx", host="127.0.0.1", dashboard_address=":0")
            )
            a, b, c = [
                await stack.enter_async_context(
                    Worker(scheduler.address, host="127.0.0.1", nthreads=1, dashboard_address=":0")
                )
                for _ in range(3)
            ]
            client = await stack.enter_async_context(Client(scheduler.address, asynchronous=True))
            for worker in (a, b, c):
                worker.periodic_callbacks["heartbeat"].stop()
            for reader, nbytes in ((b, 1_000_000), (c, 2_000_000)):
                value = client.submit(bytes, nbytes, workers=[a.address])
                assert await client.submit(len, value, workers=[reader.address]) == nbytes
            told = {w: w.extensions[EXTENSION].heartbeat().get("links", {}) for w in (a, b, c)}
            assert a.address not in told[a]
            for reader, nbytes in ((b, 1_000_000), (c, 2_000_000)):
                assert sum(told[reader][a.address]["received"]) == pytest.approx(nbytes, abs=10_000)
                assert {b.address, c.address}.isdisjoint(told[reader])

    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(bounded())
