# SPDX-License-Identifier: BSD-3-Clause
"""dask-cuda's command lines: each option does what it says, or is told of, or refused with a reason."""

import argparse

import pytest

pytest.importorskip("distributed")
pytest.importorskip("dask.dataframe")

from weft.bench.common.errors import BenchError
from weft.bench.dask import command, dask_cuda, rounds
from weft.bench.dask.clusters import Deployment

COMMON = """
--devs 0,1 | --threads-per-worker 1 | --device-memory-limit 10GB | --protocol ucx | --protocol tcp
--multiprocessing-method spawn | --multiprocessing-method forkserver | --disable-rmm | --disable-rmm-pool
--rmm-pool-size 30GB | --rmm-maximum-pool-size 40GB | --enable-rmm-managed | --enable-rmm-async
--rmm-release-threshold 1GB | --rmm-log-directory /tmp | --enable-rmm-statistics | --enable-rmm-track-allocations
--enable-tcp-over-ucx | --disable-tcp-over-ucx | --enable-infiniband | --disable-infiniband | --enable-nvlink
--disable-nvlink | --enable-rdmacm | --disable-rdmacm | --interface lo | --scheduler-address tcp://n0:8786
--scheduler-file s.json | --dashboard-address :8787 | --shutdown-external-cluster-on-exit | --multi-node
--hosts a,b | --no-show-p2p-bandwidth | --all-to-all | --no-silence-logs | --plot x.png | --markdown
--profile x.html | --profile-last x.html | --output-basename x | --ignore-size 1MB | --runs 3 | --warmup-runs 1
"""
SPECIFIC = {
    "merge": """-b dask | -b dask-noop | -t gpu | --type cpu | -c 1_000_000 | --chunk-size 100_000_000 | --base-chunks 2
        --other-chunks 2 | --broadcast-join | --shuffle-join | --frac-match 0.3 | --no-shuffle | -s | --set-index""",
    "shuffle": """--partition-size 1MiB | --in-parts 3 | -b dask | --backend rapidsmpf | -t cpu | --ignore-index
        --partition-distribution 0.5,0.5 | --dask-spill-device 0.5 | --gather-shuffle-stats""",
    "groupby": """--in-parts 3 | -c 1_000 | --unique-ratio 0.01 | --sort | --split_out 2 | --split_every 4 | --shuffle
        --backend dask | -t gpu""",
    "transpose": "-s 10000 | -2 1000 | -t gpu | -o transpose_sum | -o fft | -c 2500 | -b dask",
    "dot": "-s 4000 | --size 4000 | -2 1000 | -o dot | --operation slice | -c 1000 | -b dask-noop",
    "svd": "-s 200000 | -2 100 | --second-size 100 | -o svd | -o mean | -c 25000 | -b dask",
}


def lines(text):
    return [line.strip() for part in text.splitlines() for line in part.split("|") if line.strip()]


