# SPDX-License-Identifier: BSD-3-Clause
"""The part of distributed's P2P shuffles that weft replaces: the buffer of received shards. See also ``patches``."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask.sizeof import sizeof

from weft.dask import patches

if TYPE_CHECKING:
    from distributed.worker import Worker

    from weft.dask.memory.shards import Room

_ROOM = "weft-shards"


def keep_shards(worker: Worker, room: Room) -> None:
    """Let P2P shuffles keep received shards in memory while there is room, unless the user has disabled the disk.

    A ``ShuffleRun`` looks up ``DiskShardsBuffer`` in its module, and passes its own ``read`` (shuffle/_core.py:115).
    Kept shards are returned as by ``MemoryShardsBuffer`` (shuffle/_memory.py:33).
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


def _keeping(stock: Any) -> type:
    """Make a buffer class that keeps shards while the worker has room, and writes the rest to disk."""
    unavailable: type[Exception] = importlib.import_module("distributed.shuffle._exceptions").DataUnavailable

    class KeepingShardsBuffer(stock):  # type: ignore[misc]
        keeps_shards = True

        def __init__(self, directory: Any, read: Any, memory_limiter: Any) -> None:
            stock.__init__(self, directory, read, memory_limiter)
            run = read.__self__
            self._deserialize: Callable[[Any], Any] = run.deserialize
            self._room: Room | None = run.digest_metric.__self__.extensions.get(_ROOM)
            self._kept: dict[str, list[tuple[int, Any]]] = {}
            self._exception: Exception | None
            # A reader must find every shard of a partition, in memory or on disk. It never runs on the event loop.
            self._moving = threading.Lock()
            if self._room is not None:
                self._room.add(self)

        async def _process(self, id: str, shards: list[Any]) -> None:  # noqa: A002 - Dask's name
            on_disk: list[Any] = []
            for shard in shards:
                nbytes = sizeof(shard)
                if self._room is not None and self._room.take(nbytes):
                    self._kept.setdefault(id, []).append((nbytes, shard))
                else:
                    on_disk.append(shard)
            if on_disk:
                await stock._process(self, id, on_disk)

        async def give_way(self) -> None:
            assert self._room is not None
            for id in list(self._kept):  # noqa: A001 - Dask's name
                if self._exception or not self._room.excess():
                    return
                with self._moving:
                    kept = self._kept.pop(id, [])
                    try:
                        if kept:
                            await stock._process(self, id, [shard for _, shard in kept])
                    except Exception as e:  # noqa: BLE001 - as `ShardsBuffer.process`: a reader is told
                        self._exception = e
                self._room.written(sum(nbytes for nbytes, _ in kept))
                del kept
                await asyncio.sleep(0)

        def read(self, id: str) -> Any:  # noqa: A002
            with self._moving:
                kept = self._kept.pop(id, [])
            self._leave(kept)
            try:
                found: list[Any] = stock.read(self, id)
            except unavailable:
                if not kept:
                    raise
                found = []
            bytes_read = self.bytes_read
            while kept:  # one at a time: a shard and the object made from it are not both in memory for long
                nbytes, shard = kept.pop()
                found.append(self._deserialize(shard))
                bytes_read += nbytes
            self.bytes_read: int = bytes_read
            return found

        async def close(self) -> None:
            await stock.close(self)
            while self._kept:
                self._leave(self._kept.popitem()[1])

        def _leave(self, kept: list[tuple[int, Any]]) -> None:
            if self._room is not None:
                self._room.leave(sum(nbytes for nbytes, _ in kept))

    return KeepingShardsBuffer
