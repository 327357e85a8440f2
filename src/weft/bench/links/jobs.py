# SPDX-License-Identifier: BSD-3-Clause
"""The jobs of ``weft bench links``, as a client runs them; each checks its result and returns its seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.bench.common.errors import BenchError

if TYPE_CHECKING:
    from distributed import Client

_WAIT_S = 200.0
_TINY = 10_000
#: In which every worker has told the scheduler what it has measured.
_HEARTBEATS_S = 3.0


def numbers(nbytes: int, seed: int) -> Any:
    """Make an array that no other seed makes."""
    return np.arange(nbytes // 8, dtype="i8") * (2 * seed + 1)


def total(array: Any, _: int) -> int:
    """Read all of an array."""
    return int(array.sum())


def _check(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise BenchError(f"{what}: {found!r:.100} in place of {expected!r:.100}")


def fan_out(client: Client, workers: Sequence[str], nbytes: int, seed: int, tell: Callable[[], None]) -> float:
    """Have every worker but the first read what the first has made."""
    from distributed import wait

    made = client.submit(numbers, nbytes, seed, workers=workers[:1], pure=False)
    wait(made, timeout=_WAIT_S)
    begin = time.perf_counter()
    found = [
        client.submit(total, made, i, workers=[worker], allow_other_workers=True, pure=False)  # it may be killed
        for i, worker in enumerate(workers[1:])
    ]
    tell()
    lost = [future for future in wait(found, timeout=_WAIT_S).done if future.status != "finished"]
    seconds = time.perf_counter() - begin
    _check(len(lost), 0, "tasks that failed")
    sums = client.gather(found)
    _check(set(sums), {int(numbers(nbytes, seed).sum())}, "sums")
    return seconds


def fetch(client: Client, workers: Sequence[str], nbytes: int, seed: int, tell: Callable[[], None]) -> float:
    """Have the second worker read what the first has made."""
    return fan_out(client, workers[:2], nbytes, seed, tell)


def by_relay(client: Client, workers: Sequence[str], nbytes: int, seed: int, tell: Callable[[], None]) -> float:
    """Have the second worker read what the first has made, after something has gone over each link."""
    first, second, third = (*workers, *workers)[:3]
    for ends in ((first, second), (first, third), (third, second)):
        fan_out(client, ends, 4 << 20, seed, tell)
    time.sleep(_HEARTBEATS_S)
    return fan_out(client, workers[:2], nbytes, seed, tell)


def replicate(client: Client, workers: Sequence[str], nbytes: int, seed: int, _: Callable[[], None]) -> float:
    """Have all workers get a copy of what one of them has: ``replicate``, which ``scatter(broadcast=True)`` calls.

    Dask's memory manager is stopped for that, as ``Client.replicate`` asks for: it drops copies that no task needs,
    each 2 s, while others are on their way, and these are made anew (32 MiB over 200 Mb/s took 63 s in place of 7).
    """
    from distributed import wait

    made = client.submit(numbers, nbytes, seed, workers=workers[:1], pure=False)
    wait(made, timeout=_WAIT_S)
    managed = client.amm.running()
    client.amm.stop()
    begin = time.perf_counter()
    client.replicate(made)
    seconds = time.perf_counter() - begin
    holders = {holder for holders in client.who_has([made]).values() for holder in holders}
    _check(holders, set(workers), "holders")
    if managed:
        client.amm.start()
    found = client.gather([client.submit(total, made, i, workers=[w], pure=False) for i, w in enumerate(workers)])
    _check(set(found), {int(numbers(nbytes, seed).sum())}, "sums")
    return seconds


def _sums(*arrays: Any) -> Any:
    return sum(arrays)


def _totals(*arrays: Any) -> int:
    return sum(total(array, 0) for array in arrays[:-1])


def _reduce_fan_out(client: Client, workers: Sequence[str], nbytes: int, seed: int, parts: int) -> float:
    from distributed import wait

    each = nbytes // 8 // parts * 8
    values = [
        [client.submit(numbers, each, seed + i, workers=[worker], pure=False) for _part in range(parts)]
        for i, worker in enumerate(workers)
    ]
    wait(values, timeout=_WAIT_S)
    begin = time.perf_counter()
    while len(values) > 1:
        at_once = 2 if parts == 1 else len(values)  # whole ones in a tree
        groups = [values[i : i + at_once] for i in range(0, len(values), at_once)]
        values = [[client.submit(_sums, *part, pure=False) for part in zip(*group, strict=True)] for group in groups]
    read = [client.submit(_totals, *values[0], i, workers=[worker], pure=False) for i, worker in enumerate(workers)]
    wait(read, timeout=_WAIT_S)
    seconds = time.perf_counter() - begin
    expected = sum(int(numbers(each, seed + i).sum()) for i in range(len(workers))) * parts
    _check(set(client.gather(read)), {expected}, "sums")
    return seconds


def reduce_fan_out(client: Client, workers: Sequence[str], nbytes: int, seed: int, _: Callable[[], None]) -> float:
    """Add arrays of all workers in a tree, and have every worker read the sum."""
    return _reduce_fan_out(client, workers, nbytes, seed, 1)


def reduce_in_parts(client: Client, workers: Sequence[str], nbytes: int, seed: int, _: Callable[[], None]) -> float:
    """Do so with arrays that are in as many parts as there are workers: each part's sum is a task of its own."""
    return _reduce_fan_out(client, workers, nbytes, seed, len(workers))


