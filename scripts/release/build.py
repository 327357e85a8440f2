# SPDX-License-Identifier: BSD-3-Clause
"""The sdist, and out of it wheels for other people's machines: an old glibc, two architectures, few files.

Zig's C++ compiler, a wheel of PyPI's, is told the glibc and the architecture to build for, and brings its C++ library,
which it links statically. libucx stays outside: weft loads it at run time. From CPython 3.12 on one wheel serves all
versions (the stable ABI); 3.11 needs one of its own, as nanobind's part uses what became stable with 3.12. A
free-threaded CPython has no stable ABI that nanobind can use before 3.15: there pip builds from the sdist.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: What RHEL 8, Debian 10, Ubuntu 20.04 and newer have; libucx's wheels need the same.
GLIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")


class Target(NamedTuple):
    """A CPython to build with, by its version, and what the wheel is for: a stable ABI, or only that version."""

    python: str
    abi: str


#: Before 3.14 CPython ends daemon threads at exit by pthread_exit, which unwinds their stacks by this library. A module
#: with an unwinder of its own, as Zig would link it, crashes in that. manylinux lets wheels expect it.
UNWINDER = "libgcc_s.so.1"
_UNWINDING = (
    *("Backtrace", "DeleteException", "FindEnclosingFunction", "ForcedUnwind", "GetCFA", "GetDataRelBase", "GetGR"),
    *("GetIP", "GetIPInfo", "GetLanguageSpecificData", "GetRegionStart", "GetTextRelBase", "RaiseException", "Resume"),
    *("Resume_or_Rethrow", "SetGR", "SetIP"),
)

TARGETS = (Target("3.11", ""), Target("3.12", "cp312"))


def platform(architecture: str) -> str:
    """Return the platform tag of a wheel."""
    return f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"


def run(command: Sequence[str | os.PathLike[str]], **changes: str) -> None:
    """Run a command, and show which."""
    print("$", shlex.join(map(str, command)), flush=True)
    subprocess.run(command, check=True, env={**os.environ, **changes}, timeout=3600)


def sdist(out: Path) -> Path:
    """Pack the checkout."""
    run(["uv", "build", "--quiet", "--sdist", "--out-dir", out, ROOT])
    (made,) = out.glob("*.tar.gz")
    return made


def wheel(source: Path, target: Target, architecture: str, work: Path) -> Path:
    """Build a wheel out of the sdist; it is not yet checked, and tagged for this machine's kind of Linux."""
    folder, out = tools(architecture, work / "tools" / architecture), work / f"{architecture}-{target.python}"
    settings = {
        "build-dir": f"{out}/build",
        "cmake.define.CMAKE_CXX_COMPILER": folder / "c++",
        "cmake.define.CMAKE_AR": folder / "ar",
        "cmake.define.CMAKE_RANLIB": folder / "ranlib",
        # nanobind's headers use stderr, and with the stable ABI Python's no longer bring it
        "cmake.define.CMAKE_CXX_FLAGS": "-include stdio.h",
        "cmake.define.CMAKE_MODULE_LINKER_FLAGS": folder / UNWINDER,
        "cmake.define.CMAKE_EXE_LINKER_FLAGS": "-s",
        "install.strip": "false",  # by the linker: this machine's strip knows one architecture
        "env._PYTHON_HOST_PLATFORM": f"linux-{architecture}",
        "env.SETUPTOOLS_EXT_SUFFIX": f".cpython-{target.python.replace('.', '')}-{architecture}-linux-gnu.so",
    }
    if target.abi:
        settings["wheel.py-api"] = target.abi
    options = [f"-C{name}={value}" for name, value in settings.items()]
    run(["uv", "build", "--quiet", "--wheel", "--python", target.python, "--out-dir", out, *options, source])
    (made,) = out.glob("*.whl")
    return made


def tools(architecture: str, folder: Path) -> Path:
    """Write what CMake calls: a compiler has to be one word there."""
    import ziglang

    zig = shlex.quote(str(Path(ziglang.__file__).parent / "zig"))
    folder.mkdir(parents=True, exist_ok=True)
    target = f"-target {architecture}-linux-gnu.{GLIBC}"
    commands = {"cc": f"cc {target}", "c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib"}
    for name, command in commands.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {zig} {command} "$@"\n')
        (folder / name).chmod(0o755)
    # The linker needs the names alone: found there, they are not taken from Zig's unwinder.
    names = folder / "unwinder.c"
    names.write_text("".join(f"void _Unwind_{name}(void) {{}}\n" for name in _UNWINDING))
    flags = ["-x", "c", "-O1", "-fPIC", "-shared", "-nostdlib", f"-Wl,-soname,{UNWINDER}", "-o", folder / UNWINDER]
    run([folder / "cc", *flags, names])
    return folder