def parse(load, *arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser, load)
    parser.set_defaults(load=load)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    "line",
    [
        "--devs 0,1,2,3,4,5,6,7 --chunk-size 100_000_000 --no-show-p2p-bandwidth",
        "--devs 0,1,2,3,4,5,6,7 --chunk-size 100_000_000 --protocol ucx --no-show-p2p-bandwidth",
        "--devs 0,1,2,3,4,5,6,7 --chunk-size 100_000_000",
        "--devs 0,1,2,3,4,5,6,7 --chunk-size 100_000_000 --protocol ucx",
    ],
)
def test_the_guides_and_the_articles_command_lines(line, monkeypatch, capsys):
    args = parse("merge", *line.split())
    places = {}
    monkeypatch.setattr(rounds.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(command, "_measured", lambda args, where: places.update(where) or 0)
    assert command.run(args) == 0
    protocols = ["ucx"] if "ucx" in line else ["tcp", "ucx"]
    assert places == dict.fromkeys(protocols, Deployment(gpus="0,1,2,3,4,5,6,7"))
    assert [work.kind for work in command.build(args, 8)] == ["gpu"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("load", "line"), [(load, line) for load in SPECIFIC for line in lines(COMMON + SPECIFIC[load])]
)
def test_each_option_is_heeded_or_told_of(load, line, capsys):
    args = parse(load, *line.split())
    refused = ""
    try:
        dask_cuda.tell(args)
    except BenchError as error:
        refused = str(error)
    said = capsys.readouterr().err
    if args.told and not (refused or said):
        (names, value), *_ = args.told
        assert dask_cuda.OPTIONS[load][names].done == value
    assert not refused or (refused.startswith("--") and " is not supported: " in refused)
    assert not said or (said.startswith("note: --") and " is ignored: " in said)


@pytest.mark.parametrize(
    ("load", "line", "said"),
    [
        ("merge", "--rmm-pool-size 30GB", "note: --rmm-pool-size is ignored: RMM is used as it is configured\n"),
        (
            "svd",
            "--enable-nvlink",
            "note: --enable-nvlink is ignored: configure UCX with UCX_TLS and UCX_NET_DEVICES\n",
        ),
        ("merge", "-b dask", ""),
        ("dot", "-o dot --multiprocessing-method spawn", ""),
    ],
)
def test_what_changes_nothing_is_said(load, line, said, capsys):
    dask_cuda.tell(parse(load, *line.split()))
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("load", "line", "why"),
    [
        ("merge", "-s", "--set-index is not supported: the tables are joined by a column"),
        ("merge", "-b dask-noop", "--backend dask-noop is not supported: the work is Dask's"),
        ("transpose", "-o fft", "--operation fft is not supported: transpose_sum, dot and svd are"),
        ("groupby", "--profile x.html", "--profile x.html is not supported: one page cannot show"),
    ],
)
def test_what_is_not_done_ends_the_command_before_anything_starts(load, line, why, monkeypatch, capsys):
    monkeypatch.setattr(command, "_measured", lambda *_: pytest.fail("started nevertheless"))
    assert command.run(parse(load, *line.split())) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"weft bench {load}: {why}")
    assert said.count("\n") == 1


def test_data_are_beside_the_gpus_that_are_named_unless_told_otherwise():
    assert command.deployments(parse("merge", "--devs", "0", "-p", "ucx")) == {"ucx": Deployment(gpus="0")}
    assert command.build(parse("merge"), 2)[0].kind == "cpu"
    for load, arguments in (("merge", ["--type", "cpu"]), ("tasks", [])):
        with pytest.raises(BenchError, match="--devs names GPUs, but this workload does not use them: give --workers"):
            command.deployments(parse(load, "--devs", "0", *arguments))


def test_how_a_group_by_is_told():
    (plain,) = command.build(parse("groupby"), 2)
    assert (plain.out, plain.every, plain.sort, plain.shuffle) == (1, None, None, "tasks")
    (told,) = command.build(parse("groupby", "--sort", "--split_out", "2", "--split_every=4", "--shuffle"), 2)
    assert (told.out, told.every, told.sort, told.shuffle) == (2, 4, True, "tasks")
    assert told.parameters.items() - plain.parameters.items() == {("Sort", True), ("Split-every", 4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "line"),
    [
        ("groupby", "-c 1_000 --in-parts 5 --unique-ratio 0.1 --sort --split_out 2 --split_every 2 --shuffle -b dask"),
        ("shuffle", "--partition-size 16KiB --in-parts 3 --ignore-index"),
        ("merge", "-c 1_000 --shuffle-join --rmm-pool-size 1GB --disable-nvlink --multiprocessing-method spawn"),
        ("svd", "-o svd -s 400 -2 4 -c 100 --all-to-all"),
    ],
)
def test_their_command_lines_give_right_results(load, line, capsys):
    brief = ["--protocol", "inproc", "--runs", "1", "--warmup-runs", "0", "--timeout", "200"]
    assert command.run(parse(load, *line.split(), *brief)) == 0
    assert "wrong result" not in capsys.readouterr().err
