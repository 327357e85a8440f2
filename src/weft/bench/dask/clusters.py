# SPDX-License-Identifier: BSD-3-Clause
"""The Dask clusters that ``weft demo`` and ``weft bench merge`` and its kin work on, one per protocol.

Where their processes run, starting and stopping them, and what is read from them: transfers, lanes, CPU time.
What they compute is in ``workloads``, when is in ``rounds``.

The screen belongs to the report: nothing that distributed says while it shuts down is about the reader. Before
that, errors are shown.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, NamedTuple

from weft._reachable import first_cause, why_unreachable
from weft.bench.common.errors import BenchError, UsageError

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster as Started

WORKERS = 2
#: Dask's protocol within one process: client, scheduler, and one worker with all the threads. Nothing moves.
INSIDE = "inproc"
# distributed's own limit is 1000 transfers, which 10,000 tasks pass.
_LOG_LENGTH = 100_000
#: Seconds that a cluster that is said to run has to answer, as long as Dask gives it.
_ATTACH_S = 30.0


@contextlib.contextmanager
def named(what: str, timeout: float) -> Generator[None]:
    """Turn whatever is raised inside into a `BenchError` whose one line begins with `what`.

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
    except BenchError:
        raise
    except Exception as error:  # a task may raise anything; each kind ends the command, named
        late = isinstance(error, TimeoutError) or time.perf_counter() - begin > timeout
        cause = first_cause(error)
        if late and isinstance(cause, CancelledError | AssertionError):  # where it was when the time was up
            raise BenchError(f"{what} within {timeout:g} s; raise --timeout") from error
        text = " ".join(str(cause).split())[:400]
        kind = type(cause).__name__
        raise BenchError(f"{what}{f' within {timeout:g} s' * late}: {kind}{f': {text}' * bool(text)}") from error


@dataclass(frozen=True)
class Deployment:
    """Where the processes of a cluster run; on this machine's CPUs unless told otherwise.

    Parameters
    ----------
    workers : int
        On this machine, or on each of `hosts`.
    threads : int
        Of each worker.
    memory_nbytes : int
        Of each worker; 0 is no limit.
    interface : str, optional
        The network device whose address scheduler and workers listen on.
    gpus : str, optional
        One worker beside each of these GPUs of this machine, such as ``"0,1"``, in place of `workers`; empty: all.
    hosts : tuple of str
        Reached by SSH: the scheduler's first, then the workers'.
    address : str, optional
        Of a scheduler that runs already. Then nothing is started or stopped, and the rest has no meaning.
    """

    workers: int = WORKERS
    threads: int = 1
    memory_nbytes: int = 0
    interface: str | None = None
    gpus: str | None = None
    hosts: tuple[str, ...] = ()
    address: str | None = None

    @property
    def here(self) -> bool:
        """Whether the scheduler lives in this process."""
        return not (self.hosts or self.address)


@dataclass
class Cluster:
    """A running cluster: `workers` are addresses by worker index, `threads` how many each has.

    `idle_cpu` is in percent of one core, by process, once it has been measured.
    """

    protocol: str
    client: Client
    workers: list[str]
    threads: list[int]
    start_s: float
    scheduler_here: bool = True
    idle_cpu: dict[str, float] = field(default_factory=dict)

    def lanes(self, timeout: float) -> dict[str, dict[str, list[str]]]:
        """Return lanes by worker and peer address; a protocol that is not weft's is its own only lane."""
        if self.protocol == "ucx":
            with named("ucx://: lanes not read", timeout):
                return dict(self.client.run(read_lanes))
        return {w: {peer: [self.protocol] for peer in self.workers if peer != w} for w in self.workers}

    def read(self) -> Reading:
        """Read the workers and the clocks of all processes; empties the workers' logs of transfers."""
        workers = self.client.run(read_worker)
        # A nanny replaces a worker that died, and the work goes on; but it is not the same work any more.
        if set(workers) != set(self.workers):
            raise BenchError(f"{self.protocol}://: a worker died")
        rest = 0 if self.protocol == INSIDE else time.process_time()  # there the worker counts it
        if not self.scheduler_here:
            rest += self.client.run_on_scheduler(time.process_time)
        return Reading([workers[w] for w in self.workers], rest)

    def measure_idle(self, alone: float, seconds: float) -> float:
        """Measure what the cluster uses while idle, and return what this process used meanwhile.

        Client and scheduler live in this process beside those of the clusters started earlier, whose use was
        `alone` percent: the difference is this cluster's.
        """
        time.sleep(0.5)  # the last heartbeats and releases of what ran before
        before, begin = self.read(), time.perf_counter()
        here = idle_cpu(seconds)
        after, elapsed = self.read(), time.perf_counter() - begin
        self.idle_cpu["client and scheduler"] = max(0.0, 100 * (after.rest_cpu_s - before.rest_cpu_s) / elapsed - alone)
        for i, (a, b) in enumerate(zip(before.workers, after.workers, strict=True)):
            self.idle_cpu[f"worker {i}"] = 100 * (b["cpu_s"] - a["cpu_s"]) / elapsed
        return here


