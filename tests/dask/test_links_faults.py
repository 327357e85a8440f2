# SPDX-License-Identifier: BSD-3-Clause
"""What learning of links takes without harm: spoiled files, nonsense, other clocks, workers that know nothing of it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Worker
from tests.dask.clusters import local_cluster
from tests.dask.test_fanout import hosts, run
from tests.dask.test_learned import A, B, C, FakePeer, MiB, Workers

from weft.dask.learn import collect, measured
from weft.dask.observe.traffic import EXTENSION
from weft.links import store

# ---- the file -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def kept() -> Path:
    """Have a file of the cluster "mine"."""
    cluster = Workers(A, B, cluster="mine")
    cluster.transfers(A, B, 10e6)
    cluster.links.save()
    return store.path_of("mine")


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was said of files."""
    return [record for record in caplog.records if "the link measurements" in record.getMessage()]


def change(path: Path, with_it: Callable[[Any], None]) -> None:
    told = json.loads(path.read_text())
    with_it(told)
    path.write_text(json.dumps(told))


SPOILED: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: path.write_text(path.read_text()[:-20]),
    "not JSON": lambda path: path.write_text("rate = 5"),
    "wrong types": lambda path: change(path, lambda told: told.update(hosts={"a": 1})),
    "text for a number": lambda path: change(path, lambda told: told["hosts"][0][3].update(rate="fast")),
    "not a number": lambda path: change(path, lambda told: told["hosts"][0][3].update(rate=[math.nan, 0.1, 1])),
    "negative": lambda path: change(path, lambda told: told["hosts"][0][3].update(rate=[-16, -0.1, 1])),
    "another version's": lambda path: change(path, lambda told: told.update(format=2)),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_file_is_told_of_once_and_replaced(how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = kept()
    SPOILED[how](path)
    with caplog.at_level(logging.WARNING):
        cluster = Workers(A, B, C, cluster="mine")
        assert cluster.links.model.hosts == {}
        cluster.transfers(A, B, 20e6)
        cluster.transfers(A, C, 200e6)
        assert cluster.links.decides
        cluster.links.save()
    (record,) = told(caplog)
    assert str(path) in record.getMessage()
    assert "copy it first if you need it" in record.getMessage()
    assert Workers(A, B, cluster="mine").rate(A, B) == pytest.approx(20e6, rel=0.2)


def make_folder(path: Path, _: pytest.MonkeyPatch) -> None:
    path.unlink()
    path.mkdir()


def forbid(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    for name in ("read_text", "write_text"):  # not by its mode: root may read all
        monkeypatch.setattr(Path, name, refuse)


def make_homeless(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)


@pytest.mark.parametrize("make", [make_folder, forbid, make_homeless])
def test_what_cannot_be_read_is_told_of_once_and_nothing_is_kept(
    make: Callable[[Path, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(kept(), monkeypatch)
    with caplog.at_level(logging.WARNING):
        cluster = Workers(A, B, cluster="mine")
        cluster.transfers(A, B, 20e6)
        for _ in range(3):
            cluster.links.save()
    (record,) = told(caplog)
    assert "set weft.cluster to another name" in record.getMessage()
    assert cluster.rate(A, B) == pytest.approx(20e6, rel=0.1)


@pytest.mark.slow
def test_a_cluster_starts_whatever_its_file_is(caplog: pytest.LogCaptureFixture) -> None:
    path = kept()
    path.write_text("{")
    with (
        dask.config.set({"weft.cluster": "mine", "weft.links": "learn"}),
        caplog.at_level(logging.WARNING, "weft"),
        local_cluster(n_workers=2, processes=False) as cluster,
        cluster.get_client() as client,
    ):
        assert client.gather(client.map(len, [b"a", b"bb", b"ccc"])) == [1, 2, 3]
    (record,) = told(caplog)
    assert str(path) in record.getMessage()


# ---- nonsense -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, [], "rows", 7, {A: None}, {A: "fast"}, {A: {"round_trip_s": -1e-4}}])
def test_a_report_that_is_none_changes_nothing(rows: Any) -> None:
    cluster = Workers(A, B)
    cluster.transfers(A, B, 10e6)
    before = cluster.links.model.predict(A, B, 0.0)
    cluster.tell(B, rows)
    assert cluster.links.model.predict(A, B, 0.0) == before
    assert cluster.links.malformed + cluster.links.model.refused == 1


def test_a_process_without_a_name_changes_nothing() -> None:
    cluster = Workers(A, B)
    process: Any = ["no", "name"]
    cluster.links.take(B, process, {A: {"transfers": [[8 * MiB, 1.0, 1.0]]}})
    assert cluster.links.model.samples == 0
    assert cluster.links.malformed == 1


# ---- clocks ---------------------------------------------------------------------------------------------------------


def told_by_a_clock(monkeypatch: pytest.MonkeyPatch, now_s: float) -> Any:
    """Measure a transfer and a send by a clock that shows another time."""
    ticks = iter(range(1, 100))
    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter=lambda: now_s + next(ticks) / 8))
    monkeypatch.setattr(measured, "_outflow", measured._Outflow())  # pyright: ignore[reportPrivateUsage]
    report, peer = measured.Report(), FakePeer()
    comm = measured.CommLinks(peer, "them", "", report)  # type: ignore[arg-type]
    comm.end_send(comm.begin_send(MiB))
    peer.landed = (8 * MiB, 0.5, 0.5)
    comm.received(8 * MiB)
    return report.take()


def test_what_is_told_has_no_time_of_day_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = told_by_a_clock(monkeypatch, 0.0)
    assert first["them"]["sending"] == 1.0
    assert told_by_a_clock(monkeypatch, -(2.0**30)) == first
    assert told_by_a_clock(monkeypatch, 2.0**40) == first


def test_the_scheduler_reads_its_own_clock_only(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted: list[float] = []
    for now_s in (-1e9, 0.0, 1e9):
        monkeypatch.setattr(collect, "time", SimpleNamespace(monotonic=lambda now_s=now_s: now_s))
        cluster = Workers(A, B)
        cluster.transfers(A, B, 10e6)
        predicted.append(cluster.links.model.seconds(A, B, 8 * MiB, now_s))
    assert predicted == pytest.approx([0.84] * 3, rel=0.1)


# ---- others in the cluster ------------------------------------------------------------------------------------------


def test_who_leaves_a_cluster_with_other_workers_is_forgotten() -> None:
    cluster = Workers(A, B, C)
    cluster.workers["tcp://10.0.0.9:1"] = SimpleNamespace(address="tcp://10.0.0.9:1")
    cluster.transfers(A, B, 10e6)
    cluster.transfers(A, C, 100e6)
    assert cluster.links.decides
    del cluster.workers[B]
    cluster.links.forget(B)
    assert not cluster.links.decides


def islands_of(scheduler: Scheduler, slow: list[str]) -> None:
    """Have a scheduler decide by a model that knows some workers to be far."""
    links = scheduler.extensions[EXTENSION].links
    for a in scheduler.workers:
        for b in scheduler.workers:
            for i in range(8 if a != b else 0):
                links.model.observe(a, b, 8 * MiB, 8 * MiB / (1e6 if (a in slow) != (b in slow) else 1e9), float(i))
    assert links.decides
    links.placing.switch(True)


async def all_for_all(client: Client, workers: list[str]) -> None:
    """Have every worker hold something and read what each other holds."""
    held = [client.submit(bytes, 100_000 + i, workers=[w], pure=False) for i, w in enumerate(workers)]
    sizes = [client.submit(lambda each: [len(x) for x in each], held, workers=[w], pure=False) for w in workers]
    expected = [100_000 + i for i in range(len(workers))]
    assert await client.gather(sizes) == [expected] * len(workers)
    anywhere = [client.submit(lambda a, b: len(a) + len(b), held[i - 1], held[i], pure=False) for i in range(len(held))]
    assert await client.gather(anywhere) == [expected[i - 1] + expected[i] for i in range(len(held))]


def test_a_worker_that_knows_nothing_of_links_works_with_the_others() -> None:
    async def test() -> None:
        async with hosts(4) as here:
            stranger = here.workers[1]
            del stranger.extensions[EXTENSION]  # as of a version that tells nothing
            for op in [op for op in stranger.handlers if op.startswith("weft_")]:
                del stranger.handlers[op]
            islands_of(_scheduler_of(here.client), [here.workers[2].address, here.workers[3].address])
            await all_for_all(here.client, [worker.address for worker in here.workers])

    run(test)


def _scheduler_of(client: Client) -> Scheduler:
    (found,) = [each for each in Scheduler._instances if each.address == client.scheduler.address]
    return found


def test_workers_of_another_protocol_work_with_the_others() -> None:
    async def test() -> None:
        with dask.config.set({"weft.links": "learn", "distributed.admin.system-monitor.gil.enabled": False}):
            both: Any = {"host": ["127.0.0.1"] * 2, "port": [0, 0], "protocol": ["ucx", "tcp"]}
            async with Scheduler(**both, dashboard_address=":0") as scheduler:
                by = {"ucx": scheduler.address, "tcp": scheduler.listeners[1].contact_address}
                options: Any = {"host": "127.0.0.1", "nthreads": 1, "dashboard_address": ":0"}
                async with (
                    Worker(by["ucx"], **options) as a,
                    Worker(by["ucx"], **options),
                    Worker(by["tcp"], protocol="tcp", **options) as other,
                    Client(by["ucx"], asynchronous=True) as client,
                ):
                    assert other.address.startswith("tcp://")
                    islands_of(scheduler, [a.address])
                    await all_for_all(client, list(scheduler.workers))

    run(test)
