# SPDX-License-Identifier: BSD-3-Clause
"""Run ucx-py's own tests against the drop-in ``weft.compat.ucp``.

    python scripts/ucx_py_tests.py --source DIR [--rev REV] [--only EXPRESSION] [--json FILE]

DIR is a checkout of ucx-py (``git clone --branch branch-0.45 https://github.com/rapidsai/ucx-py``), or a bare git
directory, of which REV is taken. Only its tests and the benchmarks that one of them runs come from there. The tests
need a pytest-asyncio that still has the ``event_loop`` fixture, beside which the project's own tests do not run:

    uv venv .ucx-py && uv pip install --python .ucx-py/bin/python . numpy "pytest==7.*" "pytest-asyncio==0.21.*" \\
        pytest-timeout && .ucx-py/bin/python scripts/ucx_py_tests.py --source DIR

It prints how many passed, failed and were skipped, and why. The status is 1 if a test fails, 2 if nothing could be run.

The tests are ucx-py's (BSD-3-Clause) and none of their text is here. ``tests/compat`` is the project's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import junit

import weft
from weft.bench.common import environment
from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record
from weft.compat import PATH

#: What the tests need of the checkout: themselves, and the package that test_benchmark_cluster runs.
NEEDED = ("tests", "ucp/benchmarks", "ucp/_libs/tests/test_arr.py")
TIMEOUT_S = 1800
TEST_TIMEOUT_S = 120

#: Files that are not run, and why.
LEFT_OUT = {
    "ucp/_libs/tests, but test_arr": "they test ucp._libs.ucx_api, UCX's C functions, which the drop-in lacks",
}


@contextlib.contextmanager
def checkout(source: Path, rev: str) -> Iterator[Path]:
    """Give a folder of its own with what is needed of `source`, or of its commit `rev`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (source / "tests/test_send_recv.py").is_file():
            for part in NEEDED:
                (folder / part).parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (source / part).is_dir() else shutil.copy)(source / part, folder / part)
        else:
            git = ["git", f"--git-dir={source / '.git' if (source / '.git').is_dir() else source}"]
            archive = subprocess.run([*git, "archive", rev, *NEEDED], capture_output=True)
            if archive.returncode:
                print(f"{source} is no checkout of ucx-py, nor a git directory with {rev}: {archive.stderr.decode()}")
                sys.exit(2)
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield folder


def prepare(folder: Path) -> Path:
    """Write what answers ``import ucp`` in the tests and in the processes that they start; return its folder."""
    path = folder / "path"
    path.mkdir()
    text = (PATH / "ucp.py").read_text()
    # The benchmarks are ucx-py's; everything else under this name is weft's.
    text += f"\nimport weft.compat.ucp\n\nweft.compat.ucp.__path__.append({str(folder / 'ucp')!r})\n"
    (path / "ucp.py").write_text(text)
    return path


def run(folder: Path, only: str, *, verbose: bool) -> Path:
    """Run the tests; return the record that pytest writes."""
    record = folder / "record.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", "/dev/null"]
    command += ["-q", f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={record}", "-W", "ignore::DeprecationWarning"]
    command += [str(folder / "tests"), str(folder / "ucp/_libs/tests/test_arr.py")]
    command += ["-k", only] if only else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(prepare(folder)), str(folder / "tests")])}
    output = None if verbose else subprocess.PIPE
    done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    if not record.is_file():
        print((done.stdout or b"").decode(errors="replace")[-4000:])
        sys.exit(2)
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--source", type=Path, required=True, help="a checkout or git directory of ucx-py")
    parser.add_argument("--rev", default="branch-0.45", help="what to take of a git directory (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    parser.add_argument("--verbose", action="store_true", help="show what pytest prints")
    add_json(parser)
    arguments = parser.parse_args()
    surroundings = environment.collect()

    bad: dict[str, str] = {}
    skipped: Counter[str] = Counter()
    files: dict[str, Counter[str]] = {}
    with checkout(arguments.source, arguments.rev) as folder:
        print(f"weft {weft.__version__}, tests from {arguments.source}", flush=True)
        record = run(folder, arguments.only, verbose=arguments.verbose)
        for case, outcome, why in junit.cases(record):
            # a file that is skipped as a whole has no class
            file = (case.get("classname") or case.get("name", "")).rpartition(".")[2]
            name = f"{file}::{case.get('name')}"
            if outcome in ("skipped", "expected to fail"):
                outcome = "skipped"
                skipped[f"{name.partition('[')[0]}: {why}"] += 1
            elif outcome == "failed":
                bad.setdefault(name, why)
            files.setdefault(file, Counter())[outcome] += 1
    for name, why in bad.items():
        print(f"FAILED {name}: {why}")
    for name, count in sorted(skipped.items()):
        print(f"skipped {count:3} {name}")
    for name, why in LEFT_OUT.items():
        print(f"not run     {name}: {why}")
    passed = sum(counts["passed"] for counts in files.values())
    print(f"{passed} passed, {len(bad)} failed, {skipped.total()} skipped")
    told = {"files": files, "skipped": skipped, "failed": bad, "not_run": LEFT_OUT}
    write_record(arguments.json, told | {"environment": surroundings})
    return 1 if bad else 0 if passed else 2


if __name__ == "__main__":
    sys.exit(main())
