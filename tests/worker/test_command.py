# SPDX-License-Identifier: BSD-3-Clause
"""Options and layout; nothing is started."""

import argparse
import dataclasses
import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import dask.cli
import pytest
from click.testing import CliRunner
from tests.machines import matrices

from weft import _cli as cli
from weft.errors import UnsupportedError
from weft.topo import discovery, nvidia_smi
from weft.topo.model import Allowed, Cpu, Gpu, NumaNode, Topology
from weft.topo.plan import plan
from weft.worker import command

TWO_NODES = Topology(
    ("made up",),
    cpus=tuple(Cpu(i, i, i // 2, i // 2, None) for i in range(4)),
    nodes=(NumaNode(0, (0, 1), 2**30), NumaNode(1, (2, 3), 2**30)),
    allowed=Allowed((0, 1, 2, 3), (0, 1)),
    memory_nbytes=2**31,
)


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


def nannies(*arguments, topology=TWO_NODES):
    args = parsed(*arguments)
    return command.options(args, plan(topology, command.request(args, topology)))


def test_each_worker_gets_its_place():
    made = nannies("ucx://10.0.0.2:8786")
    assert [each["env"] for each in made] == [
        {"WEFT_CPUS": "0-1", "WEFT_MEMORY_NODES": "0"},
        {"WEFT_CPUS": "2-3", "WEFT_MEMORY_NODES": "1"},
    ]
    assert [(each["nthreads"], each["memory_limit"], each["name"]) for each in made] == [(2, 2**30, None)] * 2
    assert {each["scheduler_ip"] for each in made} == {"ucx://10.0.0.2:8786"}
    assert made[0]["preload"] == ["weft.dask.place"]


def test_options_reach_the_nannies():
    asked = ["--per", "1", "--nworkers", "3", "--nthreads", "2", "--memory-limit", "64 MiB", "--name", "a"]
    more = [
        "--local-directory",
        "/x",
        "--preload",
        "mine",
        "--preload",
        "too",
        "--protocol",
        "ucx",
        "--interface",
        "ib0",
    ]
    rest = ["--resources", "GPU=1, MEM=10e9", "--no-dashboard", "--death-timeout", "60", "--tls-cert", "c.pem"]
    made = nannies("tcp://h:8786", *asked, *more, *rest)
    assert [each["name"] for each in made] == ["a-0", "a-1", "a-2"]
    first = made[0]
    assert (first["nthreads"], first["memory_limit"], first["local_directory"]) == (2, 2**26, "/x")
    assert first["preload"] == ["weft.dask.place", "mine", "too"]
    assert (first["protocol"], first["interface"], first["dashboard"]) == ("ucx", "ib0", False)
    assert (first["resources"], first["death_timeout"]) == ({"GPU": 1.0, "MEM": 1e10}, 60.0)
    assert first["security"] == {"tls_worker_cert": "c.pem"}


def test_one_worker_has_the_name_itself():
    assert [each["name"] for each in nannies("s", "--workers", "1", "--name", "a")] == ["a"]


def test_no_memory_limit():
    assert {each["memory_limit"] for each in nannies("s", "--memory-limit", "0")} == {0}


def test_a_fraction_of_the_machines_memory():
    assert {each["memory_limit"] for each in nannies("s", "--memory-limit", "0.25")} == {2**29}


def test_hidden_gpus_leave_workers_on_numa_nodes(monkeypatch):
    topology = dataclasses.replace(TWO_NODES, gpus=(Gpu("GPU0", 0, cpus=(0,), node=0),))
    for hidden in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert [each["env"]["WEFT_CPUS"] for each in nannies("s", topology=topology)] == ["0-1", "2-3"]


def test_a_dgx_1_has_a_worker_for_each_gpu_of_the_variable(monkeypatch):
    topology = nvidia_smi.topology(nvidia_smi.parse(matrices.DGX_1, name="dgx"), source="dgx")
    assert len(nannies("s", topology=topology)) == 8
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,1")
    made = nannies("s", topology=topology)
    assert [each["env"]["CUDA_VISIBLE_DEVICES"] for each in made] == ["4,1", "1,4"]
    assert made[0]["env"]["WEFT_CPUS"] == "20-39,60-79"


def test_what_the_user_set_of_ucx_stays(monkeypatch):
    gpu = Topology(("x",), gpus=(Gpu("GPU0", 0, cpus=(0,)),), allowed=None)
    monkeypatch.setenv("UCX_NET_DEVICES", "eth0")
    assert "UCX_NET_DEVICES" not in nannies("s", topology=gpu)[0]["env"]


def towards(*arguments):
    return command.request(parsed(*arguments), TWO_NODES).towards


def test_the_way_to_the_scheduler(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "device_of", {"10.0.0.7": "eth1", "10.9.0.7": "eth2", "127.0.0.1": "lo"}.get)
    monkeypatch.setattr(command, "source_towards", {"10.0.0.2": "10.0.0.7", "127.0.0.1": "127.0.0.1"}.get)
    assert towards("ucx://10.0.0.2:8786") == "eth1"
    assert towards("10.0.0.2:8786") == "eth1"
    assert towards("ucx://10.0.0.2:8786", "--host", "10.9.0.7") == "eth2"  # where the worker will be
    assert towards("ucx://10.0.0.2:8786", "--host", "ucx://10.9.0.7:0") == "eth2"
    assert towards("ucx://127.0.0.1:8786") is None  # others do not come that way
    for unknown in ("ucx://10.5.0.2:8786", "ucx://10.0.0.2:x", "inproc://1"):
        assert towards(unknown) is None
    assert towards() is None
    file = tmp_path / "scheduler.json"
    assert towards("--scheduler-file", str(file)) is None
    file.write_text('{"address": "tcp://10.0.0.2:8786"}')
    assert towards("--scheduler-file", str(file)) == "eth1"


@pytest.fixture
def two_nodes(monkeypatch):
    monkeypatch.setattr(discovery, "read", lambda **_: TWO_NODES)


def test_the_plan_is_printed_with_reasons_and_nothing_started(two_nodes, capsys):
    assert cli.main(["worker", "--plan"]) == 0
    assert "those of a NUMA node" in capsys.readouterr().out
    assert cli.main(["worker", "--plan", "--json", "--per", "1"]) == 0
    workers = json.loads(capsys.readouterr().out)["workers"]
    assert [worker["cpus"] for worker in workers] == [[0], [1], [2], [3]]
    assert all(worker["reasons"]["cpus"] for worker in workers)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["s", "--rmm-pool-size", "24GB"], "--rmm-pool-size is not supported: weft sets no RMM up"),
        (["s", "--device-memory-limit=0.8"], "--device-memory-limit is not supported: weft spills no device memory"),
        (["s", "--worker-port", "9000"], "--worker-port is not supported: use dask worker, which has it"),
        (["s", "--enable-nvlink"], "--enable-nvlink is not supported: UCX chooses its transports itself"),
        (["s", "--memory-limit", "much"], "memory limit 'much': write a size from 1 MiB up such as 4GiB"),
        (["s", "--memory-limit", "-1"], "memory limit '-1': write a size from 1 MiB up such as 4GiB"),
        (["s", "--resources", "GPU"], "--resources 'GPU': write NAME=NUMBER"),
        (["s", "--per", "gpu"], "plan per gpu: no GPU found"),
        (["s", "--tls-ca-file", "/nonexist"], "--tls-ca-file /nonexist: no such file"),
        (["s", "--interface", "nope0"], "--interface nope0: no such network device here; there are lo"),
        (["--plan", "--interface", "nope0"], "--interface nope0: no such network device here"),
        (["--plan", "--protocol", "foo"], "--protocol foo: unknown address scheme 'foo'"),
        ([], "no scheduler: give its address, ucx://HOST:8786"),
    ],
)
def test_errors_are_one_line(two_nodes, arguments, why, capsys):
    assert cli.main(["worker", *arguments]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_options_of_dask_cuda_that_ask_for_what_weft_does_are_taken(two_nodes, capsys):
    off = ["--no-rmm-async", "--no-rmm-managed-memory", "--no-rmm-track-allocations"]
    assert cli.main(["worker", "--plan", *off, "--disable-cudf-spill", "--disable-jit-unspill", "--dashboard"]) == 0
    assert not parsed("s", "--no-dashboard", "--dashboard").no_dashboard


@pytest.mark.parametrize(("text", "seconds"), [("60", 60.0), ("0.5", 0.5), ("5m", 300.0), ("1 hour", 3600.0)])
def test_a_timeout_is_in_seconds_or_as_dask_writes_it(text, seconds):
    assert parsed("s", "--timeout", text).timeout == seconds


@pytest.mark.parametrize("text", ["soon", "inf", "1e999", "0", "-1", "-5m", "5 apples"])
def test_a_timeout_that_is_none(text, capsys):
    with pytest.raises(SystemExit):
        parsed("s", f"--timeout={text}")
    assert "must be a number above 0" in capsys.readouterr().err


def test_an_odd_number_is_refused_before():
    with pytest.raises(SystemExit):
        parsed("s", "--workers", "0")


def test_the_command_of_dask(two_nodes):
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    ((name, value),) = pyproject["project"]["entry-points"]["dask_cli"].items()
    dask.cli._register_command_ep(dask.cli.cli, EntryPoint(name, value, "dask_cli"))
    done = CliRunner().invoke(dask.cli.cli, ["weft", "worker", "--plan", "--per", "1"])
    assert done.exit_code == 0, done.output
    assert "cores3" in done.output
    assert "--scheduler-file" in CliRunner().invoke(dask.cli.cli, ["weft", "worker", "--help"]).output
    del dask.cli.cli.commands["weft"]


def test_no_dask(two_nodes, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match="Dask is not installed"):
        command._require_dask()
