# SPDX-License-Identifier: BSD-3-Clause
"""``scripts/coiled_benchmarks.py``: what it makes of its runs, and a checkout of two functions that it runs."""

import argparse
import datetime
import decimal
import importlib.util
import json
import mmap
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import psutil
import pytest

if missing := [name for name in ("pandas", "pyarrow", "dask") if importlib.util.find_spec(name) is None]:
    pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scripts import benchmarks, coiled_benchmarks
from scripts.coiled_benchmarks import TPCH
from whole_jobs import counters, days, memory, results, run, table, tpch

from weft.bench.common.errors import BenchError


def ran(wall_s, checksums=(7,), **workers):
    peak = int(wall_s * 2**30)
    found = {"wall_s": wall_s, "checksums": list(checksums), "workers": workers, "peak_nbytes": peak}
    return found | {"peak_with_cache_nbytes": 2 * peak}


def row(name, checks=(), day="", **walls):
    found = {
        "name": name,
        "workers": 2,
        "day": day,
        "runs": {p: [ran(s) for s in each] for p, each in walls.items()},
        "checks": dict(checks),
    }
    return found | {"difference": table.difference(found)}


@pytest.fixture
def record():
    return {
        "protocols": ["tcp", "ucx", "inproc"],
        "rounds": 2,
        "commits": {"weft": "abc"},
        "threads": 1,
        "memory": 4 << 30,
        "left_out": {},
        "rows": [
            row("array: won", tcp=[10, 10], ucx=[5, 5.1], inproc=[4, 4]),
            row("array: even", tcp=[10, 10], ucx=[9, 11], inproc=[9.5, 9.5]),
            row("join: lost", tcp=[10, 10], ucx=[12, 20], inproc=[5, 5]),
        ],
        "environment": {
            **dict.fromkeys(("cpu_model", "kernel", "python", "weft", "date_utc"), "x"),
            "cores_usable": 2,
            "memory_bytes": 1 << 30,
            "ucx": None,
            "packages": {},
            "ucx_variables": {},
            "load_average": [0.5],
        },
    }


def test_losing_rows_come_first_and_rounds_that_differ_are_written(record):
    head, cells = table.rows(record)
    assert head == ["", "workers", "tcp, s", "ucx, s", "inproc, s", "ucx/tcp", "left of tcp above the floor"]
    assert cells == [
        ["`join: lost`", "2", "10", "12 20", "5", "**1.60** (1.20 2.00)", "2.20"],
        ["`array: even`", "2", "10", "9 11", "9.5", "1.00 (0.90 1.10)", "-"],
        ["`array: won`", "2", "10", "5.05", "4", "0.51 (0.50 0.51)", "0.17"],
    ]


def test_a_row_that_did_not_run_in_one_process_has_no_floor(record):
    record["rows"] = [row("array: large", tcp=[10], ucx=[5], inproc=[])]
    assert table.rows(record)[1] == [["`array: large`", "2", "10", "5", "-", "0.50", "-"]]


def test_each_kind_of_rows_has_its_means(record):
    assert list(table.summary(record)) == [
        "array, 2 rows: ucx/tcp 0.71 (geometric mean); 0.17 left above the floor (median of 1); "
        "peak memory 0.71 of tcp's; with the page cache 0.71 of tcp's",
        "join, 1 rows: ucx/tcp 1.60 (geometric mean); 2.20 left above the floor (median of 1); "
        "peak memory 1.60 of tcp's; with the page cache 1.60 of tcp's",
    ]


def test_what_failed_or_differs_is_said(record):
    record["rows"][0]["runs"]["ucx"][1] = {"failed": "no way"}
    record["rows"][1]["runs"]["tcp"][0]["checksums"] = [8]
    record["rows"][1]["difference"] = table.difference(record["rows"][1])
    record["rows"][2]["checks"] = {"tcp": ran(1, [1]), "ucx": ran(1, [2])}
    record["rows"][2]["difference"] = table.difference(record["rows"][2])
    assert table.wrong(record) == [
        "array: won, 2 workers, ucx, round 2: no way",
        "array: even: the rounds gave 2 results",
        "join: lost: the checks gave 2 results",
    ]
    assert "**array: won, 2 workers, ucx, round 2: no way**" in table.notes(record)
    _, cells = table.rows(record)
    assert cells[-1] == ["`array: won`", "2", "10", "5", "4", "0.50", "0.17"]  # by the round that both ended


