# SPDX-License-Identifier: BSD-3-Clause
"""Reads and writes at once, and how they end: by a close, an abort, a cancellation, an error, or the other's death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Scheduler, Worker
from distributed.comm import CommClosedError, connect, listen
from distributed.comm.core import Comm
from distributed.protocol import to_serialize
from tests.dask.ends import LOOPBACK, MIB, Ends, ends_here, start_listening

import weft

pytestmark = pytest.mark.usefixtures("no_comms_left")


# ---- both directions at once --------------------------------------------------------------------------------


async def test_one_reader_and_one_writer_at_once(ends: Ends) -> None:
    count = 30
    sent = np.random.default_rng(2).integers(0, 256, 200_000, dtype="u1")

    async def write(comm: Any) -> None:
        for number in range(count):
            await comm.write({"number": number, "x": to_serialize(sent)})

    async def read(comm: Any) -> None:
        for number in range(count):
            msg = await comm.read()
            assert msg["number"] == number
            assert np.array_equal(msg["x"], sent)

    async with ends() as (a, b):
        await asyncio.gather(write(a), write(b), read(a), read(b))


async def test_write_during_a_pending_read(ends: Ends) -> None:
    async with ends() as (a, b):
        reading = asyncio.create_task(a.read())
        await asyncio.sleep(0)
        await a.write("ping")
        assert await b.read() == "ping"
        assert not reading.done()
        await b.write("pong")
        assert await reading == "pong"


async def test_close_during_a_pending_read(ends: Ends) -> None:
    async with ends() as (a, b):
        here, there = asyncio.create_task(a.read()), asyncio.create_task(b.read())
        await asyncio.sleep(0)
        await a.close()
        for reading in (here, there):
            with pytest.raises(CommClosedError):
                await reading


@pytest.mark.parametrize("nbytes", [100, 200_000, 1_000_000])
async def test_what_was_written_before_a_close_arrives(ends: Ends, nbytes: int) -> None:
    """Also while this side waits for a message, as distributed's servers always do, and before the other reads."""
    async with ends() as (a, b):
        reading = asyncio.create_task(a.read())
        await asyncio.sleep(0)
        sent = np.ones(nbytes, dtype="u1")

        async def write_and_close() -> None:
            await a.write(to_serialize(sent))
            await a.close()

        closing = asyncio.create_task(write_and_close())
        await asyncio.wait([closing], timeout=0.02)
        assert np.array_equal(await b.read(), sent)
        await closing
        with pytest.raises(CommClosedError):
            await reading
        with pytest.raises(CommClosedError) as e:
            await b.read()
        assert isinstance(e.value.__cause__, weft.PeerClosedError), "the close was an abort"


@pytest.mark.parametrize("beside", ["nothing", "a read", "another close"])
async def test_close_waits_for_a_write_that_waits_for_the_other_side(ends: Ends, beside: str) -> None:
    async with ends() as (a, b):
        writing = []
        while not writing or writing[-1].done():  # until one hangs, as the other side does not read
            writing.append(asyncio.create_task(a.write(to_serialize(np.full(100_000, len(writing), dtype="u1")))))
            await asyncio.wait(writing[-1:], timeout=0.05)
        reading = asyncio.create_task(a.read()) if beside == "a read" else None
        await asyncio.sleep(0)
        closing = [asyncio.create_task(a.close()) for _ in range(1 + (beside == "another close"))]
        await asyncio.wait(closing, timeout=0.02)
        try:
            for number in range(len(writing)):
                assert (await b.read() == number).all()
        finally:
            outcomes = await asyncio.gather(*writing, *closing, return_exceptions=True)
            if reading is not None:
                with pytest.raises(CommClosedError):
                    await reading
        assert [outcome for outcome in outcomes if isinstance(outcome, BaseException)] == []
        with pytest.raises(CommClosedError):
            await b.read()


async def in_a_second_of_turns(true: Callable[[], bool]) -> bool:
    """Whether it is true within a thousand turns of a millisecond each; a busy machine's turns are longer."""
    for _ in range(1000):
        if true():
            return True
        await asyncio.sleep(0.001)
    return False


