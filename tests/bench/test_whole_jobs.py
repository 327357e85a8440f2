# SPDX-License-Identifier: BSD-3-Clause
"""``scripts/coiled_benchmarks.py``: what it makes of its runs, and a checkout of two functions that it runs."""

import argparse
import datetime
import decimal
import importlib.util
import json
import sys

import numpy as np
import psutil
import pytest

if missing := [name for name in ("pandas", "pyarrow", "dask") if importlib.util.find_spec(name) is None]:
    pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scripts import benchmarks, coiled_benchmarks
from whole_jobs import counters, results, run, table, tpch

from weft.bench.common.errors import BenchError


def ran(wall_s, checksums=(7,), **workers):
    return {"wall_s": wall_s, "checksums": list(checksums), "workers": workers, "peak_nbytes": int(wall_s * 2**30)}


def row(name, checks=(), **walls):
    found = {"name": name, "runs": {p: [ran(s) for s in each] for p, each in walls.items()}, "checks": dict(checks)}
    return found | {"difference": table.difference(found)}


@pytest.fixture
def record():
    return {
        "protocols": ["tcp", "ucx", "inproc"],
        "rounds": 2,
        "workers": 2,
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
    assert head == ["", "tcp, s", "ucx, s", "inproc, s", "ucx/tcp", "left of tcp above the floor"]
    assert cells == [
        ["`join: lost`", "10", "12 20", "5", "**1.60** (1.20 2.00)", "2.20"],
        ["`array: even`", "10", "9 11", "9.5", "1.00 (0.90 1.10)", "-"],
        ["`array: won`", "10", "5.05", "4", "0.51 (0.50 0.51)", "0.17"],
    ]


def test_each_kind_of_rows_has_its_means(record):
    assert list(table.summary(record)) == [
        "array, 2 rows: ucx/tcp 0.71 (geometric mean); 0.17 left above the floor (median of 1); "
        "peak memory 0.71 of tcp's",
        "join, 1 rows: ucx/tcp 1.60 (geometric mean); 2.20 left above the floor (median of 1); "
        "peak memory 1.60 of tcp's",
    ]


def test_what_failed_or_differs_is_said(record):
    record["rows"][0]["runs"]["ucx"][1] = {"failed": "no way"}
    record["rows"][1]["runs"]["tcp"][0]["checksums"] = [8]
    record["rows"][1]["difference"] = table.difference(record["rows"][1])
    record["rows"][2]["checks"] = {"tcp": ran(1, [1]), "ucx": ran(1, [2])}
    record["rows"][2]["difference"] = table.difference(record["rows"][2])
    assert table.wrong(record) == [
        "array: won, ucx, round 2: no way",
        "array: even: the rounds gave 2 results",
        "join: lost: the checks gave 2 results",
    ]
    assert "**array: won, ucx, round 2: no way**" in table.notes(record)
    _, cells = table.rows(record)
    assert cells[-1] == ["`array: won`", "10", "5", "4", "0.50", "0.17"]  # by the round that both ended


def test_a_row_without_any_result_is_told(record):
    assert table.unchecked(record) == []
    for each in table.runs(record["rows"][1]):
        each["checksums"] = []
    assert table.unchecked(record) == ["array: even"]
    assert "Nothing to compare in: array: even" in table.notes(record)


def test_the_page_has_it_all(record):
    text = benchmarks.whole_jobs(record)
    assert text.splitlines()[0].startswith("|  | tcp, s | ucx, s")
    assert "All results that were compared are equal" in text
    head, cells = table.details(record)
    assert all(len(each) == len(head) for each in cells)
    assert cells[0][head.index("peak memory, GiB")] == "10.00 / 16.00 / 5.00"
    assert "join: lost" in table.text(record)


def test_bytes_are_lent_staged_or_copied():
    sent = {"weft/sent_nbytes": 10, "weft/lent_nbytes": 3, "weft/staged_total_nbytes": 2, "execute/disk-write/bytes": 4}
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
    memory = run.Memory(0, samples=[(0.0, 9), (1.0, 2), (2.0, 3), (3.0, 8)])
    assert memory.peaks(0.5, 2.5) == {"peak_nbytes": 3, "peak_pss_nbytes": 0}


def test_rows_are_chosen_by_their_names():
    nodes = [f"tests/benchmarks/test_join.py::test_join_big[{n}]" for n in (0.1, 1)]
    nodes += ["tests/benchmarks/test_custom.py::test_jobqueue", "tests/tpch/test_dask.py::test_query_01"]
    assert list(coiled_benchmarks.chosen(nodes, None)) == ["join: join_big[0.1]", "join: join_big[1]", "tpch: query_01"]
    assert coiled_benchmarks.chosen(nodes, r"big\[1|jobqueue") == {
        "join: join_big[1]": nodes[1],
        "custom: jobqueue": nodes[2],
    }


@pytest.mark.parametrize("name", ["whole_jobs", "whole_jobs_4"])
def test_the_commands_are_understood(name):
    command, tiny = benchmarks.MEASURED[name]
    words = command.partition("scripts/coiled_benchmarks.py ")[2].split()
    parsed = coiled_benchmarks.parse([*words, *tiny.split(), "--json", "x.json"])
    assert (parsed.json.name, parsed.rows, parsed.protocols) == ("x.json", "query_06", ["tcp", "ucx", "inproc"])


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
    asked = {"protocols": ["ucx", "inproc"], "rounds": 1, "workers": 2, "threads": 1, "memory": 1 << 30, "scale": 1.0}
    asked |= {"timeout": 100.0, "no_check": False, "data": None, "json": tmp_path / "record.json", "add": False}
    return coiled_benchmarks.Rounds(folder, argparse.Namespace(**asked | more))


def node(name):
    return f"tests/benchmarks/test_few.py::test_{name}"


@pytest.mark.slow
def test_functions_run_unchanged_and_are_checked(source, tmp_path):
    before = set(psutil.Process().children(recursive=True))
    with run.checkout(source) as folder:
        assert run.collect(folder, ["tests/benchmarks/test_few.py"])[0] == node("nowhere")
        taken = rounds(folder, tmp_path)
        taken.row("few: nowhere", node("nowhere"))
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
        taken.row("few: skips", node("skips"))
        taken.row("few: raises", node("raises"))
        late = rounds(folder, tmp_path, protocols=["inproc"], timeout=12.0)
        late.row("few: sleeps", node("sleeps"))
    assert table.wrong(taken.record) == ["few: raises, inproc, round 1: ValueError: no way"]
    assert table.wrong(late.record) == ["few: sleeps, inproc, round 1: did not end within 12 s"]
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(BenchError, match="no checkout of coiled/benchmarks: it has no tests"), run.checkout(tmp_path):
        pass


def test_without_the_generator_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BenchError, match="pip install tpchgen-cli"):
        tpch.generated(tmp_path, 1.0)
