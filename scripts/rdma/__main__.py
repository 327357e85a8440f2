# SPDX-License-Identifier: BSD-3-Clause
"""Run weft over RDMA's verbs: in a virtual machine whose RDMA device is made of software.

Needs Debian 12 or newer on x86-64 with qemu-system-x86, e2fsprogs, g++, CMake and Ninja, not root; about 1.5 GB in
the cache folder. See docs/rdma.md.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import runpy
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boot
import build
import image
from cases import CASES, Case

#: Exit code of who could not even try, as automake's and meson's.
SKIPPED = 77
#: Seconds for the guest's start and end, on a machine that has much else to do.
_START_S = 120
_ENVIRONMENT = Path(__file__).parents[2] / "src/weft/bench/common/environment.py"
_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mkfs.ext4": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "setpriv": "util-linux",
    "apt-get": "apt",
    "g++": "g++",
    "cmake": "cmake",
    "ninja": "ninja-build",
}


def main() -> int:
    """Make what is not there, boot, report."""
    parser = argparse.ArgumentParser(prog="nox -s rdma --", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(case.name for case in CASES)}; all of them without")
    parser.add_argument("--boots", type=int, default=1, help="run them so often, each time in a fresh guest")
    parser.add_argument("--run", metavar="COMMAND", help="run this shell command in the guest instead, and show it")
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS", help="for --run")
    parser.add_argument("--cache", type=Path, default=_default_cache(), help="keep the image there (%(default)s)")
    parser.add_argument("--json", type=Path, help="where to write the record")
    args = parser.parse_args()
    why_not = _why_not()
    if why_not:
        print(f"rdma: skipped: {why_not}")
        return SKIPPED
    unknown = set(args.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    cases = [case for case in CASES if not args.cases or case.name in args.cases]
    if args.run:
        cases = [Case("run", ["sh", "-c", args.run], args.limit)]
    # by its path, because weft is not installed here
    surroundings = runpy.run_path(str(_ENVIRONMENT))["collect"]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("rdma: terminated"))  # the guest's folder goes too
    args.cache.mkdir(parents=True, exist_ok=True)
    with (args.cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        boots = _run(args.cache, cases, args.boots, show=bool(args.run))
    if args.json:
        record = {"cases": [case.name for case in cases], "boots": boots, "environment": surroundings}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(boot["wrong"] for boot in boots) else 0


def _why_not() -> str:
    """Say what keeps this from running here; nothing if nothing does."""
    if platform.machine() != "x86_64":
        return f"the guest is for x86_64, and this is {platform.machine()}"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [package for tool, package in _TOOLS.items() if not shutil.which(tool, path=path)]
    if missing:
        return f"not here: {' '.join(missing)}; on Debian: apt-get install --no-install-recommends {' '.join(missing)}"
    os.environ["PATH"] = path
    if not Path(image.KEYRING).is_file():
        return f"no {image.KEYRING}: the guest is made of Debian's packages (debian-archive-keyring)"
    if not image.mirror():
        return "apt knows no mirror of Debian's here; apt-get update tells it"
    return ""


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "rdma"


def _run(cache: Path, cases: list[Case], count: int, *, show: bool) -> list[dict[str, Any]]:
    """Boot so often; return how long each took, and what was wrong with it."""
    since = time.monotonic()
    made = image.make(cache)
    boots: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        weft = Path(folder) / "weft"
        build.stage(made, cache, weft)
        told = [{name: value for name, value in case._asdict().items() if name != "shows"} for case in cases]
        (weft / "cases.json").write_text(json.dumps(told))
        print(f"ready after {time.monotonic() - since:.0f} s: {made.folder}", flush=True)
        for number in range(1, count + 1):
            since = time.monotonic()
            results = cache / "results" / str(number)
            shutil.rmtree(results, ignore_errors=True)
            results.mkdir(parents=True)
            in_time = boot.boot(made, weft, results, limit_s=_START_S + sum(case.limit_s for case in cases))
            wrong = _wrong(cases, results, show=show)
            if not in_time:
                wrong.append("the guest did not end by itself")
            boots.append({"seconds": time.monotonic() - since, "wrong": wrong})
            print(f"boot {number}: {boots[-1]['seconds']:.0f} s: {'; '.join(wrong) or 'right'}", flush=True)
    right = sum(not boot["wrong"] for boot in boots)
    print(f"{right} of {len(boots)} boots right; what was said: {cache / 'results'}")
    return boots


def _wrong(cases: list[Case], results: Path, *, show: bool) -> list[str]:
    """Judge each case by what it left in `results`; print how each ended."""
    ended_file = results / "ended.json"
    ended = json.loads(ended_file.read_text()) if ended_file.exists() else {}
    wrong: list[str] = []
    for case in cases:
        if case.name not in ended:
            wrong.append(f"{case.name}: was not run")
            continue
        said = (results / f"{case.name}.txt").read_text(errors="replace")
        code, took_s = ended[case.name]["code"], ended[case.name]["took_s"]
        lacks = [text for text in case.shows if text not in said]
        how = f"killed after {case.limit_s:g} s" if code is None else f"exit code {code}" if code else ""
        how = how or (f"does not say {', '.join(map(repr, lacks))}" if lacks else "")
        print(f"  {case.name}: {how or 'right'}, {took_s} s", flush=True)
        if how:
            wrong.append(f"{case.name}: {how}")
        if how or show:
            print(said)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
