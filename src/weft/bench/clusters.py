# SPDX-License-Identifier: BSD-3-Clause
"""Two Dask workers on this machine, one cluster per protocol, as ``weft demo`` uses them.

Starting and stopping them, and what is read from their processes: transfers, lanes, idle CPU time. What they
compute is in ``workloads``, when is in ``demo``.

The newcomer's screen belongs to the report: nothing that distributed says while it shuts down is about the
newcomer. Before that, errors are shown.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

WORKERS = 2


class DemoError(Exception):
    """The command cannot go on; the message is the one line to print."""


@contextlib.contextmanager
def named(what: str, timeout: float) -> Iterator[None]:
    """Turn whatever is raised inside into a `DemoError` whose one line begins with `what`.

    Parameters
    ----------
    what : str
        What was attempted and did not work.
    timeout : float
        The seconds it had, to say so if it took longer.
    """
    begin = time.perf_counter()
    try:
        yield
    except Exception as error:  # a task may raise anything; each kind ends the command, named
        late = isinstance(error, TimeoutError) or time.perf_counter() - begin > timeout
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        text = " ".join(str(cause).split())[:400]
        kind = type(cause).__name__
        raise DemoError(f"{what}{f' within {timeout:g} s' * late}: {kind}{f': {text}' * bool(text)}") from error


@dataclass
class Cluster:
    """A running cluster: `workers` are addresses, `pids` their processes, both by worker index.

    `idle_cpu` is in percent of one core, by process, once it has been measured.
    """

    protocol: str
    client: Client
    workers: list[str]
    pids: list[int]
    start_s: float
    idle_cpu: dict[str, float] = field(default_factory=dict)

    def lanes(self, timeout: float) -> dict[str, dict[str, list[str]]]:
        """Return lanes by worker and peer address; a protocol that is not weft's is its own only lane."""
        if self.protocol == "ucx":
            with named("ucx://: lanes not read", timeout):
                return dict(self.client.run(read_lanes))
        return {w: {peer: [self.protocol] for peer in self.workers if peer != w} for w in self.workers}

    def measure_idle(self, alone: float, seconds: float) -> float:
        """Measure what the cluster uses while idle, and return what this process used meanwhile.

        Client and scheduler live in this process beside those of the clusters started earlier, whose use was
        `alone` percent: the difference is this cluster's.
        """
        time.sleep(0.5)  # the last heartbeats and releases of what ran before
        here, *workers = idle_cpu([os.getpid(), *self.pids], seconds)
        self.idle_cpu["client and scheduler"] = max(0.0, here - alone)
        self.idle_cpu |= {f"worker {i}": percent for i, percent in enumerate(workers)}
        return here


@contextlib.contextmanager
def running(protocol: str, timeout: float) -> Iterator[Cluster]:
    """Own a cluster of two single-threaded worker processes; take it down on every way out.

    Raises
    ------
    DemoError
        It did not start, or not within `timeout` seconds.
    """
    from distributed import Client

    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        with named(f"{protocol}:// cluster did not start", timeout):
            stack.callback(_close, cluster := _start(protocol, timeout))
            client = stack.enter_context(Client(cluster, timeout=timeout))
            pids = client.run(os.getpid)
            names = client.run(lambda dask_worker: str(dask_worker.name))
        workers = sorted(names, key=lambda address: names[address])
        stack.callback(_hush, client, workers)
        yield Cluster(protocol, client, workers, [pids[w] for w in workers], time.perf_counter() - started)


def _start(protocol: str, timeout: float) -> LocalCluster:
    """Start a cluster whose processes never see Ctrl-C: it is this process that answers it, and stops them.

    The terminal sends SIGINT to every process of the job. Threads and processes inherit the signal mask, so
    what a thread with SIGINT blocked starts has it blocked; this process still gets it, in the main thread.
    """
    from distributed import LocalCluster

    def start() -> LocalCluster:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return LocalCluster(
            protocol=protocol,
            n_workers=WORKERS,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            # The scheduler serves HTTP even so; a port of its own lets two of them live side by side.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            memory_limit=0,
            death_timeout=timeout,
            silence_logs=logging.ERROR,
        )

    # Starting the tracker unblocks SIGINT in the thread that needs it first (CPython 3.11); here that is
    # harmless.
    resource_tracker.ensure_running()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start)
        try:
            return starting.result()
        except KeyboardInterrupt:
            # Half a cluster cannot be closed; a whole one can, a second later.
            _close(starting.result())
            raise


def _hush(client: Client, workers: Sequence[str]) -> None:
    from distributed import wait

    # As tasks, because a task can be waited for with a limit, and a worker that hangs is stopped all the
    # same.
    with contextlib.suppress(OSError, RuntimeError):
        wait([client.submit(hush_logs, workers=[w], pure=False) for w in workers], timeout=1)


def hush_logs() -> None:
    """Let only critical messages through; runs in the worker, before it is stopped."""
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _close(cluster: LocalCluster) -> None:
    # Both ends of every connection go away now, in no order: that they broke is no news.
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        cluster.close(timeout=10)
    finally:
        logger.setLevel(level)


def take_transfers(dask_worker: Any) -> list[dict[str, Any]]:
    """Empty a worker's log of what it fetched from others, and return it; runs in the worker.

    Returns
    -------
    list of dict
        ``who`` (address of the sender), ``nbytes``, and ``duration_s`` from the request to the last byte
        deserialised, which Dask never lets fall below 1 ms.
    """
    log = dask_worker.transfer_incoming_log
    taken = [{"who": e["who"], "nbytes": e["total"], "duration_s": e["duration"]} for e in log]
    log.clear()
    return taken


def read_borrowed() -> int:
    """Ask weft how many bytes this process has received without a copy, so far; runs in the worker."""
    from weft import _native

    return _native.pool_statistics()["borrowed_total_nbytes"]


def read_lanes() -> dict[str, list[str]]:
    """Ask weft which lanes this process's connections use; runs in the worker."""
    from weft.dask import lanes

    return {peer: list(used) for peer, used in lanes().items()}


def idle_cpu(pids: Sequence[int], seconds: float) -> list[float]:
    """Measure the CPU time that processes use in the next `seconds`, in percent of one core each."""
    processes = [psutil.Process(pid) for pid in pids]
    begin, before = time.perf_counter(), [_cpu_s(p) for p in processes]
    time.sleep(seconds)
    elapsed = time.perf_counter() - begin
    return [100 * (_cpu_s(p) - b) / elapsed for p, b in zip(processes, before, strict=True)]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
