# SPDX-License-Identifier: BSD-3-Clause
"""The offload thread gets what must be pickled, and nothing that is only buffers, whatever its size."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed.comm import utils
from distributed.protocol import dumps, to_serialize
from tests.dask.ends import Ends

from weft.dask import offload
from weft.dask.offload import write_offloads

THRESHOLD = 100 * 1024
NBYTES = 2 * THRESHOLD
ROWS = NBYTES // 8

BUFFERS: dict[str, Any] = {
    "array": np.zeros(ROWS),
    "two dimensions, Fortran": np.zeros((3, ROWS // 3), order="F"),
    "frame": pd.DataFrame({"a": np.zeros(ROWS), "b": np.zeros(ROWS, dtype="i4")}),
    "series": pd.Series(np.zeros(ROWS)),
    "index": pd.Index(np.arange(ROWS)),
}
OBJECTS: dict[str, Any] = {
    "objects": np.full(ROWS, 1.5, dtype=object),
    "strided": np.zeros(2 * ROWS)[::2],
    "frame of objects": pd.DataFrame({"a": pd.Series(range(ROWS), dtype=object)}),
    "text": "x" * NBYTES,
    "list": [1.5] * ROWS,
}


@pytest.fixture(autouse=True)
def threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "OFFLOAD_THRESHOLD", THRESHOLD)


def answer(value: Any) -> dict[str, Any]:
    """What a worker sends for ``get_data``."""
    return {"status": "OK", "data": {"key": to_serialize(value)}}


def frames_of(msg: Any, **context: Any) -> list[Any]:
    return list(dumps(msg, frame_split_size=2**62, context={"compression": None, **context}))


def reads_offloaded(frames: list[Any]) -> bool:
    return offload.read_offloads(frames, sum(memoryview(frame).nbytes for frame in frames))


@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_stay_on_the_loop(kind: str) -> None:
    msg = answer(BUFFERS[kind])
    assert not write_offloads(msg)
    assert not reads_offloaded(frames_of(msg))


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_is_pickled_or_copied_does_not(kind: str) -> None:
    assert write_offloads(answer(OBJECTS[kind]))


@pytest.mark.parametrize("kind", ["text", "objects"])
def test_what_is_unpickled_does_not(kind: str) -> None:
    frames = frames_of(answer(OBJECTS[kind]))
    assert sum(memoryview(frame).nbytes for frame in frames) > THRESHOLD
    assert reads_offloaded(frames)


def test_compressed_frames_are_work() -> None:
    frames = frames_of(answer(np.random.default_rng(0).integers(0, 3, 12 * NBYTES, dtype="u1")), compression="zlib")
    assert 12 * NBYTES > sum(memoryview(frame).nbytes for frame in frames) > THRESHOLD
    assert reads_offloaded(frames)


SMALL = {"op": "get_data", "keys": ["x-1", ("y", 2, 0)], "who": None, "reply": True, "n": 1.5, "deep": [[[b"z"]]]}


def test_a_small_message_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "safe_sizeof", None)
    for msg in (SMALL, [SMALL] * 4, "OK", None):
        assert not write_offloads(msg)


@pytest.mark.parametrize("large", ["x" * NBYTES, b"x" * NBYTES, list(range(NBYTES)), [{"a": ["x" * 1024] * 64}] * 60])
def test_a_large_one_is_found_in_any_depth(large: Any) -> None:
    assert write_offloads({"op": "x", "y": [large]})


def test_a_small_message_is_read_at_once() -> None:
    assert not write_offloads(answer("x"))
    assert not reads_offloaded([b"no message"])


@pytest.mark.parametrize("rest", [[], [b"\xc1"], [b"\x80"], [b"\x81\xaenum-sub-frames\xc0"], [b"\x01"]])
def test_frames_that_are_none_of_dask_s_are_left_to_it(rest: list[bytes]) -> None:
    assert reads_offloaded([bytes(NBYTES), *rest])


@pytest.mark.parametrize("threshold", [0, False])
def test_switched_off(threshold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "OFFLOAD_THRESHOLD", threshold)
    msg = answer(OBJECTS["text"])
    assert not write_offloads(msg)
    assert not reads_offloaded(frames_of(msg))


async def test_a_comm_uses_the_thread_for_objects_only(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    offloaded: list[str] = []

    async def offload(function: Any) -> Any:
        offloaded.append(function.__name__)
        return function()

    monkeypatch.setattr(utils, "offload", offload)
    async with ends() as (a, b):
        for kind in ("array", "frame"):
            _, got = await asyncio.gather(a.write(answer(BUFFERS[kind])), b.read())
            np.testing.assert_array_equal(got["data"]["key"], BUFFERS[kind])
        assert offloaded == []
        _, got = await asyncio.gather(a.write(answer(OBJECTS["text"])), b.read())
        assert got["data"]["key"] == OBJECTS["text"]
        assert offloaded == ["_to_frames", "_from_frames"]
