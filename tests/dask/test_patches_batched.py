# SPDX-License-Identifier: BSD-3-Clause
"""Dask's streams of small messages, ``BatchedSend``: over ``ucx://`` nothing waits to be sent with what comes later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dask
import distributed.batched
import pytest
from distributed import Scheduler, Worker
from distributed.batched import BatchedSend
from tests.dask.test_patches import source

from weft.dask import patches, patches_batched
from weft.dask.comm import UCX


def test_batched_send_is_as_it_was_read() -> None:
    start, send = (getattr(method, "__wrapped__", method) for method in (BatchedSend.start, BatchedSend.send))
    assert patches.takes(start, "self", "comm")
    assert patches.takes(send, "self", "msgs")
    assert "if self.next_deadline is None:\n        self.waker.set()" in source(send)
    background = source(BatchedSend._background_send)
    assert "yield self.waker.wait(self.next_deadline)" in background
    assert "if self.next_deadline is not None and time() < self.next_deadline:\n            continue" in background


@asynccontextmanager
async def stream_of_worker(protocol: str) -> AsyncIterator[BatchedSend]:
    """Start a cluster of one worker, and give its stream to the scheduler, with pauses of an hour."""
    async with (
        Scheduler(protocol=protocol, host="127.0.0.1", dashboard_address=":0") as scheduler,
        Worker(scheduler.address, dashboard=False) as worker,
    ):
        stream = worker.batched_stream
        while stream.next_deadline is not None:  # after what it sent when it started
            await asyncio.sleep(0.001)
        stream.interval = 3600.0
        assert await sent_by(stream, {"op": "keep-alive"}) == 1  # the first after a pause
        yield stream
        stream.interval, stream.next_deadline = 0.0, None  # it waits for this when it closes
        stream.waker.set()


async def sent_by(stream: BatchedSend, *messages: dict[str, Any]) -> int:
    """Give a stream messages one by one, and return how many it has made of them some turns of the loop later."""
    before = stream.batch_count
    for message in messages:
        stream.send(message)
    for _ in range(20):
        await asyncio.sleep(0)
    return int(stream.batch_count - before)


async def test_over_ucx_nothing_that_somebody_waits_for_waits() -> None:
    async with stream_of_worker("ucx") as stream:
        for _ in range(3):
            assert await sent_by(stream, {"op": "keep-alive"}) == 1
            assert not stream.buffer


async def test_news_of_copies_wait_for_other_messages() -> None:
    async with stream_of_worker("ucx") as stream:
        copies = {"op": "add-keys", "keys": [], "stimulus_id": "test"}
        assert await sent_by(stream, copies, copies) == 0
        assert len(stream.buffer) == 2
        assert await sent_by(stream, {"op": "keep-alive"}) == 1
        assert not stream.buffer


async def test_over_tcp_all_messages_wait() -> None:
    async with stream_of_worker("tcp") as stream:
        assert await sent_by(stream, {"op": "keep-alive"}, {"op": "keep-alive"}) == 0
        assert len(stream.buffer) == 2


async def test_the_key_lets_all_messages_wait() -> None:
    with dask.config.set({"weft.send-at-once": False}):
        async with stream_of_worker("ucx") as stream:
            assert await sent_by(stream, {"op": "keep-alive"}) == 0


async def test_what_is_given_in_one_turn_of_the_loop_is_one_message() -> None:
    async with stream_of_worker("ucx") as stream:
        assert await sent_by(stream, *[{"op": "keep-alive"}] * 100) == 1


def test_another_batched_send_keeps_its_own(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Changed:
        def start(self, comm: object, more: object) -> None:
            """It has a parameter more."""

        def send(self, *msgs: object) -> None: ...

    start = Changed.start
    monkeypatch.setattr(distributed.batched, "BatchedSend", Changed)
    patches._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "weft"):
        patches_batched.send_at_once(UCX, lambda: True)
    assert Changed.start is start
    assert "weft does not support Dask's BatchedSend" in caplog.text


def test_one_that_waits_in_another_way_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        def start(self, comm: object) -> None: ...
        def send(self, *msgs: object) -> None: ...

    start = Changed.start
    monkeypatch.setattr(distributed.batched, "BatchedSend", Changed)
    patches_batched.send_at_once(UCX, lambda: True)
    assert Changed.start is start


def test_the_replacement_is_made_once() -> None:
    first = BatchedSend.start, BatchedSend.send
    patches_batched.send_at_once(UCX, lambda: True)
    assert (BatchedSend.start, BatchedSend.send) == first
