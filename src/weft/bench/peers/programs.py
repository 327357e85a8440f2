# SPDX-License-Identifier: BSD-3-Clause
"""Peers that start their own two processes: mpi4py under ``mpirun``, and UCX's ``ucx_perftest``."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from weft.bench.common.errors import BenchError

LIMIT_S = 60.0
MPI = "from weft.bench.peers.mpi import rank; rank(sys.argv[2:])"


def mpi4py(
    python: Path, prelude: Sequence[str], nbytes: int, seconds: float, iterations: int, cores: Sequence[int]
) -> tuple[str, list[float]]:
    """Measure mpi4py in the environment of `python`; return its transport and one-way latencies in seconds."""
    mpirun = python.parent / "mpirun"
    if not mpirun.is_file():
        raise BenchError("no mpirun came with it")
    # ranks pin themselves, so that they stand where every other pair stands
    command = [str(mpirun), "-n", "2", "--bind-to", "none", "--oversubscribe", str(python), *prelude]
    command += [str(nbytes), str(seconds), str(iterations), json.dumps(list(cores))]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    printed = _printed(command, os.environ | allowed, LIMIT_S + 20 * seconds + nbytes / 10e6)
    try:
        answer = json.loads(printed.strip().splitlines()[-1])
        return str(answer["transport"]), [float(latency) for latency in answer["latencies"]]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"mpi4py printed no figures: {printed[-200:]!r}") from error


def perftest(
    library: str, nbytes: int, seconds: float, iterations: int, cores: Sequence[int], tls: str
) -> tuple[str, list[float]]:
    """Measure with the ``ucx_perftest`` beside `library`; return its transport and its median, all that it tells."""
    # it counts round trips, not seconds: 1 us for each and 2 GB/s is slow enough for any shared memory
    count = max(10, min(iterations, int(seconds / (2e-6 + nbytes / 1e9))))
    arguments = ["-t", "tag_lat", "-s", str(nbytes), "-n", str(count), "-w", str(max(3, count // 10))]
    limit_s = LIMIT_S + 20 * seconds + nbytes / 10e6
    printed = ucx_perftest(library, arguments, cores=cores, settings={"UCX_TLS": tls}, limit_s=limit_s)
    return tls.split(",")[0], [figure_of(printed, "50.0_percentile_lat")]


def ucx_perftest(
    library: str, arguments: Sequence[str], *, cores: Sequence[int], settings: Mapping[str, str], limit_s: float
) -> str:
    """Run the ``ucx_perftest`` beside `library` between two processes, with these arguments; return what it printed."""
    tool = Path(library).parent.parent / "bin" / "ucx_perftest"
    if not tool.is_file():
        raise BenchError(f"ucx_perftest is not beside {Path(library).name}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = [str(Path(library).parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(paths), **settings}
    common = [*arguments, "-p", str(port)]
    pins = [["-c", str(core)] for core in cores] or [[], []]
    with _running([str(tool), *common, *pins[0]], environment):
        deadline = time.monotonic() + 10
        while not _listens(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        return _printed([str(tool), "127.0.0.1", *common, *pins[1], "-f", "-v"], environment, limit_s)


def figure_of(printed: str, heading: str) -> float:
    """Read a time in seconds from what ``ucx_perftest -f -v`` prints: a line of headings, a line of figures.

    `heading` is a regular expression for the heading of the time's column.
    """
    lines = [line.split(",") for line in printed.splitlines() if "," in line]
    for heads, figures in itertools.pairwise(lines):
        for head, figure in zip(heads, figures, strict=False):
            if re.search(heading, head):
                with contextlib.suppress(ValueError):
                    return float(figure) * 1e-6
    raise BenchError(f"ucx_perftest printed no figures: {printed[-200:]!r}")


def _listens(port: int) -> bool:
    """Tell whether somebody listens at this port, without connecting: ucx_perftest takes one connection only."""
    wanted = f"{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{wanted}") and fields[3] == "0A":
            return True
    return False


@contextlib.contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str]) -> Generator[None]:
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _printed(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> str:
    """Run to the end and return the standard output; on any failure the whole group of processes is ended."""
    name = Path(command[0]).name
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{name}: not done within {limit_s:.0f} s") from error
        finally:
            # started in a session of its own, so its group is its id; mpirun's ranks are in it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == 0:
            return printed
        log.seek(0)
        said = log.read().strip().splitlines() or [""]
    raise BenchError(f"{name} ended with status {process.returncode}: {said[-1]}")
