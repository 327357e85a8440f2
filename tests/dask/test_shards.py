# SPDX-License-Identifier: BSD-3-Clause
"""P2P's shards: kept in memory while there is room, on disk where there is none, and lent on the way."""

from __future__ import annotations

import asyncio
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.sizeof import sizeof
from distributed import Client
from distributed.shuffle._arrow import deserialize_table, serialize_table
from distributed.shuffle._core import ShuffleId, ShuffleRun
from distributed.shuffle._disk import DiskShardsBuffer
from distributed.shuffle._exceptions import P2PConsistencyError, ShuffleClosedError
from distributed.shuffle._limiter import ResourceLimiter
from distributed.shuffle._rechunk import ArrayRechunkRun
from distributed.shuffle._shuffle import DataFrameShuffleRun
from tests.dask.clusters import TIMEOUT_S, local_cluster

from weft import _native
from weft.dask.memory.shards import Room
from weft.dask.patches_p2p import _keeping, _lending, hand_over_to_itself

MIB = 1 << 20


def test_shards_are_a_part_of_the_limit_at_most() -> None:
    room = Room(400, 1000, measure=lambda: 0)
    assert [room.take(60), room.take(60), room.take(40)] == [True, False, True]
    room.leave(60)
    assert room.take(60)


def test_above_what_is_plenty_nothing_is_kept() -> None:
    now, memory = [0.0], [50]
    room = Room(400, 100, measure=lambda: memory[0], clock=lambda: now[0])
    assert [room.take(30), room.take(30), room.take(20)] == [True, False, True]  # and what came since counts
    now[0], memory[0] = 1.0, 100
    assert not room.take(1)
    now[0], memory[0] = 2.0, 99
    assert room.take(1)


def test_shards_leave_room_for_what_the_worker_lately_had_beside_them() -> None:
    now, memory = [0.0], [700]
    room = Room(1000, 10_000, measure=lambda: memory[0], clock=lambda: now[0])
    assert [room.take(60), room.take(60), room.take(40)] == [True, False, True]  # 800 with them
    now[0], memory[0] = 1.0, 100 + 100
    assert not room.take(1)
    for now[0] in (31.0, 62.0):
        room.note(200)
    assert room.take(100)


class Folder:
    """Stands in for a run of P2P's: a worker's, with room for shards."""

    def __init__(self, room: Room) -> None:
        self.extensions = {"weft-shards": room}

    def digest_metric(self, *_: Any) -> None:
        raise NotImplementedError


class Run:
    closed = False
    _exception: Exception | None = None

    def __init__(self, room: Room) -> None:
        self._comm_buffer = types.SimpleNamespace(_exception=None)
        self.digest_metric: Callable[..., None] = Folder(room).digest_metric

    def deserialize(self, buffer: Any) -> Any:
        return buffer

    read = ArrayRechunkRun.read


