# SPDX-License-Identifier: BSD-3-Clause
"""Run the whole test suite and say what was skipped: only for want of a GPU or RDMA device, or of the kernel, may be.

    uv run nox -s everything                       # installs what the suite can use first
    python scripts/everything.py [--json FILE] [ARGUMENTS OF PYTEST]

It runs what else is too long for CI, too; the tests ask ``WEFT_TEST_EVERYTHING`` for that. What failed runs once more,
each test by itself, and the record tells both: one that then passes depends on others, or on the load.

The status is 1 if a test fails, or was skipped for want of something that can be installed; 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import junit

from weft.bench.common import environment
from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record

TIMEOUT_S = 4 * 3600
MAY_REPEAT = 20

#: Why a test may be skipped where everything is installed that can be.
MAY_LACK = {
    "a GPU": r"CuPy|cupy|CUDA|GPU|numba|Numba|RMM|UCX reaches .* memory only|no device \d",
    "an RDMA device": r"RDMA|verbs|InfiniBand",
    "what this kernel or machine has": (
        r"kernel|address layout|no IPv6|two CPUs|cannot be made here|tmpfs|shared memory is set|may be locked|"
        r"system call|namespaces|does not start here"
    ),
    "another UCX": r"^UCX 1\.|this UCX does not",
    "a record that was not taken": r"was not measured",
}


def reason(why: str) -> str | None:
    """Return the kind of thing whose lack skipped a test, or None: it can be installed."""
    return next((kind for kind, pattern in MAY_LACK.items() if re.search(pattern, why)), None)


def node(case: ET.Element) -> str:
    """Return a test's name as pytest takes it."""
    file = case.get("file", "")
    classes = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".").split(".")
    return "::".join([file, *filter(None, classes), case.get("name", "")])


def run(arguments: Sequence[str]) -> list[tuple[str, str, str]] | None:
    """Run pytest; return each test's name, its outcome and why; None if it left no record."""
    with tempfile.TemporaryDirectory() as name:
        record = Path(name) / "record.xml"
        command = [sys.executable, "-m", "pytest", "-o", "junit_family=xunit1", f"--junitxml={record}", *arguments]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=TIMEOUT_S, env={**os.environ, "WEFT_TEST_EVERYTHING": "1"})
        if not record.is_file():
            return None
        return [(node(case), outcome, why) for case, outcome, why in junit.cases(record)]


def passes_alone(test: str) -> bool:
    """Run one test by itself."""
    return {outcome for _, outcome, _ in run([test]) or ()} == {"passed"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_json(parser)
    told, rest = parser.parse_known_args()
    surroundings = environment.collect()
    cases = run(rest)
    if cases is None:
        return 2
    counts = Counter(outcome for _, outcome, _ in cases)
    skipped = Counter((reason(why), why) for _, outcome, why in cases if outcome == "skipped")
    failed = {test: why for test, outcome, why in cases if outcome == "failed"}
    # More than these are not chance.
    alone = {test: failed.pop(test) for test in [*failed] if passes_alone(test)} if len(failed) <= MAY_REPEAT else {}
    for (kind, why), times in sorted(skipped.items(), key=str):
        print(f"skipped {times:3}, {'CAN BE INSTALLED' if kind is None else f'for want of {kind}'}: {why}")
    print(", ".join(f"{times} {outcome}" for outcome, times in counts.items()))
    for test, why in alone.items():
        print(f"failed once, passed alone: {test}: {why}")
    told_skips = [{"lacks": kind, "why": why, "tests": times} for (kind, why), times in skipped.items()]
    came_to = {"arguments": rest, "counts": counts, "skipped": told_skips, "failed": failed, "passed_alone": alone}
    write_record(told.json, came_to | {"environment": surroundings})
    return 1 if failed or alone or any(kind is None for kind, _ in skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
