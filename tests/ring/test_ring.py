# SPDX-License-Identifier: BSD-3-Clause
"""The ring, its doorbell and its pages, by programs of their own: weft itself is not in them.

Each takes a count, so it can be run for longer by hand: `fuzz 1000000`, `sleep 1000000`, `kill 10000`. None needs
special hardware; with two cores or more the two ends meet.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "src/native"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")


@pytest.fixture
def run(tmp_path: Path):
    """Build one of the programs here, and run it."""

    def run(name: str, *arguments: str, options: tuple[str, ...] = ("-O2",)) -> str:
        program = tmp_path / name
        command = ["g++", "-std=c++20", "-g1", *options, *WARNINGS, "-pthread", f"-I{SOURCES}"]
        subprocess.run([*command, HERE / f"{name}.cpp", "-o", program], check=True, timeout=200)
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=100)
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("ThreadSanitizer cannot run under this kernel's address layout")
        assert done.returncode == 0, f"{name}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_each_promise_by_itself(run):
    printed = run("unit")
    assert "all hold" in printed
    if "not tried" in printed:
        pytest.skip(printed.splitlines()[0])


@pytest.mark.slow
def test_two_threads_that_sleep_are_in_order_for_tsan(run):
    assert "20000 messages" in run("stress", "20000", options=("-O2", "-fsanitize=thread"))


@pytest.mark.slow
def test_no_wake_up_is_lost(run):
    assert "sleep:" in run("sleep", "100000")


def test_falling_asleep_and_writing_at_the_same_moment(run):
    assert "200000 attempts" in run("litmus", "200000")


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_messages(run):
    assert "300 kills" in run("kill", "300")


@pytest.mark.slow
def test_spoiled_rings_are_named_and_nothing_else_happens(run):
    options = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert "20000 rings" in run("fuzz", "20000", options=options)


def test_the_probe_still_builds(tmp_path):
    probe = HERE.parent.parent / "scripts/probe_ring.cpp"
    command = ["g++", "-std=c++20", "-O1", *WARNINGS, f"-I{SOURCES}", probe, "-o", tmp_path / "probe"]
    subprocess.run(command, check=True, timeout=200)