def test_a_row_without_any_result_is_told(record):
    assert table.unchecked(record) == []
    for each in table.runs(record["rows"][1]):
        each["checksums"] = []
    assert table.unchecked(record) == ["array: even"]
    assert "Nothing to compare in: array: even" in table.notes(record)


def test_the_page_has_it_all(record):
    text = benchmarks.whole_jobs(record)
    assert text.splitlines()[0].startswith("|  | workers | tcp, s | ucx, s")
    assert "All results that were compared are equal" in text
    head, cells = table.details(record)
    assert all(len(each) == len(head) for each in cells)
    assert cells[0][head.index("peak memory, GiB")] == "10.00 / 16.00 / 5.00"
    assert cells[0][head.index("with the page cache of its files, GiB")] == "20.00 / 32.00 / 10.00"
    assert "join: lost" in table.text(record)
    assert "Commits: abc of weft" in text


def test_the_readme_has_whole_jobs_before_single_fetches(record):
    rows = benchmarks.five({"whole_jobs": record}).splitlines()[2:]
    assert rows[0] == "| 2 whole jobs on arrays | 20.0 s | 15.1 s | 0.71 (0.51-1.00) |"
    assert rows[1] == "| 1 whole jobs on tables | 10.0 s | 16.0 s | 1.60 (one round) |"


def test_bytes_are_lent_staged_or_copied():
    sent = {"weft/sent_nbytes": 10, "weft/lent_nbytes": 3, "weft/staged_total_nbytes": 2, "execute/disk-write/bytes": 4}
    sent["p2p/disk-write/bytes"] = 100  # a shuffle writes whether or not there is room
    found = ran(1, **sent)
    assert [value(found) for _, value in table.MOVED] == [3, 2, 5]
    assert table.spilled_nbytes(found) == 4
    line = table.line("a: b", "ucx", 1, found)
    assert "lent 3 B, staged 2 B, copied 5 B" in line


@pytest.mark.parametrize(
    ("value", "same", "other"),
    [
        (np.float64(0.1 + 0.2), np.float64(0.3), np.float64(0.3001)),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3) + 1),
        ([1, (2.0, "x")], [1, (2.0, "x")], [1, (2.0, "y")]),
        (np.array([np.nan]), np.array([np.nan]), np.array([0.0])),
        (
            pd.DataFrame({"a": [0.1 + 0.2], "b": ["x"], "c": [datetime.date(2020, 1, 1)]}, index=[5]),
            pd.DataFrame({"a": [0.3], "b": ["x"], "c": [datetime.date(2020, 1, 1)]}),
            pd.DataFrame({"a": [0.3], "b": ["x"], "c": [datetime.date(2020, 1, 2)]}),
        ),
    ],
)
def test_equal_results_have_one_checksum(value, same, other):
    assert results.checksum(value) == results.checksum(same)
    assert results.checksum(value) != results.checksum(other)


def test_a_table_in_another_order_has_the_same_checksum():
    table = pd.DataFrame({"a": [0.1, 0.2, 0.3], "b": ["x", "y", None]})
    other = table.iloc[[2, 0, 1]].reset_index(drop=True)

    def checksum(table):
        return results.table_checksum(table).tolist()

    assert checksum(table) == checksum(other)
    assert checksum(table) != checksum(table.assign(a=table["a"] + 1))
    assert checksum(table.set_index("a")) != checksum(table.set_index("a").set_index(pd.Index([0.1, 0.2, 9], name="a")))


@pytest.fixture
def watchable(monkeypatch):
    """Give back what watching replaces."""
    import dask.dataframe
    import dask.distributed
    import distributed

    replaced = [(module, "wait") for module in (distributed, dask.distributed)]
    replaced += [(distributed.Client, "gather"), (distributed.Future, "result"), (dask.dataframe.DataFrame, "size")]
    for owner, name in replaced:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return dask.dataframe


