# SPDX-License-Identifier: BSD-3-Clause
"""What a benchmark function computed, as checksums: taken where it waits for its results, or fetches them.

The functions return nothing. So ``distributed.wait`` and ``Client.gather`` are watched, and the data is made of fixed
seeds. Small results are fetched at once and the seconds for it are taken off the function's. Large ones, and those that
the function stores nowhere, are looked at only if the run is asked to check: that changes what the cluster does.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

#: Results up to so many bytes, all of one wait together, are fetched.
FETCHED_NBYTES = 16 << 20
_SEED = 20
#: Sums of floats that came in another order differ in the last digits.
_DIGITS = 9


def seed() -> None:
    """Have the functions' random data be the same in every run, and the samples that ``set_index`` divides it by.

    Dask seeds those by the data's token, and persisted data has another each time.
    """
    import dask.array as da
    from dask.dataframe.dask_expr._quantiles import RepartitionQuantiles

    da.random.seed(_SEED)
    np.random.seed(_SEED)
    RepartitionQuantiles._defaults = {**RepartitionQuantiles._defaults, "random_state": _SEED}


def checksum(value: Any) -> int:
    """Return a number that equal values share, whatever made them."""
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        value = value.reset_index(drop=True)
        return checksum([[str(name), value[name]] for name in value])
    if isinstance(value, pd.Series):
        value = value.to_numpy()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind in "mMSUO":
            return checksum([str(each) for each in array.ravel()])
        if array.dtype.kind == "f":
            return zlib.crc32(" ".join(f"{each:.{_DIGITS}g}" for each in array.ravel()).encode())
        return zlib.crc32(np.ascontiguousarray(array).data)
    if isinstance(value, list | tuple):
        return zlib.crc32(" ".join(str(checksum(each)) for each in value).encode())
    return zlib.crc32(repr(value).encode())


def block_checksum(block: Any) -> Any:
    """Return the checksum of a block's bytes, as an array with as many dimensions; runs in the worker."""
    return np.full((1,) * block.ndim, zlib.crc32(np.ascontiguousarray(block).data), "u8")


def table_checksum(table: Any) -> Any:
    """Return the checksum of a partition's rows, whatever their order, as a series of one; runs in the worker.

    P2P sets rows in the order in which they came. An index that the table was given counts; one that only counts the
    rows does not.
    """
    import pandas as pd

    rows = pd.util.hash_pandas_object(table, index=table.index.name is not None)
    return pd.Series([rows.to_numpy().sum(dtype="u8")])


class Results:
    """Collects the checksums of one function.

    Attributes
    ----------
    checksums : list of int
        In the order in which the function waited.
    unchecked : list of str
        Of what it waited for, and was not looked at: why.
    seconds : float
        That looking took.
    """

    def __init__(self, *, check: bool) -> None:
        self._check, self._inside = check, False
        self.checksums: list[int] = []
        self.unchecked: list[str] = []
        self.seconds = 0.0

    def forget(self) -> None:
        """Begin with the next function."""
        self.checksums, self.unchecked, self.seconds = [], [], 0.0

    def watch(self) -> None:
        """Watch what functions that are imported from now on wait for."""
        import dask.dataframe
        import dask.distributed
        import distributed

        distributed.wait = dask.distributed.wait = self._watched_wait(distributed.wait)
        distributed.Client.gather = self._watched_fetch(distributed.Client.gather)
        distributed.Future.result = self._watched_fetch(distributed.Future.result)
        dask.dataframe.DataFrame.size = property(self._watched_size(dask.dataframe.DataFrame.size.fget))

    def _watched_size(self, size: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched(table: Any) -> Any:
            if self._check:
                return table.map_partitions(table_checksum, meta=(None, "u8")).sum()
            self.unchecked.append("of a table only the size was computed")
            return size(table)

        return watched

    def _watched_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def watched(fs: Any, *args: Any, **kwargs: Any) -> Any:
            done = wait(fs, *args, **kwargs)
            self._look(lambda: self._take(fs))
            return done

        return watched

    def _watched_fetch(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """Watch a method of a client, or of a future, which has one."""

        @functools.wraps(fetch)
        def watched(owner: Any, *args: Any, **kwargs: Any) -> Any:
            found = fetch(owner, *args, **kwargs)
            if not (self._inside or getattr(owner, "client", owner).asynchronous):
                self._look(lambda: self.checksums.append(checksum(found)))
            return found

        return watched

    def _look(self, take: Callable[[], None]) -> None:
        begin, self._inside = time.perf_counter(), True
        try:
            take()
        finally:
            self._inside = False
            self.seconds += time.perf_counter() - begin

    def _take(self, fs: Any) -> None:
        from distributed import get_client
        from distributed.client import futures_of

        client, futures = get_client(), futures_of(fs)
        if any(future.status != "finished" for future in futures):
            return  # the function says what of it
        nbytes = client.run_on_scheduler(_nbytes, keys=[future.key for future in futures])
        if nbytes <= FETCHED_NBYTES:
            self.checksums.append(checksum(client.gather(futures)))
        elif self._check:
            sums = [client.submit(checksum, future, pure=False) for future in futures]
            self.checksums.append(checksum(client.gather(sums)))
        else:
            self.unchecked.append(f"{nbytes} bytes were left where they are")

    def watch_devnull(self, module: Any) -> None:
        """Look at what the functions store nowhere; `module` has the function that they do it with."""
        store = module.arr_to_devnull

        @functools.wraps(store)
        def watched(array: Any) -> Any:
            if self._check:
                ones = tuple((1,) * n for n in array.numblocks)
                return array.map_blocks(block_checksum, dtype="u8", chunks=ones)
            self.unchecked.append("blocks were stored nowhere")
            return store(array)

        module.arr_to_devnull = watched


def _nbytes(dask_scheduler: Any, keys: Iterable[Any]) -> int:
    return sum(dask_scheduler.tasks[key].get_nbytes() for key in keys)