# ---- endings ------------------------------------------------------------------------------------------------


async def test_a_handler_that_closes_ends_reads_and_writes() -> None:
    async with listen(LOOPBACK, lambda comm: comm.close()) as listener:
        comm = await connect(listener.contact_address)
        with pytest.raises(CommClosedError):
            await comm.write({})
            await comm.read()
        comm = await connect(listener.contact_address)
        with pytest.raises(CommClosedError):
            await comm.read()
        assert comm.closed()


async def test_a_closed_comm_is_closed_for_everything(ends: Ends) -> None:
    async with ends() as (a, b):
        readings = a.read(), b.read()  # not begun
        await a.close()
        for end in (*readings, a.read(), b.read(), a.write({}), b.write({})):
            with pytest.raises(CommClosedError):
                await end
        assert a.closed()
        assert b.closed()
        for comm in (a, b, a, b):
            await comm.close()
            comm.abort()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_closed_tells_that_the_peer_went(ends: Ends, how: str) -> None:
    async with ends() as (a, b):
        assert not a.closed()
        if how == "close":
            await b.close()
        else:
            b.abort()
        assert await in_a_second_of_turns(a.closed)
        with pytest.raises(CommClosedError):
            await a.read()
        with pytest.raises(CommClosedError):
            await a.write("x")


async def test_an_abort_ends_the_other_s_pending_read_and_write(ends: Ends) -> None:
    async with ends() as (a, b):
        reading = asyncio.create_task(a.read())
        await a.write(to_serialize(np.ones(4_000_000)))  # fills the window
        writing = asyncio.create_task(a.write(to_serialize(np.ones(4_000_000))))
        done, _ = await asyncio.wait([reading, writing], timeout=0.05)
        assert not done
        b.abort()
        assert await in_a_second_of_turns(lambda: reading.done() and writing.done())
        for end in (reading, writing):
            with pytest.raises(CommClosedError):
                await end
        assert a.closed()


