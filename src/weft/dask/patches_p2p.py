# SPDX-License-Identifier: BSD-3-Clause
"""The parts of distributed's P2P shuffles that weft replaces: which worker gets which output, the buffer of received
shards, what a worker sends to itself, and a dataframe's shards.

See also ``patches``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dask.sizeof import sizeof

from weft.dask import patches, patches_decisions

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler
    from distributed.worker import Worker

    from weft.dask.memory.shards import Room

_ROOM = "weft-shards"
#: Smaller shards are bytes, as Dask makes them: it sends them many at once, pickled.
_LARGE_NBYTES = 1 << 16


def steer_outputs(scheduler: Scheduler, arrange: Callable[[Sequence[str]], Sequence[str]]) -> list[Callable[[], None]]:
    """Let `arrange` order the workers over which a P2P shuffle spreads its outputs, in runs of neighbours.

    ``ShuffleSchedulerPlugin._calculate_worker_for`` (shuffle/_scheduler_plugin.py:257) passes the workers to the
    spec's ``pick_worker``, in the order in which they joined the cluster, rotated. Returns the undo functions.
    """
    plugin = scheduler.extensions.get("shuffle")

    def chosen(stock: Callable[[Any], Any], spec: Any) -> Any:
        return stock(_Arranged(spec, arrange))

    name = "_calculate_worker_for"
    return [] if plugin is None else patches_decisions.steer(plugin, name, chosen, ("spec",), "ShuffleSchedulerPlugin")


class _Arranged:
    """A shuffle's spec that sees the workers in another order."""

    def __init__(self, spec: Any, arrange: Callable[[Sequence[str]], Sequence[str]]) -> None:
        self._spec, self._arrange = spec, arrange
        self._seen: tuple[Sequence[str], Sequence[str]] = ((), ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec, name)

    def pick_worker(self, partition: Any, workers: Sequence[str]) -> Any:
        if self._seen[0] is not workers:  # the same list for all partitions of a shuffle
            self._seen = workers, self._arrange(workers)
        return self._spec.pick_worker(partition, self._seen[1])


def keep_shards(worker: Worker, room: Room) -> None:
    """Let P2P shuffles keep received shards in memory while there is room, unless the user has disabled the disk.

    A ``ShuffleRun`` looks up ``DiskShardsBuffer`` in its module, and passes its own ``read`` (shuffle/_core.py:115).
    A partition may be read more than once, as from disk: by both sides of a merge of a table with itself, and by a task
    that is run again. (``MemoryShardsBuffer``, shuffle/_memory.py:33, forgets what it has read; Dask uses it for
    rechunks whose user has disabled the disk.)
    """
    core: Any = importlib.import_module("distributed.shuffle._core")
    stock: Any = getattr(core, "DiskShardsBuffer", None)
    if not getattr(stock, "keeps_shards", False):
        known = (
            inspect.isclass(stock)
            and patches.takes(stock, "directory", "read", "memory_limiter")
            and patches.takes(getattr(stock, "_process", None), "self", "id", "shards")
            and patches.takes(getattr(stock, "read", None), "self", "id")
            and patches.takes(getattr(stock, "close", None), "self")
        )
        if not patches.as_known(known, "DiskShardsBuffer", "P2P shuffles write all received shards to disk"):
            return
        core.DiskShardsBuffer = _keeping(stock)
    patches.extend(worker, _ROOM, room)
    hand_over_to_itself()
    lend_tables()


def _room_of(run: Any) -> Room | None:
    worker = getattr(run.digest_metric, "__self__", None)  # another function where Dask's tests make the run
    room: Room | None = getattr(worker, "extensions", {}).get(_ROOM)
    return room


def hand_over_to_itself() -> None:
    """Let a run receive its own shards as they are, if they are for its own worker: one in n of n workers' shards.

    ``ShuffleRun.send`` (shuffle/_core.py:227) sends them to this worker's own address, so they were lent, mapped once
    more, and each page was touched anew. A chunk's shards are copies already, so the chunk is freed as before; but an
    array of objects is copied without its objects.
    """
    core: Any = importlib.import_module("distributed.shuffle._core")
    run: Any = getattr(core, "ShuffleRun", None)
    stock: Any = getattr(run, "send", None)
    if getattr(stock, "hands_over", False):
        return
    known = patches.takes(stock, "self", "address", "shards") and patches.takes(
        getattr(run, "_receive", None), "self", "data"
    )
    if not patches.as_known(known, "ShuffleRun.send", "a worker sends P2P shards to itself as messages"):
        return

    async def send(self: Any, address: str, shards: Any) -> Any:
        if address != self.local_address or _room_of(self) is None or _holds_objects(shards):
            return await stock(self, address, shards)
        self.raise_if_closed()
        await self._receive(shards)  # `receive` would wrap an error for a message (shuffle/_core.py:322)
        return {"status": "OK"}

    send.hands_over = True  # type: ignore[attr-defined]
    run.send = send


def lend_tables() -> None:
    """Have a dataframe's large shards be arrays over Arrow's memory, which can be lent; the buffer above takes both.

    ``serialize_table`` (shuffle/_arrow.py:110, called in shuffle/_shuffle.py:277, 291) lets a stream grow and makes
    bytes of it. Those are pickled, so they are copied again before they are sent, and there, when they are unpickled.
    ``deserialize_table`` takes any buffer.
    """
    module: Any = importlib.import_module("distributed.shuffle._shuffle")
    stock: Any = getattr(module, "serialize_table", None)
    if getattr(stock, "lends", False):
        return
    known = patches.takes(stock, "table") and patches.takes(getattr(module, "deserialize_table", None), "buffer")
    if not patches.as_known(known, "serialize_table", "the shards of dataframes are copied"):
        return
    module.serialize_table = _lending(stock)