async def test_where_memory_is_short_shards_go_to_disk_and_are_found_there(tmp_path: Path) -> None:
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    limiter = ResourceLimiter(None)
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", Run(room).read, limiter)
    shards = {str(n): ((n,), np.full(MIB // 16, n, "f8")) for n in range(2)}  # half a MiB each
    await buffer.write(shards)
    await buffer.flush()
    assert not list((tmp_path / "shards").iterdir())
    room.note(2 * MIB + 1)
    room.relieve()
    assert room._relief is not None
    await room._relief
    assert len(list((tmp_path / "shards").iterdir())) == 1  # enough
    assert not room.excess()
    for name in shards:
        ((((number,), found),),) = (buffer.read(name),)
        assert (int(name), (found == number).all()) == (number, True)
    await buffer.close()
    room.note(4 * MIB)
    assert not room.excess()


async def test_a_partition_is_read_as_often_as_asked_for(tmp_path: Path) -> None:
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", Run(room).read, ResourceLimiter(None))
    await buffer.write({"0": ((0,), np.ones(MIB // 16))})
    await buffer.flush()
    for _ in range(2):
        ((((number,), found),),) = (buffer.read("0"),)
        assert (number, found.sum()) == (0, MIB // 16)
    room.note(3 * MIB)
    room.relieve()
    assert room._relief is not None
    await room._relief
    assert len(list((tmp_path / "shards").iterdir())) == 1
    ((((number,), found),),) = (buffer.read("0"),)
    assert (number, found.sum()) == (0, MIB // 16)
    await buffer.close()
    assert room._kept == 0


async def test_objects_go_to_disk_and_are_no_readers_twice(tmp_path: Path) -> None:
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", Run(room).read, ResourceLimiter(None))
    numbers = (0,), np.ones(2)
    await buffer.write({"0": ((0,), np.array([{"n": 0}, b"x" * MIB], dtype=object)), "1": numbers})
    await buffer.flush()
    assert room._kept == sizeof(numbers)
    one, other = (buffer.read("0")[0][1] for _ in range(2))
    one[0]["n"] = 7
    assert (other[0]["n"], len(other[1])) == (0, MIB)
    await buffer.close()
    assert room._kept == 0


async def test_what_was_read_gives_way_first(tmp_path: Path) -> None:
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", Run(room).read, ResourceLimiter(None))
    await buffer.write({name: ((int(name),), np.ones(MIB // 16)) for name in "012"})  # half a MiB each
    await buffer.flush()
    buffer.read("1")
    room.note(2 * MIB + 1)
    await buffer.give_way()
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["1"]
    await buffer.close()


async def test_a_shuffle_far_too_large_for_the_room_is_not_kept_in_part(tmp_path: Path) -> None:
    """What is kept would only add to the memory that reading the rest takes."""
    room = Room(4 * MIB, 8 * MIB, measure=lambda: 0)  # one of these
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", Run(room).read, ResourceLimiter(None))
    sizes = []
    for number in range(12):  # half a MiB each
        await buffer.write({str(number % 2): ((number,), np.full(MIB // 16, number, "f8"))})
        async with asyncio.timeout(TIMEOUT_S):
            while buffer.bytes_memory:
                await asyncio.sleep(0)
        sizes.append(room._kept)
    await buffer.flush()
    assert max(sizes) > MIB // 2
    assert room._kept == 0
    for half in range(2):
        found = [int(number) for ((number,), _) in buffer.read(str(half))]
        assert sorted(found) == list(range(half, 12, 2))
    await buffer.close()


async def test_what_is_being_read_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its shards would be found twice."""
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    stock = DiskShardsBuffer.read
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", Run(room).read, ResourceLimiter(None))
    await buffer.write({"0": ((0,), np.ones(MIB // 16))})
    await buffer.flush()
    loop, met = asyncio.get_running_loop(), []

    def read(self: Any, id: str) -> Any:  # noqa: A002 - Dask's name
        room.note(3 * MIB)
        asyncio.run_coroutine_threadsafe(self.give_way(), loop).result(TIMEOUT_S)
        met.append(id)
        return stock(self, id)

    monkeypatch.setattr(DiskShardsBuffer, "read", read)
    assert len(await asyncio.to_thread(buffer.read, "0")) == 1
    assert met == ["0"]
    await buffer.give_way()
    assert len(list((tmp_path / "shards").iterdir())) == 1
    await buffer.close()


async def test_a_run_that_waits_for_its_sends_to_close_holds_no_shards(tmp_path: Path) -> None:
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    run = Run(room)
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", run.read, ResourceLimiter(None))
    await buffer.write({name: ((int(name),), np.ones(MIB // 16)) for name in "01"})
    await buffer.flush()
    room.relieve()
    assert room._kept
    assert buffer.read("0")
    run.closed = True
    room.relieve()
    assert (room._kept, buffer._kept) == (0, {})
    await buffer.close()
    assert room._kept == 0


async def test_a_failed_run_holds_nothing_of_the_tasks_that_raised_its_errors(tmp_path: Path) -> None:
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    run = Run(room)
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", run.read, ResourceLimiter(None))
    run._exception = run._comm_buffer._exception = buffer._exception = RuntimeError("a worker left")
    partitions = []

    def task() -> None:
        partition = np.ones(MIB // 16)
        partitions.append(weakref.ref(partition))
        raise run._exception  # type: ignore[misc]

    with pytest.raises(RuntimeError):
        task()
    room.relieve()
    assert partitions[0]() is not None
    run.closed = True
    room.relieve()
    assert partitions[0]() is None
    await buffer.close()


async def test_a_run_of_no_worker_writes_its_shards_to_disk(tmp_path: Path) -> None:
    run = Run(Room(8 * MIB, 2 * MIB, measure=lambda: 0))
    run.digest_metric = lambda *_: None  # as in distributed's own tests
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", run.read, ResourceLimiter(None))
    await buffer.write({"0": ((0,), np.ones(9))})
    await buffer.flush()
    assert len(list((tmp_path / "shards").iterdir())) == 1
    ((((number,), found),),) = (buffer.read("0"),)
    assert (number, found.sum()) == (0, 9)
    await buffer.close()


class Sending(ShuffleRun[int, object]):
    """A run that only sends: to others by a message, to itself by a call."""

    id, run_id, RETRY_COUNT = ShuffleId("shuffle"), 1, 0
    RETRY_DELAY_MIN = RETRY_DELAY_MAX = 0.0

    def __init__(self, room: Room | None) -> None:
        self.local_address, self.closed, self._exception = "ucx://here", False, None
        self.digest_metric = Folder(room).digest_metric if room else lambda *_: None
        self.seen: list[tuple[str, object]] = []
        self.raises: Exception | None = None

    async def _send(self, address: str, shards: object) -> Any:
        self.seen.append((address, shards))
        return {"status": "OK"}

    async def _receive(self, data: object) -> None:
        if self.raises:
            raise self.raises
        self.seen.append(("received", data))

    _get_assigned_worker = _get_output_partition = _shard_partition = deserialize = read = validate_data = None  # type: ignore[assignment]


async def test_a_worker_hands_its_own_shards_over_as_they_are() -> None:
    hand_over_to_itself()
    room = Room(8 * MIB, 2 * MIB, measure=lambda: 0)
    shards = [(1, [b"small"]), (2, np.ones(MIB))]
    run = Sending(room)
    assert await run.send("ucx://here", shards) == {"status": "OK"}
    ((name, seen),) = run.seen
    assert (name, seen is shards) == ("received", True)
    await run.send("ucx://there", shards)
    assert run.seen[1] == ("ucx://there", shards)
    without_weft = Sending(None)
    await without_weft.send("ucx://here", shards)
    assert without_weft.seen == [("ucx://here", shards)]
    objects = [((0,), [((0,), ((0,), np.array([{"n": 0}] * 9000, dtype=object)))])]
    await run.send("ucx://here", objects)  # the receiver's own, as by any message
    assert run.seen[2] == ("ucx://here", objects)
    run.raises = P2PConsistencyError("not this run")
    with pytest.raises(P2PConsistencyError, match="not this run"):
        await run.send("ucx://here", shards)
    run.closed = True
    with pytest.raises(ShuffleClosedError):
        await run.send("ucx://here", shards)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(n_workers=2, memory_limit=800 * MIB) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        yield client


def moved(dask_worker: Any) -> tuple[int, int, int]:
    """Return the bytes that a worker read back from P2P's files, those that it lent and those that it staged."""
    totals = dask_worker.digests_total.items()
    read = sum(n for name, n in totals if name[0] == "p2p" and name[-2:] == ("disk-read", "bytes"))
    pool = _native.pool_statistics()
    return int(read), pool["lent_total_nbytes"], pool["staged_total_nbytes"]


def leave_room_for(nbytes: int, dask_worker: Any) -> None:
    dask_worker.extensions["weft-shards"].most_nbytes = nbytes


def numbers(part: int, rows: int) -> Any:
    values = np.arange(part * rows, (part + 1) * rows)
    return pd.DataFrame({"key": values % 97, "value": values})


def numbered(n: int, chunks: tuple[int, int]) -> Any:
    return da.fromfunction(lambda i, j: i * n + j, shape=(n, n), chunks=chunks, dtype="f8")


def table(rows: int) -> Any:
    return pa.table({"a": np.arange(rows), "b": pa.array([f"{row:08}" for row in range(rows)])})


@pytest.mark.parametrize(("rows", "kind"), [(0, bytes), (100, bytes), (100_000, np.ndarray)])
def test_large_shards_of_a_dataframe_are_arrays_and_as_on_disk(rows: int, kind: type) -> None:
    shard = _lending(serialize_table)(table(rows))
    assert type(shard) is kind
    assert sizeof(shard) >= len(shard) == len(serialize_table(table(rows)))
    assert bytes(shard) == serialize_table(table(rows))
    assert deserialize_table(shard) == table(rows)


async def test_a_dataframes_shards_are_found_in_memory_and_on_disk(tmp_path: Path) -> None:
    class Tables(Run):
        deserialize = staticmethod(deserialize_table)
        read = DataFrameShuffleRun.read

    room = Room(16 * MIB, 8 * MIB, measure=lambda: 0)  # a quarter: two of these
    buffer = _keeping(DiskShardsBuffer)(tmp_path / "shards", Tables(room).read, ResourceLimiter(None))
    write = _lending(serialize_table)
    for _ in range(4):
        await buffer.write({"0": write(table(100_000)), "1": write(table(10))})
    await buffer.flush()
    assert (tmp_path / "shards" / "0").stat().st_size == 2 * len(write(table(100_000)))
    assert sum(len(found) for found in buffer.read("0")) == 400_000
    assert sum(len(found) for found in buffer.read("1")) == 40
    await buffer.close()


@pytest.mark.slow
@pytest.mark.parametrize("n", [400_000, 4_000_000])  # 6 MiB, and 61 MiB: some of it goes to disk
def test_a_shuffle_of_a_dataframe_lends_shards(client: Client, n: int) -> None:
    client.run(leave_room_for, 10 * MIB)
    before = client.run(moved)
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        frame = dd.from_map(numbers, range(4), rows=n // 4).shuffle("key", npartitions=4)
        sums = frame.map_partitions(lambda part: part.sum().to_frame().T).compute()
    assert sums["value"].sum() == n * (n - 1) // 2
    after = client.run(moved)
    lent, staged = (sum(after[w][i] - before[w][i] for w in after) for i in (1, 2))
    assert lent > 16 * n // 4
    assert staged == 0


@pytest.mark.slow
def test_a_table_is_merged_with_itself(client: Client) -> None:
    """Both sides are one shuffle, whose partitions are read twice."""
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        frame = dd.from_map(numbers, range(4), rows=25_000)
        merged = frame.merge(frame, on="value", how="outer", indicator=True).compute()
    assert len(merged) == 100_000
    assert (merged["_merge"] == "both").all()
    assert (merged["key_x"] == merged["key_y"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "on_disk"), [(2048, False), (4096, True)])  # 32 and 128 MiB
def test_a_rechunk_lends_shards_and_keeps_them_while_there_is_room(client: Client, n: int, *, on_disk: bool) -> None:
    client.run(leave_room_for, 40 * MIB)  # in each of two workers
    before = client.run(moved)
    with dask.config.set({"array.rechunk.method": "p2p"}):
        y = numbered(n, (n, n // 8)).rechunk((n // 8, n))
    assert int((y != numbered(n, (n // 8, n))).sum().compute()) == 0
    after = client.run(moved)
    read, lent = (sum(after[w][i] - before[w][i] for w in after) for i in (0, 1))
    assert bool(read) is on_disk
    assert lent > n * n * 8 // 4


def counted(block: Any, *, change: bool) -> Any:
    """Count in each object of a block, and return what they count."""
    for each in block.flat:
        each["n"] += change
    return np.array([each["n"] for each in block.flat]).reshape(block.shape)


def test_a_task_that_changes_rechunked_objects_changes_its_own(client: Client) -> None:
    objects = np.array([{"n": 0} for _ in range(400)], dtype=object).reshape(20, 20)
    x = da.from_array(objects, chunks=(5, 20)).persist()
    with dask.config.set({"array.rechunk.method": "p2p"}):
        y = x.rechunk((20, 5))
    assert int(y.map_blocks(counted, change=True, dtype=int).sum().compute()) == 400
    assert int(x.map_blocks(counted, change=False, dtype=int).sum().compute()) == 0