class Reading(NamedTuple):
    """What `Cluster.read` found: `read_worker` of each worker by index, and the CPU seconds of all other processes."""

    workers: list[dict[str, Any]]
    rest_cpu_s: float

    def total(self, name: str) -> float:
        """Add up one figure of the workers."""
        return float(sum(w[name] for w in self.workers))


def refuse_unknown(protocols: Iterable[str]) -> None:
    """Raise for protocols that Dask does not know."""
    from distributed.comm.registry import get_backend

    for protocol in protocols:
        try:
            get_backend(protocol)
        except ValueError as error:
            raise UsageError(f"Dask has no protocol {protocol!r}: use ucx, tcp, tls, ws, wss or inproc") from error


def refuse_address(address: str) -> None:
    """Raise for what cannot be a scheduler's address."""
    from distributed.comm.addressing import get_address_host_port

    try:
        get_address_host_port(address)
    except ValueError as error:
        raise UsageError(f"--scheduler-address {address}: {error}; write it like ucx://HOST:8786") from error


@contextlib.contextmanager
def running(protocol: str, timeout: float, deployment: Deployment = Deployment()) -> Generator[Cluster]:
    """Own a cluster and take it down on every way out, or use one that runs already.

    Raises
    ------
    BenchError
        It did not start within `timeout` seconds; or one that is said to run did not answer within 30 of them.
    """
    from distributed import Client
    from distributed.comm.addressing import get_address_host_port

    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        with named(f"{protocol}:// cluster did not {'answer' if deployment.address else 'start'}", timeout):
            cluster: Any = deployment.address
            if deployment.address is None:
                stack.callback(_close, cluster := _start(deployment, protocol, timeout))
            try:
                patience = timeout if deployment.address is None else min(timeout, _ATTACH_S)
                client = stack.enter_context(Client(cluster, timeout=patience))
            except OSError as error:
                if deployment.address is None:
                    raise
                host, port = get_address_host_port(deployment.address)
                if why := why_unreachable(host, port):
                    text = f"{why}; start that scheduler, or correct its address"
                else:
                    text = f"no scheduler answers there over {protocol}://; use the address that the scheduler printed"
                raise BenchError(f"{deployment.address}: {text}") from error
            if deployment.hosts:  # Dask's SSHCluster does not wait for them
                client.wait_for_workers(deployment.workers * len(deployment.hosts[1:]), timeout)
            names: dict[str, str] = client.run(read_name)
            if not names:
                raise BenchError(f"{deployment.address}: that scheduler has no workers")
        workers = sorted(names, key=lambda address: (len(names[address]), names[address]))  # 10 after 9
        if deployment.address is None and protocol != INSIDE:  # whose log is this process's
            stack.callback(_hush, client, workers)
        threads = [client.nthreads()[worker] for worker in workers]
        yield Cluster(protocol, client, workers, threads, time.perf_counter() - started, deployment.here)


