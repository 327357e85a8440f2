# SPDX-License-Identifier: BSD-3-Clause
"""What is judged of a guest, and where none can be booted. The guest itself is ``nox -s rdma``."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

RDMA = Path(__file__).parents[1] / "scripts/rdma"


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(RDMA)
    spec = importlib.util.spec_from_file_location("rdma_main", RDMA / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("boot", "build", "cases", "image"):
        del sys.modules[name]


def test_it_says_what_is_missing_and_skips():
    command = [sys.executable, RDMA]
    done = subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout[:15]) == (77, "rdma: skipped: ")


@pytest.mark.parametrize(
    ("ended", "said", "wrong"),
    [
        ({"code": 0, "took_s": 1}, "rxe0 is there", []),
        ({"code": 0, "took_s": 1}, "nothing", ["one: does not say 'rxe0'"]),
        ({"code": -6, "took_s": 1}, "rxe0", ["one: exit code -6"]),
        ({"code": None, "took_s": 9}, "rxe0", ["one: killed after 9 s"]),
        (None, "", ["one: was not run"]),
    ],
)
def test_a_case_is_judged_by_its_end_and_its_words(program, tmp_path, ended, said, wrong):
    (tmp_path / "one.txt").write_text(said)
    (tmp_path / "ended.json").write_text(json.dumps({"one": ended} if ended else {}))
    assert program._wrong([program.Case("one", ["true"], 9, ("rxe0",))], tmp_path, show=False) == wrong


def test_a_guest_that_said_nothing_has_run_nothing(program, tmp_path):
    assert len(program._wrong(program.CASES, tmp_path, show=False)) == len(program.CASES)
