# SPDX-License-Identifier: BSD-3-Clause
"""What may be skipped where everything is installed that can be."""

import json
import sys
from pathlib import Path

import pytest
from scripts import everything


@pytest.mark.parametrize(
    ("why", "lacks"),
    [
        ("CuPy is not installed", "a GPU"),
        ("no CUDA device", "a GPU"),
        ("UCX reaches host memory only", "a GPU"),
        ("no IPv6 on the loopback", "what this kernel or machine has"),
        ("UCX 1.23 notices", "another UCX"),
        ("scale_many was not measured", "a record that was not taken"),
        ("PyTorch is not installed", None),
        ("no cloud-init: apt-get install cloud-init", None),
        ("no Slurm: slurmctld not found; apt-get install slurmctld slurmd slurm-client munge", None),
        ("could not import 'prometheus_client': No module named 'prometheus_client'", None),
    ],
)
def test_only_what_cannot_be_installed_may_lack(why, lacks):
    assert everything.reason(why) == lacks


TESTS = """
from pathlib import Path


class TestOnce:
    def test_once(self):
        ran = Path("ran").exists()
        Path("ran").touch()
        assert ran


def test_never():
    raise ValueError("no way")
"""


def test_what_failed_runs_once_more_and_both_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("test_it.py").write_text(TESTS)
    monkeypatch.setattr(sys, "argv", ["everything.py", "--json", "record.json", "-q", "test_it.py"])
    assert everything.main() == 1
    record = json.loads(Path("record.json").read_text())
    assert record["counts"] == {"failed": 2}
    assert record["failed"] == {"test_it.py::test_never": "ValueError: no way"}
    assert list(record["passed_alone"]) == ["test_it.py::TestOnce::test_once"]
