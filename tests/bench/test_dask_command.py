# SPDX-License-Identifier: BSD-3-Clause
"""`weft bench merge` and its kin: options, where clusters go, sizes that do not go together, and a tiny run."""

from __future__ import annotations

import argparse
import importlib.util
import json
import threading
import time

import pytest

pytest.importorskip("distributed")
pytest.importorskip("dask.dataframe")

from weft import _cli
from weft.bench.common.errors import BenchError
from weft.bench.dask import clusters, command, moves, rounds
from weft.bench.dask.clusters import Deployment


def parse(load: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser, load)
    parser.set_defaults(load=load)
    return parser.parse_args(arguments)


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", command.LOADS)
def test_defaults_make_each_workload_for_any_number_of_workers(load):
    for workers in (2, 5):
        for workload in command.build(parse(load), workers):
            assert workload.name
            assert workload.nbytes or workload.tasks


def test_the_command_of_dask_cuda_is_understood():
    args = parse("merge", "--chunk-size", "100_000_000", "--protocol", "ucx", "--runs", "5", "--no-show-p2p-bandwidth")
    (merge,) = command.build(args, 8)
    assert (merge.rows, merge.base, merge.other, merge.matching) == (100_000_000, 8, 8, 0.3)
    assert merge.nbytes == 8 * 100_000_000 * 32
    assert command.deployments(args) == {"ucx": Deployment()}
    assert (args.rounds, args.warmup_rounds, args.ignore_size) == (5, 1, 1 << 20)


def test_each_size_is_a_workload():
    made = command.build(parse("fetch", "--sizes", "1KiB,2MiB", "--count", "3"), 2)
    assert [(w.name, w.nbytes) for w in made] == [("fetch 1 KiB", 3 << 10), ("fetch 2 MiB", 6 << 20)]


@pytest.mark.parametrize(
    ("load", "arguments", "count", "chunk"),
    [
        ("dot", ["--size", "500"], 1, 500),
        ("dot", ["--size", "2000"], 2, 1000),
        ("transpose", ["-s", "500"], 1, 500),
        ("transpose", ["-s", "500", "-c", "250"], 2, 250),
        ("svd", ["--size", "1000"], 1, 1000),
        ("svd", [], 8, 25_000),
    ],
)
def test_a_small_matrix_is_one_block_unless_its_blocks_are_given(load, arguments, count, chunk):
    (workload,) = command.build(parse(load, *arguments), 2)
    assert (workload.count, workload.chunk) == (count, chunk)


@pytest.mark.parametrize(
    ("load", "arguments", "message"),
    [
        (
            "transpose",
            ["--size", "10", "--chunk-size", "3"],
            "chunks of 3 do not divide a size of 10; give a --chunk-size that does",
        ),
        ("dot", ["--size", "1500"], "chunks of 1000 do not divide a size of 1500; give a --chunk-size"),
        ("transpose", ["--size", "500", "--chunk-size", "1000"], "chunks of 1000 do not divide a size of 500; give"),
        ("svd", ["-s", "100", "-2", "20", "-c", "10"], "are not as tall as their 20 columns are wide"),
        ("merge", ["-c", "2_000_000_000"], "at most 2147483648 rows"),
    ],
)
def test_sizes_that_do_not_go_together_are_said(load, arguments, message):
    with pytest.raises(BenchError, match=message):
        command.build(parse(load, *arguments), 2)


