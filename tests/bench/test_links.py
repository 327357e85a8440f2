# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench links``: its jobs check what they get, its labs can be built, and its table says what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("distributed")

from distributed import Client, LocalCluster

from weft.bench.common.errors import BenchError
from weft.bench.links import jobs, table
from weft.bench.links.scenarios import SCENARIOS
from weft.lab.network import commands, namespaces


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("job", [job for job in jobs.JOBS if job != "fan-out, kill"])
def test_every_job_runs_and_its_result_is_right(client: Client, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_TINY", 50)
    monkeypatch.setattr(jobs, "_HEARTBEATS_S", 0)
    assert jobs.JOBS[job](client, sorted(client.nthreads()), 1 << 16, 3, lambda: None) > 0


def test_a_wrong_result_ends_a_job(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "total", lambda array, i: int(array.sum()) + i)
    with pytest.raises(BenchError, match="sums"):
        jobs.replicate(client, sorted(client.nthreads()), 1 << 16, 3, lambda: None)


def test_copies_are_made_while_the_memory_manager_drops_none(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, running = client.replicate, list[Any]()

    def replicate(made: Any) -> None:
        running.append(client.amm.running())
        stock(made)

    monkeypatch.setattr(client, "replicate", replicate)
    client.amm.start()
    jobs.replicate(client, sorted(client.nthreads()), 1 << 16, 3, lambda: None)
    assert running == [False]
    assert client.amm.running()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_lab_can_be_built(name: str) -> None:
    scenario = SCENARIOS[name]
    assert len(list(commands(scenario.network, namespaces(scenario.network, "weft-1")))) >= scenario.hosts
    assert set(scenario.jobs) <= set(jobs.JOBS)


def record(**seconds: Any) -> dict[str, Any]:
    runs = {way: [{"seconds": {"fan-out": [s]}} for s in each] for way, each in seconds.items()}
    return {"records": [{"scenario": "fanout", "title": "hosts", "port_s": 4.0, "runs": runs}]}


def test_a_row_has_both_ways_their_ratio_and_what_one_port_takes() -> None:
    (row,) = table.rows(record(stock=[40.0, 32.0], learned=[5.0, 4.0]))
    assert row[:4] == ["hosts", "fan-out", "36 s", "4.5 s"]
    assert row[4].startswith("0.12 ")
    assert row[5] == "9.00 -> 1.12"


def test_what_failed_is_said() -> None:
    failed = record(stock=[], learned=[5.0])
    failed["records"][0]["runs"]["stock"].append({"seconds": {"fan-out": []}, "failed": "ended: no such host"})
    (row,) = table.rows(failed)
    assert row[2] == row[4] == "-"
    assert list(table.failures(failed)) == ["fanout, stock, round 1: ended: no such host"]
