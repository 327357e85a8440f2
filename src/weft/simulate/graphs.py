# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of tasks, like those of Dask's collections. Most make their own data; some read values that are on workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.simulate.tasks import Task


class Job(NamedTuple):
    """The tasks to compute, each after its dependencies, and the values that are there before."""

    tasks: list[Task]
    values: Sequence[Task] = ()


class Size(NamedTuple):
    """The size of a block, and a worker's compute rate."""

    nbytes: int
    compute_Bps: float  # noqa: N815 - the unit

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of computing with `nbytes` bytes."""
        return nbytes / self.compute_Bps


def _blocks(name: str, count: int, size: Size) -> list[Task]:
    """Make blocks: tasks without inputs."""
    return [Task(f"{name}-{i}", size.nbytes, size.seconds(size.nbytes), kind=name) for i in range(count)]


def broadcast(workers: Sequence[str], size: Size) -> Job:
    """Every worker reads a block of one worker."""
    value = Task("value", size.nbytes, worker=workers[0])
    read = size.seconds(size.nbytes)
    return Job([Task(f"read-{w}", 8, read, [value], kind="read", worker=w) for w in workers[1:]], [value])


def tree_reduce(workers: Sequence[str], size: Size) -> Job:
    """Add two blocks of each worker, and the sums in pairs."""
    level = _blocks("leaf", 2 * len(workers), size)
    tasks = list(level)
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level) - 1, 2)]
        add = size.seconds(2 * size.nbytes)
        sums = [Task(f"add-{len(tasks) + i}", size.nbytes, add, pair, kind="add") for i, pair in enumerate(pairs)]
        tasks += sums
        level = sums + level[2 * len(sums) :]
    return Job(tasks)


def all_to_all(workers: Sequence[str], size: Size) -> Job:
    """Every worker reads a block of every other; only the paths are left to decide."""
    values: list[Task] = []
    tasks: list[Task] = []
    for to in workers:
        blocks = [Task(f"block-{source}-{to}", size.nbytes, worker=source) for source in workers if source != to]
        values += blocks
        read = size.seconds(size.nbytes * len(blocks))
        tasks.append(Task(f"read-{to}", 8, read, blocks, kind="read", worker=to))
    return Job(tasks, values)


def shuffle(workers: Sequence[str], size: Size) -> Job:
    """Send a piece of each worker's block to each other, in stages if there are many, as dask.dataframe does."""
    count = len(workers)
    stages = max(1, math.ceil(math.log(count) / math.log(32)))
    fan = math.ceil(count ** (1 / stages))
    blocks = _blocks("block", count, size)
    tasks = list(blocks)
    read, piece = size.seconds(size.nbytes), size.nbytes // fan
    for stage in range(stages):
        stride = fan**stage
        split = [Task(f"split-{stage}-{i}", size.nbytes, read, [b], kind="split") for i, b in enumerate(blocks)]
        tasks += split
        merged: list[Task] = []
        for i in range(count):
            digit = i // stride % fan
            peers = [p for p in range(i - digit * stride, i + (fan - digit) * stride, stride) if p < count]
            pieces = [Task(f"get-{stage}-{i}-{p}", piece, size.seconds(piece), [split[p]], kind="get") for p in peers]
            tasks += pieces
            merged.append(Task(f"concat-{stage}-{i}", size.nbytes, read, pieces, kind="concat"))
        tasks += merged
        blocks = merged
    return Job(tasks)


def transpose(workers: Sequence[str], size: Size) -> Job:
    """Add a matrix of blocks to its transpose, with four blocks per worker or slightly more."""
    side = math.ceil(2 * math.sqrt(len(workers)))
    blocks = _blocks("x", side * side, size)
    add = size.seconds(2 * size.nbytes)
    tasks = [
        Task(f"add-{i}-{j}", size.nbytes, add, [blocks[i * side + j], blocks[j * side + i]], kind="add")
        for i in range(side)
        for j in range(side)
    ]
    return Job([*blocks, *tasks])


def svd(workers: Sequence[str], size: Size) -> Job:
    """Decompose a tall matrix by blocks of rows, as ``da.linalg.svd`` does: QR of each, QR of all R, and back."""
    small = max(8, size.nbytes // 64)
    blocks = _blocks("x", 2 * len(workers), size)
    qr = [
        Task(f"qr-{i}", size.nbytes + small, size.seconds(8 * size.nbytes), [x], kind="qr")
        for i, x in enumerate(blocks)
    ]
    q = [Task(f"q-{i}", size.nbytes, 1e-4, [each], kind="q") for i, each in enumerate(qr)]
    r = [Task(f"r-{i}", small, 1e-4, [each], kind="r") for i, each in enumerate(qr)]
    tasks = [*blocks, *qr, *q, *r]
    level, step = r, 0
    while len(level) > 1:  # eight at a time: QR of the stacked R
        step += 1
        groups = [level[i : i + 8] for i in range(0, len(level), 8)]
        level = [
            Task(f"stack-{step}-{i}", small, size.seconds(8 * len(group) * small), group, kind="stack")
            for i, group in enumerate(groups)
        ]
        tasks += level
    whole = level[0]
    slices = [Task(f"q2-{i}", small, 1e-4, [whole], kind="q2") for i in range(len(q))]
    dots = [
        Task(f"dot-{i}", size.nbytes, size.seconds(4 * size.nbytes), pair, kind="dot")
        for i, pair in enumerate(zip(q, slices, strict=True))
    ]
    return Job([*tasks, *slices, *dots])


def stencil(workers: Sequence[str], size: Size) -> Job:
    """Smooth a row of blocks, two per worker, with their neighbours, eight times."""
    count = 2 * len(workers)
    row = _blocks("row", count, size)
    tasks = list(row)
    for step in range(8):
        row = [
            Task(
                f"smooth-{step}-{i}",
                size.nbytes,
                size.seconds(3 * size.nbytes),
                row[max(0, i - 1) : i + 2],
                kind="smooth",
            )
            for i in range(count)
        ]
        tasks += row
    return Job(tasks)


GRAPHS: dict[str, Callable[[Sequence[str], Size], Job]] = {
    "all-to-all": all_to_all,
    "broadcast": broadcast,
    "tree reduce": tree_reduce,
    "shuffle": shuffle,
    "x + x.T": transpose,
    "svd": svd,
    "stencil": stencil,
}
