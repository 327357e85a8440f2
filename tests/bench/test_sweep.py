# SPDX-License-Identifier: BSD-3-Clause
"""The sweep: what it accepts, runs, records and reports as missing. No time is asserted."""

import argparse
import json

import pytest

import weft
from weft import lab
from weft.bench.sweep import command as sweep
from weft.bench.sweep import transports

BRIEF = ["--rounds", "1", "--seconds-per-cell", "0.001"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def bench(*arguments):
    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    return sweep.run(parser.parse_args([*BRIEF, *arguments]))


@pytest.mark.slow
def test_two_sizes_over_shared_memory_and_tcp(tmp_path, capsys):
    path = tmp_path / "sweep.json"
    assert bench("--tls", "posix,tcp", "--sizes", "8,256KiB", "--rounds", "2", "--json", str(path)) == 0
    record = json.loads(path.read_text())
    assert record["missing"] == []
    assert record["cells_left_out"] == 0
    cells = [(r["transport"], r["wait"], r["nbytes"], r["measure"]) for r in record["records"]]
    assert cells == [
        (transport, wait, nbytes, measure)
        for transport in ("posix", "tcp")
        for wait in ("block", "await")
        for nbytes in (8, 2**18)
        for measure in ("latency", "bandwidth", "bibandwidth")
    ]
    for r in record["records"]:
        assert r["lanes"] == r["transport"]
        assert r["window"] == (1 if r["measure"] == "latency" else 64)
        assert r["rounds"] == len(r["seconds"]["round_medians"]) == 2
        assert r["stamps"] >= 2
        assert 0 < r["seconds"]["min"] <= r["seconds"]["median"] <= r["seconds"]["max"]
    printed = capsys.readouterr().out
    assert "Message rate" in printed
    assert "256 KiB" in printed


LAB = '[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ["a", "b"]\n'


@pytest.mark.slow
def test_between_two_hosts(tmp_path, capsys):
    file, path = tmp_path / "two.toml", tmp_path / "sweep.json"
    file.write_text(LAB)
    try:
        with lab.Lab(lab.read(file)):
            pass
    except weft.UnsupportedError as e:
        pytest.skip(str(e))
    arguments = ("--lab", str(file), "--sizes", "8", "--wait", "block", "--measures", "latency", "--json", str(path))
    assert bench(*arguments, "--tls", "posix,tcp,all") == 0
    record = json.loads(path.read_text())
    assert [(r["transport"], r["lanes"]) for r in record["records"]] == [("tcp", "tcp"), ("all", "tcp")]
    assert [gone["transport"] for gone in record["missing"]] == ["posix"]
    assert "Hosts a, b: namespaces of one machine, joined by a cable (no limit of rate)" in capsys.readouterr().out


def test_what_one_host_has_alone(tmp_path, capsys):
    assert bench("--lab", str(tmp_path / "none.toml"), "--tls", "tcp,self,lent") == 2
    assert "self, lent: within one host only, not with --lab" in capsys.readouterr().err


def test_a_lab_that_is_none(tmp_path, capsys):
    assert bench("--lab", str(tmp_path / "none.toml")) == 2
    assert "none.toml" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["fresh", "pooled"])
def test_memory(memory, tmp_path):
    path = tmp_path / "sweep.json"
    arguments = ("--tls", "posix", "--memory", memory, "--sizes", "8,256KiB", "--wait", "block")
    assert bench(*arguments, "--measures", "rate,latency", "--json", str(path)) == 0
    record = json.loads(path.read_text())
    assert [(r["memory"], r["measure"]) for r in record["records"]] == [(memory, "latency"), (memory, "bandwidth")] * 2


@pytest.mark.slow
def test_what_does_not_connect_is_missing_and_the_rest_is_measured(tmp_path, capsys):
    path = tmp_path / "sweep.json"
    arguments = ("--tls", "none,cma,self", "--sizes", "8", "--wait", "block", "--measures", "latency,bibandwidth")
    assert bench(*arguments, "--osu", "--json", str(path)) == 0
    record = json.loads(path.read_text())
    # cma's endpoints have posix beside it, for small messages; one process has one direction
    cma = [("cma", "latency"), ("cma", "bibandwidth")] if "cma" in transports.found(weft.ucx_library()) else []
    assert [(r["transport"], r["measure"]) for r in record["records"]] == [*cma, ("self", "latency")]
    assert [gone["transport"] for gone in record["missing"]] == (["none"] if cma else ["none", "cma"])
    assert record["missing"][0]["reason"].startswith("Context: UCX found no device with TLS=none")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["#", "Size", "Latency", "(us)"]
    assert lines[2].split()[0] == "8"
    assert [line for line in lines if "self: endpoints that do not report a lost peer" in line]