def _start(deployment: Deployment, protocol: str, timeout: float) -> Started:
    """Start a cluster whose processes never see Ctrl-C: it is this process that answers it, and stops them.

    The terminal sends SIGINT to every process of the job. Threads and processes inherit the signal mask, so
    what a thread with SIGINT blocked starts has it blocked; this process still gets it, in the main thread.
    """

    def start() -> Started:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if deployment.hosts:
            return _over_ssh(deployment, protocol, timeout)
        return (
            _beside_gpus(deployment, protocol)
            if deployment.gpus is not None
            else on_cpus(deployment, protocol, timeout)
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


def on_cpus(deployment: Deployment, protocol: str, timeout: float) -> Started:
    from distributed import LocalCluster

    inside = protocol == INSIDE
    return LocalCluster(
        protocol=f"{protocol}://" if inside else protocol,
        n_workers=1 if inside else deployment.workers,
        threads_per_worker=deployment.workers * deployment.threads if inside else deployment.threads,
        processes=not inside,
        interface=None if inside else deployment.interface,
        dashboard_address=None,
        # The scheduler serves HTTP even so; a port of its own lets two of them live side by side.
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        memory_limit=deployment.memory_nbytes,
        death_timeout=timeout,
        silence_logs=logging.ERROR,
    )


def _beside_gpus(deployment: Deployment, protocol: str) -> Started:
    from weft.dask import TopologyCluster

    return TopologyCluster(
        per="gpu",
        threads_per_worker=deployment.threads,
        memory_limit=deployment.memory_nbytes,
        CUDA_VISIBLE_DEVICES=deployment.gpus or None,
        protocol=protocol,
        interface=deployment.interface,
        dashboard_address=None,
        silence_logs=logging.ERROR,
    )


def _over_ssh(deployment: Deployment, protocol: str, timeout: float) -> Started:
    from distributed import SSHCluster

    common = {"protocol": protocol, "interface": deployment.interface}
    return SSHCluster(
        list(deployment.hosts),
        worker_options={
            **common,
            "n_workers": deployment.workers,
            "nthreads": deployment.threads,
            "memory_limit": deployment.memory_nbytes,
            "death_timeout": timeout,
        },
        scheduler_options={**common, "port": 0, "dashboard_address": ":0"},
    )


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


def _close(cluster: Started) -> None:
    # Both ends of every connection go away now, in no order: that they broke is no news.
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        cluster.close(timeout=10)
    finally:
        logger.setLevel(level)


def read_name(dask_worker: Any) -> str:
    """Return a worker's name; runs in the worker."""
    return str(dask_worker.name)


def read_worker(dask_worker: Any) -> dict[str, Any]:
    """Empty a worker's log of what it fetched from others, and read its counts; runs in the worker.

    Returns
    -------
    dict
        ``transfers``: for each ``who`` (address of the sender), ``nbytes``, ``start_s`` on the scheduler's clock,
        and ``duration_s`` from the request to the last byte deserialised. ``borrowed_nbytes``: received without a
        copy, since the process began. ``cpu_s``: CPU time of the process.
    """
    from weft import _native

    log = dask_worker.transfer_incoming_log
    dask_worker.transfer_incoming_log = deque(maxlen=_LOG_LENGTH)
    return {
        # Not distributed's duration, which never falls below 1 ms.
        "transfers": [
            {
                "who": e["who"],
                "nbytes": e["total"],
                "start_s": e["start"],
                "duration_s": max(1e-6, e["stop"] - e["start"]),
            }
            for e in log
        ],
        "borrowed_nbytes": _native.pool_statistics()["borrowed_total_nbytes"],
        "cpu_s": time.process_time(),
    }


def read_lanes() -> dict[str, list[str]]:
    """Ask weft which lanes this process's connections use; runs in the worker."""
    from weft.dask import lanes

    return {peer: list(used) for peer, used in lanes().items()}


def idle_cpu(seconds: float) -> float:
    """Measure the CPU time that this process uses in the next `seconds`, in percent of one core."""
    begin, before = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return 100 * (time.process_time() - before) / (time.perf_counter() - begin)
