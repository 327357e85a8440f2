# SPDX-License-Identifier: BSD-3-Clause
"""One run, from outside: a pytest with one benchmark function in it, its memory while it goes on, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import junit
import psutil

from weft.bench.common.errors import BenchError
from whole_jobs.asked import Asked

#: What is needed of the checkout.
NEEDED = ("tests", "cluster_kwargs.yaml", "plugins.py")
_SCRIPTS = Path(__file__).parents[1]
_SAMPLE_S = 0.1
_PSS_SAMPLE_S = 1.0
_COLLECT_S = 120.0
_END_S = 10.0
_PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "whole_jobs.plugin", "-c", "/dev/null", "-W", "ignore")


@contextlib.contextmanager
def checkout(source: Path) -> Generator[Path]:
    """Give a copy of what is needed of `source`, as Coiled's fixtures write beside themselves."""
    missing = [name for name in NEEDED if not (source / name).exists()]
    if missing:
        raise BenchError(f"{source} is no checkout of coiled/benchmarks: it has no {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="whole-jobs-") as name:
        folder = Path(name)
        for part in NEEDED:
            (shutil.copytree if (source / part).is_dir() else shutil.copy)(source / part, folder / part)
        yield folder


def collect(folder: Path, files: Iterable[str], options: Iterable[str] = ()) -> list[str]:
    """List the ids of all benchmark functions, each with its parameters, in `files`."""
    command = [sys.executable, "-m", "pytest", *_PYTEST, *options, "--rootdir", str(folder), "--collect-only", *files]
    done = subprocess.run(
        command, cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=_COLLECT_S
    )
    if done.returncode:
        raise BenchError(f"Coiled's functions were not found: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(_SCRIPTS), str(folder)])
    return {**os.environ, "PYTHONPATH": path, "DASK_LOGGING__DISTRIBUTED": "error"}


def measure(
    folder: Path,
    node: str,
    asked: Asked,
    timeout_s: float,
    options: Iterable[str] = (),
    config: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Run one function once, in a process and a cluster of its own.

    Returns
    -------
    dict
        What the plugin found, and ``peak_nbytes`` and ``peak_pss_nbytes`` while the function ran. ``failed``, if it
        did not come to its end: why. ``skipped``, if it did not want to run: why.
    """
    outcome, record, log = (folder / name for name in ("outcome.json", "record.xml", "log.txt"))
    for path in (outcome, record):
        path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *_PYTEST, *options, "--rootdir", str(folder), f"--junitxml={record}"]
    command += [node]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**_environment(folder), **config, **asked.told()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        memory, late = Memory(process.pid), False
        try:
            with memory.sampled():
                process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process, memory)
    found: dict[str, Any] = json.loads(outcome.read_text()) if outcome.is_file() else {}
    if late:
        return found | {"failed": f"did not end within {timeout_s:g} s"}
    said = [(how, why) for _, how, why in junit.cases(record)] if record.is_file() else []
    bad = [(how, why) for how, why in said if how != "passed"]
    if bad or "wall_s" not in found:
        how, why = bad[0] if bad else ("failed", _last(log))
        return found | {"skipped" if how == "skipped" else "failed": why}
    return found | memory.peaks(found["begin_s"], found["end_s"])


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "it printed nothing"


def _end(process: subprocess.Popen[bytes], memory: Memory) -> None:
    """End what is left of the run's processes."""
    every = memory.processes()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(every, _END_S)


@dataclass
class Memory:
    """The memory of the processes of one group, sampled.

    Private pages are added up. Those of ``/dev/shm`` and of files without a name (memfd) are counted by the kernel for
    the whole machine, each once, whoever maps it or nobody: what they are more than before is the run's. Reading that
    costs microseconds. The sum of PSS, which walks page tables, is taken less often; it lacks what nobody maps, and has
    a part of the libraries.
    """

    group: int
    samples: list[tuple[float, int]] = field(default_factory=list)
    pss_samples: list[tuple[float, int]] = field(default_factory=list)
    _shared_before: int = field(default_factory=lambda: shared_nbytes())

    def processes(self) -> list[psutil.Process]:
        """List the group's processes."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(process.pid) == self.group:
                    found.append(process)
        return found

    @contextlib.contextmanager
    def sampled(self) -> Generator[None]:
        """Sample in a thread until the end of the block."""
        done = threading.Event()
        thread = threading.Thread(target=self._sample_until, args=(done,))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _sample_until(self, done: threading.Event) -> None:
        next_pss = time.monotonic()
        processes = self.processes()
        while not done.wait(_SAMPLE_S):
            now = time.monotonic()
            if now >= next_pss:
                processes, next_pss = self.processes(), now + _PSS_SAMPLE_S
                self.pss_samples.append((now, sum(map(_pss_nbytes, processes))))
            private = sum(_anonymous_nbytes(process.pid) for process in processes)
            self.samples.append((now, private + max(0, shared_nbytes() - self._shared_before)))

    def peaks(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Return the greatest samples between two times of ``time.monotonic``, 0 where there is none."""
        return {
            name: max((nbytes for at, nbytes in samples if begin_s <= at <= end_s), default=0)
            for name, samples in (("peak_nbytes", self.samples), ("peak_pss_nbytes", self.pss_samples))
        }


def shared_nbytes() -> int:
    """Return the bytes of tmpfs and shared memory on this machine."""
    return _kib(Path("/proc/meminfo").read_text(), "Shmem:") << 10


def _anonymous_nbytes(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return _kib(Path(f"/proc/{pid}/status").read_text(), "RssAnon:") << 10
    return 0


def _pss_nbytes(process: psutil.Process) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return _kib(Path(f"/proc/{process.pid}/smaps_rollup").read_text(), "Pss:") << 10
    return 0


def _kib(text: str, name: str) -> int:
    """Read one line of a file of the kernel's; a process that is ending has no such line."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name)), 0)