@pytest.mark.slow
def test_what_is_lent(tmp_path, capsys):
    path = tmp_path / "sweep.json"
    arguments = ("--tls", "lent,lent-read", "--memory", "fresh,pooled", "--sizes", "8,64KiB,1MiB", "--long")
    assert bench(*arguments, "--json", str(path)) == 0
    record = json.loads(path.read_text())
    assert record["missing"] == []
    assert [(r["transport"], r["wait"], r["memory"], r["nbytes"], r["measure"]) for r in record["records"]] == [
        (transport, wait, "mapped", nbytes, measure)
        for transport in ("lent", "lent-read")
        for wait in ("block", "await")
        for nbytes in (2**16, 2**20)
        for measure in ("latency", "bandwidth", "bibandwidth")
    ]
    assert {r["lanes"] for r in record["records"]} == {"lent", "lent-read"}
    assert "lent-read: the receiver reads all" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_measured_is_a_failure(capsys):
    assert bench("--tls", "none", "--sizes", "8", "--wait", "block") == 1
    assert "missing: none" in capsys.readouterr().out


@pytest.mark.slow
def test_a_child_that_hangs_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(sweep, "LIMIT_S", 0.5)
    assert bench("--tls", "posix", "--sizes", "8", "--wait", "block", "--measures", "latency") == 1
    assert "the pair hangs" in capsys.readouterr().out


@pytest.mark.slow
def test_when_the_time_is_up_the_rest_is_left_out(tmp_path, capsys):
    path = tmp_path / "sweep.json"
    assert bench("--tls", "posix", "--sizes", "1:64", "--limit", "0.001", "--json", str(path)) == 1
    assert json.loads(path.read_text())["cells_left_out"] > 0
    assert "the time was up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "/nonexistent/folder/sweep.json"], "is not a writable folder"),
        (["--plot", "/nonexistent/folder/sweep.png"], "is not a writable folder"),
        (["--plot", "sweep.txt"], "sweep.txt is none of .png, .svg, .pdf"),
        (["--sizes", "1000000GiB"], "too large"),
        (["--sizes", "1", "--tls", "lent"], "nothing to measure: none of lent has these"),
        (["--measures", "bibandwidth", "--tls", "self"], "nothing to measure: none of self has these"),
    ],
)
def test_refused_before_anything_starts(arguments, message, capsys):
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err


def test_options_of_quick_give_way_to_explicit_ones(monkeypatch):
    seen = []
    monkeypatch.setattr(sweep, "refuse", seen.append)
    monkeypatch.setattr(sweep, "_measure", lambda *_: None)
    assert bench("--quick", "--tls", "posix", "--rounds", "2") == 1
    assert seen[0].rounds == 2
    assert seen[0].sizes == [1, 16, 256, 4096, 65536, 2**20]


@pytest.mark.parametrize(("nbytes", "expected"), [(1, 64), (2**20, 64), (2**22, 16), (2**26, 1), (2**30, 1)])
def test_windows_shrink_for_large_messages(nbytes, expected):
    assert sweep.window_of(nbytes, 64) == expected


def test_figures_of_an_entry():
    line = sweep.Line("posix", "block", "reused")
    rounds = [sweep.Taken("posix", [1e-3, 2e-3, 9e-3]), sweep.Taken("posix", [2e-3])]
    one_way = sweep.entry(sweep.Cell(line, "bandwidth", 1000), rounds, 64)
    both_ways = sweep.entry(sweep.Cell(line, "bibandwidth", 1000), rounds, 64)
    assert one_way["seconds"]["median"] == 2e-3
    assert one_way["bandwidth_Bps"] == 500_000
    assert one_way["messages_per_s"] == 500
    assert both_ways["bandwidth_Bps"] == 1_000_000
    assert both_ways["messages_per_s"] == 1000
    assert one_way["stamps"] == 4
