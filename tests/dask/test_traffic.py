# SPDX-License-Identifier: BSD-3-Clause
"""What a process counts of its comms, by the process at the other end."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.comm import CommClosedError, connect
from distributed.metrics import context_meter
from tests.dask.ends import MIB, ends_here, start_listening, until

from weft.dask.observe import traffic
from weft.errors import PeerClosedError, PeerLostError


@pytest.fixture
def by_process(monkeypatch: pytest.MonkeyPatch) -> dict[str, traffic.Traffic]:
    """No process counted yet."""
    by_process: dict[str, traffic.Traffic] = {}
    monkeypatch.setattr(traffic, "by_process", by_process)
    monkeypatch.setattr(traffic, "by_lanes", {})
    monkeypatch.setattr(traffic, "_to_host", {})
    return by_process


def peer(process: object = "them", **kwargs: Any) -> Any:
    return SimpleNamespace(remote={"process": process}, transports=["tcp/eth0"], lent_nbytes=(0, 0), **kwargs)


# ---- by real comms ----------------------------------------------------------------------------------------------


async def test_messages_and_bytes_are_counted_both_ways(echo: str, by_process: dict[str, traffic.Traffic]) -> None:
    comm = await connect(echo, deserialize=False)
    (counted,) = by_process.values()
    before = counted.row()
    nbytes = await comm.write({"x": b"a" * 2 * MIB})
    await comm.read()
    after = counted.row()
    assert after["sent_messages"] - before["sent_messages"] == 1
    assert after["received_messages"] - before["received_messages"] == 1
    assert after["sent_nbytes"] - before["sent_nbytes"] == nbytes > 2 * MIB
    assert after["received_nbytes"] - before["received_nbytes"] >= 2 * MIB
    assert after["sent_seconds"] > before["sent_seconds"]
    assert after["bandwidth_Bps"] > 0
    assert after["lanes"] == comm.transports != []
    assert after["address"] == echo
    assert after["errors"] == 0
    await comm.close()


async def test_all_comms_with_a_process_share_their_counts(echo: str, by_process: dict[str, traffic.Traffic]) -> None:
    comms = [await connect(echo, deserialize=False) for _ in range(3)]
    (counted,) = by_process.values()
    assert counted.process != traffic.PROCESS
    assert counted.comms == 3
    for comm in comms:
        await comm.close()
    del comm, comms
    gc.collect()
    assert counted.comms == 0


async def test_both_ends_in_this_process_count_once(by_process: dict[str, traffic.Traffic]) -> None:
    async with ends_here() as (a, b):
        await a.write("hello")
        await b.read()
        (counted,) = by_process.values()
        assert counted.process == traffic.PROCESS
        assert counted.sent_messages == counted.received_messages
        assert counted.sent_nbytes == counted.received_nbytes


@pytest.mark.slow
async def test_a_comm_that_breaks_is_an_error_and_a_goodbye_is_none(by_process: dict[str, traffic.Traffic]) -> None:
    address, process = start_listening("sit")
    comm = await connect(address, deserialize=False)
    (counted,) = by_process.values()
    process.kill()
    process.communicate(timeout=100)
    with pytest.raises(CommClosedError):
        await comm.read()
    assert counted.errors == 1

    async with ends_here() as (a, b):
        await a.close()
        await until(b.closed)
        with pytest.raises(CommClosedError):
            await b.read()
    assert by_process[traffic.PROCESS].errors == 0


# ---- by themselves ----------------------------------------------------------------------------------------------


def test_what_was_lent_did_not_move(by_process: dict[str, traffic.Traffic]) -> None:
    them = peer()
    comm = traffic.CommTraffic(them, "ucx://them:1")
    them.lent_nbytes = (3 * MIB, 0)
    comm.sent(3 * MIB + 4, time.perf_counter() - 1.0)
    counted = by_process["them"]
    assert (counted.sent_nbytes, counted.lent_nbytes) == (3 * MIB + 4, 3 * MIB)
    assert counted.bandwidth_Bps is None  # 4 B are no transfer
    them.lent_nbytes = (3 * MIB, MIB)
    comm.received(MIB + 10)
    assert (counted.received_nbytes, counted.borrowed_nbytes) == (MIB + 10, MIB)
    assert (counted.lent_messages, counted.borrowed_messages) == (1, 1)
    comm.sent(2 * MIB, time.perf_counter() - 1.0)
    assert (counted.lent_nbytes, counted.lent_messages) == (3 * MIB, 1)
    assert counted.bandwidth_Bps == pytest.approx(2 * MIB, rel=0.1)


def test_the_bandwidth_is_of_the_latest_transfers(by_process: dict[str, traffic.Traffic]) -> None:
    comm = traffic.CommTraffic(peer(), "ucx://them:1")
    for seconds in [10.0] * 40 + [1.0] * 20:
        comm.sent(MIB, time.perf_counter() - seconds)
    assert by_process["them"].bandwidth_Bps == pytest.approx(MIB, rel=0.1)
    assert by_process["them"].sent_messages == 60


def test_the_rate_to_a_process_is_that_to_its_host_until_it_is_known(
    by_process: dict[str, traffic.Traffic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "_MOST_HOSTS", 3)
    first, beside, other = (
        traffic.CommTraffic(peer(name), f"ucx://{host}:{i}")
        for i, (name, host) in enumerate([("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "[fe80::1]")])
    )
    first.sent(MIB - 1, time.perf_counter() - 1.0)
    assert beside.rate_Bps is None
    first.sent(MIB, time.perf_counter() - 1.0)
    assert beside.rate_Bps == first.rate_Bps == pytest.approx(MIB, rel=0.1)
    assert by_process["b"].bandwidth_Bps is None, "only what went there is shown"
    assert other.rate_Bps is None
    beside.sent(MIB, time.perf_counter() - 0.1)
    assert beside.rate_Bps == pytest.approx(10 * MIB, rel=0.1)
    for i in range(5):
        traffic.CommTraffic(peer("d"), f"ucx://10.0.1.{i}:1")
    assert len(traffic._to_host) == 3


@pytest.fixture
def digests() -> Iterator[list[tuple[Any, float, str]]]:
    digests: list[tuple[Any, float, str]] = []
    with context_meter.add_callback(lambda label, value, unit: digests.append((label, value, unit))):
        yield digests


def test_sends_and_receives_are_activities_of_who_sends_and_receives(
    by_process: dict[str, traffic.Traffic], digests: list[tuple[Any, float, str]]
) -> None:
    them = peer()
    comm = traffic.CommTraffic(them, "ucx://them:1")
    them.lent_nbytes = (2 << 20, 0)
    comm.sent((2 << 20) + 1_500_000, time.perf_counter())
    (seconds,) = (d for d in digests if d[2] == "seconds")
    assert seconds[0] == "weft tcp/eth0"
    assert [d for d in digests if d[2] != "seconds"] == [
        ("weft tcp/eth0", 1_500_000, "bytes"),
        ("weft lent", 2 << 20, "bytes"),
    ]
    digests.clear()
    comm.received(1_200_000)
    # No seconds: a receiver waits, it cannot tell for what. They stay in distributed's "network".
    assert digests == [("weft tcp/eth0", 1_200_000, "bytes")]


def test_small_messages_are_counted_but_no_activities(
    by_process: dict[str, traffic.Traffic], digests: list[tuple[Any, float, str]]
) -> None:
    """distributed passes each activity on several times, which takes as long as a small message."""
    them = peer()
    comm = traffic.CommTraffic(them, "ucx://them:1")
    comm.sent(traffic.TRANSFER_NBYTES - 1, time.perf_counter())
    comm.received(traffic.TRANSFER_NBYTES - 1)
    assert digests == []
    assert by_process["them"].sent_nbytes == by_process["them"].received_nbytes == traffic.TRANSFER_NBYTES - 1
    them.lent_nbytes = (traffic.TRANSFER_NBYTES, 0)
    comm.sent(traffic.TRANSFER_NBYTES + 100, time.perf_counter())  # with 100 B that were not lent
    assert [d for d in digests if d[2] != "seconds"] == [("weft lent", traffic.TRANSFER_NBYTES, "bytes")]


@pytest.mark.parametrize("said", [None, 5, "", "x" * 65, ["a"]])
def test_who_says_no_proper_name_is_known_by_its_address(said: object, by_process: dict[str, traffic.Traffic]) -> None:
    comm = traffic.CommTraffic(peer(said), "ucx://them:1")
    assert list(by_process) == [comm.with_process.process] == ["ucx://them:1"]


def test_who_is_gone_is_added_up_before_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, by_process: dict[str, traffic.Traffic]
) -> None:
    monkeypatch.setattr(traffic, "MOST_PROCESSES", 4)
    stays = traffic.CommTraffic(peer("stays"), "ucx://them:1")
    for i in range(20):
        traffic.CommTraffic(peer(f"goes {i}"), "ucx://them:2").sent(5, time.perf_counter())
    assert len(by_process) <= 4
    assert by_process["stays"] is stays.with_process
    assert sum(r.sent_messages for r in by_process.values()) == 20
    assert sum(r.sent_nbytes for r in by_process.values()) == 100


def test_counters_of_a_lane_never_go_down(
    monkeypatch: pytest.MonkeyPatch, by_process: dict[str, traffic.Traffic]
) -> None:
    """Prometheus takes a counter that goes down for one that began anew."""
    prometheus = pytest.importorskip("weft.dask.observe.prometheus")
    monkeypatch.setattr(traffic, "MOST_PROCESSES", 4)
    before: dict[tuple[str, str], float] = {}
    for i in range(40):
        them = peer("comes back" if i % 10 == 0 else f"goes {i}")
        them.transports = ["tcp/eth0"] if i % 3 else ["posix/memory", "tcp/eth0"]
        comm = traffic.CommTraffic(them, "ucx://them:2")
        them.lent_nbytes = (2, 1)
        comm.sent(5, time.perf_counter())
        comm.received(3)
        del comm
        now = {
            (sample.name, sample.labels["lane"]): sample.value
            for family in prometheus.TrafficCollector().collect()
            if family.type == "counter"
            for sample in family.samples
        }
        assert all(now.get(series, 0) >= value for series, value in before.items())
        assert all(lane for _, lane in now)
        before = now
    assert before["weft_sent_messages_total", "tcp/eth0"] == 26
    assert before["weft_sent_messages_total", "posix/memory,tcp/eth0"] == 14
    assert before["weft_sent_bytes_total", "lent"] == 80
    assert len(by_process) <= 4


def test_an_error_is_only_what_broke(by_process: dict[str, traffic.Traffic]) -> None:
    comm = traffic.CommTraffic(peer(), "ucx://them:1")
    comm.failed(PeerClosedError("goodbye"))
    assert comm.with_process.errors == 0
    comm.failed(PeerLostError("reset"))
    assert comm.with_process.errors == 1


def test_a_report_is_json(by_process: dict[str, traffic.Traffic]) -> None:
    traffic.CommTraffic(peer(), "ucx://them:1").sent(2 * MIB, time.perf_counter())
    report = json.loads(json.dumps(traffic.report()))
    assert report["process"] == traffic.PROCESS
    assert report["peers"]["them"]["sent_nbytes"] == 2 * MIB
