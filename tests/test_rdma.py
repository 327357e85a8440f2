# SPDX-License-Identifier: BSD-3-Clause
"""What is judged of a guest, and where none can be booted. The guest itself is ``nox -s rdma``."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
    done = subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True, timeout=100)
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


def test_each_boot_is_recorded_with_what_was_wrong(program, tmp_path, monkeypatch):
    booted = iter([True, False])
    cases = [program.Case("one", ["true"], 9)]

    def boot(made, weft, results, *, limit_s):
        (results / "one.txt").write_text("")
        (results / "ended.json").write_text(json.dumps({"one": {"code": 0, "took_s": 1}}))
        return next(booted)

    monkeypatch.setattr(program.image, "make", lambda cache: SimpleNamespace(folder=cache))
    monkeypatch.setattr(program.build, "stage", lambda made, cache, weft: weft.mkdir())
    monkeypatch.setattr(program.boot, "boot", boot)
    boots = program._run(tmp_path, cases, 2, show=False)
    assert [each["wrong"] for each in boots] == [[], ["the guest did not end by itself"]]


def test_the_environment_is_read_without_weft(program):
    script = f"import runpy; print(runpy.run_path({str(program._ENVIRONMENT)!r})['collect']()['weft'])"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "None\n", done.stderr
