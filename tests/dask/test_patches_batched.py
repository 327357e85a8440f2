# SPDX-License-Identifier: BSD-3-Clause
"""Dask's streams of small messages, ``BatchedSend``: over ``ucx://`` nothing waits to be sent with what comes later."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import dask
import distributed.batched
import pytest
from distributed import Client, Scheduler, Worker
from distributed.batched import BatchedSend
from tests.dask.test_patches import source

from weft.dask import patches, patches_batched
from weft.dask.comm import UCX


def test_the_interval_of_batched_send_is_as_it_was_read() -> None:
    assert patches.takes(BatchedSend.start, "self", "comm")
    code = source(BatchedSend)
    assert "self.interval = parse_timedelta(interval, default='ms')" in code
    assert "self.next_deadline = time() + self.interval" in code
    assert code.count("self.interval") == 2


async def intervals(protocol: str) -> list[float]:
    """Return the intervals of all streams of a cluster of one worker and one client."""
    async with (
        Scheduler(protocol=protocol, host="127.0.0.1", dashboard_address=":0") as scheduler,
        Worker(scheduler.address, dashboard=False) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        streams = (
            *scheduler.stream_comms.values(),
            *scheduler.client_comms.values(),
            worker.batched_stream,
            client.scheduler_comm,
        )
        assert await client.submit(sum, range(10)) == 45
        return sorted(stream.interval for stream in streams)


async def test_streams_over_ucx_send_at_once() -> None:
    assert await intervals("ucx") == [0, 0, 0, 0]


async def test_streams_over_tcp_keep_their_intervals() -> None:
    assert await intervals("tcp") == [0.002, 0.002, 0.005, 0.01]


async def test_the_key_leaves_dasks_intervals() -> None:
    with dask.config.set({"weft.send-at-once": False}):
        assert await intervals("ucx") == [0.002, 0.002, 0.005, 0.01]


async def test_what_is_given_in_one_turn_of_the_loop_is_one_message() -> None:
    async with (
        Scheduler(protocol="ucx", host="127.0.0.1", dashboard_address=":0") as scheduler,
        Worker(scheduler.address, dashboard=False) as worker,
    ):
        stream = worker.batched_stream
        before = stream.batch_count
        for _ in range(100):
            stream.send({"op": "keep-alive"})
        while stream.buffer:
            await asyncio.sleep(0)
        assert stream.batch_count == before + 1


def test_another_batched_send_keeps_its_own(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Changed:
        def start(self, comm: object, more: object) -> None:
            """It has a parameter more."""

    start = Changed.start
    monkeypatch.setattr(distributed.batched, "BatchedSend", Changed)
    patches._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "weft"):
        patches_batched.send_at_once(UCX, lambda: True)
    assert Changed.start is start
    assert "weft does not support Dask's BatchedSend" in caplog.text


def test_the_replacement_is_made_once() -> None:
    first = BatchedSend.start
    patches_batched.send_at_once(UCX, lambda: True)
    assert BatchedSend.start is first
    stream = SimpleNamespace(interval=0.005, loop=SimpleNamespace(add_callback=lambda _: None), _background_send=None)
    first(stream, object())
    assert stream.interval == 0.005
