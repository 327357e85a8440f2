# SPDX-License-Identifier: BSD-3-Clause
"""Runs another project's tests against a drop-in of ``weft.compat``: what the scripts for each project share."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import junit

import weft
from weft.bench.common import environment
from weft.bench.common.options import add_json
from weft.bench.common.outcome import write_record

TIMEOUT_S = 3000
TEST_TIMEOUT_S = 300
END_S = 20


def arguments(description: str, project: str, rev: str) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--source", type=Path, required=True, help=f"a checkout or git directory of {project}")
    parser.add_argument("--rev", default=rev, help="what to take of a git directory (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    parser.add_argument("--verbose", action="store_true", help="show what pytest prints")
    add_json(parser)
    return parser.parse_args()


@contextlib.contextmanager
def checkout(source: Path, rev: str, needed: Sequence[str]) -> Iterator[Path]:
    """Give a folder of its own with what is `needed` of the checkout `source`, or of its commit `rev`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (source / needed[0]).exists():
            for part in needed:
                (folder / part).parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (source / part).is_dir() else shutil.copy)(source / part, folder / part)
        else:
            git = ["git", f"--git-dir={source / '.git' if (source / '.git').is_dir() else source}"]
            archive = subprocess.run([*git, "archive", rev, *needed], capture_output=True)
            if archive.returncode:
                print(f"{source} is no such checkout, nor a git directory with {rev}: {archive.stderr.decode()}")
                sys.exit(2)
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield folder


class Results:
    """What the tests of a project came to."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = {}
        self.skipped: Counter[str] = Counter()
        self.failed: dict[str, str] = {}
        self.expected: dict[str, str] = {}

    def run(
        self,
        tests: Sequence[Path | str],
        told: argparse.Namespace,
        *,
        path: Sequence[Path],
        environ: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        prefix: str = "",
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Run `tests` with `path` in PYTHONPATH, and count.

        `refused` has for the name of a test, or its beginning, why the drop-in does not pass it; or for "* WORDS", if
        the test fails with these words.
        """
        with tempfile.TemporaryDirectory() as name:
            record = Path(name) / "record.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
            command += [f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={record}", "-W", "ignore::DeprecationWarning"]
            command += [*options, *map(str, tests), *(["-k", told.only] if told.only else [])]
            env = {**os.environ, **(environ or {}), "PYTHONPATH": os.pathsep.join(map(str, path))}
            with tempfile.TemporaryFile() as said:
                output = None if told.verbose else said
                pytest = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
                _finish(pytest, record)
                if not record.is_file():
                    said.seek(0)
                    print(said.read().decode(errors="replace")[-4000:])
                    sys.exit(2)
            self._read(record, prefix, refused or {})

    def _read(self, record: Path, prefix: str, refused: Mapping[str, str]) -> None:
        for case, outcome, why in junit.cases(record):
            # a file that is skipped as a whole has no class
            file = prefix + (case.get("classname") or case.get("name", "")).rpartition(".")[2]
            name = f"{file}::{case.get('name')}"
            if outcome in ("skipped", "expected to fail"):
                outcome = "skipped"
                self.skipped[f"{name.partition('[')[0]}: {why}"] += 1
            elif outcome == "failed":
                reason = next((reason for key, reason in refused.items() if _meant(key, name, why)), None)
                if reason is None:
                    self.failed.setdefault(name, why)
                else:
                    outcome = "not passed, as expected"
                    self.expected[name] = reason
            self.files.setdefault(file, Counter())[outcome] += 1

    def counts(self) -> Counter[str]:
        """Return how many tests ended in which way."""
        return sum(self.files.values(), Counter())

    def tell(self, told: argparse.Namespace, not_run: Mapping[str, str], without: Results | None = None) -> int:
        """Print and record what came of it, and of the same tests `without` the drop-in; return the script's status."""
        for name, why in self.failed.items():
            print(f"FAILED {name}: {why}")
        for name, why in self.expected.items():
            print(f"not passed, as expected: {name}: {why}")
        for name, count in sorted(self.skipped.items()):
            print(f"skipped {count:3} {name}")
        for name, why in not_run.items():
            print(f"not run     {name}: {why}")
        passed = self.counts()["passed"]
        counted = f"{passed} passed, {len(self.failed)} failed, {self.skipped.total()} skipped"
        print(counted + (f", {len(self.expected)} not passed as expected" if self.expected else ""))
        record: dict[str, object] = {
            "files": self.files,
            "skipped": self.skipped,
            "failed": self.failed,
            "not_run": not_run,
        }
        if self.expected:
            record["expected"] = self.expected
        if without is not None:
            record["without"] = without.counts()
            print(f"without the drop-in: {', '.join(f'{times} {how}' for how, times in without.counts().items())}")
        write_record(told.json, record | {"environment": environment.collect()})
        return 1 if self.failed else 0 if passed else 2


def _finish(pytest: subprocess.Popen[bytes], record: Path) -> None:
    """Wait for `pytest`; end what a test left running, which may keep it from ending once its record is there."""
    until = time.monotonic() + TIMEOUT_S
    while pytest.poll() is None and time.monotonic() < until:
        if record.is_file():
            until = min(until, time.monotonic() + END_S)
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pytest.pid, signal.SIGKILL)
    pytest.wait()


def _meant(key: str, name: str, why: str) -> bool:
    return key[2:] in why if key.startswith("* ") else name.startswith(key)


def greet(told: argparse.Namespace) -> None:
    """Say what is about to run."""
    print(f"weft {weft.__version__}, tests from {told.source}", flush=True)
