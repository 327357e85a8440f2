# SPDX-License-Identifier: BSD-3-Clause
"""``scripts/distributed_tests.py``: what it makes of pytest's records. It runs by hand; it needs a checkout."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

if importlib.util.find_spec("distributed") is None:
    pytest.skip("needs distributed", allow_module_level=True)
from scripts import distributed_tests as compare

RECORD = """<testsuites><testsuite>
<testcase classname="distributed.tests.test_a" file="distributed/tests/test_a.py" name="test_ok">
<properties><property name="comms" value="{'ucx', 'inproc'}" /></properties></testcase>
<testcase classname="distributed.tests.test_a.TestC" file="distributed/tests/test_a.py" name="test_in_class[x]">
<failure message="no &#10; way" /></testcase>
<testcase classname="distributed.tests.test_a" file="distributed/tests/test_a.py" name="test_torn" />
<testcase classname="distributed.tests.test_a" file="distributed/tests/test_a.py" name="test_torn">
<error message="teardown" /></testcase>
<testcase classname="distributed.tests.test_a" file="distributed/tests/test_a.py" name="test_not">
<skipped message="why" /></testcase>
</testsuite></testsuites>"""


def compared(**outcomes: list[str]) -> compare.Comparison:
    """Compare tests ``a``, ``b``, ... that went so with each protocol."""
    comparison = compare.Comparison("tests/test_a.py")
    for protocol, each in outcomes.items():
        comparison.runs[protocol] = compare.Run(dict(zip("abcde", each, strict=False)))
    return comparison


def test_a_record_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.xml"
    path.write_text(RECORD)
    run = compare.Run()
    compare.read(path, "ucx", run)
    assert run.outcomes == {
        "tests/test_a.py::test_ok": "passed",
        "tests/test_a.py::TestC::test_in_class[x]": "failed",
        "tests/test_a.py::test_torn": "failed",
        "tests/test_a.py::test_not": "skipped",
    }
    assert run.said["tests/test_a.py::TestC::test_in_class[x]"] == "no way"
    assert run.over == {"tests/test_a.py::test_ok"}


@pytest.mark.parametrize(
    ("tcp", "ucx", "known", "unknown"),
    [
        (["passed", "failed"], ["passed", "failed"], {}, 0),
        (["passed"], ["failed"], {}, 1),
        (["passed"], ["failed"], {"a": "spells out tcp://"}, 0),
        (["failed"], ["passed"], {}, 1),
        (["passed"], ["skipped"], {}, 1),
        (["passed", "passed"], ["passed"], {}, 1),  # one that did not run
        (["passed"], ["flaky"], {}, 0),
        (["passed"], ["flaky"], {"a": "not any more"}, 1),
        (["passed"], ["passed"], {"a": "not any more"}, 1),
        (["passed"], ["passed"], {"elsewhere": "did not run"}, 0),
    ],
)
def test_what_differs_for_no_known_reason(tcp: list[str], ucx: list[str], known: dict[str, str], unknown: int) -> None:
    assert compare.report([compared(tcp=tcp, ucx=ucx)], known)[1] == unknown


def test_of_one_protocol_alone_a_known_difference_is_a_failure_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare.report([compared(ucx=["failed"])], {"a": "spells out tcp://"})[1] == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["Fail:", "", "- `a`: spells out tcp://"]


def test_a_file_that_did_not_end_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compared(tcp=["passed"], ucx=["passed"])
    comparison.runs["ucx"].end = "cut off"
    assert compare.report([comparison], {})[1] == 1
    assert "tests/test_a.py with ucx: cut off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "end"), [(0, ""), (1, ""), (5, ""), (3, "pytest ended with 3"), (-11, "pytest ended with -11")]
)
def test_an_error_of_pytest_is_no_end(status: int, end: str) -> None:
    assert compare.unfinished(status) == end


def test_known_differences_have_reasons() -> None:
    known = tomllib.loads(compare.DIFFERENCES.read_text())
    assert all("::" in test and reason for test, reason in known.items())


@pytest.mark.parametrize("name", ["distributed_comm_checks.py", "distributed_protocol.py"])
def test_what_pytest_loads_says_so_where_it_is_started(name: str) -> None:
    """Without packages, as where pytest is not installed."""
    script = Path(compare.__file__).with_name(name)
    command = [sys.executable, "-I", "-S", str(script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"{name} is no command: pytest loads it, started by distributed_tests.py\n"
