# SPDX-License-Identifier: BSD-3-Clause
"""One run, from outside: processes on the hosts of a lab that stands, one of which may be killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

from weft.bench.common.errors import BenchError
from weft.bench.links.scenarios import WAYS, Scenario
from weft.lab import Lab

#: Of those that fetch, the one that is killed, and after which part of the time that one port takes.
_KILLED_HOST, _KILLED_AFTER = 4, 0.4
_STEP_S = 220.0
_PROGRAM = "from weft.bench.links.cluster import main; main()"
_WORKER = ("-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard", "--nthreads=1", "--memory-limit=0")


def measure(lab: Lab, scenario: Scenario, way: str, *, times: int) -> dict[str, Any]:
    """Start a cluster that decides in one way, run the scenario's jobs, and end it.

    Returns
    -------
    dict
        ``seconds``: a list for each job. ``failed``, if anything did.
    """
    with tempfile.TemporaryFile() as log:
        run = _Run(lab, scenario, way, log)
        seconds: dict[str, list[float]] = {job: [] for job in scenario.jobs}
        try:
            run.begin(times)
            while "done" not in (said := run.hear()):
                if "started" in said:
                    run.may_kill(said["started"])
                elif "job" in said:
                    seconds[said["job"]].append(said["seconds"])
        except BenchError as e:
            return {"seconds": seconds, "failed": str(e)}
        finally:
            run.end()
    return {"seconds": seconds}


class _Run:
    def __init__(self, lab: Lab, scenario: Scenario, way: str, log: IO[bytes]) -> None:
        self._lab, self._scenario, self._log = lab, scenario, log
        self._environment = {**os.environ, "DASK_WEFT__LINKS": WAYS[way], "DASK_LOGGING__DISTRIBUTED": "critical"}
        self._workers: dict[int, list[subprocess.Popen[bytes]]] = {}
        self._first = self._start(0, ["-c", _PROGRAM], subprocess.PIPE)
        self._heard = bytearray()

    def _start(self, host: int, arguments: list[str], streams: int | None = None) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = self._lab.start(
            f"h{host}",
            [sys.executable, *arguments],
            env=self._environment,
            stdin=streams or subprocess.DEVNULL,
            stdout=streams or self._log,
            stderr=self._log,
            process_group=0,
        )
        return process

    def _address(self, host: int) -> str:
        return self._lab.address(f"h{host}") if self._scenario.hosts > 1 else "127.0.0.1"

    def begin(self, times: int) -> None:
        """Have the first process told what to do, and start the workers where it says."""
        scenario = self._scenario
        asked = {
            "host": self._address(0),
            "workers": sum(scenario.workers_of(host) for host in range(scenario.hosts)),
            "jobs": scenario.jobs,
            "nbytes": scenario.nbytes,
            "warm": scenario.warm,
            "times": times,
        }
        assert self._first.stdin is not None
        self._first.stdin.write(json.dumps(asked).encode() + b"\n")
        self._first.stdin.flush()
        scheduler = self.hear()["scheduler"]
        for host in range(scenario.hosts):
            self._workers[host] = [
                self._start(host, [*_WORKER, f"--host={self._address(host)}", f"--name={host}.{i}", scheduler])
                for i in range(scenario.workers_of(host))
            ]

    def may_kill(self, job: str) -> None:
        """Kill the workers of a host a little later, if that is what the job is for."""
        if job.endswith("kill"):
            killed = threading.Timer(_KILLED_AFTER * self._scenario.port_s, self._kill)
            killed.daemon = True
            killed.start()

    def _kill(self) -> None:
        for worker in self._workers[_KILLED_HOST]:
            worker.kill()

    def hear(self) -> dict[str, Any]:
        """Return the next line that the first process says.

        Raises
        ------
        BenchError
            It says none in time, or has ended.
        """
        assert self._first.stdout is not None
        until = time.monotonic() + _STEP_S
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._first.stdout], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._first.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                raise BenchError(f"{'ended' if ready else 'said nothing'}{self._last()}")
            self._heard += chunk
        line, _, rest = self._heard.partition(b"\n")
        self._heard = bytearray(rest)
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> None:
        """End every process."""
        every = [self._first, *(worker for workers in self._workers.values() for worker in workers)]
        for process in every:
            if process.poll() is None:
                process.kill()
        for process in every:
            process.wait()
        assert self._first.stdin is not None
        assert self._first.stdout is not None
        self._first.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._first.stdin.close()

    def _last(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()[:200]}" if lines else ""
