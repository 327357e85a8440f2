# SPDX-License-Identifier: BSD-3-Clause
"""This machine, for the checks. A few commands, run at the same time and briefly, give what no file shows."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from weft.doctor import ucx
from weft.doctor.firewall import PROGRAMS
from weft.doctor.machine import Machine

#: Seconds for all commands together; they run at the same time.
LIMIT_S = 1.2
_MFD_NOEXEC_SEAL = 8  # required by some systems; Linux 6.3
_UNSYNCHRONISED = 0x40  # STA_UNSYNC of struct timex


def read(*, firewall: bool = False) -> Machine:
    """Read everything that checks need from this machine. It runs a few commands, for at most 1.2 s together.

    Parameters
    ----------
    firewall : bool
        Read the packet filter's rules, too.

    Returns
    -------
    Machine
    """
    machine = files()
    programs = {f"getent ahosts {machine.host}": "getent"}
    if machine.has("proc/driver/nvidia/version"):
        programs["nvidia-smi topo -m"] = "nvidia-smi"
    if firewall:
        programs |= PROGRAMS
    environment = machine.environ
    found = ucx.chosen(machine)
    if found is not None and found.origin != "wheel":
        programs[ucx.LOAD] = sys.executable
    if ucx.variables(machine):
        programs[ucx.ASK_SETTINGS], environment = ucx.tool(machine)
    return dataclasses.replace(machine, commands=_ask(programs, environment, LIMIT_S))


def files() -> Machine:
    """Look at this machine without starting anything."""
    folders = tuple(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))
    host, environ = socket.gethostname(), dict(os.environ)
    nbytes, read_only = _shm()
    return Machine(Path("/"), environ, {}, folders, host, nbytes, read_only, memfd(), copies(), _synchronised())


def _ask(programs: Mapping[str, str], environment: Mapping[str, str], limit_s: float) -> dict[str, str | None]:
    """Run each command line with its program; return the output of each, None if it failed."""
    until = time.monotonic() + limit_s
    started: dict[str, subprocess.Popen[str]] = {}
    for line, name in programs.items():
        program = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is not None:
            with contextlib.suppress(OSError):
                started[line] = subprocess.Popen(
                    [program, *line.split()[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    errors="replace",
                    env=environment,
                )
    return {line: _answer(process, until) for line, process in started.items()}


def _answer(process: subprocess.Popen[str], until: float) -> str | None:
    with process:
        try:
            said, _ = process.communicate(timeout=max(until - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    return said if process.returncode == 0 else None


def _shm() -> tuple[tuple[int, int] | None, bool]:
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None, False
    return (shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize), bool(shm.f_flag & os.ST_RDONLY)


def memfd() -> str:
    """Make and seal a memfd with memory, as weft's rings do; return the step that was refused, empty if none."""
    flags, step = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING, "memfd_create"
    try:
        try:
            file = os.memfd_create("weft-doctor", flags | _MFD_NOEXEC_SEAL)
        except OSError as refused:
            if refused.errno != errno.EINVAL:
                raise
            file = os.memfd_create("weft-doctor", flags)  # Linux before 6.3
        step = "F_ADD_SEALS"
        try:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            step = "fallocate"
            os.posix_fallocate(file, 0, 1)
        finally:
            os.close(file)
    except OSError as refused:
        return f"{step}: {refused.strerror}"
    return ""


def copies() -> tuple[float, float]:
    """Measure copies of 64 KiB by the C library, for a millisecond or two: see :class:`Machine`."""
    page, nbytes = 4096, 1 << 16
    memory = ctypes.create_string_buffer(2 * nbytes + 3 * page)
    source = (ctypes.addressof(memory) + page - 1) // page * page
    best = [math.inf, math.inf]
    for _ in range(20):
        for i, after in enumerate((512, 16)):
            start = time.perf_counter()
            ctypes.memmove(source + nbytes + page + after, source, nbytes)
            best[i] = min(best[i], time.perf_counter() - start)
    return nbytes / best[0], nbytes / best[1]


def _synchronised() -> bool | None:
    """Ask the kernel, as timedatectl does; reading needs no privilege, but a container's seccomp filter may refuse."""
    timex = ctypes.create_string_buffer(512)  # struct timex has 208 bytes; modes 0: change nothing
    if ctypes.CDLL(None).adjtimex(timex) < 0:
        return None
    return not struct.unpack_from("@i", timex, 40)[0] & _UNSYNCHRONISED
