# SPDX-License-Identifier: BSD-3-Clause
"""The memory of one run's processes, sampled from outside, and of its files in the page cache."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

#: A temporary may live for a few hundredths of a second only.
_SAMPLE_S = 0.01
_CACHE_SAMPLE_S = 0.1
_PSS_SAMPLE_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Memory:
    """The memory of the processes of one group, sampled.

    Private pages are added up. Those of ``/dev/shm`` and of files without a name (memfd) are counted by the kernel for
    the whole machine, each once, whoever maps it or nobody: what they are more than before is the run's. Reading that
    costs microseconds. The sum of PSS, which walks page tables, is taken once a second; it lacks what nobody maps, and
    has a part of the libraries.

    What lies in files of `scratch`, spilled or P2P's, is in the page cache as long as the machine has room. A protocol
    that leaves its data there looks smaller than one that keeps it in its processes, so it is counted beside them, ten
    times a second.
    """

    group: int
    scratch: Path
    samples: list[tuple[float, int]] = field(default_factory=list)
    cached_samples: list[tuple[float, int]] = field(default_factory=list)
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
        next_pss = next_cache = time.monotonic()
        processes, cached = self.processes(), 0
        while not done.wait(_SAMPLE_S):
            now = time.monotonic()
            if now >= next_pss:
                processes, next_pss = self.processes(), now + _PSS_SAMPLE_S
                self.pss_samples.append((now, sum(map(_pss_nbytes, processes))))
            if now >= next_cache:
                cached, next_cache = cached_nbytes(self.scratch), now + _CACHE_SAMPLE_S
            private = sum(_anonymous_nbytes(process.pid) for process in processes)
            held = private + max(0, shared_nbytes() - self._shared_before)
            self.samples.append((now, held))
            self.cached_samples.append((now, held + cached))

    def peaks(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Return the greatest samples between two times of ``time.monotonic``; the nearest ones, if none is between."""
        every = {
            "peak_nbytes": self.samples,
            "peak_with_cache_nbytes": self.cached_samples,
            "peak_pss_nbytes": self.pss_samples,
        }
        middle_s = (begin_s + end_s) / 2

        def peak(samples: list[tuple[float, int]]) -> int:
            between = [nbytes for at, nbytes in samples if begin_s <= at <= end_s]
            return max(between) if between else min(samples, key=lambda sample: abs(sample[0] - middle_s))[1]

        return {name: peak(samples) for name, samples in every.items() if samples}


def cached_nbytes(folder: Path) -> int:
    """Return the bytes of the files below `folder` that lie in the page cache."""
    return sum(_cached_nbytes(Path(at) / name) for at, _, names in os.walk(folder) for name in names)


def _cached_nbytes(path: Path) -> int:
    with contextlib.suppress(OSError), path.open("rb") as file:  # a file or its folder that is deleted meanwhile
        nbytes = os.fstat(file.fileno()).st_size
        if not nbytes:
            return 0
        # private and writable, as ctypes takes the address of nothing else
        with mmap.mmap(file.fileno(), nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            begin = ctypes.c_char.from_buffer(mapped)
            pages = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
            failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(nbytes), pages)
            del begin
        return 0 if failed else bytes(pages).count(1) * mmap.PAGESIZE
    return 0


def shared_nbytes() -> int:
    """Return the bytes of tmpfs and shared memory on this machine."""
    return _kib(Path("/proc/meminfo").read_text(), "Shmem:") << 10


def _anonymous_nbytes(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # What the file status calls RssAnon, for less: it is read a hundred times a second for each process.
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(resident) - int(shared)) * mmap.PAGESIZE
    return 0


def _pss_nbytes(process: psutil.Process) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return _kib(Path(f"/proc/{process.pid}/smaps_rollup").read_text(), "Pss:") << 10
    return 0


def _kib(text: str, name: str) -> int:
    """Read one line of a file of the kernel's; a process that is ending has no such line."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name)), 0)