def transpose(client: Client, _: Sequence[str], nbytes: int, seed: int, __: Callable[[], None]) -> float:
    """Add a matrix to its transpose."""
    from dask import array as da
    from distributed import wait

    side = int((nbytes // 8) ** 0.5) // 4 * 4
    x = da.random.default_rng(seed).random((side, side), chunks=side // 4).persist()
    wait(x, timeout=_WAIT_S)
    begin = time.perf_counter()
    y = (x + x.T).persist()
    wait(y, timeout=_WAIT_S)
    seconds = time.perf_counter() - begin
    whole = np.asarray(x.compute())
    _check(bool(np.array_equal(y.compute(), whole + whole.T)), True, "x + x.T")
    return seconds


def merge(client: Client, workers: Sequence[str], nbytes: int, seed: int, _: Callable[[], None]) -> float:
    """Join two frames by a column."""
    import pandas as pd
    from dask import dataframe as dd
    from distributed import wait

    rows = nbytes // 32
    order = np.random.default_rng(seed)
    left = pd.DataFrame({"key": order.permutation(rows), "a": np.arange(rows)})
    right = pd.DataFrame({"key": order.permutation(rows)[: rows // 2], "b": np.arange(rows // 2)})
    parts = len(workers)
    a, b = (dd.from_pandas(frame, npartitions=parts, sort=False).persist() for frame in (left, right))
    wait([a, b], timeout=_WAIT_S)
    begin = time.perf_counter()
    joined = a.merge(b, on="key").persist()
    wait(joined, timeout=_WAIT_S)
    seconds = time.perf_counter() - begin
    found, expected = joined.compute().sort_values("key"), left.merge(right, on="key").sort_values("key")
    same = all(bool((found[name].to_numpy() == expected[name].to_numpy()).all()) for name in expected.columns)
    _check(same, True, "merge")
    return seconds


def tree_reduce(client: Client, workers: Sequence[str], nbytes: int, seed: int, _: Callable[[], None]) -> float:
    """Add arrays in pairs, and the sums in pairs."""
    from distributed import wait

    each, count = nbytes // 8, 16
    leaves = [
        client.submit(
            numbers, each, seed + i, workers=[workers[i % len(workers)]], allow_other_workers=True, pure=False
        )
        for i in range(count)
    ]
    wait(leaves, timeout=_WAIT_S)
    begin = time.perf_counter()
    level = leaves
    while len(level) > 1:
        level = [client.submit(np.add, level[i], level[i + 1], pure=False) for i in range(0, len(level), 2)]
    wait(level, timeout=_WAIT_S)
    seconds = time.perf_counter() - begin
    expected = sum(numbers(each, seed + i) for i in range(count))
    _check(bool(np.array_equal(level[0].result(), expected)), True, "tree reduce")
    return seconds


def _smooth(*arrays: Any) -> Any:
    return sum(arrays) // len(arrays)


def _scale(array: Any, by: Any) -> Any:
    return array + int(by[1])


def mixed(client: Client, workers: Sequence[str], nbytes: int, seed: int, _: Callable[[], None]) -> float:
    """Smooth a row of arrays with their neighbours, four times, add what all of them share, and reduce."""
    from distributed import wait

    each, count = nbytes // 16, 16
    shared = client.submit(numbers, nbytes // 8, seed, workers=workers[:1], allow_other_workers=True, pure=False)
    row = [
        client.submit(
            numbers, each, seed + i, workers=[workers[i * len(workers) // count]], allow_other_workers=True, pure=False
        )
        for i in range(count)
    ]
    wait([shared, *row], timeout=_WAIT_S)
    here, offset = [numbers(each, seed + i) for i in range(count)], numbers(nbytes // 8, seed)
    begin = time.perf_counter()
    for _step in range(4):
        row = [client.submit(_smooth, *row[max(0, i - 1) : i + 2], pure=False) for i in range(count)]
    row = [client.submit(_scale, each_row, shared, pure=False) for each_row in row]
    sums = client.submit(_smooth, *row, pure=False)
    wait(sums, timeout=_WAIT_S)
    seconds = time.perf_counter() - begin
    for _step in range(4):
        here = [_smooth(*here[max(0, i - 1) : i + 2]) for i in range(count)]
    expected = _smooth(*(_scale(each_row, offset) for each_row in here))
    _check(bool(np.array_equal(sums.result(), expected)), True, "mixed")
    return seconds


# ---- whole graphs, which make their own data ------------------------------------------------------------------------


def noise(nbytes: int, seed: int) -> Any:
    """Make an array that no codec shrinks."""
    return np.random.default_rng(seed).integers(0, 1 << 63, nbytes // 8)


def _makespan(persist: Callable[[], Any]) -> tuple[Any, float]:
    from distributed import wait

    begin = time.perf_counter()
    made = persist()
    wait(made, timeout=_WAIT_S)
    return made, time.perf_counter() - begin


def graph_transpose(client: Client, _: Sequence[str], nbytes: int, seed: int, __: Callable[[], None]) -> float:
    """Make a matrix and add it to its transpose."""
    from dask import array as da

    side = int((nbytes // 8) ** 0.5) // 4 * 4
    x = da.random.default_rng(seed).random((side, side), chunks=side // 4)
    y, seconds = _makespan((x + x.T).persist)
    whole = np.asarray(x.compute(scheduler="threads"))
    _check(bool(np.array_equal(y.compute(), whole + whole.T)), True, "x + x.T")
    return seconds


def _part(i: int, rows: int, column: str, seed: int) -> Any:
    """Make some of a frame's rows; a key is there once."""
    import pandas as pd

    at = np.arange(i * rows, (i + 1) * rows)
    return pd.DataFrame({"key": at * 7919 % (1 << 20), column: noise(8 * rows, seed + i)})


def graph_merge(client: Client, workers: Sequence[str], nbytes: int, seed: int, _: Callable[[], None]) -> float:
    """Make two frames and join them by a column."""
    import pandas as pd
    from dask import dataframe as dd

    parts = 2 * len(workers)
    rows = nbytes // 32 // parts
    a, b = (
        dd.from_map(_part, range(parts), rows=rows // of, column=column, seed=seed)
        for column, of in (("a", 1), ("b", 2))
    )
    joined, seconds = _makespan(a.merge(b, on="key").persist)
    left, right = (
        pd.concat([_part(i, rows // of, column, seed) for i in range(parts)]) for column, of in (("a", 1), ("b", 2))
    )
    found, expected = joined.compute().sort_values("key"), left.merge(right, on="key").sort_values("key")
    same = all(bool((found[name].to_numpy() == expected[name].to_numpy()).all()) for name in expected.columns)
    _check(same, True, "merge")
    return seconds


def graph_reduce(client: Client, _: Sequence[str], nbytes: int, seed: int, __: Callable[[], None]) -> float:
    """Make arrays, and add them in a tree."""
    from dask import array as da

    each = nbytes // 64
    x = da.random.default_rng(seed).integers(0, 1 << 40, (16, each), chunks=(1, each))
    found, seconds = _makespan(x.sum(axis=0, split_every=2).persist)
    expected = x.sum(axis=0).compute(scheduler="threads")
    _check(bool(np.array_equal(found.compute(), expected)), True, "tree reduce")
    return seconds


def graph_mixed(client: Client, _: Sequence[str], nbytes: int, seed: int, __: Callable[[], None]) -> float:
    """Make a row of arrays, smooth each with its neighbours, four times, add what all share, and reduce in a tree."""
    from dask.delayed import delayed

    each, count = nbytes // 16, 16

    def build() -> Any:
        make, smooth, scale = (delayed(each, pure=True) for each in (noise, _smooth, _scale))
        shared = make(nbytes // 8, seed)
        row = [make(each, seed + 1 + i) for i in range(count)]
        for _step in range(4):
            row = [smooth(*row[max(0, i - 1) : i + 2]) for i in range(count)]
        row = [scale(each_row, shared) for each_row in row]
        while len(row) > 1:
            row = [smooth(*row[i : i + 4]) for i in range(0, len(row), 4)]
        return row[0]

    found, seconds = _makespan(build().persist)
    _check(bool(np.array_equal(found.compute(), build().compute(scheduler="threads"))), True, "mixed")
    return seconds


# ---- tasks alone ----------------------------------------------------------------------------------------------------


def _inc(i: int) -> int:
    return i + 1


def tiny(client: Client, _: Sequence[str], __: int, seed: int, ___: Callable[[], None]) -> float:
    """Run 10,000 tasks that do next to nothing."""
    begin = time.perf_counter()
    futures = client.map(_inc, range(seed * _TINY, (seed + 1) * _TINY), pure=False)
    found = client.gather(futures)
    seconds = time.perf_counter() - begin
    _check(sum(found), sum(range(seed * _TINY, (seed + 1) * _TINY)) + _TINY, "sum")
    return seconds


JOBS: dict[str, Callable[..., float]] = {
    "fan-out": fan_out,
    "fan-out, kill": fan_out,
    "fetch": fetch,
    "by relay": by_relay,
    "replicate": replicate,
    "reduce, fan-out": reduce_fan_out,
    "reduce, fan-out in parts": reduce_in_parts,
    "x + x.T": graph_transpose,
    "merge": graph_merge,
    "tree reduce": graph_reduce,
    "mixed": graph_mixed,
    "x + x.T, data there": transpose,
    "merge, data there": merge,
    "tree reduce, data there": tree_reduce,
    "mixed, data there": mixed,
    "tiny tasks": tiny,
}
