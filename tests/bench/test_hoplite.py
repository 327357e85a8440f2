# SPDX-License-Identifier: BSD-3-Clause
"""``scripts/hoplite_tests.py``: what fails or runs out of time is counted, and the rest goes on. It runs by hand."""

import contextlib
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("distributed")
from scripts import hoplite_tests as hoplite

import weft

#: In the place of Hoplite's program: it answers with the size, fails or does not end.
PROGRAM = """
import sys, time
match sys.argv[1]:
    case "gather": sys.exit("no way")
    case "reduce": time.sleep(600)
print("warm", sys.argv[-1])
"""


class Here:
    """In the place of a lab: processes of this host."""

    def __init__(self, described):
        self.described = described

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, host, command, **popen):
        assert host == "h0"
        return subprocess.Popen(command, **popen)


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setattr(hoplite.lab, "Lab", Here)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


@pytest.fixture
def clusters(monkeypatch):
    """The clusters that were asked for."""
    made = []

    monkeypatch.setattr(hoplite, "start_cluster", lambda _, protocol, workers, folder: made.append((protocol, workers)))
    return made


def take_turn(program: Path, *collectives: str) -> hoplite.Outcome:
    came_to = hoplite.Outcome()
    cells = [(collective, 8) for collective in collectives]
    hoplite.take_turn(hoplite.network(2, None), "tcp", program, cells, came_to)
    return came_to


def test_a_case_that_fails_is_counted_and_the_next_one_has_the_same_cluster(program, clusters):
    came_to = take_turn(program, "gather", "multicast")
    assert came_to.failed == {"gather 8, tcp": "no way"}
    assert came_to.seconds == {"multicast 8": {"tcp": [8.0]}}
    assert clusters == [("tcp", 2)]


def test_a_case_that_ran_out_of_time_is_counted_and_the_next_one_has_another_cluster(program, clusters, monkeypatch):
    monkeypatch.setattr(hoplite, "CELL_S", 0.05)
    assert take_turn(program, "reduce").failed == {"reduce 8, tcp": "timed out: no end within 0.05 s"}
    came_to = take_turn(program, "reduce", "reduce")
    assert list(came_to.failed) == ["reduce 8, tcp"]
    assert clusters == [("tcp", 2)] * 3


@pytest.mark.parametrize("error", [weft.TimedOutError, weft.UnreachableError])
def test_a_cluster_that_does_not_start_is_counted_and_its_cases_are_left(program, monkeypatch, error):
    def start_cluster(*_):
        raise error("not 2 workers")

    monkeypatch.setattr(hoplite, "start_cluster", start_cluster)
    came_to = take_turn(program, "multicast", "multicast")
    assert came_to.failed == {"start, tcp": "not 2 workers"}
    assert came_to.seconds == {}


def test_a_cluster_that_hangs_while_it_starts_has_timed_out(program, monkeypatch):
    monkeypatch.setattr(hoplite, "START_S", -59.95)
    monkeypatch.setattr(Here, "address", lambda *_: "127.0.0.1", raising=False)
    with contextlib.ExitStack() as started:

        def start(*_, **popen):
            process = subprocess.Popen(["sleep", "600"], **popen)
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        monkeypatch.setattr(Here, "start", start)
        came_to = take_turn(program, "multicast")
    assert came_to.failed == {"start, tcp": "timed out: no end within 0.05 s"}
