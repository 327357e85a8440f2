# SPDX-License-Identifier: BSD-3-Clause
"""What a host and its control groups have left of memory, from trees of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from weft.dask.memory.available import Available

MIB = 1 << 20


def write(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


HOST = {"proc/meminfo": f"MemTotal: {1 << 20} kB\nMemAvailable:   {1 << 10} kB\nShmem: 7 kB"}
GROUPS = {
    "proc/self/cgroup": "0::/workers/one",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
    "sys/fs/cgroup/workers/one/memory.max": "max",
    "sys/fs/cgroup/workers/memory.max": 100 * MIB,
}


@pytest.mark.parametrize(
    ("used", "files", "left"), [(300, 0, 0), (99, 0, 1), (100, 0.5, 0.5), (99.5, 30, 1), (10, 5, 1)]
)
def test_the_tightest_limit_counts_without_what_is_reclaimed(
    tmp_path: Path, used: float, files: float, left: float
) -> None:
    part = int(files * MIB / 2)
    group = {
        "sys/fs/cgroup/workers/memory.current": int(used * MIB),
        "sys/fs/cgroup/workers/memory.stat": f"anon 5\ninactive_file {part}\nactive_file {part}\nshmem 9",
    }
    assert Available(write(tmp_path, HOST | GROUPS | group)).nbytes() == left * MIB


def test_without_groups_it_is_the_host_s(tmp_path: Path) -> None:
    assert Available(write(tmp_path, HOST)).nbytes() == MIB


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    assert Available(tmp_path).nbytes() is None


def test_this_machine_has_some_left() -> None:
    assert (Available().nbytes() or 0) > 0