def test_what_a_future_gives_is_compared(watchable):
    import distributed

    looked = results.Results(check=False)
    looked.watch()
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        assert client.submit(abs, -7).result() == 7
        assert client.gather(client.map(abs, [-8])) == [8]
    assert looked.checksums == [results.checksum(7), results.checksum([8])]


@pytest.mark.parametrize("check", [True, False])
def test_a_table_whose_size_is_asked_for_is_compared_in_a_check(watchable, check):
    looked = results.Results(check=check)
    looked.watch()
    table = pd.DataFrame({"a": range(6)})
    sizes = [int(watchable.from_pandas(each, npartitions=2).size.compute(scheduler="sync")) for each in (table, -table)]
    assert (sizes == [6, 6]) is not check
    assert bool(looked.unchecked) is not check


def test_the_seeds_make_the_data_the_same():
    import dask.array as da

    def made():
        results.seed()
        return da.random.random(3).compute(scheduler="sync").tolist(), np.random.randint(2**30)

    assert made() == made()


def test_counters_grow_and_add_up():
    before = counters.read()
    sum(range(10**6))
    grown = counters.grown(before, counters.read())
    assert {"user_s", "system_s", "minor_faults"} & grown.keys()
    assert all(more > 0 for more in grown.values())
    assert "MainThread/user_s" in before
    assert counters.added({"a": {"x": 1, "y": 2}, "b": {"x": 3}}) == {"x": 4, "y": 2}


def test_the_peak_is_that_of_the_functions_time():
    samples = [(0.0, 9), (1.0, 2), (2.0, 3), (3.0, 8)]
    found = memory.Memory(0, Path(), samples=samples, cached_samples=[(1.0, 7)])
    assert found.peaks(0.5, 2.5) == {"peak_nbytes": 3, "peak_with_cache_nbytes": 7}
    # a function between two samples has the nearest one's
    assert found.peaks(1.1, 1.2) == {"peak_nbytes": 2, "peak_with_cache_nbytes": 7}
    assert found.peaks(1.7, 1.9)["peak_nbytes"] == 3


def test_private_memory_is_what_the_kernel_calls_anonymous():
    before = memory._anonymous_nbytes(os.getpid())
    mine = bytearray(b"x") * (64 << 20)
    grown = memory._anonymous_nbytes(os.getpid()) - before
    with mmap.mmap(-1, 64 << 20) as shared:
        shared.write(mine)
        assert memory._anonymous_nbytes(os.getpid()) - before - grown < 8 << 20
    assert abs(grown - len(mine)) < 8 << 20
    assert memory._anonymous_nbytes(2**22) == 0  # no process has this id


def test_what_a_run_wrote_is_counted_while_it_is_in_the_page_cache(tmp_path):
    folder = tmp_path / "scratch"
    assert memory.cached_nbytes(folder) == 0  # it is not there yet
    (folder / "below").mkdir(parents=True)
    for name, nbytes in (("a", 10000), ("below/b", 1), ("empty", 0)):
        (folder / name).write_bytes(bytes(nbytes))
    assert memory.cached_nbytes(folder) == 4 * mmap.PAGESIZE


def test_rows_are_chosen_by_their_names():
    nodes = [f"tests/benchmarks/test_join.py::test_join_big[{n}]" for n in (0.1, 1)]
    nodes += ["tests/benchmarks/test_custom.py::test_jobqueue", "tests/tpch/test_dask.py::test_query_01"]
    assert list(coiled_benchmarks.chosen(nodes, None)) == ["join: join_big[0.1]", "join: join_big[1]", "tpch: query_01"]
    assert coiled_benchmarks.chosen(nodes, r"big\[1|jobqueue") == {
        "join: join_big[1]": nodes[1],
        "custom: jobqueue": nodes[2],
    }


def test_queries_share_a_cluster():
    nodes = {"array: a": "tests/benchmarks/test_array.py::a", "tpch: 1": f"{TPCH}::1", "tpch: 2": f"{TPCH}::2"}
    assert [list(each) for each in coiled_benchmarks.together(nodes)] == [["array: a"], ["tpch: 1", "tpch: 2"]]


