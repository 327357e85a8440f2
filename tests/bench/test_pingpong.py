# SPDX-License-Identifier: BSD-3-Clause
"""The ping-pong benchmark: what it accepts, records and cleans up. No time is asserted."""

import argparse
import json
import os

import pytest

import weft
from weft.bench.common import outcome
from weft.bench.pingpong import command as pingpong
from weft.bench.pingpong.table import named

SUMMARY = {"median", "q1", "q3", "p99", "min", "max", "round_medians", "spread"}
BRIEF = ["--rounds", "2", "--iterations", "5", "--seconds-per-cell", "0.001"]


#: Whichever connections on one host have.
LANE = object()

pytestmark = pytest.mark.usefixtures("nothing_left")


def bench(*arguments):
    parser = argparse.ArgumentParser()
    pingpong.add_arguments(parser)
    return pingpong.run(parser.parse_args([*BRIEF, *arguments]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "8,1X"], "'1X' is not a size"),
        (["--sizes", "8,"], "'' is not a size"),
        (["--wait", "spin"], "'spin' is not one of block, await"),
        (["--libraries", "peer,mpi"], "'mpi' is not one of c, peer, tags, lent, tcp, asyncio"),
        (["--rounds", "0"], "'0': must be a whole number above 0"),
        (["--rounds", "9" * 20], f"'{'9' * 20}' is above 10000000"),
        (["--rounds", "1.5"], "'1.5': must be a whole number above 0"),
        (["--seconds-per-cell", "inf"], "'inf': must be a number above 0"),
        (["--seconds-per-cell", "nan"], "'nan': must be a number above 0"),
    ],
)
def test_argument_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench(*arguments)
    assert message in capsys.readouterr().err


def test_sizes_are_sorted_and_single():
    parser = argparse.ArgumentParser()
    pingpong.add_arguments(parser)
    assert parser.parse_args(["--sizes", "1KiB,8,1024"]).sizes == [8, 1024]
    assert parser.parse_args([]).sizes == [8, 1024, 2**20, 2**27]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "cells"),
    [
        ("c", [("c", "block", "posix")]),
        ("peer", [("peer", "block", LANE), ("peer", "await", LANE)]),
        ("tags", [("tags", "block", "posix"), ("tags", "await", "posix")]),
        ("tcp", [("tcp", "block", "tcp")]),
        ("asyncio", [("asyncio", "await", "tcp")]),
        ("lent", [("lent", "block", "lent")]),
    ],
)
def test_record(library, cells, tmp_path, capsys):
    path = tmp_path / "pingpong.json"
    assert bench("--libraries", library, "--sizes", "8,64KiB", "--json", str(path)) == 0
    written = json.loads(path.read_text())
    assert set(written) == {"records", "environment"}
    records = written["records"]
    assert {r["transport"] for r in records if r["library"] == "peer"} <= {"posix", "ring"}
    over = [LANE if r["library"] == "peer" else r["transport"] for r in records]
    assert [(r["nbytes"], r["library"], r["mode"], lane) for r, lane in zip(records, over, strict=True)] == [
        (nbytes, *cell) for nbytes in (8, 65536) for cell in cells if cell[0] != "lent" or nbytes > 8
    ]
    for record in records:
        assert list(record) == [
            *("library", "mode", "transport", "nbytes", "latency_s", "bandwidth_Bps", "iterations", "rounds")
        ]
        latency, bandwidth = record["latency_s"], record["bandwidth_Bps"]
        assert set(latency) == SUMMARY
        assert 0 < latency["min"] <= latency["median"] <= latency["p99"] <= latency["max"]
        assert len(latency["round_medians"]) == record["rounds"] == 2
        assert bandwidth["median"] == record["nbytes"] / latency["median"]
        assert bandwidth["q1"] <= bandwidth["median"] <= bandwidth["q3"]
        assert 2 <= record["iterations"] <= 10
    assert "64 KiB" in capsys.readouterr().out


