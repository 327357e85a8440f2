# SPDX-License-Identifier: BSD-3-Clause
"""Run distributed's own tests over ``ucx://`` beside ``tcp://``, and say where they differ.

    python scripts/distributed_tests.py --source DIR [--rev REV] [--files FILE ...] [--slow] [--json FILE]

DIR is a checkout of distributed, best at the release that is installed, or a bare git directory, of which REV is taken.
Only the tests come from there (no package carries them); what they test is the installed distributed. They need

    uv venv .distributed && uv pip install --python .distributed/bin/python . "dask[array,dataframe]==2026.8.0" \\
        distributed==2026.8.0 pytest pytest-timeout pytest-rerunfailures bokeh crick lz4 prometheus_client requests \\
        scipy zstandard && .distributed/bin/python scripts/distributed_tests.py --source DIR

FILE is one file below ``distributed/``, or a folder of them; a process runs each, once for each protocol, which is
Dask's default in it (``distributed.comm.default-scheme``). ``distributed_differences.toml`` has the differences that
are known, and why. Any other test that fails with one protocol only is run again alone, up to twice, and is flaky if it
passes then. What is printed is Markdown. The status is 1 if a test differs for no known reason, or a known one no
longer does (when its file ran), or pytest did not come to the end of a file; 2 if nothing could be run.

``distributed_comm_checks.py`` runs beside them: distributed's checks of a comm, with each address.
The tests are distributed's (BSD-3-Clause) and none of their text is here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import distributed
import junit

import weft
from weft.bench.common import environment

HERE = Path(__file__).parent
DIFFERENCES = HERE / "distributed_differences.toml"
CHECKS = "comm/tests/test_checks.py"
_TESTS = ("active_memory_manager", "nanny", "steal", "failed_workers", "actor", "batched", "queues")
_CORE_TESTS = ("client", "scheduler", "worker", "worker_memory")
FILES = ("shuffle/tests", CHECKS, *(f"tests/test_{t}.py" for t in (*_TESTS, *_CORE_TESTS)))
#: What the tests need of a checkout, beside every folder of tests.
NEEDED = ("conftest.py", "pyproject.toml", "distributed/pytest_resourceleaks.py")
TEST_TIMEOUT_S = 120
FILE_TIMEOUT_S = 3600
RERUNS = 2
#: More tests than these are not run again: then it is not chance.
RERUN_LIMIT = 40


@dataclasses.dataclass
class Run:
    """What pytest told of one run."""

    #: Of each test: passed, failed or skipped; of one that failed and then passed alone: flaky.
    outcomes: dict[str, str] = dataclasses.field(default_factory=dict)
    #: The first line of what each test that failed said.
    said: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Tests in whose process a comm of the protocol was made.
    over: set[str] = dataclasses.field(default_factory=set)
    #: Why pytest did not come to its end, if so.
    end: str = ""
    seconds: int = 0

    def counts(self) -> Counter[str]:
        return Counter(outcome.replace("flaky", "passed") for outcome in self.outcomes.values())


@contextlib.contextmanager
def prepared(source: Path, rev: str) -> Iterator[Path]:
    """Give a folder with the installed distributed, among which the tests of `source` lie, or of its commit `rev`."""
    with contextlib.ExitStack() as stack:
        if not (source / "distributed/tests").is_dir():
            unpacked = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            git = ["git", f"--git-dir={source / '.git' if (source / '.git').is_dir() else source}"]
            archive = subprocess.run([*git, "archive", rev], capture_output=True)
            if archive.returncode:
                print(
                    f"{source} is no checkout of distributed, nor a git directory with {rev}: {archive.stderr.decode()}"
                )
                sys.exit(2)
            subprocess.run(["tar", "-x", "-C", unpacked], input=archive.stdout, check=True)
            source = unpacked
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        package = folder / "distributed"
        shutil.copytree(Path(distributed.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        for tests in source.glob("distributed/**/tests"):
            shutil.copytree(tests, folder / tests.relative_to(source), dirs_exist_ok=True)
        for name in NEEDED:
            shutil.copy(source / name, folder / name)
        shutil.copy(HERE / "distributed_comm_checks.py", package / CHECKS)
        shutil.copy(HERE / "distributed_protocol.py", folder)
        yield folder


def pytest(folder: Path, protocol: str, options: list[str], output: Any) -> Run:
    """Run pytest once, with `protocol` as Dask's default."""
    record = folder / "record.xml"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "distributed_protocol", "--color=no"]
    command += [f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=signal"]
    command += ["-o", "junit_family=xunit1", f"--junitxml={record}", *options]
    environment = {**os.environ, "PYTHONPATH": str(folder), "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": protocol}
    # hundreds of processes would each compile distributed anew, and a restart then takes a test's whole time
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    end = ""
    try:
        process.wait(FILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        end = f"cut off after {FILE_TIMEOUT_S} s"
        process.send_signal(signal.SIGINT)  # pytest writes its record of what has run
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with whatever the tests left
        process.wait()
    run = Run(end=end or unfinished(process.returncode), seconds=round(time.monotonic() - start))
    if record.is_file():
        read(record, protocol, run)
    else:
        run.end = run.end or "pytest left no record"
    return run


def unfinished(status: int) -> str:
    """Say what pytest's exit status means, unless it ran all that it found: its own errors leave a record, too."""
    return "" if status in (0, 1, 5) else f"pytest ended with {status}"


def read(record: Path, protocol: str, run: Run) -> None:
    """Fill `run` from pytest's record."""
    for case, outcome, why in junit.cases(record):
        file = case.get("file") or f"{case.get('classname', '').replace('.', '/')}.py"
        module = file.removesuffix(".py").replace("/", ".")
        classes = case.get("classname", "").removeprefix(module).strip(".").split(".")
        test = "::".join([file.removeprefix("distributed/"), *filter(None, classes), case.get("name", "")])
        # a test that passed and whose fixture failed afterwards has two entries
        if outcome == "failed":
            run.outcomes[test] = "failed"
            run.said.setdefault(test, why)
        else:
            run.outcomes.setdefault(test, "passed" if outcome == "passed" else "skipped")
        if any(p.get("name") == "comms" and f"'{protocol}'" in p.get("value", "") for p in case.iter("property")):
            run.over.add(test)


def again(folder: Path, protocol: str, test: str, options: list[str], output: Any) -> str:
    """Run one test that failed alone; return ``flaky`` if it passes, else ``failed``."""
    for _ in range(RERUNS):
        if pytest(folder, protocol, [*options, f"distributed/{test}"], output).outcomes.get(test) == "passed":
            return "flaky"
    return "failed"


class Comparison:
    """A file's tests with each protocol."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.runs: dict[str, Run] = {}

    def tests(self) -> list[str]:
        return list(dict.fromkeys(test for run in self.runs.values() for test in run.outcomes))

    def of(self, test: str) -> dict[str, str]:
        return {protocol: run.outcomes.get(test, "not run") for protocol, run in self.runs.items()}

    def differing(self) -> list[str]:
        # one that passed on a second try has passed
        return [t for t in self.tests() if len({o.replace("flaky", "passed") for o in self.of(t).values()}) > 1]

    def run(self, folder: Path, protocols: list[str], options: list[str], output: Any) -> None:
        for protocol in protocols:
            self.runs[protocol] = pytest(folder, protocol, [*options, f"distributed/{self.file}"], output)

    def retry(self, folder: Path, known: Container[str], options: list[str], output: Any) -> None:
        """Run again, alone, what failed with one protocol only."""
        differing = [test for test in self.differing() if test not in known]
        failed = [(p, test) for test in differing for p, outcome in self.of(test).items() if outcome == "failed"]
        for protocol, test in failed if len(failed) <= RERUN_LIMIT else []:
            self.runs[protocol].outcomes[test] = again(folder, protocol, test, options, output)

    def record(self) -> dict[str, Any]:
        return {
            p: {**run.counts(), "over": len(run.over), "seconds": run.seconds, "end": run.end}
            for p, run in self.runs.items()
        }

    def row(self) -> str:
        cells = [
            [run.counts()[o] for o in ("passed", "failed", "skipped")] + [len(run.over)] for run in self.runs.values()
        ]
        return " | ".join(" / ".join(map(str, cell)) for cell in cells)


def expand(files: list[str], folder: Path) -> list[str]:
    """Return `files`, and in place of each folder its files."""
    package = folder / "distributed"
    found: list[str] = []
    for file in files:
        inside = sorted((package / file).glob("test_*.py")) if (package / file).is_dir() else [package / file]
        found += [str(path.relative_to(package)) for path in inside]
    return found


def report(comparisons: list[Comparison], known: dict[str, str]) -> tuple[dict[str, Any], int]:
    """Print what differs, failed or was flaky; return it, and how much of it nobody knows the reason of."""
    ran = {test: c for c in comparisons for test in c.tests()}
    differing = {test: c for test, c in ran.items() if test in c.differing()}
    flaky = {test: c for test, c in ran.items() if "flaky" in c.of(test).values()}
    several = len(comparisons[0].runs) > 1  # of one protocol alone, a known difference is a failure with a reason
    both = [test for test, c in ran.items() if set(c.of(test).values()) == {"failed"}]
    stale = [test for test in known if several and test in ran and test not in differing]
    cut = [f"{c.file} with {p}: {run.end}" for c in comparisons for p, run in c.runs.items() if run.end]

    def line(test: str, why: str) -> str:
        c = ran[test]
        return f"- `{test}`: {', '.join(f'{p} {outcome}' for p, outcome in c.of(test).items())}{why}"

    def words(test: str) -> str:
        return "; ".join(f"{p}: {run.said[test]}" for p, run in ran[test].runs.items() if test in run.said)

    sections = {
        "Differ": [line(t, f": {known.get(t) or 'NO KNOWN REASON: ' + words(t)}") for t in differing],
        "Known to differ, but does not": [line(t, f": {known[t]}") for t in stale],
        "Fail with every protocol" if several else "Fail": [f"- `{t}`: {known.get(t) or words(t)}" for t in both],
        "Flaky (failed once, passed alone)": [line(t, f": {words(t)}") for t in flaky],
        "Did not come to an end": [f"- {end}" for end in cut],
    }
    for title, lines in sections.items():
        if lines:
            print(f"\n{title}:\n", *lines, sep="\n", flush=True)
    found = {
        "differences": {t: {**c.of(t), "reason": known.get(t)} for t, c in differing.items()},
        "failed_with_every_protocol": both,
        "flaky": {t: c.of(t) for t, c in flaky.items()},
    }
    return found, len([t for t in differing if t not in known]) + len(stale) + len(cut)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--source", type=Path, required=True, help="a checkout or git directory of distributed")
    parser.add_argument(
        "--rev", default=distributed.__version__, help="what to take of a git directory (default: %(default)s)"
    )
    parser.add_argument("--files", nargs="+", default=FILES, help="below distributed/ (default: %(default)s)")
    parser.add_argument("--protocols", default="tcp,ucx", help="(default: %(default)s)")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    parser.add_argument("--slow", action="store_true", help="also the tests that distributed calls slow")
    parser.add_argument("--json", type=Path, help="where to write the counts and differences")
    parser.add_argument("--verbose", action="store_true", help="show what pytest prints, on stderr")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    # also where a shell started this in the background, and so has it and pytest ignore the first
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # end what pytest started, too
    protocols = arguments.protocols.split(",")
    surroundings = environment.collect()
    options = ["--runslow"] * arguments.slow + (["-k", arguments.k] if arguments.k else [])
    known: dict[str, str] = tomllib.loads(DIFFERENCES.read_text())
    output = sys.stderr if arguments.verbose else subprocess.DEVNULL
    comparisons: list[Comparison] = []

    def write(**found: Any) -> None:
        if arguments.json:
            files = {c.file: c.record() for c in comparisons}
            record = {"distributed": distributed.__version__, "files": files, **found, "environment": surroundings}
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")

    with prepared(arguments.source, arguments.rev) as folder:
        print(f"distributed {distributed.__version__}, weft {weft.__version__}, CPython {platform.python_version()}\n")
        print("| passed / failed / skipped / made such a comm |", " | ".join(protocols), "|")
        print("|---|" + "---|" * len(protocols), flush=True)
        for file in expand(arguments.files, folder):
            comparison = Comparison(file)
            comparison.run(folder, protocols, options, output)
            comparison.retry(folder, known, options, output)
            comparisons.append(comparison)
            print(f"| `{file}` | {comparison.row()} |", flush=True)
            write()  # it may be hours to the end
    found, unknown = report(comparisons, known)
    write(**found)
    return 1 if unknown else 0 if any(c.tests() for c in comparisons) else 2


if __name__ == "__main__":
    sys.exit(main())