@pytest.mark.parametrize(
    ("name", "workers", "protocols"),
    [
        ("whole_jobs", [2], ["tcp", "ucx", "inproc"]),
        ("whole_jobs_four", [4], ["tcp", "ucx", "inproc"]),
        ("whole_jobs_days", [2], ["tcp", "ucx"]),
    ],
)
def test_the_commands_are_understood(name, workers, protocols):
    command, tiny = benchmarks.MEASURED[name]
    words = command.partition("scripts/coiled_benchmarks.py ")[2].split()
    parsed = coiled_benchmarks.parse([*words, *tiny.split(), "--json", "x.json"])
    assert (parsed.json.name, parsed.rows, parsed.protocols) == ("x.json", "query_06", protocols)
    assert parsed.workers == workers


def test_a_day_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        coiled_benchmarks.parse(["--source", "x", "--days", "half,hot"])
    assert "half,killed,shm" in capsys.readouterr().err


def test_tables_are_rewritten_with_floats_and_timestamps(tmp_path, monkeypatch):
    monkeypatch.setattr(tpch, "FILE_NBYTES", 1000)
    day, price = datetime.date(1995, 3, 15), decimal.Decimal("12.50")
    made = pa.table({"key": range(1000), "price": [price] * 1000, "day": [day] * 1000})
    made = made.set_column(1, "price", made["price"].cast(pa.decimal128(15, 2)))
    pq.write_table(made, tmp_path / "orders.parquet")
    tpch.rewrite(tmp_path / "orders.parquet", tmp_path / "orders")
    assert len(list((tmp_path / "orders").iterdir())) > 1
    found = pd.read_parquet(tmp_path / "orders").sort_values("key")
    assert found["key"].tolist() == list(range(1000))
    assert set(found["price"]) == {12.5}
    assert set(found["day"]) == {pd.Timestamp(day)}


def test_tables_that_are_there_are_not_made_again(tmp_path):
    for name in tpch.TABLES:
        (tmp_path / "scale-1" / name).mkdir(parents=True)
    assert tpch.generated(tmp_path, 1.0) == tmp_path / "scale-1"


CONFTEST = """
import coiled
import pytest
import s3fs

@pytest.fixture
def small_cluster():
    with coiled.Cluster() as cluster:
        yield cluster

@pytest.fixture
def small_client(request, testrun_uid, small_cluster):
    raise RuntimeError("a cluster in a cloud")
"""
UTILS = """
def arr_to_devnull(array):
    class Nowhere:
        def __setitem__(self, k, v):
            pass

    import dask.array as da
    return da.store(array, Nowhere(), lock=False, compute=False)

def wait(thing, client, timeout):
    import distributed
    distributed.wait(thing.persist(), timeout=timeout)
"""
FUNCTIONS = """
import dask.array as da
import pytest
from ..utils_test import arr_to_devnull, wait

def array(client):
    memory = sum(w["memory_limit"] for w in client.scheduler_info()["workers"].values())
    assert memory == 1 << 30
    return da.random.random((1000, 1000), chunks=(-1, 500)).rechunk((500, -1))

def test_nowhere(small_client):
    wait(array(small_client).sum(), small_client, 60)
    wait(arr_to_devnull(array(small_client)), small_client, 60)

def test_raises(small_client):
    raise ValueError("no way")

def test_sleeps(small_client):
    import time
    time.sleep(1000)

@pytest.mark.skip("not here")
def test_skips(small_client):
    pass
"""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "checkout"
    files = {"conftest": CONFTEST, "utils_test": UTILS, "__init__": "", "benchmarks/__init__": ""}
    files |= {"benchmarks/test_few": FUNCTIONS, "tpch/__init__": "", "tpch/test_dask": ""}
    for name, text in files.items():
        path = folder / f"tests/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "cluster_kwargs.yaml").write_text("")
    (folder / "plugins.py").write_text("")
    return folder


