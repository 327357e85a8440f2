# SPDX-License-Identifier: BSD-3-Clause
"""One run, from outside: the processes of a cluster are started, read while they are idle, and ended.

What they do is in ``cluster``. This process reads what the kernel says of them: nothing is measured from within.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import psutil

from weft.bench.common.errors import BenchError

#: With more workers for each core than this, Dask's measuring of itself is slowed down: its profiler, the ticks of its
#: event loop and its system monitor take 3 % of a core in each idle worker, and 64 idle workers two cores.
CROWDED = 16
_CALM = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "2s",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__GIL__ENABLED": "false",
}
#: Before anything is read: the last heartbeats and releases of what ran before.
SETTLE_S = 1.0
_TERM_S = 5.0
_END_S = 10.0
_LOOK_S = 0.2
_SHM = "/dev/shm"  # noqa: S108 - looked at, nothing is put there
_WORKER = ("-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard", "--nthreads=1", "--memory-limit=0")


class Place(NamedTuple):
    """Where processes run: what starts the i-th, and the network device that all of them listen on, if it matters."""

    start: Callable[..., subprocess.Popen[bytes]]
    interface: str | None = None


def here(_: int, command: Sequence[str], **popen: Any) -> subprocess.Popen[bytes]:
    """Start a process on this machine."""
    process: subprocess.Popen[Any] = subprocess.Popen(command, **popen)
    return process


class Plan(NamedTuple):
    """What is run.

    `nannies` start the workers and watch them, as with ``LocalCluster``. `limit` is the soft limit of open files of all
    processes, None for the hard one. `later` counts the all-to-alls after the first. `calm` slows down what Dask does
    from time to time to measure itself.
    """

    protocol: str
    workers: int
    nannies: bool = True
    limit: int | None = None
    nbytes: int = 128 << 10
    later: int = 5
    idle_s: float = 5.0
    timeout_s: float = 120.0
    calm: bool = False


def measure(plan: Plan, place: Place) -> dict[str, Any]:
    """Start a cluster, have it work and be idle, read what it takes, and end it.

    Returns
    -------
    dict
        For the record. ``start_s``, until all workers are there. ``first_s`` and ``later_s``, of the all-to-alls. What
        `taken` returns, and ``shm_nbytes``, in use in ``/dev/shm`` above before. What ``cluster.links`` returns.
        ``close_s``, until all processes have ended. ``failed``, if anything did: which step, and why; what comes after
        that step is missing then.
    """
    found: dict[str, Any] = {}
    shm_nbytes = shm_used()
    with _started(plan, place) as processes:
        try:
            scheduler = processes.hear("did not come up")["scheduler"]
            for i in range(0 if plan.nannies else plan.workers):
                processes.start_worker(i, scheduler)
            found |= processes.hear("did not come up")
            gone = "came up, and its workers did not all fetch from each other"
            found["first_s"] = processes.hear(gone)["seconds"]
            found["later_s"] = [processes.hear(gone)["seconds"] for _ in range(plan.later)]
            time.sleep(SETTLE_S)
            found |= taken(processes.all(), plan.idle_s)
            found["shm_nbytes"] = shm_used() - shm_nbytes
            processes.tell("look")
            found |= processes.hear("did not tell its lanes")
            found["close_s"] = processes.close()
        except BenchError as error:
            found["failed"] = str(error)
    return found


def taken(processes: Sequence[psutil.Process], idle_s: float) -> dict[str, Any]:
    """Read what processes hold, and what they use while nothing is asked of them.

    Returns
    -------
    dict
        ``processes``. ``idle_cpu_percent``, of one core. ``descriptors``, of all, and ``most_descriptors``, of the one
        that has most. ``pss_nbytes``: memory that several processes share, each has its part of, so that the sum counts
        it once.

    Raises
    ------
    BenchError
        One of them has ended.
    """
    try:
        before, begin = _cpu_s(processes), time.perf_counter()
        time.sleep(idle_s)
        used_s, elapsed_s = _cpu_s(processes) - before, time.perf_counter() - begin
        descriptors = [process.num_fds() for process in processes]
        return {
            "processes": len(processes),
            "idle_cpu_percent": 100 * used_s / elapsed_s,
            "descriptors": sum(descriptors),
            "most_descriptors": max(descriptors),
            "pss_nbytes": sum(process.memory_full_info().pss for process in processes),
        }
    except psutil.NoSuchProcess as error:
        raise BenchError(f"a process ended while the cluster was idle: {error}") from error


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def shm_used() -> int:
    """Return the bytes in use in ``/dev/shm``; 0 where there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = os.statvfs(_SHM)
        return (found.f_blocks - found.f_bfree) * found.f_frsize
    return 0


