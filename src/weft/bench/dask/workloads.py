# SPDX-License-Identifier: BSD-3-Clause
"""What a piece of Dask work is, and where its inputs are made; the work itself is in ``arrays``, ``tables``, ``moves``.

Clusters, rounds and clocks do not live here: see ``rounds``. Inputs are placed on workers by name and made anew
for every round. Both matter: a chunk that one round fetched stays on the worker that fetched it, so a second
round over the same inputs would move less, and by a different amount for each protocol.

What comes out is compared with the same work done by NumPy or pandas in one process, chunk by chunk where the whole
would not fit, or with what the rule that made the inputs says. Inputs are made on the host, from seeds, so that a
GPU's results have the same reference.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client

from weft.bench.dask.report import CHECKED


class Workload(abc.ABC):
    """One piece of work: inputs, a timed computation and what the result must be.

    Attributes
    ----------
    name : str
        As in the report.
    parameters : dict
        Sizes for the report, in the order to print them.
    nbytes : int
        Size of the inputs; the throughput is this over the wall clock.
    tasks : int
        Where tasks are counted in place of bytes; else 0.
    checked : str
        What is true of a result that `difference` passes.
    least_workers : int
        How many it takes.
    """

    name: str
    parameters: dict[str, int | float | str]
    nbytes: int = 0
    tasks: int = 0
    checked: str = CHECKED
    least_workers: int = 1

    @abc.abstractmethod
    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        """Put fresh inputs into the memory of `workers` (addresses), and wait until they are there."""

    @abc.abstractmethod
    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        """Do the work. Only this is timed."""

    @abc.abstractmethod
    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        """Reduce what `compute` left on the workers to something to compare."""

    @abc.abstractmethod
    def reference(self) -> Any:
        """Do the same work in this process, without Dask."""

    def difference(self, result: Any, expected: Any) -> str:
        """Say how `result` differs from `expected`, or return an empty string."""
        return "" if result == expected else f"{result!r} came out, not {expected!r}"


def submit_to(client: Client, worker: str, make: Callable[..., Any], *args: Any) -> Any:
    """Have `worker` make something, and return its future."""
    # Other workers are allowed for one case only: `worker` died. Without them its tasks would wait for ever,
    # and the death would be told as a timeout.
    return client.submit(make, *args, workers=[worker], allow_other_workers=True, pure=False)


def on_device(value: Any, kind: str) -> Any:
    """Copy an array or a table to this process's GPU if `kind` is ``"gpu"``; as it is if ``"cpu"``."""
    if kind == "cpu":
        return value
    if hasattr(value, "columns"):
        import cudf

        return cudf.from_pandas(value)
    import cupy

    return cupy.asarray(value)


def on_host(value: Any) -> Any:
    """Copy CuPy's array or cuDF's table to the host; NumPy's and pandas' are there."""
    if hasattr(value, "to_pandas"):
        return value.to_pandas()
    return value.get() if hasattr(value, "__cuda_array_interface__") else value