def rounds(folder, tmp_path, **more):
    """Make ready what runs rows; workers of a test are small."""
    asked = {"protocols": ["ucx", "inproc"], "rounds": 1, "threads": 1, "memory": 1 << 30, "scale": 1.0, "days": []}
    asked |= {"timeout": 100.0, "no_check": False, "data": None, "json": tmp_path / "record.json", "add": False}
    asked |= {"source": tmp_path}
    return coiled_benchmarks.Rounds(folder, argparse.Namespace(**asked | more))


def node(name):
    return f"tests/benchmarks/test_few.py::test_{name}"


@pytest.fixture
def measured(monkeypatch):
    """Stand in for runs: each function waited for one result, and ended ten tasks. Give what was asked for."""
    asked = []

    def measure(folder, nodes, each, timeout_s, *more):
        asked.append((list(nodes), each.protocol, each.workers, each.day, each.check, each.kill_after))
        return {node: ran(1) | {"ended_tasks": 10, "unchecked": [] if each.check else ["large"]} for node in nodes}

    monkeypatch.setattr(run, "measure", measure)
    return asked


def test_a_record_gets_what_it_lacks(tmp_path, measured):
    some = {"few: a": node("a")}
    rounds(tmp_path, tmp_path, no_check=True).rows(some, 2)
    assert [each[1] for each in measured] == ["ucx", "inproc"]
    measured.clear()
    rounds(tmp_path, tmp_path, no_check=True, add=True, rounds=2).rows(some, 2)
    rounds(tmp_path, tmp_path, no_check=True, add=True, rounds=2).rows(some, 2)
    assert [each[1] for each in measured] == ["ucx", "inproc"]
    measured.clear()
    rounds(tmp_path, tmp_path, add=True, rounds=2).rows(some, 2)  # the checks
    assert [(each[1], each[4]) for each in measured] == [("ucx", True), ("inproc", True)]
    measured.clear()
    rounds(tmp_path, tmp_path, add=True, no_check=True).rows(some, 4)
    assert [each[2] for each in measured] == [4, 4]
    record = json.loads((tmp_path / "record.json").read_text())
    assert [(row["workers"], len(row["runs"]["ucx"]), list(row["checks"])) for row in record["rows"]] == [
        (2, 2, ["ucx", "inproc"]),
        (4, 1, []),
    ]


def test_a_record_of_another_commit_gets_nothing(tmp_path, measured, monkeypatch):
    rounds(tmp_path, tmp_path, no_check=True).rows({"few: a": node("a")}, 2)
    monkeypatch.setattr(coiled_benchmarks, "_commit", lambda folder: "another")
    with pytest.raises(BenchError, match="commits differ"):
        rounds(tmp_path, tmp_path, add=True)


def test_a_worker_is_killed_when_half_of_a_plain_days_tasks_have_ended(tmp_path, measured):
    rounds(tmp_path, tmp_path, days=["killed", "shm"]).bad_days({"few: a": node("a")}, 2)
    assert [(protocol, day, after) for _, protocol, _, day, _, after in measured] == [
        ("ucx", "", 0),
        ("ucx", "killed", 5),
        ("ucx", "shm", 0),
        ("inproc", "", 0),
        ("inproc", "shm", 0),  # of one process none can be killed
    ]
    assert all(check for *_, check, _ in measured)


def test_how_a_bad_day_went_is_told(record):
    after = {"held_nbytes": 0, "left_in_shm": [], "killed": True}
    plain = row("a: b", {p: ran(1, [1]) | after for p in ("tcp", "ucx", "inproc")})
    fared = {
        "killed": {"tcp": ran(1, [1]) | after | {"killed": False}, "ucx": ran(1, [2]) | after},
        "half": {
            "tcp": {"failed": "a.NoWay: x"},
            "ucx": ran(1, [1], **{"memory/disk-write/bytes": 2048}) | after | {"held_s": 4.0},
        },
        "shm": {
            "tcp": ran(1, [1]) | after | {"held_s": 21.4},
            "ucx": ran(1, [1]) | after | {"held_nbytes": 1024, "left_in_shm": ["x"]},
        },
    }
    record["rows"] = [plain, *(row("a: b", checks, day) for day, checks in fared.items())]
    head, cells = table.bad_days(record)
    assert head == ["", "workers", "day", "tcp", "ucx", "inproc"]
    assert [each[3:] for each in cells] == [
        ["**failed: NoWay**", "right, 2 KiB spilled", "-"],
        ["right, **nothing was killed**", "**other results**", "-"],
        ["right, its memory was back after 21 s", "right, **1 KiB not given back**, **left in /dev/shm: x**", "-"],
    ]
    assert "half the memory" in table.text(record)
    assert "half the memory" in benchmarks.whole_jobs_days(record)