@dataclass
class _Processes:
    """The processes of one run: `first` has client and scheduler, `workers` those that no nanny starts."""

    plan: Plan
    place: Place
    log: IO[bytes]
    first: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _heard: bytearray = field(default_factory=bytearray)

    def start_worker(self, i: int, scheduler: str) -> None:
        """Start the i-th worker."""
        interface = ["--interface", self.place.interface] if self.place.interface else []
        named = [scheduler, "--name", str(i), "--death-timeout", f"{self.plan.timeout_s:g}", *interface]
        self.workers.append(_start(self.plan, self.place, i, [*_WORKER, *named], self.log, subprocess.DEVNULL))

    def tell(self, order: Any) -> None:
        """Send a line to `first`."""
        assert self.first.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `hear` says why
            self.first.stdin.write(json.dumps(order).encode() + b"\n")
            self.first.stdin.flush()

    def hear(self, otherwise: str) -> dict[str, Any]:
        """Wait for a line of `first` and return what it says; `otherwise` says what went wrong if there is none."""
        assert self.first.stdout is not None
        until, poll = time.monotonic() + self.plan.timeout_s, select.poll()
        poll.register(self.first.stdout, select.POLLIN)
        while b"\n" not in self._heard:
            if time.monotonic() > until:
                raise BenchError(f"{otherwise} within {self.plan.timeout_s:g} s{self._last()}")
            if any(worker.poll() is not None for worker in self.workers):
                raise BenchError(f"{otherwise}: a worker ended{self._last()}")
            if poll.poll(1e3 * _LOOK_S):
                chunk = os.read(self.first.stdout.fileno(), 1 << 16)
                self._heard += chunk
            elif self.first.poll() is not None:  # and a child of its may hold the pipe
                chunk = b""
            else:
                continue
            if not chunk:
                raise BenchError(f"{otherwise}{self._last()}")
        line, _, rest = self._heard.partition(b"\n")
        self._heard = bytearray(rest)
        said: dict[str, Any] = json.loads(line)
        return said

    def all(self) -> list[psutil.Process]:
        """List every process of the groups of `first` and `workers`: what they have started stays in there."""
        groups = {started.pid for started in (self.first, *self.workers)}
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> float:
        """Have the cluster close; return the seconds until all its processes have ended."""
        begin, every = time.monotonic(), self.all()
        self.tell("close")
        for started in (self.first, *self.workers):
            try:
                started.wait(max(0.0, begin + self.plan.timeout_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise BenchError(f"did not close within {self.plan.timeout_s:g} s{self._last()}") from None
        _, alive = psutil.wait_procs(every, max(0.0, begin + self.plan.timeout_s - time.monotonic()))
        if alive or self.first.returncode:
            left = f"left {len(alive)} processes" if alive else f"ended with status {self.first.returncode}"
            raise BenchError(f"{left} after it was closed{self._last()}")
        return time.monotonic() - begin

    def end(self) -> None:
        """End every process, however it stands."""
        every = self.all()
        # multiprocessing's resource tracker ignores SIGTERM, and removes the semaphores of the others once they ended
        for number, limit_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _END_S)):
            for started in (self.first, *self.workers):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, number)
            psutil.wait_procs(every, limit_s)
        for started in (self.first, *self.workers):
            started.wait()
        for pipe in (self.first.stdin, self.first.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()

    def _last(self) -> str:
        """Return the last line that a process printed, behind a colon."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()[:200]}" if lines else ""


@contextlib.contextmanager
def _started(plan: Plan, place: Place) -> Generator[_Processes]:
    """Start the first process of a cluster; whatever happens, all of them are ended."""
    from weft.bench.scale.cluster import PROGRAM, Asked

    with tempfile.TemporaryFile() as log:
        processes = _Processes(plan, place, log, _start(plan, place, 0, ["-c", PROGRAM], log, subprocess.PIPE))
        try:
            asked = {name: value for name, value in plan._asdict().items() if name in Asked._fields}
            processes.tell(Asked(**asked, interface=place.interface)._asdict())
            yield processes
        finally:
            processes.end()


def _start(
    plan: Plan, place: Place, i: int, arguments: Sequence[str], log: IO[bytes], streams: int
) -> subprocess.Popen[bytes]:
    with _files_limited(plan.limit):
        # in a group of its own, Ctrl-C reaches this process only, which ends them
        return place.start(
            i,
            [sys.executable, *arguments],
            env={**os.environ, "DASK_LOGGING__DISTRIBUTED": "error", **(_CALM if plan.calm else {})},
            stdin=streams,
            stdout=streams if streams == subprocess.PIPE else log,
            stderr=log,
            process_group=0,
        )


@contextlib.contextmanager
def _files_limited(most: int | None) -> Generator[None]:
    """Set the soft limit of open files, to the hard one unless told; processes started meanwhile keep it."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if most is None else most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
