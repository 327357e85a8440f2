# SPDX-License-Identifier: BSD-3-Clause
"""Build what goes to PyPI into dist/, and check it: sdist, wheels for x86-64 and aarch64, used without a compiler.

Run by ``nox -s release``, which installs the tools. It uploads nothing. Wheels are built with CPython 3.11 and 3.12;
what runs here is then used with those and with each of ``--pythons`` that uv finds; the other architecture is used
under qemu-user (Debian: root, debootstrap, qemu-user-static), or elsewhere, as the workflow does.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import build
import check
import emulation


def main() -> int | str:
    """Build all, then check all; the first failure ends it, and is returned."""
    parser = argparse.ArgumentParser(prog="nox -s release --", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=build.ROOT / "dist", help="where the files go (%(default)s)")
    parser.add_argument("--work", type=Path, default=build.ROOT / "build/release", help="for the rest (%(default)s)")
    parser.add_argument("--architectures", default=",".join(build.ARCHITECTURES), help="%(default)s")
    parser.add_argument("--pythons", default="3.13,3.14", help="use the wheel of the stable ABI with these, too")
    parser.add_argument("--no-emulation", action="store_true", help="do not use the other architecture's wheel here")
    parser.add_argument("--no-build", action="store_true", help="check what --out holds")
    args = parser.parse_args()
    here, architectures = platform.machine(), args.architectures.split(",")
    others = [] if args.no_emulation else [name for name in architectures if name != here]
    for name in others:
        if why := emulation.why_not(name):
            parser.error(f"cannot run {name} here: {why}; or leave it out: --no-emulation")
    missing = [target.python for target in build.TARGETS if not _has(target.python)]
    if missing and not args.no_build:
        parser.error(f"wheels are built with CPython {' and '.join(missing)}: put it on PATH, uv finds none")
    try:
        _release(args, here, architectures, others)
    except subprocess.CalledProcessError as error:
        return f"{Path(error.cmd[0]).name} ended with {error.returncode}; the command is above"
    except subprocess.TimeoutExpired as error:
        return f"{Path(error.cmd[0]).name} did not end within {error.timeout:.0f} s; the command is above"
    return 0


def _release(args: argparse.Namespace, here: str, architectures: list[str], others: list[str]) -> None:
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.no_build:
        _build(args.out, args.work, architectures)
    wheels = sorted(args.out.glob("*.whl"))
    check.metadata([*args.out.glob("*.tar.gz"), *wheels])
    check.recipe(sorted({target.python for target in build.TARGETS} | set(args.pythons.split(","))))
    for wheel in wheels:
        if "-abi3-" in wheel.name:
            check.abi(wheel)
    for target in build.TARGETS:
        if here in architectures:
            pythons = [target.python, *(args.pythons.split(",") if target.abi else [])]
            _use_here(_of(wheels, target, here), pythons, args.work)
    stable = build.TARGETS[-1]
    for name in others:
        emulation.use(_of(wheels, stable, name), name, args.work)
    for file in [*args.out.glob("*.tar.gz"), *wheels]:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")


def _has(python: str) -> bool:
    return subprocess.run(["uv", "python", "find", "--quiet", python], capture_output=True).returncode == 0


def _build(out: Path, work: Path, architectures: list[str]) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    source = build.sdist(out)
    for target in build.TARGETS:
        for name in architectures:
            shutil.rmtree(work / f"{name}-{target.python}", ignore_errors=True)
            check.repair(build.wheel(source, target, name, work), name, out)


def _of(wheels: list[Path], target: build.Target, architecture: str) -> Path:
    kind = "-abi3-" if target.abi else f"-cp{target.python.replace('.', '')}-cp"
    (found,) = [wheel for wheel in wheels if kind in wheel.name and wheel.stem.endswith(architecture)]
    return found


def _use_here(wheel: Path, pythons: list[str], work: Path) -> None:
    for python in pythons:
        if _has(python):
            check.clean(wheel, python, work)
        else:
            print(f"not used with CPython {python}: uv finds none")


if __name__ == "__main__":
    sys.exit(main())