def test_a_worker_is_killed_once_so_many_tasks_have_ended():
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    nanny = types.SimpleNamespace(process=types.SimpleNamespace(pid=sleeper.pid))
    killer = days.Killer(types.SimpleNamespace(workers={0: nanny}), after=2)
    killer.transition("a", "processing", "memory")
    killer.transition("a", "memory", "released")
    assert not killer.killed
    killer.transition("b", "processing", "memory")
    assert sleeper.wait() == -9
    killer.transition("c", "processing", "memory")  # the second time there is nobody to kill
    assert (killer.ended, killer.killed) == (3, True)
    sleeper.stdin.close()


def test_a_small_shm_is_only_seen_by_what_runs_there():
    command = [sys.executable, "-c", "import os; s = os.statvfs('/dev/shm'); print(s.f_frsize * s.f_blocks)"]
    assert days.around("half", command) == command
    done = subprocess.run(days.around("shm", command), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert int(done.stdout) == 64 << 20
    assert subprocess.run(command, capture_output=True, text=True).stdout != done.stdout


@pytest.mark.slow
def test_functions_run_unchanged_and_are_checked(source, tmp_path):
    before = set(psutil.Process().children(recursive=True))
    with run.checkout(source) as folder:
        assert run.collect(folder, ["tests/benchmarks/test_few.py"])[0] == node("nowhere")
        taken = rounds(folder, tmp_path)
        taken.rows({"few: nowhere": node("nowhere")}, 2)
    record = json.loads((tmp_path / "record.json").read_text())
    assert table.wrong(record) == []
    assert table.unchecked(record) == []
    (row_,) = record["rows"]
    (found,) = row_["runs"]["ucx"]
    assert found["unchecked"] == ["blocks were stored nowhere"]
    # the sum is compared at once; what is stored nowhere gives None there, and its blocks in runs of their own
    (total, nothing), (checked, blocks) = found["checksums"], row_["checks"]["ucx"]["checksums"]
    assert total == checked
    assert nothing != blocks
    assert row_["checks"]["inproc"]["checksums"] == [checked, blocks]
    assert found["wall_s"] > 0
    assert found["peak_nbytes"] > 100 << 20
    assert found["workers"]["weft/sent_nbytes"] > 0
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
def test_a_function_that_does_not_end_well_is_said_to(source, tmp_path):
    before = set(psutil.Process().children(recursive=True))
    with run.checkout(source) as folder:
        taken = rounds(folder, tmp_path, protocols=["inproc"])
        taken.rows({"few: skips": node("skips")}, 2)
        taken.rows({f"few: {name}": node(name) for name in ("raises", "nowhere")}, 2)
        late = rounds(folder, tmp_path, protocols=["inproc"], timeout=12.0)
        late.rows({"few: sleeps": node("sleeps")}, 2)
    assert table.wrong(taken.record) == ["few: raises, 2 workers, inproc, round 1: ValueError: no way"]
    assert [row["name"] for row in taken.record["rows"]] == ["few: raises", "few: nowhere"]
    assert taken.record["rows"][1]["runs"]["inproc"][0]["checksums"]  # what comes after runs all the same
    assert table.wrong(late.record) == ["few: sleeps, 2 workers, inproc, round 1: did not end within 12 s"]
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(BenchError, match="no checkout of coiled/benchmarks: it has no tests"), run.checkout(tmp_path):
        pass


def test_without_the_generator_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BenchError, match="pip install tpchgen-cli"):
        tpch.generated(tmp_path, 1.0)
