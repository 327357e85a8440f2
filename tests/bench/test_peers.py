# SPDX-License-Identifier: BSD-3-Clause
"""weft beside other libraries: what is missing is told and not fatal. Nothing is installed here."""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from weft.bench.common.errors import BenchError
from weft.bench.peers import command as peers
from weft.bench.peers import install, programs
from weft.bench.pingpong.loops import Cell

BRIEF = ["--rounds", "2", "--iterations", "5", "--seconds-per-cell", "0.001", "--sizes", "8"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def bench(tmp_path, *arguments):
    parser = argparse.ArgumentParser()
    peers.add_arguments(parser)
    return peers.run(parser.parse_args([*BRIEF, "--environments", str(tmp_path), *arguments]))


@pytest.mark.slow
def test_what_cannot_be_installed_is_missing_and_the_rest_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    path = tmp_path / "peers.json"
    assert bench(tmp_path, "--libraries", "tcp,pyzmq,mpi4py", "--json", str(path)) == 0
    record = json.loads(path.read_text())
    assert [(r["library"], r["mode"], r["rounds"]) for r in record["records"]] == [("tcp", "block", 2)]
    assert [gone["library"] for gone in record["missing"]] == ["pyzmq", "mpi4py"]
    assert "missing: pyzmq block: needs uv to install it" in capsys.readouterr().out


def test_nothing_but_what_is_missing_is_printed_where_all_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert bench(tmp_path, "--libraries", "pyzmq") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("missing: pyzmq") for line in lines)


@pytest.mark.slow
def test_a_library_that_is_not_in_its_environment_is_missing(tmp_path, monkeypatch, capsys):
    # this interpreter stands for an environment: its loops are found without weft being imported there
    monkeypatch.setattr(install, "python_with", lambda packages, under: Path(sys.executable))
    monkeypatch.setattr(install, "version", lambda python, package: "1.0")
    assert bench(tmp_path, "--libraries", "ucx-py,ucxx") == 1
    out = capsys.readouterr().out
    assert "missing: ucx-py await: ModuleNotFoundError: No module named 'ucp'" in out
    assert "missing: ucxx await: ModuleNotFoundError: No module named 'ucxx'" in out


@pytest.mark.slow
def test_a_library_in_another_environment_is_measured(tmp_path, monkeypatch):
    pytest.importorskip("uvloop")
    monkeypatch.setattr(install, "python_with", lambda packages, under: Path(sys.executable))
    path = tmp_path / "peers.json"
    assert bench(tmp_path, "--libraries", "uvloop", "--json", str(path)) == 0
    record = json.loads(path.read_text())
    assert [(r["library"], r["transport"], r["nbytes"]) for r in record["records"]] == [("uvloop", "tcp", 8)]
    assert set(record["versions"]) == {"uvloop"}


def test_every_library_has_a_cell_and_packages():
    assert {cell.library for cell in peers.PEERS} == set(peers.PACKAGES)
    assert len(set(peers.PEERS)) == len(peers.PEERS)
    assert {Cell("peer", "await"), Cell("tags", "await")} <= set(peers.PEERS)


def test_an_environment_is_made_once_and_again_after_a_failure(tmp_path, monkeypatch):
    ran = []

    def run(command):
        ran.append(command[1])
        if len(ran) == 2:
            raise BenchError("uv: no network")
        return ""

    monkeypatch.setattr(shutil, "which", lambda name: "/bin/uv")
    monkeypatch.setattr(install, "_run", run)
    with pytest.raises(BenchError, match="no network"):
        install.python_with(["pyzmq"], under=tmp_path)
    monkeypatch.setattr(Path, "touch", lambda self: self.parent.mkdir(exist_ok=True) or self.write_text(""))
    first = install.python_with(["pyzmq"], under=tmp_path)
    assert install.python_with(["pyzmq"], under=tmp_path) == first
    assert ran == ["venv", "pip", "venv", "pip"]
    assert install.python_with([], under=tmp_path) == Path(sys.executable)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["first", "no such package"], "no such package"),
        (["first", "  × Failed to build x", "hint: see y"], "Failed to build x"),
        (["error: no network", "hint: see y"], "error: no network"),
        ([], "ended with status 2"),
    ],
)
def test_what_uv_said_is_the_reason(said, reason):
    code = "import sys; [print(line, file=sys.stderr) for line in sys.argv[1:]]; sys.exit(2)"
    with pytest.raises(BenchError, match=f": {reason}$"):
        install._run([sys.executable, "-X", "utf8", "-c", code, *said])


def test_an_installation_ends_with_the_benchmark(tmp_path, spawn):
    os.mkfifo(fifo := tmp_path / "fifo")
    code = """
import sys
from weft.bench.peers import install
install._run([sys.executable, "-c", "import sys, time; f = open(sys.argv[1], 'wb', 0); time.sleep(600)", sys.argv[1]])
"""
    child = spawn(code, str(fifo))
    with open(fifo) as installing:
        child.process.terminate()
        assert installing.read() == ""  # all who could write are gone


def test_figures_of_perftest():
    heads = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n"
    printed = f"warning, of some kind\n{heads}1000,0.130,67.7,67.7,0.11\n"
    assert programs.figure_of(printed, "50.0_percentile_lat") == pytest.approx(0.13e-6)
    assert programs.figure_of(printed, "overall.*lat|average_lat") == pytest.approx(67.7e-6)


@pytest.mark.parametrize(
    "printed", ["", "iterations,50.0_percentile_lat\n", "a,b\n1,2\n", "x,50.0_percentile_lat\n1,y\n"]
)
def test_perftest_without_figures(printed):
    with pytest.raises(BenchError, match="printed no figures"):
        programs.figure_of(printed, "50.0_percentile_lat")


@pytest.mark.slow
def test_a_tool_that_fails_or_hangs_is_ended():
    with pytest.raises(BenchError, match="ended with status 3: gave up"):
        programs._printed([sys.executable, "-c", "import sys; print('gave up', file=sys.stderr); sys.exit(3)"], {}, 20)
    with pytest.raises(BenchError, match="not done within 0 s"):
        programs._printed([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.3)
