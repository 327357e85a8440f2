# SPDX-License-Identifier: BSD-3-Clause
"""A wheel of another architecture in use: Debian's Python of that architecture, run by qemu-user.

Debian's packages are unpacked into a folder, not configured. The kernel hands programs of that architecture to qemu
inside a user namespace of their own (Linux 6.7), so that processes can start others there, and this machine stays as
it is. What cannot run there is in `NOT_HERE`.

Everything runs on one CPU. Between CPUs of x86 qemu 7.2 and 10.0 do not keep the order of seq_cst: a store (stlr) may
pass a load after it (ldar), which Arm forbids. Of two threads that each write one variable and then read the other's,
both read the old value in 2 to 4 of 100 attempts, and a ring that relies on this loses wake-ups. On one CPU they never
do. So the instructions are tried here, and Arm's memory order is not: the workflow runs tests/ring on an Arm machine.

Small programs under qemu 7.2 show: madvise(MADV_REMOVE) of a memfd returns 0 and leaves its pages as they were; of 20
descriptors that come by a socket into room for 8, the program gets 8, without MSG_CTRUNC, and 20 are open.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import build
import check

SUITE, PYTHON = "trixie", "3.13"
#: Debian's names, and the first bytes of an ELF file of the architecture with those that count.
DEBIAN = {"aarch64": "arm64"}
_HEAD = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_COUNTS = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_ADVICE = "qemu answers madvise by 0, and neither removes pages nor asks for huge ones"
_DESCRIPTORS = "qemu keeps descriptors that came by a socket and do not fit, and no program can close them"
#: Tests, as pytest deselects them, and why they say nothing there.
NOT_HERE = {
    "tests/native/test_pool.py::test_trimmed_memory_goes_back_and_what_is_in_use_stays": _ADVICE,
    "tests/native/test_pool.py::test_a_pool_that_cools_keeps_its_files": _ADVICE,
    "tests/native/test_pool.py::test_large_blocks_ask_for_huge_pages": _ADVICE,
    "tests/native/test_side.py::test_descriptors_that_are_no_segments_are_closed[20]": _DESCRIPTORS,
    "tests/native/test_side.py::test_garbage_harms_nothing": _DESCRIPTORS,
    "tests/native/test_ring_hostile.py::test_spoiled_links_end_with_named_errors": "minutes; ring/fuzz does the same",
}
#: The ring's own programs in tests/ring, and their arguments.
RING = (
    ("unit", "emulated"),
    ("stress", "20000"),
    ("litmus", "100000"),
    ("sleep", "20000"),
    ("kill", "50"),
    ("fuzz", "5000"),
)
TIMEOUT_S = 3000


def why_not(architecture: str) -> str:
    """Say what this machine lacks; nothing if it lacks nothing."""
    needed = {"debootstrap": "debootstrap", f"qemu-{architecture}-static": "qemu-user-static", "unshare": "util-linux"}
    missing = [package for tool, package in needed.items() if shutil.which(tool) is None]
    if missing:
        return f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return "debootstrap needs root"
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    return "" if release >= (6, 7) else f"Linux 6.7 is needed for qemu in a namespace, this is {platform.release()}"


def use(fixed: Path, architecture: str, work: Path) -> None:
    """Run the ring's programs; import the wheel, show what it says of itself, and run the tests of one process."""
    root = _root(architecture, work / f"root-{architecture}")
    site = (
        root / "site-packages"
    )  # by this name hypothesis knows that it is not the user's, and does not read all of it
    shutil.rmtree(site, ignore_errors=True)
    kind = build.platform(architecture).removesuffix(f"_{architecture}")
    options = ["--python-version", PYTHON, "--python-platform", f"{architecture}-{kind}", "--only-binary", ":all:"]
    build.run(["uv", "pip", "install", "--quiet", *options, "--target", site, fixed, *check.TEST_PACKAGES])
    _compile(site, root / "usr/lib" / f"python{PYTHON}")
    tests = root / "source"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir()
    for name in ("tests", "scripts", "pyproject.toml"):
        copy = shutil.copytree if (build.ROOT / name).is_dir() else shutil.copy
        copy(build.ROOT / name, tests / name)
    _ring(root, architecture, work)
    python = "/usr/bin/python3"  # it keeps what it compiles, for the processes that follow
    _inside(root, architecture, [python, "-c", check.USE])
    _inside(root, architecture, [python, "-m", "weft", "info"])
    left_out = [option for name in NOT_HERE for option in ("--deselect", name)]
    _inside(root, architecture, [python, *check.PYTEST, "--timeout", "600", *left_out, *check.TESTS])
    for name, why in NOT_HERE.items():
        print(f"not run on {architecture}: {name}: {why}")


def _compile(*folders: Path) -> None:
    """Compile with the same Python of this machine, if there is one: it takes minutes under qemu."""
    python = subprocess.run(["uv", "python", "find", "--quiet", PYTHON], capture_output=True, text=True).stdout.strip()
    if python:  # the files of other versions' syntax that packages bring for their tests fail
        subprocess.run([python, "-m", "compileall", "-q", "-j", "0", *folders], stdout=subprocess.DEVNULL, timeout=600)


def _ring(root: Path, architecture: str, work: Path) -> None:
    """Build the ring's programs as the wheel is built, and run them."""
    compiler = build.tools(architecture, work / "tools" / architecture) / "c++"
    options = ["-std=c++20", "-O2", "-pthread", f"-I{build.ROOT / 'src/native'}"]
    folder = root / "source/ring"
    folder.mkdir()
    for name, *arguments in RING:
        build.run([compiler, *options, build.ROOT / f"tests/ring/{name}.cpp", "-o", folder / name])
        _inside(root, architecture, [f"ring/{name}", *arguments])


def _root(architecture: str, root: Path) -> Path:
    """Return a folder with Debian's Python, made now if it is not there."""
    done = root / ".unpacked"
    if done.exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    options = [f"--arch={DEBIAN[architecture]}", "--variant=minbase", "--include=python3"]
    build.run(["debootstrap", "--foreign", *options, SUITE, root])
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True, timeout=300)
    done.touch()
    return root


def _inside(root: Path, architecture: str, command: Sequence[str]) -> None:
    """Run a command in `root`, by namespaces that end with it."""
    qemu = shutil.which(f"qemu-{architecture}-static")
    register = f":{architecture}:M::{_HEAD}:{_COUNTS}:{qemu}:F"
    script = """
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && printf %s "$1" >/proc/sys/fs/binfmt_misc/register &&
        mount --bind "$0" "$0" && cd "$0" && mkdir -p proc sys dev/shm tmp && mount -t proc proc proc &&
        mount --rbind /sys sys && mount --rbind /dev dev && mount -t tmpfs tmpfs dev/shm && shift &&
        exec chroot . /usr/bin/env -i PATH=/usr/bin HOME=/tmp LANG=C.UTF-8 PYTHONPATH=/site-packages \\
            sh -c 'cd /source && exec "$@"' sh "$@"
    """
    one_cpu = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    print(f"{architecture}$", *(part if "\n" not in part else "..." for part in command), flush=True)
    whole = [*one_cpu, *namespaces, "sh", "-c", script, root, register, *command]
    if status := subprocess.run(whole, timeout=TIMEOUT_S).returncode:
        sys.exit(f"{architecture}: {command[0]} ended with {status}")
