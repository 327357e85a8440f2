# SPDX-License-Identifier: BSD-3-Clause
import argparse
import io
import json

import pytest
from tests.machines import matrices, trees

from weft import _cli as cli
from weft import _options
from weft.topo import discovery, draw
from weft.topo.plan import PlanOptions, plan


@pytest.fixture(params=matrices.ALL)
def file(request, tmp_path):
    path = tmp_path / "matrix.txt"
    path.write_text(matrices.ALL[request.param])
    return path


def test_this_machine(capsys):
    assert cli.main(["topo"]) == 0
    assert "NUMA node 0" in capsys.readouterr().out
    assert cli.main(["topo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][0]["id"] == 0


def test_this_machine_planned(capsys):
    assert cli.main(["topo", "--plan", "--per", "1", "--json"]) == 0
    workers = json.loads(capsys.readouterr().out)["workers"]
    assert [worker["threads"] for worker in workers] == [1] * len(discovery.read().allowed.cpus)


def test_a_matrix_is_drawn_whole_on_a_narrow_terminal(file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main(["topo", "--nvidia-smi", str(file)]) == 0
    out = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    assert "GPU0" in out


def test_a_matrix_as_json(file, capsys):
    assert cli.main(["topo", "--nvidia-smi", str(file), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    devices = len(made["gpus"]) + len(made["nics"])
    assert len(made["links"]) == devices * (devices - 1) // 2
    assert all(link["prior_Bps"] > 0 and link["prior_source"] for link in made["links"])


def test_a_matrix_planned(file, capsys):
    assert cli.main(["topo", "--nvidia-smi", str(file), "--plan"]) == 0
    assert "cpus" in capsys.readouterr().out


def test_stdin(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(matrices.ND40))
    assert cli.main(["topo", "--nvidia-smi", "-"]) == 0
    assert "8 GPUs, no NICs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--nvidia-smi", "/no/such"], "weft topo: --nvidia-smi /no/such: No such file or directory\n"),
        (["--nvidia-smi", "/dev/zero"], "/dev/zero: more than 1048576 characters are no such table"),
        (["--plan", "--per", "gpu"], "plan per gpu: no GPU found"),
        (["--plan", "--memory-limit", "4"], "memory limit '4': write a size from 1 MiB up such as 4GiB"),
        (["--plan", "--memory-limit", "0.5"], "which is not known here"),
    ],
)
def test_errors_are_one_line(arguments, why, capsys, monkeypatch):
    monkeypatch.setattr(discovery, "read", lambda **_: discovery.Topology(("nothing",)))
    assert cli.main(["topo", *arguments]) == 2
    out = capsys.readouterr()
    assert why in out.err
    assert out.err.count("\n") == 1


def test_a_text_without_a_table_is_a_failure(capsys):
    assert cli.main(["topo", "--nvidia-smi", "/dev/null"]) == 1
    assert "/dev/null, line 1: no table" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--threads", "0"], ["--workers", "x"], ["--workers", "-1"]])
def test_wrong_numbers_are_refused(arguments):
    with pytest.raises(SystemExit):
        cli.main(["topo", "--plan", *arguments])


def lines_of(renderable):
    from rich.console import Console

    console = Console(width=100, file=io.StringIO())
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_drawing_of_two_sockets(tmp_path):
    trees.two_sockets(tmp_path, allowed="0-7")
    trees.gpu(tmp_path, "pci0000:00/0000:01:00.0", node=0, cpus="0-3")
    trees.rdma(tmp_path, "mlx5_0", "pci0000:80/0000:81:00.0", node=1)
    drawn = lines_of(draw.topology(discovery.read(tmp_path)))
    assert drawn[: drawn.index("")] == [
        "8 of 16 CPUs, 8 cores, 64 GiB, 1 GPU, 1 NIC",
        "├── socket 0",
        "│   └── NUMA node 0  32 GiB",
        "│       ├── L3  CPUs 0-1,8-9 (2 cores)",
        "│       ├── L3  CPUs 2-3,10-11 (2 cores)",
        "│       └── GPU0  SYS mlx5_0",
        "└── socket 1",
        "    └── NUMA node 1  32 GiB",
        "        ├── L3  CPUs 4-5,12-13 (2 cores)",
        "        ├── L3  CPUs 6-7,14-15 (2 cores)",
        "        └── mlx5_0  InfiniBand, port 1 active 200 Gb/s",
    ]
    assert "  CPUs: 0-7 of 0-15, by affinity" in drawn


def test_the_interface_is_shown_where_one_is_asked_for(tmp_path):
    topology = discovery.read(trees.two_sockets(tmp_path))
    assert "interface" not in " ".join(lines_of(draw.plan(plan(topology, PlanOptions("numa")))))
    drawn = lines_of(draw.plan(plan(topology, PlanOptions("numa", interface="ib0"))))
    assert drawn[2].endswith("NIC   interface")
    assert drawn[4].endswith("-     ib0")


def test_reasons_are_said_once_for_all_workers_they_hold_for(tmp_path):
    drawn = lines_of(draw.plan(plan(discovery.read(trees.two_sockets(tmp_path)), PlanOptions("l3"))))
    assert "  memory: 1/2 of its NUMA node's" in drawn
    topology = discovery.read(trees.two_sockets(tmp_path / "other", mems="0"))
    drawn = lines_of(draw.plan(plan(topology, PlanOptions("l3"))))
    assert "  nodes of 2-3: node 1 may not be used" in drawn
    assert "  transports: weft's ring on this host; tcp to other hosts" in drawn


def test_a_pipe_gets_whole_lines(tmp_path, monkeypatch, capsys):
    topology = discovery.read(trees.two_sockets(tmp_path))
    monkeypatch.setattr(discovery, "read", lambda **_: topology)
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main(["topo", "--plan"]) == 0
    said = capsys.readouterr().out
    assert "  nodes: the node of its CPUs; preferred, not bound: a full node costs speed, not the process\n" in said


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "x", ""])
def test_number_above_zero(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number above 0"):
        _options.positive(float, text)


def test_a_time_that_timers_take():
    assert _options.timeout("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="'1e300' is above 100000000, three years"):
        _options.timeout("1e300")


def test_a_device_that_is_not_here(capsys):
    assert cli.main(["topo", "--plan", "--interface", "nope0"]) == 2
    assert "--interface nope0: no such network device here; there are lo" in capsys.readouterr().err