@pytest.mark.parametrize(
    ("load", "arguments"),
    [
        ("merge", ["--protocol", "tcp,tcp"]),
        ("merge", ["--frac-match", "1.5"]),
        ("merge", ["--shuffle", "disk"]),
        ("busy", ["--beside", "rust"]),
        ("merge", ["--runs", "0"]),
        ("merge", ["--warmup-runs", "-1"]),
        ("fetch", ["--sizes", "many"]),
        ("tasks", ["--type", "gpu"]),
        ("svd", ["--hosts", "a,,b"]),
    ],
)
def test_bad_options_are_refused(load, arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        parse(load, *arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


# --- where clusters go --------------------------------------------------------------------------------------


def test_places_of_own_clusters():
    args = parse("merge", "--workers", "4", "--threads-per-worker", "2", "--memory-limit", "1GiB", "--interface", "ib0")
    deployment = Deployment(workers=4, threads=2, memory_nbytes=1 << 30, interface="ib0")
    assert command.deployments(args) == {"tcp": deployment, "ucx": deployment}
    assert command.deployments(parse("merge", "-t", "gpu", "-p", "ucx")) == {"ucx": Deployment(gpus="")}
    assert command.deployments(parse("merge", "-t", "gpu", "-d", "0,3", "-p", "ucx")) == {"ucx": Deployment(gpus="0,3")}


def test_places_of_running_clusters(tmp_path):
    args = parse("merge", "--scheduler-address", "a:1,ucx://b:2")
    assert command.deployments(args) == {"tcp": Deployment(address="a:1"), "ucx": Deployment(address="ucx://b:2")}
    (tmp_path / "s.json").write_text('{"address": "ucx://b:2"}')
    args = parse("merge", "--scheduler-file", str(tmp_path / "s.json"))
    assert command.deployments(args) == {"ucx": Deployment(address="ucx://b:2")}
    assert not Deployment(address="ucx://b:2").here


def test_hosts_by_ssh(monkeypatch):
    args = parse("merge", "--hosts", "a,b,c")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert command.deployments(args)["ucx"] == Deployment(workers=1, hosts=("a", "b", "c"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match="--hosts needs asyncssh"):
        command.deployments(args)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheduler-address", "a:1", "--workers", "3", "--protocol", "ucx"], "--protocol, --workers: not with"),
        (["--scheduler-address", "a:1", "--scheduler-file", "f"], "not both"),
        (["--scheduler-address", "a:1,tcp://b:1"], "one scheduler for each protocol"),
        (["--scheduler-file", "/absent"], "is not what a scheduler wrote"),
        (["--devs", "0,1", "--type", "cpu"], "--devs names GPUs, but this workload does not use them"),
        (["--type", "gpu", "--workers", "2"], "one worker beside each of --devs"),
        (["--type", "gpu", "--hosts", "a,b"], "one worker beside each of --devs"),
        (["--hosts", "a"], "at least one for workers"),
    ],
)
def test_options_that_exclude_each_other_are_said_in_one_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(rounds, "measure", lambda *_: pytest.fail("started nevertheless"))
    monkeypatch.setattr(rounds.importlib.util, "find_spec", lambda name: name)
    assert command.run(parse("merge", *arguments)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_missing_packages_of_gpus_are_named(capsys):
    if importlib.util.find_spec("cudf"):
        pytest.skip("cudf is here")
    assert command.run(parse("merge", "--type", "gpu")) == 1
    wheels = "cudf-cu12 dask-cudf-cu12 (with CUDA 13: cudf-cu13 dask-cudf-cu13)"
    said = f"weft bench merge: cudf, dask_cudf not installed: pip install {wheels}\n"
    assert capsys.readouterr().err == said


def test_missing_packages_are_named_with_what_brings_them(monkeypatch):
    monkeypatch.setattr(rounds.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BenchError, match=r'pandas, .* not installed: pip install "weft-ucx\[demo\]"$'):
        rounds.refuse(rounds.TABLES)
    with pytest.raises(BenchError, match=r'^numpy, dask, distributed not installed: pip install "weft-ucx\[dask\]"$'):
        rounds.refuse(())
    with pytest.raises(BenchError, match=r'\[dask\]"; pip install cupy-cuda12x \(with CUDA 13: cupy-cuda13x\)$'):
        rounds.refuse(("cupy",))


@pytest.mark.parametrize(("load", "needs"), [("merge", True), ("tasks", False), ("transpose", False)])
def test_only_tables_need_pandas(load, needs, monkeypatch, capsys):
    monkeypatch.setattr(rounds.importlib.util, "find_spec", lambda name: None if name == "pandas" else name)
    monkeypatch.setattr(rounds, "measure", lambda *_: pytest.fail("would have run"))
    if needs:
        assert command.run(parse(load)) == 1
        assert "pandas not installed" in capsys.readouterr().err
    else:
        with pytest.raises(pytest.fail.Exception, match="would have run"):
            command.run(parse(load))


@pytest.mark.parametrize(
    ("deployment", "kind", "expected"),
    [
        (
            Deployment(workers=3, threads=2),
            "LocalCluster",
            {"n_workers": 3, "threads_per_worker": 2, "memory_limit": 0},
        ),
        (Deployment(interface="ib0"), "LocalCluster", {"processes": True, "interface": "ib0"}),
        (Deployment(gpus="0,3"), "TopologyCluster", {"per": "gpu", "CUDA_VISIBLE_DEVICES": "0,3"}),
        (Deployment(gpus=""), "TopologyCluster", {"CUDA_VISIBLE_DEVICES": None}),
    ],
)
def test_a_deployment_chooses_the_cluster(deployment, kind, expected, monkeypatch):
    import distributed

    import weft.dask

    started = {}
    monkeypatch.setattr(distributed, "LocalCluster", lambda **options: started.update(options) or "LocalCluster")
    fake = lambda **options: started.update(options) or "TopologyCluster"  # noqa: E731
    monkeypatch.setitem(vars(weft.dask), "TopologyCluster", fake)
    assert clusters._start(deployment, "ucx", 5) == kind
    assert started["protocol"] == "ucx"
    assert started.items() >= expected.items()


def test_one_process_has_the_threads_of_all_workers(monkeypatch):
    import distributed

    monkeypatch.setattr(distributed, "LocalCluster", lambda **options: options)
    started = clusters._start(Deployment(workers=3, threads=2, interface="lo"), "inproc", 5)
    expected = {"n_workers": 1, "threads_per_worker": 6, "processes": False, "interface": None}
    assert started.items() >= expected.items()


def test_ssh_starts_the_scheduler_on_the_first_host(monkeypatch):
    import distributed

    started = {}
    monkeypatch.setattr(distributed, "SSHCluster", lambda hosts, **options: started.update(options, hosts=hosts))
    clusters._start(Deployment(workers=2, hosts=("a", "b"), interface="ib0"), "ucx", 5)
    assert started["hosts"] == ["a", "b"]
    assert started["scheduler_options"].items() >= {"protocol": "ucx", "interface": "ib0", "port": 0}.items()
    assert started["worker_options"].items() >= {"protocol": "ucx", "n_workers": 2, "nthreads": 1}.items()
    json.dumps(started)  # as it has to travel in a command line


def test_over_ssh_all_workers_are_waited_for(monkeypatch):
    """Dask's SSHCluster returns before they have registered."""
    import distributed

    class Late(distributed.LocalCluster):
        def __init__(self):
            super().__init__(n_workers=0, processes=False, dashboard_address=":0", protocol="inproc://")

    def come(cluster):
        time.sleep(0.3)
        cluster.scale(2)

    cluster = Late()
    coming = threading.Thread(target=come, args=[cluster])
    monkeypatch.setattr(clusters, "_start", lambda *_: cluster)
    coming.start()
    with clusters.running("inproc", 30, Deployment(workers=1, hosts=("a", "b", "c"))) as running:
        assert len(running.workers) == 2
    coming.join()


@pytest.mark.parametrize(
    ("load", "status"), [("fetch", 2), ("busy", 2), ("broadcast", 2), ("scatter", 0), ("gather", 0)]
)
def test_movements_between_workers_need_two(load, status, monkeypatch, capsys):
    entry = {"name": load, "protocol": "ucx", "correct": True}
    monkeypatch.setattr(command, "_measured", lambda *_: {"workloads": [entry]})
    assert command.run(parse(load, "--workers", "1", "--sizes", "1KiB")) == status
    assert ("needs 2 at least" in capsys.readouterr().err) == (status == 2)


# --- the whole ----------------------------------------------------------------------------------------------


class Other(moves.Fetch):
    """Hands its arrays over in the wrong order."""

    def prepare(self, client, workers, timeout):
        made, workers = super().prepare(client, workers, timeout)
        return made[::-1], workers


def test_a_tiny_run_within_one_process(tmp_path, capsys):
    path = tmp_path / "record.json"
    tiny = "-s", "200", "-c", "100", "--runs", "1", "--timeout", "60", "--json", str(path)
    assert command.run(parse("transpose", "--protocol", "inproc", *tiny)) == 0
    assert "Threads per worker        | 2" in capsys.readouterr().out
    (entry,) = json.loads(path.read_text())["workloads"]
    assert entry["correct"]
    assert entry["threads"] == [2]
    assert entry["moved_nbytes"] == [0]
    assert entry["worker_cpu_s"][0] > entry["client_and_scheduler_cpu_s"][0] == 0


@pytest.mark.slow
def test_a_tiny_run_over_both_protocols_in_which_one_result_is_wrong(monkeypatch, tmp_path, capsys):
    tiny = [*command.build(parse("merge", "-c", "20_000"), 2), moves.Fetch(nbytes=2 << 20, count=3)]
    wrong = Other(nbytes=8, count=2)
    wrong.name = "other"
    busy = command.build(parse("busy", "--sizes", "1MiB", "--count", "1", "--beside", "numpy"), 2)
    monkeypatch.setattr(command, "build", lambda *_: [*tiny, *busy, wrong])
    path = tmp_path / "record.json"
    given = "--runs", "1", "--warmup-runs", "0", "--timeout", "200", "--markdown", "--json", str(path)
    assert command.run(parse("merge", *given)) == 1

    shown = capsys.readouterr()
    assert shown.err.splitlines()[-2:] == [
        f"weft bench merge: wrong result: other over {p}://: 2 of 2 arrays are not what was made"
        for p in ("tcp", "ucx")
    ]
    assert "### merge over ucx://" in shown.out
    record = json.loads(path.read_text())
    names = ["merge", "fetch 2 MiB", "busy 1 MiB beside numpy", "other"]
    assert [(e["name"], e["protocol"], e["correct"]) for e in record["workloads"]] == [
        (name, protocol, name != "other") for name in names for protocol in ("tcp", "ucx")
    ]
    for e in record["workloads"]:
        assert len(e["wall_s"]) == len(e["communication_s"]) == 1
        assert (e["communication_s"][0] > 0) != e["name"].startswith("busy")  # no log of Dask's has replicas
        assert e["worker_cpu_s"][0] > 0
        assert e["client_and_scheduler_cpu_s"][0] > 0
        assert e["lanes"]
    fetched = record["workloads"][3]
    assert fetched["moved_nbytes"] == [fetched["input_nbytes"]] == [3 * (2 << 20)]
    assert [p["transfers"] for p in fetched["pairs"]] == [0, 3]
    assert [(r["name"], r["above"], r["below"]) for r in record["ratios"]] == [(name, "ucx", "tcp") for name in names]


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["--interface", "nope0"], 2, "--interface nope0: no such network device here; there are lo"),
        (["--scheduler-address", "dead"], 2, "--scheduler-address dead: missing port number in address 'dead'"),
        (["--scheduler-address", "127.0.0.1:1"], 1, "127.0.0.1:1: connection refused; start that scheduler"),
        (["--scheduler-address", "no-such-host.invalid:1"], 1, "no-such-host.invalid:1: no such host: "),
    ],
)
def test_why_there_is_no_cluster(arguments, status, why, capsys):
    assert _cli.main(["bench", "tasks", "--timeout", "0.2", *arguments]) == status
    assert capsys.readouterr().err.startswith(f"weft bench tasks: {why}")


def test_a_limit_below_what_a_process_takes_is_refused(capsys):
    assert _cli.main(["bench", "tasks", "--memory-limit", "1MB"]) == 2
    assert capsys.readouterr().err.startswith("weft bench tasks: --memory-limit: a worker's libraries alone take ")


def test_a_running_cluster_has_less_time_to_answer_than_a_step(capsys, monkeypatch):
    monkeypatch.setattr(clusters, "_ATTACH_S", 0.2)
    assert _cli.main(["bench", "tasks", "--timeout", "90", "--scheduler-address", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("weft bench tasks: 127.0.0.1:1: connection refused; start that")


def test_a_scheduler_of_another_protocol_is_called_that(capsys):
    import distributed

    with distributed.LocalCluster(n_workers=0, protocol="ucx", dashboard_address=":0") as cluster:
        address = cluster.scheduler_address.replace("ucx://", "tcp://")
        assert _cli.main(["bench", "tasks", "--scheduler-address", address]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"weft bench tasks: {address}: no scheduler answers there over tcp://; use the address")
