# SPDX-License-Identifier: BSD-3-Clause
"""The memory of what arrives: aligned, writable, the receiver's alone, and not copied once more."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed.comm import connect
from distributed.protocol import to_serialize
from tests.dask.ends import KIB, Ends, ends_here

pytestmark = pytest.mark.usefixtures("no_comms_left")


def whole(array: np.ndarray) -> object:
    """The object whose memory an array shows."""
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        inner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if inner is None:
            break
        owner = inner
    return owner


async def test_received_arrays_are_aligned_and_writable(ends: Ends) -> None:
    counts = [1, 7, 100, 8191, 8192, 10_000, 20_000]
    async with ends() as (a, b):
        for count in counts:
            sent = np.arange(float(count))
            await a.write({"x": to_serialize(sent), "y": to_serialize(sent[: count // 2 + 1])})
            msg = await b.read()
            for got in (msg["x"], msg["y"]):
                assert np.array_equal(got, sent[: len(got)])
                assert got.flags.aligned
                assert got.flags.writeable
                if got.nbytes >= 64 * KIB:
                    assert got.ctypes.data % 64 == 0
                got += 1
                assert got[0] == 1


async def large_arrive(writer: Any, reader: Any) -> None:
    frame = pd.DataFrame({"i": np.arange(100_000), "f": np.arange(100_000.0), "s": ["a", "b"] * 50_000})
    array = np.arange(9_000_000.0)  # longer than distributed's shards and offloading
    writing = asyncio.create_task(writer.write({"frame": to_serialize(frame), "array": to_serialize(array)}))
    got = await reader.read()
    await writing
    pd.testing.assert_frame_equal(got["frame"], frame)
    assert np.array_equal(got["array"], array)
    assert got["array"].ctypes.data % 64 == 0
    assert got["array"].flags.writeable
    assert type(whole(got["array"])) is not np.ndarray, "the array was copied out of what arrived"


async def test_large_objects_are_views_of_what_arrived() -> None:
    async with ends_here() as (a, b):
        await large_arrive(a, b)


@pytest.mark.slow
async def test_large_objects_come_back_from_another_process(echo: str) -> None:
    comm = await connect(echo)
    await large_arrive(comm, comm)
    await comm.close()


@pytest.mark.parametrize("count", [2, 100_000])
async def test_two_objects_do_not_share_memory(ends: Ends, count: int) -> None:
    async with ends() as (a, b):
        await a.write({"x": [to_serialize(np.zeros(count)), to_serialize(np.zeros(count))]})
        x, y = (await b.read())["x"]
        assert whole(x) is not whole(y)
        assert not np.shares_memory(x, y)
        x += 1
        assert not y.any()


async def test_two_receivers_and_the_sender_do_not_share_memory() -> None:
    sent = np.zeros(100_000)
    async with ends_here() as (a, b), ends_here() as (c, d):
        await a.write(to_serialize(sent))
        await c.write(to_serialize(sent))
        x, y = await b.read(), await d.read()
        x += 1
        assert not y.any()
        assert not sent.any()


async def test_an_array_outlives_its_comm(ends: Ends) -> None:
    sent = np.arange(200_000.0)
    async with ends() as (a, b):
        await a.write(to_serialize(sent))
        got = await b.read()
        await a.write(to_serialize(sent + 1))
        assert np.array_equal(await b.read(), sent + 1)
    assert np.array_equal(got, sent)


async def test_a_sent_array_may_be_changed_at_once(ends: Ends) -> None:
    async with ends() as (a, b):
        for nbytes in (100, 100_000, 600_000):
            sent = np.full(nbytes, 1, dtype="u1")
            reading = asyncio.create_task(b.read())
            await a.write(to_serialize(sent))
            sent[:] = 2
            assert (await reading == 1).all()