@pytest.mark.slow
def test_environment(tmp_path):
    path = tmp_path / "pingpong.json"
    assert bench("--libraries", "tcp", "--sizes", "8", "--json", str(path)) == 0
    surroundings = json.loads(path.read_text())["environment"]
    assert surroundings["cores_usable"] == len(os.sched_getaffinity(0))
    assert surroundings["ucx"]["version"].count(".") == 2
    assert {"cpu_model", "kernel", "python", "weft", "load_average", "date_utc"} <= set(surroundings)
    assert os.uname().nodename not in surroundings.values()


@pytest.mark.slow
def test_the_floor_is_measured_with_either_way_to_wait(tmp_path):
    path = tmp_path / "pingpong.json"
    arguments = ["--libraries", "c,tcp,asyncio", "--wait", "await", "--sizes", "8", "--json", str(path)]
    assert bench(*arguments) == 0
    assert [record["library"] for record in json.loads(path.read_text())["records"]] == ["c", "asyncio"]


@pytest.mark.slow
def test_one_core_is_said_and_not_pinned(tmp_path, capsys):
    path = tmp_path / "pingpong.json"
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert bench("--libraries", "tcp", "--sizes", "8", "--json", str(path)) == 0
    finally:
        os.sched_setaffinity(0, cores)
    assert "2 processes took turns on 1 core\n" in capsys.readouterr().out
    assert json.loads(path.read_text())["environment"]["cores_pinned"] == []


@pytest.mark.parametrize(
    ("child", "message"),
    [
        ("import os; print('gave up', flush=True); os._exit(3)", "ended with status 3: gave up"),
        ("import os; os.abort()", "died of signal 6"),
        ("import time; time.sleep(60)", "the pair hangs"),
    ],
)
@pytest.mark.slow
def test_children_that_die_or_hang_fail_the_command(child, message, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pingpong, "CHILD", child)
    monkeypatch.setattr(pingpong, "LIMIT_S", 0.5)
    path = tmp_path / "pingpong.json"
    assert bench("--libraries", "tcp", "--sizes", "8", "--json", str(path)) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "8 B tcp block: " in said
    assert message in said
    assert not path.exists()


@pytest.mark.slow
def test_interrupt_ends_the_children(monkeypatch, capsys, tmp_path):
    once = "import os, signal, sys, time; sys.argv[3] == 'ping' and os.kill(os.getppid(), signal.SIGINT)"
    monkeypatch.setattr(pingpong, "CHILD", f"{once}; time.sleep(60)")
    path = tmp_path / "pingpong.json"
    assert bench("--libraries", "tcp", "--sizes", "8", "--json", str(path)) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--libraries", "asyncio", "--wait", "block"], "nothing to measure"),
        (["--json", "/nonexistent/folder/pingpong.json"], "is not a writable folder"),
        (["--sizes", "1000000GiB"], "too large"),
    ],
)
def test_refused_before_anything_starts(arguments, message, capsys):
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err


def test_numpy_is_asked_for_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr(outcome.importlib.util, "find_spec", lambda name: None)
    assert bench("--sizes", "1MiB", "--libraries", "tcp,lent") == 1
    assert capsys.readouterr().err == 'weft bench pingpong: numpy is not installed: pip install "weft-ucx[bench]"\n'


def test_missing_c_loop_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(weft._native, "__file__", str(tmp_path / "_native.so"))
    assert bench("--libraries", "c", "--sizes", "8") == 1
    assert "weft-pingpong is not installed" in capsys.readouterr().err


def record(library, mode, latencies):
    return pingpong.entry(pingpong.Cell(library, mode), "posix", 8, [[latency] for latency in latencies])


def test_losses_are_said_where_every_round_lost():
    records = [
        record("c", "block", [1e-7, 2e-7, 1e-7]),
        record("peer", "block", [2e-7, 4e-7, 3e-7]),
        record("peer", "await", [0.9e-7, 4e-7, 2e-7]),
        record("tags", "block", [1e-7, 2e-7, 1e-7]),
    ]
    assert list(pingpong.losses(records)) == [
        "weft loses at 8 B, peer block, against c: 2.00 (2.00-3.00) times its latency"
    ]


def test_the_tables_tell_peer_from_tags():
    rows = [record("c", "block", [1e-7]), record("peer", "block", [2e-7]), record("tags", "await", [2e-7])]
    assert [named(row) for row in rows] == ["C loop", "weft.Peer, .wait()", "weft tags, await"]