@pytest.mark.parametrize("nbytes", [1000, 8 * MIB])
async def test_an_abort_leaves_the_other_comms_of_the_two_processes_alone(echo: str, nbytes: int) -> None:
    steady = await connect(echo, deserialize=False)
    sent = to_serialize(np.ones(nbytes // 8))
    try:
        for number in range(5):
            doomed = await connect(echo, deserialize=False)
            writing = asyncio.create_task(doomed.write(sent))
            answering = asyncio.gather(steady.write({"number": number, "data": sent}), steady.read())
            await asyncio.sleep(0)
            doomed.abort()
            _, answer = await answering
            assert answer["number"] == number
            assert sum(memoryview(frame).nbytes for frame in answer["data"].frames) == nbytes
            with contextlib.suppress(CommClosedError):  # a small one was written before
                await writing
        assert not steady.closed()
    finally:
        await steady.close()


async def test_a_read_that_is_cancelled_aborts_the_comm(ends: Ends) -> None:
    async with ends() as (a, b):
        reading = asyncio.create_task(a.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert a.closed()
        with pytest.raises(CommClosedError):
            await b.read()


async def test_a_read_that_times_out_aborts_the_comm(ends: Ends) -> None:
    async with ends() as (a, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(a.read(), 0.01)
        assert a.closed()


async def test_a_write_that_is_cancelled_aborts_the_comm(ends: Ends) -> None:
    async with ends() as (a, b):
        sent = np.ones(4_000_000)  # 32 MB fill the window, and no more is taken before somebody reads
        await a.write(to_serialize(sent))
        writing = asyncio.create_task(a.write(to_serialize(sent)))
        done, _ = await asyncio.wait([writing], timeout=0.05)
        assert not done
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert a.closed()
        with pytest.raises(CommClosedError):
            for _ in range(2):  # the first may have come before
                await b.read()


class Unusual(BaseException):
    """Neither an Exception nor one that asyncio knows."""


@pytest.mark.parametrize("kind", [BufferError, MemoryError, Unusual])
@pytest.mark.parametrize("op", ["send_packed", "recv_frames"])
async def test_any_error_below_aborts_the_comm_and_is_told(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, op: str, kind: type[BaseException]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise kind("below")

    async with ends() as (a, b):
        monkeypatch.setattr(a._peer, op, fail, raising=True)
        with pytest.raises(kind, match="below"):
            await (a.read() if op == "recv_frames" else a.write("x"))
        assert a.closed()
        with pytest.raises(CommClosedError):
            await b.read()


async def test_distributed_may_hang_things_on_a_comm() -> None:
    async with ends_here() as (a, _):
        a.name = "a name"
        a._pool = weakref.ref(a)
        a.allow_offload = False
        assert a in Comm._instances
        assert "a name" in repr(a)


@pytest.mark.slow
async def test_a_worker_does_not_wait_before_it_says_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    # distributed's Worker.close sleeps where the scheme begins with ucx, between ending its calls and telling the
    # scheduler: a peer that sends it a part of a shuffle in between has the whole shuffle fail.
    naps: list[float] = []
    nap = asyncio.sleep

    async def noted(delay: float, *args: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "close":
            naps.append(delay)
        return await nap(delay, *args)

    monkeypatch.setattr(asyncio, "sleep", noted)
    async with Scheduler(host="127.0.0.1", protocol="ucx", dashboard_address=":0") as scheduler:
        worker = await Worker(scheduler.address, nthreads=1)
        assert worker.address.startswith("ucx://")
        await worker.close()
        assert naps == []
        assert not scheduler.workers


async def test_offloading_is_the_listener_s_choice() -> None:
    comms = []

    async def handler(comm: Comm) -> None:
        comms.append(comm)
        await comm.close()

    async with listen(LOOPBACK, handler, allow_offload=False) as listener:
        comm = await connect(listener.contact_address)
        with pytest.raises(CommClosedError):
            await comm.read()
    assert comm.allow_offload
    assert not comms[0].allow_offload


# ---- a process that is killed -------------------------------------------------------------------------------


@pytest.fixture
def child() -> Iterator[Any]:
    """``child(mode)`` starts a process that listens, and gives its address and itself."""
    processes = []

    def start(mode: str) -> tuple[str, subprocess.Popen[str]]:
        address, process = start_listening(mode)
        processes.append(process)
        return address, process

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=100)


def killed(process: Any, reaped: bool) -> None:
    """Kill it, and wait until it has died: on a busy machine that takes its time as well."""
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        process.wait(100)


@pytest.mark.slow
@pytest.mark.parametrize("doing", ["reading", "writing", "idle"])
@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
async def test_a_killed_process_is_noticed_within_a_second(child: Any, doing: str, reaped: bool) -> None:
    address, process = child("sit")
    comm = await connect(address)
    assert comm.transports
    task = None
    if doing == "reading":
        task = asyncio.create_task(comm.read())
    elif doing == "writing":
        await comm.write(to_serialize(np.ones(8_000_000)))  # fills the window
        task = asyncio.create_task(comm.write(to_serialize(np.ones(8_000_000))))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not comm.closed()
    assert task is None or not task.done()
    killed(process, reaped)
    assert await in_a_second_of_turns(lambda: comm.closed() and (task is None or task.done()))
    if task is not None:
        with pytest.raises(CommClosedError):
            await task
    with pytest.raises(CommClosedError):
        await comm.write("x")


@pytest.mark.slow
async def test_a_process_killed_in_mid_transfer(child: Any) -> None:
    address, process = child("read")
    comm = await connect(address)
    sent = to_serialize(np.ones(2_000_000))

    async def write() -> None:
        while True:
            await comm.write(sent)

    writing = asyncio.create_task(write())
    await asyncio.wait([writing], timeout=0.1)
    killed(process, reaped=True)
    assert await in_a_second_of_turns(writing.done)
    with pytest.raises(CommClosedError):
        await writing
    assert comm.closed()
