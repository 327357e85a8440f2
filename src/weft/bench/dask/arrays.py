# SPDX-License-Identifier: BSD-3-Clause
"""Dask's work on arrays: x + x.T, a product of matrices, singular values.

Elements are small integers held as float64: sums and products of them are exact in whatever order they are added, so
the comparison with NumPy needs no tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from distributed import Client, wait

from weft.bench.dask.workloads import Workload, on_device, on_host, submit_to


class TransposeSum(Workload):
    """``(x + x.T).sum()`` of a square matrix whose block rows are split over the workers.

    Elements are below 1000: the sum is at most ``2 * 999 * size**2``, below 2**53 for any size under two million.

    Parameters
    ----------
    size, chunk_size : int
        Side of the matrix and of its square blocks, in elements; the second divides the first.
    kind : str
        ``"cpu"`` or ``"gpu"``.
    """

    name = "transpose-sum"

    def __init__(self, *, size: int, chunk_size: int, kind: str = "cpu") -> None:
        self.count, self.chunk, self.kind = blocks_of(size, chunk_size), chunk_size, kind
        self.nbytes = size * size * 8
        self.parameters = {"Size": f"{size} x {size} float64", "Chunk": f"{chunk_size} x {chunk_size}"}

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        return matrix(client, workers, self.count, self.chunk, self.kind, 0, 1000, timeout)

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        return client.compute((inputs + inputs.T).sum()).result(timeout=timeout)

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        return float(computed)

    def reference(self) -> Any:
        def block(i: int, j: int) -> Any:
            return matrix_block(i, j, self.chunk, 0, 1000)

        pairs = ((i, j) for i in range(self.count) for j in range(self.count))
        return float(sum((block(i, j) + block(j, i).T).sum() for i, j in pairs))

    def difference(self, result: Any, expected: Any) -> str:
        return "" if result == expected else f"the sum is {result!r}, NumPy's is {expected!r}"


class Dot(Workload):
    """``x @ y`` of two square matrices whose block rows are split over the workers.

    The product is compared by what it makes of a vector: ``(x @ y) @ v`` with NumPy's ``x @ (y @ v)``. Elements are
    below 10, so all of it is exact for any size under three million.

    Parameters
    ----------
    size, chunk_size : int
        Side of the matrices and of their square blocks, in elements; the second divides the first.
    kind : str
        ``"cpu"`` or ``"gpu"``.

    Source: Freivalds (1977), with digits in place of bits.
    """

    name = "dot"
    checked = "makes of a random vector what NumPy's does in one process"

    def __init__(self, *, size: int, chunk_size: int, kind: str = "cpu") -> None:
        self.count, self.chunk, self.kind = blocks_of(size, chunk_size), chunk_size, kind
        self.nbytes = 2 * size * size * 8
        self.vector = np.random.default_rng(3).integers(1, 10, size).astype(np.float64)
        self.parameters = {"Size": f"{size} x {size} float64, twice", "Chunk": f"{chunk_size} x {chunk_size}"}

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        return [matrix(client, workers, self.count, self.chunk, self.kind, seed, 10, timeout) for seed in (1, 2)]

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        product = client.persist(inputs[0].dot(inputs[1]))
        wait(product, timeout=timeout)
        return product

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        host = computed.map_blocks(on_host, dtype=np.float64, meta=np.empty((0, 0)))
        vector = da.from_array(self.vector, chunks=self.chunk)
        return client.compute(host.dot(vector)).result(timeout=timeout)

    def reference(self) -> Any:
        y = self._times(2, self.vector)
        return self._times(1, y)

    def _times(self, seed: int, vector: Any) -> Any:
        parts, count = vector.reshape(self.count, self.chunk), range(self.count)
        return np.concatenate([sum(matrix_block(i, j, self.chunk, seed, 10) @ parts[j] for j in count) for i in count])

    def difference(self, result: Any, expected: Any) -> str:
        wrong = int((result != expected).sum())
        return f"{wrong} of {len(expected)} rows of the product are not NumPy's" if wrong else ""


class SingularValues(Workload):
    """``svd(x)`` of a tall matrix of normal numbers whose blocks of rows are split over the workers.

    Parameters
    ----------
    size, second_size : int
        Rows and columns.
    chunk_size : int
        Rows of a block; divides `size`.
    kind : str
        ``"cpu"`` or ``"gpu"``.
    """

    name = "svd"
    checked = "is a decomposition: u s v is x, u and v are orthonormal, s falls and is not negative"
    # Both errors grow with the root of the sizes: 1e-12 at 200,000 rows.
    tolerance = 1e-9

    def __init__(self, *, size: int, second_size: int, chunk_size: int, kind: str = "cpu") -> None:
        self.count, self.chunk, self.columns, self.kind = blocks_of(size, chunk_size), chunk_size, second_size, kind
        if second_size > chunk_size:
            raise ValueError(f"blocks of {chunk_size} rows are not as tall as their {second_size} columns are wide")
        self.nbytes = size * second_size * 8
        self.parameters = {"Size": f"{size} x {second_size} float64", "Chunk": f"{chunk_size} x {second_size}"}

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        def block(i: int) -> Any:
            worker = workers[i * len(workers) // self.count]
            made = submit_to(client, worker, tall_block, i, self.chunk, self.columns, self.kind)
            return _array(made, (self.chunk, self.columns), self.kind)

        x = client.persist(da.concatenate([block(i) for i in range(self.count)]))
        wait(x, timeout=timeout)
        return x

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        decomposed = client.persist(da.linalg.svd(inputs))
        wait(decomposed, timeout=timeout)
        return decomposed

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        u = computed[0].to_delayed().ravel()
        s, v = (on_host(future.result(timeout=timeout)) for future in client.compute(list(computed[1:])))
        check = delayed(decomposition_errors, pure=False)
        checks = client.compute([check(block, s, v, i, self.chunk) for i, block in enumerate(u)])
        errors = [future.result(timeout=timeout) for future in checks]
        return len(u), s, v, max(residual for residual, _ in errors), sum(gram for _, gram in errors)

    def reference(self) -> Any:
        return None

    def difference(self, result: Any, expected: Any) -> str:
        blocks, s, v, residual, gram = result
        if blocks != self.count or len(s) != self.columns:
            return f"{blocks} blocks of u and {len(s)} singular values, not {self.count} and {self.columns}"
        if not (np.diff(s) <= 0).all() or s[-1] < 0:
            return "the singular values do not fall, or not to 0"
        identity = np.eye(self.columns)
        for what, error in (
            ("u s v differs from x", residual / s[0]),
            ("u is not orthonormal", np.abs(gram - identity).max()),
            ("v is not orthonormal", np.abs(v @ v.T - identity).max()),
        ):
            if not error <= self.tolerance:
                return f"{what}, by {error:.1e}"
        return ""


def blocks_of(size: int, chunk_size: int) -> int:
    """Return how many chunks a side has; raise where the last would be smaller."""
    if size % chunk_size:
        raise ValueError(f"chunks of {chunk_size} do not divide a size of {size}; give a --chunk-size that does")
    return size // chunk_size


def matrix(
    client: Client, workers: Sequence[str], count: int, chunk: int, kind: str, seed: int, below: int, timeout: float
) -> Any:
    """Make a square matrix of `count` by `count` blocks, block rows split over `workers`, and wait for it."""

    def row(i: int) -> list[Any]:
        worker = workers[i * len(workers) // count]
        made = [submit_to(client, worker, matrix_block, i, j, chunk, seed, below, kind) for j in range(count)]
        return [_array(block, (chunk, chunk), kind) for block in made]

    x = client.persist(da.block([row(i) for i in range(count)]))
    wait(x, timeout=timeout)
    return x


def _array(future: Any, shape: tuple[int, int], kind: str) -> Any:
    return da.from_delayed(future, shape, np.float64, meta=on_device(np.empty((0, 0)), kind))


def matrix_block(i: int, j: int, chunk: int, seed: int, below: int, kind: str = "cpu") -> Any:
    """Make block ``(i, j)`` of a matrix: integers in ``[0, below)`` as float64, shape ``(chunk, chunk)``."""
    return on_device(np.random.default_rng([i, j, seed]).integers(0, below, (chunk, chunk)).astype(np.float64), kind)


def tall_block(i: int, rows: int, columns: int, kind: str = "cpu") -> Any:
    """Make block `i` of a tall matrix: normal numbers, shape ``(rows, columns)``."""
    return on_device(np.random.default_rng([4, i]).standard_normal((rows, columns)), kind)


def decomposition_errors(u: Any, s: Any, v: Any, i: int, rows: int) -> tuple[float, Any]:
    """Return how far ``u s v`` is from block `i` of the matrix at most, and ``u.T @ u``; runs in the worker."""
    u = on_host(u)
    return float(np.abs(u * s @ v - tall_block(i, rows, v.shape[1])).max()), u.T @ u
