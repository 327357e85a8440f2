# SPDX-License-Identifier: BSD-3-Clause
"""One run, from outside: a pytest with benchmark functions in it, its memory while it goes on, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import junit
import psutil

from weft.bench.common.errors import BenchError
from whole_jobs import days
from whole_jobs.asked import Asked
from whole_jobs.memory import Memory

#: What is needed of the checkout.
NEEDED = ("tests", "cluster_kwargs.yaml", "plugins.py")
_SCRIPTS = Path(__file__).parents[1]
_SHARED = Path("/dev/shm")  # noqa: S108
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
    nodes: Sequence[str],
    asked: Asked,
    timeout_s: float,
    options: Iterable[str] = (),
    config: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Run functions once, one after the other, in a process and a cluster of their own.

    Returns
    -------
    dict
        For each of `nodes` what the plugin found, and the peaks of memory while the function ran. ``failed``, if it
        did not come to its end: why. ``skipped``, if it did not want to run: why.
    """
    outcome, record, log, scratch = (folder / name for name in ("outcome.json", "record.xml", "log.txt", "scratch"))
    for path in (outcome, record):
        path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *_PYTEST, *options, "--rootdir", str(folder), f"--junitxml={record}"]
    shared = set(os.listdir(_SHARED))
    with log.open("wb") as output:
        process = subprocess.Popen(
            days.around(asked.day, [*command, *nodes]),
            cwd=folder,
            env={**_environment(folder), "DASK_TEMPORARY_DIRECTORY": str(scratch), **config, **asked.told()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        memory, late = Memory(process.pid, scratch), False
        try:
            with memory.sampled():
                process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process, memory)
            shutil.rmtree(scratch, ignore_errors=True)
    every: dict[str, dict[str, Any]] = json.loads(outcome.read_text()) if outcome.is_file() else {}
    why_not = {name: (how, why) for name, how, why in _said(record) if how != "passed"}
    left = sorted(set(os.listdir(_SHARED)) - shared)
    for node in nodes:
        found = every.setdefault(node, {})
        name = node.rpartition("::")[2]
        if name in why_not:
            how, why = why_not[name]
            found["skipped" if how == "skipped" else "failed"] = why
        elif "wall_s" not in found:
            found["failed"] = f"did not end within {timeout_s:g} s" if late else _last(log)
        else:
            found |= memory.peaks(found["begin_s"], found["end_s"])
        if asked.check:
            found["left_in_shm"] = [] if asked.day == days.SMALL else left  # its own is gone with it
    return every


def _said(record: Path) -> list[tuple[str, str, str]]:
    """Read what became of each function."""
    return [(case.get("name", ""), how, why) for case, how, why in junit.cases(record)] if record.is_file() else []


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
