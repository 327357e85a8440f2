# SPDX-License-Identifier: BSD-3-Clause
"""Run weft's tests with other interpreters and with other releases of UCX.

    python scripts/versions.py [--pythons 3.12,3.13] [--ucx 1.16.0] [--only ARGUMENTS OF PYTEST] [--json FILE]

It needs the development environment (``uv run python scripts/versions.py``). Each interpreter runs all tests, as
``nox -s tests-3.12`` does; it is found on PATH or by uv. Each release of UCX is a wheel (``libucx-cu12``), which goes
into a folder that ends with the run, and the tests of the core are run on it by this interpreter. The record is written
after each. The status is 1 if a test failed or an interpreter or a wheel is not to be had.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import junit

from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record

ROOT = Path(__file__).parents[1]
CORE = ["tests/native", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/test_*.py"))]
SURROUNDINGS = "import json; from weft.bench.common import environment; print(json.dumps(environment.collect()))"
#: The whole takes a quarter of an hour on an idle machine.
TIMEOUT_S = 7200


def run(argv: Sequence[str], record: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Run pytest by `argv`, which writes `record`; return how many tests went which way, and why."""
    began = time.monotonic()
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    status = subprocess.run(argv, cwd=ROOT, env={**environment, **variables}, timeout=TIMEOUT_S).returncode
    if not record.is_file():
        return {"missing": f"no test was run, the status was {status}"}
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for case, outcome, why in junit.cases(record):
        counts[outcome] += 1
        if outcome == "failed":
            failed[f"{case.get('classname')}::{case.get('name')}"] = why
        elif outcome == "skipped":
            skipped[why] += 1
    seconds = round(time.monotonic() - began)
    return {"counts": counts, "failed": failed, "skipped": skipped, "seconds": seconds, "status": status}


def surroundings(python: str, variables: Mapping[str, str]) -> Any:
    """Ask an interpreter that has weft for the machine and the versions."""
    told = subprocess.run([python, "-c", SURROUNDINGS], capture_output=True, env={**os.environ, **variables}, cwd=ROOT)
    return json.loads(told.stdout) if told.returncode == 0 else None


def on_python(version: str, only: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run all tests on another interpreter."""
    record, session = folder / f"{version}.xml", f"tests-{version}"
    nox = [sys.executable, "-m", "nox", "--error-on-missing-interpreters", "--session", session]
    row = run([*nox, "--", f"--junitxml={record}", *only], record, {})
    python = ROOT / ".nox" / session.replace(".", "-") / "bin/python"
    return {"tests": "all", **row, "environment": surroundings(str(python), {}) if python.exists() else None}


def on_ucx(version: str, only: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run the core's tests on another release of UCX."""
    record, wheel = folder / f"{version}.xml", folder / version
    got = subprocess.run(["uv", "pip", "install", "--no-deps", "--target", str(wheel), f"libucx-cu12=={version}.*"])
    if got.returncode:
        return {"tests": "core", "missing": "no such wheel", "environment": None}
    variables = {"WEFT_LIBUCX": str(wheel / "libucx/lib")}
    tests = [sys.executable, "-m", "pytest", f"--junitxml={record}", *(only or CORE)]
    return {"tests": "core", **run(tests, record, variables), "environment": surroundings(sys.executable, variables)}


def rows(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run what was asked for, one after the other."""
    only = shlex.split(arguments.only)
    for version in filter(None, arguments.pythons.split(",")):
        yield f"CPython {version}", on_python(version, only, folder)
    for version in filter(None, arguments.ucx.split(",")):
        yield f"UCX {version}", on_ucx(version, only, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--pythons", default="", help="interpreters, as 3.12,3.13")
    parser.add_argument("--ucx", default="", help="releases of UCX, as 1.16.0,1.18.1")
    parser.add_argument("--only", default="", metavar="ARGUMENTS", help="what pytest runs in place of all, or the core")
    add_json(parser)
    arguments = parser.parse_args()
    here, runs = surroundings(sys.executable, {}), dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        for title, row in rows(arguments, Path(name)):
            runs[title] = row
            print(f"{title}: {row.get('missing') or dict(row['counts'])}", flush=True)
            write_record(arguments.json, {"runs": runs, "environment": here})
    return 0 if runs and all(row.get("status") == 0 for row in runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
