# SPDX-License-Identifier: BSD-3-Clause
"""Dask's bare movements: one key fetched by another worker or by all, arrays scattered and gathered, and mere tasks."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client, wait

from weft._units import format_size
from weft.bench.dask.workloads import Workload, on_device, on_host, submit_to


class _Payloads(Workload):
    """Random bytes, of which every copy must have the same checksum.

    Parameters
    ----------
    nbytes : int
        Of one array.
    count : int
        Arrays in each round.
    kind : str
        ``"cpu"`` or ``"gpu"``.
    """

    checked = "has the bytes that were made, by their checksum"

    def __init__(self, *, nbytes: int, count: int, kind: str = "cpu") -> None:
        self.each, self.count, self.kind = nbytes, count, kind
        self.nbytes = nbytes * count
        self.name = f"{type(self).__name__.lower()} {format_size(nbytes)}"
        self.parameters = {"Array": format_size(nbytes), "Arrays": count}

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        if len(workers) < self.least_workers:
            raise ValueError("there must be two workers, one to send and one to receive")
        # One at a time, here and below: idle workers steal tasks from one that has several.
        made = list[Any]()
        for i in range(self.count):
            wait(future := submit_to(client, workers[0], payload, i, self.each, self.kind), timeout=timeout)
            made.append(future)
        return made, workers

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        return [submit_to(client, worker, checksum, future).result(timeout=timeout) for future, worker in computed]

    def reference(self) -> Any:
        return [checksum(payload(i, self.each)) for i in range(self.count)]

    def difference(self, result: Any, expected: Any) -> str:
        wrong = sum(a != b for a, b in zip(result, expected, strict=True))
        return f"{wrong} of {len(expected)} arrays are not what was made" if wrong else ""


class Fetch(_Payloads):
    """One worker fetches arrays from another, one after the other, while the cluster does nothing else."""

    least_workers = 2

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        made, workers = inputs
        for future in made:
            submit_to(client, workers[1], nbytes_of, future).result(timeout=timeout)
        return [(future, workers[1]) for future in made]


class Busy(_Payloads):
    """One worker is sent arrays by another while the only thread for its tasks is at work.

    Parameters
    ----------
    beside : str
        What the task does: ``"python"``, which holds the GIL but for its switches, or ``"numpy"``, which lets go of it.
    """

    least_workers = 2

    def __init__(self, *, beside: str, nbytes: int, count: int, kind: str = "cpu") -> None:
        super().__init__(nbytes=nbytes, count=count, kind=kind)
        self.name = f"{self.name} beside {beside}"
        self.beside = beside
        self.task: Any = None

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        inputs = super().prepare(client, workers, timeout)
        self.task = submit_to(client, workers[1], work, self.beside, timeout)
        until = time.monotonic() + timeout
        while not client.run(is_at_work, workers=[workers[1]])[workers[1]]:
            if time.monotonic() > until:
                raise TimeoutError("the task beside which arrays arrive did not start")
            time.sleep(0.01)
        return inputs

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        made, workers = inputs
        for future in made:
            # what client.replicate calls, which takes no bound
            client.sync(client._replicate, [future], workers=[workers[1]], callback_timeout=timeout)
        if self.task.done():
            raise ValueError("the task ended before the arrays had arrived beside it")
        return [(future, workers[1]) for future in made]

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        client.run(end_work, workers=[computed[0][1]])
        return super().result(client, computed, timeout)


class Broadcast(_Payloads):
    """Every worker but the one that made it fetches an array, all at once; one array after the other."""

    least_workers = 2

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        made, workers = inputs
        for future in made:
            wait([submit_to(client, worker, nbytes_of, future) for worker in workers[1:]], timeout=timeout)
        return [(future, worker) for future in made for worker in workers[1:]]

    def difference(self, result: Any, expected: Any) -> str:
        receivers = max(1, len(result) // len(expected))
        return super().difference(result, [value for value in expected for _ in range(receivers)])


class Scatter(_Payloads):
    """The client sends arrays to the workers in turn, directly; no worker's log of transfers shows it."""

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        return [payload(i, self.each, self.kind) for i in range(self.count)], workers

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        made, workers = inputs
        to = [workers[i % len(workers)] for i in range(len(made))]
        futures = [
            client.scatter(array, workers=[worker], direct=True, hash=False, timeout=timeout)
            for array, worker in zip(made, to, strict=True)
        ]
        return list(zip(futures, to, strict=True))


class Gather(_Payloads):
    """The client gathers results one after the other, by way of the scheduler, as ``compute`` does."""

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        made, _ = inputs
        return [client.gather(future) for future in made]

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        return [checksum(array) for array in computed]


class Tasks(Workload):
    """Many tasks that add 1: what the scheduler and its messages take.

    Parameters
    ----------
    count : int
    """

    name = "tasks"
    checked = "is the sum that it must be"

    def __init__(self, *, count: int) -> None:
        self.tasks = count
        self.parameters = {"Tasks": count}

    def prepare(self, client: Client, workers: Sequence[str], timeout: float) -> Any:
        return range(self.tasks)

    def compute(self, client: Client, inputs: Any, timeout: float) -> Any:
        futures = client.map(add_one, inputs, pure=False)
        wait(futures, timeout=timeout)
        return futures

    def result(self, client: Client, computed: Any, timeout: float) -> Any:
        return client.submit(sum, computed, pure=False).result(timeout=timeout)

    def reference(self) -> Any:
        return self.tasks * (self.tasks + 1) // 2


def payload(i: int, nbytes: int, kind: str = "cpu") -> Any:
    """Make array `i`: random bytes, shape ``(nbytes,)``."""
    return on_device(np.random.default_rng([5, i]).integers(0, 256, nbytes, dtype=np.uint8), kind)


def checksum(array: Any) -> int:
    """Return the CRC-32 of an array of bytes."""
    return zlib.crc32(on_host(array))


def nbytes_of(array: Any) -> int:
    """Return an array's size; what brings it to the worker that is asked."""
    return int(array.nbytes)


#: In a worker's process: whether its task is to go on.
_at_work = threading.Event()


def work(what: str, timeout: float) -> None:
    """Keep this thread busy until `end_work`."""
    matrix, number = np.ones((500, 500)), 0
    _at_work.set()
    until = time.monotonic() + timeout
    while _at_work.is_set() and time.monotonic() < until:
        if what == "numpy":
            _ = matrix @ matrix
        else:
            for _ in range(100_000):
                number += 1


def is_at_work() -> bool:
    """Tell whether `work` has begun in this process."""
    return _at_work.is_set()


def end_work() -> None:
    """Let this process's `work` end."""
    _at_work.clear()


def add_one(number: int) -> int:
    """Return `number` + 1."""
    return number + 1
