# SPDX-License-Identifier: BSD-3-Clause
"""Messages arrive as they were written: whatever their frames, their serializers and each side's ``deserialize``."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.comm.core import Comm
from distributed.protocol import Serialized, deserialize, dumps, serialize, to_serialize
from distributed.protocol.serialize import families, register_serialization_family
from tests.dask.ends import KIB, LOOPBACK, MIB, Ends, ends_here

import weft.dask

pytestmark = pytest.mark.usefixtures("no_comms_left")


@pytest.mark.parametrize(
    "msg",
    [
        {},
        "text",
        b"",
        None,
        12345678901234567890,
        {"op": "x", "nested": [{"a": (1, 2.5, None, True)}], "b": b"\0" * 1000},
        {"long": b"x" * 1_000_000},
    ],
    ids=["empty", "str", "bytes", "none", "int", "nested", "1MB"],
)
async def test_a_message_arrives(ends: Ends, msg: Any) -> None:
    async with ends() as (a, b):
        assert isinstance(await a.write(msg), int)
        got = await b.read()
        assert got == msg or got == {"op": "x", "nested": ({"a": (1, 2.5, None, True)},), "b": b"\0" * 1000}
        await b.write(got)
        assert await a.read() == got


async def test_messages_come_one_by_one_and_in_order(ends: Ends) -> None:
    sizes = [8, 300 * KIB, 0, 1, 64 * KIB, 64 * KIB - 1, 255 * KIB, 16] * 3
    async with ends() as (a, b):

        async def write() -> None:
            for number, size in enumerate(sizes):
                await a.write({"number": number, "x": to_serialize(np.full(size, number, dtype="u1"))})

        writing = asyncio.create_task(write())
        for number, size in enumerate(sizes):
            msg = await b.read()
            assert msg["number"] == number
            assert msg["x"].nbytes == size
            assert (msg["x"] == number).all()
        await writing


async def test_write_is_a_coroutine_and_returns_the_size(ends: Ends) -> None:
    async with ends() as (a, b):
        assert inspect.iscoroutinefunction(weft.dask.UCX.write)
        writing = weft.dask.UCX.write(a, "x")
        assert inspect.iscoroutine(writing)
        writing.close()  # distributed's BatchedSend does; nothing was sent
        nbytes = await a.write(to_serialize(np.zeros(25_000)))
        assert type(nbytes) is int
        assert 200_000 < nbytes < 201_000
        assert (await b.read()).nbytes == 200_000


def frames_of(sizes: list[int]) -> list[bytes]:
    noise = np.random.default_rng(0).bytes(max(sizes) + len(sizes))
    return [noise[i : i + size] for i, size in enumerate(sizes)]


SMALL_FRAMES = [
    [0],
    [0, 0, 0],
    [0, 5, 0, 100_000, 0],
    [100_000, 0, 100_000],
    [16 * KIB] * 10,
    [8] * 10_000,
]
LARGE_FRAMES = [
    [(0, 1, 63, 64, 65, 1000)[i % 6] for i in range(10_000)],
    [70_000 if i % 100 == 7 else 100 for i in range(10_000)],
    [64 * KIB + i for i in range(512)],
    [64 * KIB + i % 5 for i in range(513)],
    [64 * KIB + 7 * i for i in range(600)],
    [64 * KIB, 30 * MIB, 8, 3 * MIB],
]


def shape(sizes: list[int]) -> str:
    return f"{len(sizes)}x{min(sizes)}..{max(sizes)}"


async def frames_arrive(writer: Any, reader: Any, sizes: list[int]) -> None:
    frames = frames_of(sizes)
    writing = asyncio.create_task(writer.write({"x": Serialized({"serializer": "test"}, list(frames))}))
    got = (await reader.read())["x"]
    assert await writing >= sum(sizes)
    assert isinstance(got, Serialized)
    assert [bytes(frame) for frame in got.frames] == frames


@pytest.mark.parametrize("sizes", SMALL_FRAMES, ids=shape)
async def test_frames_arrive_as_they_were(ends: Ends, sizes: list[int]) -> None:
    async with ends(deserialize=False) as (a, b):
        await frames_arrive(a, b, sizes)


@pytest.mark.parametrize("sizes", LARGE_FRAMES, ids=shape)
async def test_many_and_large_frames_arrive_as_they_were(sizes: list[int]) -> None:
    async with ends_here(deserialize=False) as (a, b):
        await frames_arrive(a, b, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [*SMALL_FRAMES, *LARGE_FRAMES], ids=shape)
async def test_frames_come_back_from_another_process(echo: str, sizes: list[int]) -> None:
    comm = await connect(echo, deserialize=False)
    await frames_arrive(comm, comm, sizes)
    await comm.close()


async def test_frames_of_any_kind_are_sent(ends: Ends) -> None:
    kinds = [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(np.arange(100_000.0)),
        memoryview(np.arange(6.0).reshape(2, 3)),
        memoryview(b""),
    ]
    async with ends(deserialize=False) as (a, b):
        nbytes = await a.write({"x": Serialized({"serializer": "test"}, list(kinds))})
        assert nbytes > 800_000
        got = (await b.read())["x"].frames
        assert [bytes(frame) for frame in got] == [bytes(frame) for frame in kinds]


def plain(value: Any) -> Any:
    """What a ``to_serialize`` or ``Serialized`` value stands for."""
    return deserialize(value.header, value.frames) if isinstance(value, Serialized) else value


@pytest.mark.parametrize("payload", [456, b"x" * (2 * MIB)], ids=["small", "large"])
@pytest.mark.parametrize("at_listener", [True, False])
@pytest.mark.parametrize("at_connector", [True, False])
async def test_deserialize_is_each_side_s_own(at_listener: bool, at_connector: bool, payload: Any) -> None:
    msg = {"op": "update", "x": b"abc", "to": [to_serialize(payload)], "done": Serialized(*serialize(payload))}

    def check(got: dict[str, Any], deserialized: bool) -> None:
        assert (got["op"], got["x"]) == ("update", b"abc")
        for value in (*got["to"], got["done"]):
            assert isinstance(value, Serialized) is not deserialized
            assert plain(value) == payload

    async def handler(comm: Comm) -> None:
        got = await comm.read()
        check(got, at_listener)
        await comm.write(got if not at_listener else msg)
        await comm.close()

    async with listen(LOOPBACK, handler, deserialize=at_listener) as listener:
        comm = await connect(listener.contact_address, deserialize=at_connector)
        await comm.write(msg)
        check(await comm.read(), at_connector)
        await comm.close()


@pytest.mark.parametrize("flag", [True, False])
async def test_deserialize_round_trip(flag: bool) -> None:
    payload = np.random.default_rng(1).bytes(4 * MIB)
    async with ends_here(deserialize=flag) as (a, b):
        await a.write({"x": payload, "to": [to_serialize(payload)], "done": Serialized(*serialize(payload))})
        await b.write(await b.read())
        got = await a.read()
        assert got["x"] == payload
        for value in (*got["to"], got["done"]):
            assert isinstance(value, Serialized) is not flag
            assert plain(value) == payload


def raise_eof() -> None:
    raise EOFError


class EndsEarly:
    """Unpickling this fails as a truncated message does."""

    def __reduce__(self) -> Any:
        return raise_eof, ()


@pytest.mark.parametrize("count", [100, 100_000])
async def test_a_strided_frame_is_copied(ends: Ends, count: int) -> None:
    numbers = np.arange(count, dtype="f8")
    async with ends() as (a, b):
        await a.write({"x": to_serialize(memoryview(numbers)[::2]), "y": to_serialize(numbers)})
        got = await b.read()
    assert got["x"].strides == (8,)
    assert np.array_equal(np.asarray(got["x"]), numbers[::2])
    assert np.array_equal(got["y"], numbers)


async def test_a_truncated_message_closes_the_comm(ends: Ends) -> None:
    async with ends() as (a, b):
        await a.write({"x": to_serialize(EndsEarly())})
        with pytest.raises(CommClosedError, match="truncated"):
            await b.read()
        assert b.closed()
        with pytest.raises(CommClosedError):
            await a.read()


async def test_what_cannot_be_serialized_leaves_the_comm_alone(ends: Ends) -> None:
    async with ends() as (a, b):
        with pytest.raises(TypeError):
            await a.write({"x": to_serialize(threading.Lock())}, on_error="raise")
        await a.write("still here")
        assert await b.read() == "still here"


async def test_serializers_are_told_both_ends(ends: Ends) -> None:
    contexts = []

    def dumps(x: object, context: Any = None) -> Any:
        contexts.append(context)
        return {}, [b"abc"]

    register_serialization_family("weft-test", dumps, lambda header, frames: bytes(frames[0]))
    try:
        async with ends() as (a, b):
            await a.write({"x": to_serialize(object())}, serializers=["weft-test"])
            assert (await b.read())["x"] == b"abc"
            (context,) = contexts
            assert context["sender"]["address"] == a.local_address
            assert context["recipient"]["address"] == a.peer_address
            assert context["pickle-protocol"] == pickle.HIGHEST_PROTOCOL
    finally:
        del families["weft-test"]


class Counted(list[Any]):
    """Frames that count how often somebody goes through them."""

    walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a walk by numbers")


async def test_frames_of_a_message_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.ones(1000)
    async with ends_here() as (a, b):
        frames = Counted(dumps({"data": {i: to_serialize(array) for i in range(100)}}))
        nbytes = sum(memoryview(frame).nbytes for frame in frames)
        frames.walks = 0

        async def to_frames(*_: Any, **__: Any) -> Counted:
            return frames

        monkeypatch.setattr("weft.dask.comm.to_frames", to_frames)
        assert await a.write("anything") == nbytes
        assert frames.walks == 1
        assert len((await b.read())["data"]) == 100


async def test_a_frame_costs_no_call_of_weft_s() -> None:
    """Python-level calls in weft's files, of a write: as many for 100 frames as for one, but for waiting."""
    own = str(Path(weft.__file__).parent)

    async def calls(n_arrays: int, size: int) -> int:
        msg = {"status": "OK", "data": {i: to_serialize(np.ones(size)) for i in range(n_arrays)}}
        reading = asyncio.create_task(b.read())
        await asyncio.sleep(0)
        count = 0

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal count
            count += event == "call" and frame.f_code.co_filename.startswith(own)

        sys.setprofile(profile)
        try:
            await a.write(msg)
        finally:
            sys.setprofile(None)
        await reading
        return count

    async with ends_here() as (a, b):
        await calls(1, 1000)  # imports
        for size in (1000, 10_000):
            assert await calls(100, size) < await calls(1, size) + 10