def _lending(stock: Callable[[Any], bytes]) -> Callable[[Any], Any]:
    """Write what a table takes into one block of just that size."""

    def serialize_table(table: Any) -> Any:
        if table.nbytes < _LARGE_NBYTES:
            return stock(table)
        np: Any = importlib.import_module("numpy")
        pa: Any = importlib.import_module("pyarrow")
        size = pa.MockOutputStream()
        with pa.ipc.new_stream(size, table.schema) as writer:
            writer.write_table(table)
        into = pa.allocate_buffer(size.size())
        with pa.FixedSizeBufferWriter(into) as stream, pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        return np.frombuffer(into, np.uint8)

    serialize_table.lends = True  # type: ignore[attr-defined]
    return serialize_table


def _as_on_disk(shard: Any) -> Any:
    """Return a dataframe's shard as the bytes that Dask writes. Lists of arrays, which Dask pickles, stay."""
    return shard.tobytes() if hasattr(shard, "tobytes") else shard


def _holds_objects(part: Any) -> bool:
    """Tell whether shards have arrays of Python objects: readers would share these, and nobody knows their size."""
    if isinstance(part, (list, tuple)):
        return any(map(_holds_objects, part))  # pyright: ignore[reportUnknownArgumentType]
    return bool(getattr(getattr(part, "dtype", None), "hasobject", False))


def _keeping(stock: Any) -> type:
    """Make a buffer class that keeps shards while the worker has room, and writes the rest to disk."""
    unavailable: type[Exception] = importlib.import_module("distributed.shuffle._exceptions").DataUnavailable

    class KeepingShardsBuffer(stock):  # type: ignore[misc]
        keeps_shards = True

        def __init__(self, directory: Any, read: Any, memory_limiter: Any) -> None:
            stock.__init__(self, directory, read, memory_limiter)
            run = read.__self__
            self._run = run
            self._room = _room_of(run)
            self._kept: dict[str, list[tuple[int, Any]]] = {}
            self._on_disk_nbytes = 0
            self._exception: Exception | None
            # A reader must find every shard of a partition, in memory or on disk. It never runs on the event loop.
            self._moving = threading.Lock()
            self._reading: Counter[str] = Counter()
            if self._room is not None:
                self._room.add(self)

        async def _process(self, id: str, shards: list[Any]) -> None:  # noqa: A002 - Dask's name
            room = self._room
            if room is not None and self._on_disk_nbytes > room.most_nbytes:
                room = None  # what is kept would only add to the peak of memory
            on_disk = self._give_up(id) if room is None else []  # nobody reads before all shards have come
            for shard in shards:
                nbytes = sizeof(shard)
                if room is not None and not _holds_objects(shard) and room.take(nbytes):
                    self._kept.setdefault(id, []).append((nbytes, shard))
                else:
                    on_disk.append(shard)
                    self._on_disk_nbytes += nbytes
            if on_disk:
                await self._write(id, on_disk)

        def _give_up(self, id: str) -> list[Any]:  # noqa: A002
            """Return what is kept of a partition, if nobody reads it now, to be written to disk."""
            kept = [] if self._reading[id] else self._kept.pop(id, [])
            nbytes = sum(nbytes for nbytes, _ in kept)
            self._on_disk_nbytes += nbytes
            if self._room is not None:
                self._room.written(nbytes)
            return [shard for _, shard in kept]

        async def _write(self, id: str, shards: list[Any]) -> None:  # noqa: A002
            await stock._process(self, id, [_as_on_disk(shard) for shard in shards])

        async def give_way(self) -> None:
            assert self._room is not None
            # What was read already is probably not read again.
            for id in sorted(self._kept, key=lambda id: id not in self._reading):  # noqa: A001, A006 - Dask's name
                if self._exception or not self._room.excess():
                    return
                with self._moving:
                    kept = self._give_up(id)
                    try:
                        if kept:
                            await self._write(id, kept)
                    except Exception as e:  # noqa: BLE001 - as `ShardsBuffer.process`: a reader is told
                        self._exception = e
                del kept
                await asyncio.sleep(0)

        def read(self, id: str) -> Any:  # noqa: A002
            """Read a partition. Its shards stay until the shuffle ends: another task may read it, or the same again."""
            with self._moving:
                self._reading[id] += 1
                kept = list(self._kept.get(id, ()))
            try:
                found: list[Any] = stock.read(self, id)
            except unavailable:
                if not kept:
                    raise
                found = []
            finally:
                with self._moving:
                    self._reading[id] -= 1
            found.extend(self._run.deserialize(shard) for _, shard in kept)
            self.bytes_read: int = self.bytes_read + sum(nbytes for nbytes, _ in kept)
            return found

        def drop_unreadable(self) -> None:
            run = self._run
            if not run.closed:
                return
            # A run that closes waits for its sends before it closes this: 30 s if one is for a worker that has died.
            self._drop()
            # Contexts of asyncio's tasks keep a closed run alive, often as long as its worker lives. What failed it was
            # raised in Dask's tasks, and their frames hold partitions.
            for error in (run._exception, run._comm_buffer._exception, self._exception):
                if error is not None:
                    error.__traceback__ = None

        def _drop(self) -> None:
            kept, self._kept = self._kept, {}
            if self._room is not None:
                self._room.leave(sum(nbytes for shards in kept.values() for nbytes, _ in shards))

        async def close(self) -> None:
            await stock.close(self)
            self._drop()

    return KeepingShardsBuffer
