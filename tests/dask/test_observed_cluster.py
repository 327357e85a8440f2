# SPDX-License-Identifier: BSD-3-Clause
"""What is to be seen of a cluster: by its client, in Prometheus, in Dask's own figures and in a browser."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from tests.dask import browser
from tests.dask.clusters import TIMEOUT_S, local_cluster, workers_of
from tests.dask.ends import MIB

import weft.dask
from weft.dask.observe import traffic

pytestmark = pytest.mark.slow

PAGE = "individual-weft-bandwidth"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    pytest.importorskip("bokeh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic, "by_process", {})  # other tests' peers are this process's, too
        patch.setattr(traffic, "by_lanes", {})
        with local_cluster() as cluster:
            yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    """Has had one worker send bytes to the other, and the other lend an array."""
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        a, b = workers_of(client)
        for make, here, there in ((bytes, a, b), (np.ones, b, a)):
            made = client.submit(make, 4 * MIB, workers=here, pure=False)
            assert client.submit(len, made, workers=there, pure=False).result(TIMEOUT_S) == 4 * MIB
        yield client


def on_the_scheduler(client: Client, ask: Callable[[Any], Any]) -> Any:
    return client.run_on_scheduler(lambda dask_scheduler: ask(dask_scheduler))


def names(client: Client) -> list[str]:
    """Names of the workers, in the order of `workers_of`."""
    by_address = on_the_scheduler(client, lambda s: {a: str(ws.name) for a, ws in s.workers.items()})
    return [by_address[address] for address in workers_of(client)]


def test_the_table_tells_who_moved_what_to_whom(client: Client) -> None:
    a, b = names(client)

    def told() -> dict[tuple[str, str], dict[str, Any]]:
        rows = {(row["source"], row["destination"]): row for row in weft.dask.transports(client).rows}
        return rows if rows[b, a]["requests_Bps"] and rows[a, b]["requests_Bps"] else {}

    rows = until(told)  # that comes with a heartbeat
    moved, lent = rows[a, b], rows[b, a]
    assert moved["lanes"] == ["ring/memory"]
    assert moved["nbytes"] > 4 * MIB
    assert moved["bandwidth_Bps"] > 0
    assert lent["lanes"] == ["ring/memory", "lent"]
    assert (lent["lent_nbytes"], lent["lent_messages"]) == (32 * MIB, 1)
    assert lent["bandwidth_Bps"] is None
    assert "client, scheduler" in {source for source, _ in rows}  # LocalCluster's is in this process
    assert all(row["errors"] == 0 for row in rows.values())


def test_what_lends_is_a_lane_of_a_worker(client: Client) -> None:
    a, b = workers_of(client)
    lanes = client.run(weft.dask.lanes)
    assert lanes[a][b] == ["ring/memory", "lent"]
    assert lanes[b][a] == ["ring/memory"]


def test_an_asynchronous_client_awaits_it(cluster: LocalCluster, client: Client) -> None:
    async def table() -> weft.dask.Transports:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            return await weft.dask.transports(client)

    assert len(asyncio.run(table()).rows) >= 6


def test_fine_performance_metrics_name_the_lanes(client: Client) -> None:
    def told(scheduler: Any) -> dict[str, float]:
        metrics = scheduler.cumulative_worker_metrics
        return {"/".join(k): v for k, v in metrics.items() if k[0] in ("get-data", "gather-dep")}

    # each worker tells its part in its own heartbeat
    both = {"get-data/weft lent/bytes", "gather-dep/weft borrowed/bytes"}
    metrics = until(lambda: (m := on_the_scheduler(client, told)) and both <= set(m) and m)
    assert metrics["get-data/weft ring/memory/bytes"] > 4 * MIB
    assert metrics["get-data/weft ring/memory/seconds"] > 0
    assert metrics["get-data/weft lent/bytes"] == 32 * MIB
    assert metrics["gather-dep/weft borrowed/bytes"] == 32 * MIB


def until(ask: Callable[[], Any]) -> Any:
    """Ask until the answer is true; heartbeats come each half second."""

    async def asking() -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while not (answer := await asyncio.to_thread(ask)):
                await asyncio.sleep(0.1)
            return answer

    return asyncio.run(asking())


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith("weft_")}


def test_prometheus_scrapes_workers_and_scheduler(cluster: LocalCluster, client: Client) -> None:
    pytest.importorskip("prometheus_client")
    ports = client.run(lambda dask_worker: dask_worker.http_server.port)
    a, b = (scrape(ports[address]) for address in workers_of(client))
    assert a['weft_sent_bytes_total{lane="ring/memory"}'] > 4 * MIB
    assert b['weft_sent_bytes_total{lane="lent"}'] == a['weft_received_bytes_total{lane="lent"}'] == 32 * MIB
    scheduler = scrape(cluster.scheduler.http_server.port)
    assert set(a) <= set(scheduler)  # which is in this process, and other tests may have left other lanes
    assert scheduler['weft_errors_total{lane="ring/memory"}'] == 0


def test_dask_weighs_a_sum_as_a_mean_and_weft_puts_it_right(client: Client) -> None:
    a, b = workers_of(client)
    pair = a, b

    def heartbeats(scheduler: Any, extensions: dict[str, Any]) -> float:
        # Ten transfers at 1 GB/s in each of two heartbeats: whatever the weights, the mean is 1 GB/s.
        metrics = dict(scheduler.workers[a].metrics)
        metrics["bandwidth"] = metrics["bandwidth"] | {"workers": {b: (10e9, 10)}, "types": {}}
        scheduler.bandwidth_workers.pop(pair, None)
        scheduler.extensions["weft"]._means.pop(pair, None)
        for _ in range(2):
            scheduler.heartbeat_worker(address=a, metrics=metrics, extensions=extensions)
        return scheduler.bandwidth_workers[pair]

    until(lambda: on_the_scheduler(client, lambda s: a in s.extensions["weft"]._reports))
    told = on_the_scheduler(client, lambda s: {"process": s.extensions["weft"]._reports[a]["process"], "peers": {}})
    stock = on_the_scheduler(client, lambda s: heartbeats(s, {}))
    ours = on_the_scheduler(client, lambda s: heartbeats(s, {"weft": told}))
    assert ours == pytest.approx(1e9)
    # If this fails, distributed has put it right itself, and `SchedulerTraffic` need not any more.
    assert stock > 9e9


# ---- the page ---------------------------------------------------------------------------------------------------

MODEL = "Bokeh.documents[0].get_model_by_name"


@pytest.fixture
def screenshots(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = Path(request.config.getoption("--screenshots") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def look(url: str, profile: Path, screenshot: Path) -> dict[str, Any]:
    """Open the page, wait until it shows both transfers, and return what its cells say."""

    async def seen() -> dict[str, Any]:
        async with browser.opened(url, profile) as page:
            await page.until(f"window.Bokeh?.documents[0]?.is_idle && {MODEL}('weft_lanes')?.text.includes('lent')")
            await page.until(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
            )
            await page.screenshot(screenshot)
            return {
                "cells": await page.evaluate(
                    f"Object.fromEntries({MODEL}('weft_matrix').renderers[0].data_source.data.source.map("
                    f"(a, i) => {{const d = {MODEL}('weft_matrix').renderers[0].data_source.data;"
                    " return [a + ' to ' + d.destination[i], d.figure[i]]}))"
                ),
                "heading": await page.evaluate(f"{MODEL}('weft_heading').text"),
                "expected": await page.evaluate(f"{MODEL}('weft_expected').text"),
                "menu": await page.evaluate("document.body.innerHTML.includes('Weft Bandwidth')"),
            }

    return asyncio.run(seen())


@pytest.mark.skipif(browser.find() is None, reason="no chromium here: apt-get install chromium")
def test_a_browser_shows_the_page(cluster: LocalCluster, client: Client, tmp_path: Path, screenshots: Path) -> None:
    a, b = names(client)
    port = cluster.scheduler.http_server.port
    shown = look(f"http://127.0.0.1:{port}/{PAGE}", tmp_path / "profile", screenshots / "two-workers.png")
    assert shown["cells"][f"{b} to {a}"] == "lent\n32 MiB"
    assert float(shown["cells"][f"{a} to {b}"]) > 0
    assert shown["cells"][f"{a} to {a}"] == ""
    assert "Bandwidth between workers, GB/s" in shown["heading"]
    assert "predicted and observed" in shown["expected"]
    assert shown["menu"]
    assert (screenshots / "two-workers.png").read_bytes()[:4] == b"\x89PNG"


def test_dask_s_other_pages_are_still_there(cluster: LocalCluster, client: Client) -> None:
    port = cluster.scheduler.http_server.port
    for page in ("status", "individual-bandwidth-workers", PAGE):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=TIMEOUT_S) as answer:
            assert answer.status == 200
