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
from tests.dask.pairs import MIB, pair_here, start_listening, until

from weft.dask.observe import traffic
from weft.errors import PeerClosedError, PeerLostError


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> dict[str, traffic.Record]:
    """The records, none of them there yet."""
    records: dict[str, traffic.Record] = {}
    monkeypatch.setattr(traffic, "records", records)
    monkeypatch.setattr(traffic, "lanes", {})
    return records


def peer(process: object = "them", **kwargs: Any) -> Any:
    return SimpleNamespace(remote={"process": process}, transports=["tcp/eth0"], lent_nbytes=(0, 0), **kwargs)


# ---- by real comms ----------------------------------------------------------------------------------------------


async def test_messages_and_bytes_are_counted_both_ways(echo: str, records: dict[str, traffic.Record]) -> None:
    comm = await connect(echo, deserialize=False)
    (record,) = records.values()
    before = record.row()
    nbytes = await comm.write({"x": b"a" * 2 * MIB})
    await comm.read()
    after = record.row()
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


async def test_all_comms_with_a_process_share_a_record(echo: str, records: dict[str, traffic.Record]) -> None:
    comms = [await connect(echo, deserialize=False) for _ in range(3)]
    (record,) = records.values()
    assert record.process != traffic.PROCESS
    assert record.comms == 3
    for comm in comms:
        await comm.close()
    del comm, comms
    gc.collect()
    assert record.comms == 0


async def test_both_ends_in_this_process_count_in_one_record(records: dict[str, traffic.Record]) -> None:
    async with pair_here() as (a, b):
        await a.write("hello")
        await b.read()
        (record,) = records.values()
        assert record.process == traffic.PROCESS
        assert record.sent_messages == record.received_messages
        assert record.sent_nbytes == record.received_nbytes


@pytest.mark.slow
async def test_a_comm_that_breaks_is_an_error_and_a_goodbye_is_none(records: dict[str, traffic.Record]) -> None:
    address, process = start_listening("sit")
    comm = await connect(address, deserialize=False)
    (record,) = records.values()
    process.kill()
    process.communicate(timeout=100)
    with pytest.raises(CommClosedError):
        await comm.read()
    assert record.errors == 1

    async with pair_here() as (a, b):
        await a.close()
        await until(b.closed)
        with pytest.raises(CommClosedError):
            await b.read()
    assert records[traffic.PROCESS].errors == 0


# ---- by themselves ----------------------------------------------------------------------------------------------


def test_what_was_lent_did_not_move(records: dict[str, traffic.Record]) -> None:
    them = peer()
    account = traffic.Account(them, "ucx://them:1")
    them.lent_nbytes = (3 * MIB, 0)
    assert account.sent([b"head", bytes(3 * MIB)], time.perf_counter() - 1.0) == 3 * MIB + 4
    record = records["them"]
    assert (record.sent_nbytes, record.lent_nbytes) == (3 * MIB + 4, 3 * MIB)
    assert record.bandwidth_Bps is None  # 4 B are no transfer
    them.lent_nbytes = (3 * MIB, MIB)
    account.received([bytearray(MIB), bytearray(10)])
    assert (record.received_nbytes, record.borrowed_nbytes) == (MIB + 10, MIB)
    assert (record.lent_messages, record.borrowed_messages) == (1, 1)
    account.sent([bytes(2 * MIB)], time.perf_counter() - 1.0)
    assert (record.lent_nbytes, record.lent_messages) == (3 * MIB, 1)
    assert record.bandwidth_Bps == pytest.approx(2 * MIB, rel=0.1)


def test_the_bandwidth_is_of_the_latest_transfers(records: dict[str, traffic.Record]) -> None:
    account = traffic.Account(peer(), "ucx://them:1")
    for seconds in [10.0] * 40 + [1.0] * 20:
        account.sent([bytes(MIB)], time.perf_counter() - seconds)
    assert records["them"].bandwidth_Bps == pytest.approx(MIB, rel=0.1)
    assert records["them"].sent_messages == 60


@pytest.fixture
def digests() -> Iterator[list[tuple[Any, float, str]]]:
    digests: list[tuple[Any, float, str]] = []
    with context_meter.add_callback(lambda label, value, unit: digests.append((label, value, unit))):
        yield digests


def test_sends_and_receives_are_activities_of_who_sends_and_receives(
    records: dict[str, traffic.Record], digests: list[tuple[Any, float, str]]
) -> None:
    them = peer()
    account = traffic.Account(them, "ucx://them:1")
    them.lent_nbytes = (100, 0)
    account.sent([bytes(130)], time.perf_counter())
    (seconds,) = (d for d in digests if d[2] == "seconds")
    assert seconds[0] == "weft tcp/eth0"
    assert [d for d in digests if d[2] != "seconds"] == [
        ("weft tcp/eth0", 1, "count"),
        ("weft tcp/eth0", 30, "bytes"),
        ("weft lent", 100, "bytes"),
    ]
    digests.clear()
    account.received([bytes(7)])
    # No seconds: a receiver waits, it cannot tell for what. They stay in distributed's "network".
    assert digests == [("weft tcp/eth0", 1, "count"), ("weft tcp/eth0", 7, "bytes")]


@pytest.mark.parametrize("said", [None, 5, "", "x" * 65, ["a"]])
def test_who_says_no_proper_name_is_known_by_its_address(said: object, records: dict[str, traffic.Record]) -> None:
    account = traffic.Account(peer(said), "ucx://them:1")
    assert list(records) == [account.record.process] == ["ucx://them:1"]


def test_who_is_gone_is_added_up_before_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, records: dict[str, traffic.Record]
) -> None:
    monkeypatch.setattr(traffic, "MOST_RECORDS", 4)
    stays = traffic.Account(peer("stays"), "ucx://them:1")
    for i in range(20):
        traffic.Account(peer(f"goes {i}"), "ucx://them:2").sent([b"12345"], time.perf_counter())
    assert len(records) <= 4
    assert records["stays"] is stays.record
    assert sum(r.sent_messages for r in records.values()) == 20
    assert sum(r.sent_nbytes for r in records.values()) == 100


def test_counters_of_a_lane_never_go_down(monkeypatch: pytest.MonkeyPatch, records: dict[str, traffic.Record]) -> None:
    """Prometheus takes a counter that goes down for one that began anew."""
    prometheus = pytest.importorskip("weft.dask.observe.prometheus")
    monkeypatch.setattr(traffic, "MOST_RECORDS", 4)
    before: dict[tuple[str, str], float] = {}
    for i in range(40):
        them = peer("comes back" if i % 10 == 0 else f"goes {i}")
        them.transports = ["tcp/eth0"] if i % 3 else ["posix/memory", "tcp/eth0"]
        account = traffic.Account(them, "ucx://them:2")
        them.lent_nbytes = (2, 1)
        account.sent([b"12345"], time.perf_counter())
        account.received([b"123"])
        del account
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
    assert len(records) <= 4


def test_an_error_is_only_what_broke(records: dict[str, traffic.Record]) -> None:
    account = traffic.Account(peer(), "ucx://them:1")
    account.failed(PeerClosedError("goodbye"))
    assert account.record.errors == 0
    account.failed(PeerLostError("reset"))
    assert account.record.errors == 1


def test_a_report_is_json(records: dict[str, traffic.Record]) -> None:
    traffic.Account(peer(), "ucx://them:1").sent([bytes(2 * MIB)], time.perf_counter())
    report = json.loads(json.dumps(traffic.report()))
    assert report["process"] == traffic.PROCESS
    assert report["peers"]["them"]["sent_nbytes"] == 2 * MIB
