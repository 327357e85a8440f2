# SPDX-License-Identifier: BSD-3-Clause
"""The files that segments are: huge pages where they can be had, a memfd elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")

#: Prints the name of a segment's file and how many bytes of a filled block lie on huge pages.
BLOCK = """
import re, sys
from pathlib import Path
from weft import _native
_native.pool_small_on_huge(False)
for nbytes in map(int, sys.argv[1:] or ["20000000"]):
    view = _native.pool_allocate(nbytes)
    view[:] = bytes(nbytes)
maps = Path("/proc/self/smaps").read_text()
found = re.findall(r"rw-s .* (/\\S*) \\(deleted\\)\\n(?:[A-Z].*\\n)*?ShmemPmdMapped: +(\\d+) kB", maps)
for name, kilobytes in found:
    print(name, int(kilobytes) * 1024)
"""


def mode(setting):
    text = (SETTINGS / setting).read_text() if (SETTINGS / setting).exists() else ""
    return text.partition("[")[2].partition("]")[0]


def may_mount(*, namespace):
    """Ask the kernel by another way: whether util-linux can mount such a tmpfs."""
    namespaces = ["--mount", "--user", "--map-root-user"] if namespace else ["--mount"]
    command = ["unshare", *namespaces, "mount", "-t", "tmpfs", "-o", "huge=advise", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=100).returncode == 0
    except FileNotFoundError:
        return False


def needs_mount(*, namespace=False):
    if mode("shmem_enabled") != "never" or mode("enabled") not in ("madvise", "always"):
        pytest.skip(f"shared memory is set to {mode('shmem_enabled')!r}, memory to {mode('enabled')!r}")
    if not may_mount(namespace=namespace):
        pytest.skip("no such tmpfs can be mounted here")


def run(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [(name, int(number)) for name, number in map(str.split, done.stdout.splitlines())]


def test_a_segment_lies_on_huge_pages():
    needs_mount()
    ((name, nbytes),) = run(BLOCK)
    assert name.startswith("/#")
    assert nbytes >= 16 << 20


#: Prints, for each block, whose it is and how many bytes of the pool lie on huge pages while there is no other.
KINDS = """
import re, sys
from pathlib import Path
import numpy as np
from weft import _native
def on_huge():
    maps = Path("/proc/self/smaps").read_text()
    return 1024 * sum(map(int, re.findall(r"ShmemPmdMapped: +(\\d+) kB", maps)))
_native.numpy_in_pool(True)
_native.pool_small_on_huge(sys.argv[1] == "all")
for name, make in {
    "tiny": lambda: _native.pool_allocate(2 << 20),
    "small": lambda: _native.pool_allocate((16 << 20) - 4096),
    "large": lambda: _native.pool_allocate(16 << 20),
    "small-array": lambda: np.ones(12 << 20, "u1"),
    "large-array": lambda: np.ones(20 << 20, "u1"),
    "zeros": lambda: np.zeros(20 << 20, "u1"),
}.items():
    block = make()
    np.frombuffer(block, "u1")[::4096] = 1
    print(name, on_huge())
    del block
    _native.pool_cool()
"""


def test_only_large_blocks_lie_on_huge_pages():
    """A small one would take a whole huge page, which can cost more than it brings."""
    needs_mount()
    on_huge = dict(run(KINDS, "large"))
    large = {"large": 16 << 20, "large-array": 20 << 20, "zeros": 20 << 20}
    assert on_huge == {"tiny": 0, "small": 0, "small-array": 0} | large


def test_where_small_pages_are_slow_all_blocks_do_but_for_the_first_bytes():
    """A process that has little in its pool takes no huge page for it."""
    needs_mount()
    on_huge = {name: nbytes >> 20 for name, nbytes in run(KINDS, "all")}
    assert on_huge == {"tiny": 0, "small": 14, "large": 14, "small-array": 10, "large-array": 18, "zeros": 18}


#: Makes of root an ordinary user; such a process is closed to itself too until it says otherwise.
ORDINARY = """
import ctypes, os, pathlib, re
from weft import _native
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_so_does_an_ordinary_user_s():
    needs_mount(namespace=True)
    ((name, nbytes),) = run(ORDINARY + BLOCK)
    assert name.startswith("/#")
    assert nbytes >= 16 << 20


def test_one_mount_serves_every_segment():
    needs_mount()
    files = run(BLOCK + "print('fd', len(list(Path('/proc/self/fd').iterdir())))", "20000000", "300000000", "300000000")
    fewer = run(BLOCK + "print('fd', len(list(Path('/proc/self/fd').iterdir())))", "20000000")
    assert len(files) == 4  # segments, and the line of descriptors
    assert files[-1][1] - fewer[-1][1] == 2


#: Kills, as a service manager's filter may, whoever calls fsopen.
FILTER = """
import ctypes, struct
libc = ctypes.CDLL(None)
load_number, equal, kill, allow = (0x20, 0, 0, 0), (0x15, 0, 1, 430), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in (load_number, equal, kill, allow)))
header = struct.pack("HxxxxxxQ", 4, ctypes.addressof(program))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, header) == 0
"""


def test_who_may_not_mount_gets_a_memfd():
    ((name, _),) = run(FILTER + BLOCK)
    assert name == "/memfd:weft"


def test_without_huge_pages_a_block_touches_only_itself():
    """Otherwise memory that is not there would count as idle."""
    if mode("shmem_enabled") != "never":
        pytest.skip(f"memfds may have huge pages: {mode('shmem_enabled')}")
    code = """
from weft import _native
_native.pool_small_on_huge(True)
block = _native.pool_allocate(5 << 20)
print("idle", _native.pool_statistics()["idle_nbytes"])
"""
    assert run(FILTER + code) == [("idle", 0)]
