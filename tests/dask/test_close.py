# SPDX-License-Identifier: BSD-3-Clause
"""Workers that are closed by their scheduler and by their nanny at the same time."""

from __future__ import annotations

import asyncio
import inspect
import logging

import pytest
from distributed import Nanny, Scheduler, Worker

OPTIONS = {"dashboard_address": ":0", "protocol": "ucx", "host": "127.0.0.1"}


async def test_a_nanny_that_has_gone_does_not_hold_up_its_worker() -> None:
    async with Scheduler(**OPTIONS) as scheduler:
        worker = await Worker(scheduler.address, nthreads=1, nanny="ucx://127.0.0.1:1")
        scheduler.stream_comms[worker.address].send({"op": "close", "reason": "test"})
        while worker.rpc.open == worker.rpc.active == 0 and not worker.rpc._connecting:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(worker.close(nanny=False), 20)


async def test_a_worker_that_is_closing_already_is_closed_without_an_error() -> None:
    async with Scheduler(**OPTIONS) as scheduler:
        worker = await Worker(scheduler.address, nthreads=1, nanny="ucx://127.0.0.1:1")
        await worker.rpc.close()  # as Worker.close does before it ends
        await asyncio.wait_for(worker.stream_handlers["close"](reason="test"), 20)
        await asyncio.wait_for(worker.close(nanny=False), 20)


async def test_a_nanny_is_told_that_its_worker_closes() -> None:
    async with Scheduler(**OPTIONS) as scheduler, Nanny(scheduler.address, nthreads=1) as nanny:
        scheduler.stream_comms[nanny.worker_address].send({"op": "close", "reason": "test"})
        await asyncio.wait_for(nanny.finished(), 60)  # otherwise it would start another worker


@pytest.mark.slow
async def test_workers_that_an_adaptive_cluster_retires_close_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="distributed"):
        async with Scheduler(**OPTIONS) as scheduler, Nanny(scheduler.address, nthreads=1) as nanny:
            await scheduler.retire_workers(workers=[nanny.worker_address], close_workers=True, remove=True)
        assert "still alive" not in caplog.text


def test_a_nanny_stops_listening_before_its_worker() -> None:
    text = inspect.getsource(Nanny.close)
    assert text.index("self.stop()") < text.index("self.kill(")
