# SPDX-License-Identifier: BSD-3-Clause
"""What is written of the long runs' records, and that those that are published count what is in them."""

import pytest

pytest.importorskip("dask.dataframe")
from scripts import benchmarks

figures = benchmarks.long_figures


@pytest.fixture(scope="module")
def records():
    return benchmarks.read(benchmarks.ROOT / benchmarks.RECORDS)


def of(records, name):
    return records[name] if name in records else pytest.skip(f"{name} was not measured")


def test_kills():
    record = {
        "told_after_s": {"idle": [0.001, 0.002, 0.5], "lent": [1.5]},
        "wrong": 2,
        "other_errors": 1,
        "soon_s": 1.0,
    }
    record |= {"steady_rounds": 1234, "descriptors": {"100": 44, "104": 32}, "files_left": 0}
    assert figures.kills(record).splitlines() == [
        "- idle: 3 kills, noticed after 2 ms (median), at most 500 ms",
        "- lent: 1 kills, noticed after 1.5 s (median), at most 1.5 s",
        "",
        "Of 4 kills 1 raised a wrong error, or none; 1 came after 1 s; 1,234 round trips on another connection "
        "meanwhile; 0 more files in `/dev/shm` than before; 32 to 44 descriptors, counted every hundred kills, "
        "32 at the end.",
    ]


def test_fuzz():
    marks = [{"cases": n, "seconds": n / 100, "descriptors": 9, "resident_kib": 3000 + n} for n in (100, 200)]
    outcomes = {"client: HandshakeError": 120, "server: HandshakeError": 30, "server: connected": 50}
    assert figures.fuzz({"outcomes": outcomes, "marks": marks}) == (
        "200 cases, 100 a second: 150 HandshakeError, 50 connected. 9 descriptors, 3,100 to 3,200 KiB from the first "
        "tenth to the last."
    )


def test_fuzz_ring():
    mark = {"cpu_seconds": 2, "descriptors": 9, "resident_kib": 3000, "arena_kib": 600}
    outcomes = {"PeerLostError: the peer violated the ring protocol (bad_kind)": 90, "NoMemoryError: n B": 10}
    record = {"outcomes": outcomes, "marks": [{"cases": 100, **mark}], "at_any_time": {"lost": 3}}
    assert figures.fuzz_ring(record) == (
        "100 links, 50 a second of CPU time: 90 bad_kind, 10 NoMemoryError; 3 more by another process, at any time. "
        "9 descriptors, 3,000 KiB, 600 KiB of rings from the first tenth to the last."
    )


@pytest.mark.parametrize(
    ("faults", "said"), [([], "flat"), (["listener: 3 to 5 KiB"], "**not flat: listener: 3 to 5 KiB**")]
)
@pytest.mark.parametrize("name", ["cycles", "handovers"])
def test_soak(name, faults, said):
    marks = [[[24, 300, 4000, 2048], [28, 310, 5000, 8192]], [[24, 301, 4100, 4096], [27, 310, 5000, 8192]]]
    record = {name: {"count": 10_000, "connector_and_listener": marks}, "files_left": 1, "faults": faults}
    assert figures.soak(record).splitlines() == [
        f"10,000 {name}, checked 2 times:",
        "",
        "- connector: 24 descriptors, 300 to 301 mappings, 4,000 KiB at the first check, 4,100 at the last; "
        "the largest step, 100 KiB, came before check 2; 2,048 to 4,096 KiB of shared memory",
        "- listener: 27 to 28 descriptors, 310 mappings, 5,000 KiB at the first check, 5,000 at the last; "
        "8,192 KiB of shared memory",
        f"- 1 files left in `/dev/shm`; the script's verdict: {said}",
    ]


def test_what_is_said_of_start_up_of_dask_and_of_memory():
    said = figures.start_up({"start_up": {"kills": 200, "files": 109}})
    assert said == "200 such processes left 109 files in `/dev/shm`."
    jobs = {"transpose_sum": 600, "merge": 400}
    said = figures.dask({"jobs": jobs, "kills": 76, "longest_s": 2.4, "seconds": 600.0, "workers": 2})
    assert said.startswith("1,000 jobs in 600 s (600 transpose sum, 400 merge), every result right; 76 times a worker")
    said = figures.memory(
        {"nbytes": 1 << 20, "workers": 4, "rises": {"physical": 1 << 20, "counted": 3 << 19, "resident": 0}}
    )
    assert said.startswith("1 MiB on 4 workers: 1.00 copies of physical memory; 1.50 counted by Dask; 0.00 in")


def test_the_tests_of_others():
    files = {"test_b": {"passed": 2, "skipped": 3}, "test_a": {"failed": 1}}
    skipped = {"test_b::x: could not import 'numba.cuda': No module": 2, "test_b::y: never. Or": 1}
    lines = figures.ucx_py({"files": files, "skipped": skipped, "failed": {"test_a::z": "boom"}}).splitlines()
    assert lines[0] == "2 passed, 1 failed, 3 skipped."
    assert lines[4:6] == ["| `test_a` | 0 | 1 | 0 |", "| `test_b` | 2 | 0 | 3 |"]
    assert lines[7:] == ["Skipped: needs numba.cuda (2); never (1).", "- `test_a::z` failed: boom"]


def test_distributed_s_tests():
    tcp, ucx = {"passed": 3, "over": 2, "end": ""}, {"passed": 2, "failed": 1, "over": 1, "end": "pytest ended with 3"}
    record = {"distributed": "2026.8.0", "files": {"tests/test_x.py": {"tcp": tcp, "ucx": ucx}}}
    table = [
        "| 2026.8.0 | tcp | ucx |",
        "|---|---|---|",
        "| `tests/test_x.py` | 3 / 0 / 0 / 2 | 2 / 1 / 0 / 1, pytest ended with 3 |",
        "",
    ]
    said = "Differ for an unknown reason: "
    assert figures.distributed(record).splitlines() == [*table, f"{said}none."]
    both = {"tcp": "passed", "ucx": "failed"}
    record["differences"] = {"x::a": {**both, "reason": "tcp:// is spelled out"}, "x::b": {**both, "reason": None}}
    record |= {"flaky": {"x::c": {"tcp": "passed", "ucx": "flaky"}}, "failed_with_every_protocol": ["x::d"]}
    assert figures.distributed(record).splitlines() == [
        *table,
        f"{said}`b` of `x`.",
        "Failed once, and passed alone: `c` of `x` (ucx).",
        "Failed with each protocol: `d` of `x`.",
    ]


def test_versions():
    where = {"python": "CPython 3.12.1", "ucx": {"version": "1.22.0"}, "load_average": [0.25]}
    counts = {"passed": 2900, "failed": 1, "skipped": 196, "expected to fail": 2}
    failed = {"tests.test_a::test_b": "no"}
    run = {"tests": "all", "counts": counts, "failed": failed, "seconds": 1200, "environment": where}
    older = {"tests": "core", "missing": "no such wheel", "environment": None}
    assert figures.versions({"runs": {"CPython 3.12": run, "UCX 0.1": older}}).splitlines() == [
        "| CPython | UCX | tests | passed / failed / skipped |  | again |",
        "|---|---|---|---|---|---|",
        "| 3.12.1 | 1.22.0 | all | 2,900 / 1 / 196 | 20 min, load before 0.2 | `uv run nox -s tests-3.12` |",
        "| UCX 0.1 |  | core | no such wheel |  | `python scripts/versions.py --ucx 0.1` |",
        "",
        "- CPython 3.12, `tests.test_a::test_b`: no",
    ]


def test_tests_of_others_say_what_is_refused():
    record = {"files": {"a": {"passed": 1}}, "skipped": {}, "failed": {}}
    record |= {"expected": {"a::x": "refused", "a::y": "refused"}, "not_run": {"b": "it is C++"}}
    assert figures.ucx_py(record).splitlines()[-3:] == [
        "",
        "Not passed, as expected: refused (2).",
        "- Not run, `b`: it is C++",
    ]


def test_hoplite():
    record = {"workers": 8, "failed": {"gather 1024, tcp": "boom"}}
    record["seconds"] = {"gather 1024": {"tcp": [0.001, 0.003, 0.002], "ucx": [0.001]}}
    assert figures.hoplite(record).splitlines() == [
        "|  | array | `tcp://` | `ucx://` |",
        "|---|---|---|---|",
        "| gather | 1 KiB | 2 ms (1 ms-3 ms) | 1 ms (1 ms-1 ms) |",
        "",
        "8 workers; medians of the rounds, with their range in brackets.",
        "- gather 1024, tcp failed: boom",
    ]


def test_xoscar_calls():
    record = {"xoscar": "0.9.1", "rows": [{"nbytes": 8, "round_trip_s": {"unix": [0.001], "ucx": [0.002]}}]}
    lines = figures.xoscar_calls(record).splitlines()
    assert lines[:3] == ["| array | unix | ucx |", "|---|---|---|", "| 8 B | 1 ms (1 ms-1 ms) | 2 ms (2 ms-2 ms) |"]


def test_everything():
    skipped = [{"lacks": "a GPU", "why": "no CUDA", "tests": 3}, {"lacks": None, "why": "no Slurm", "tests": 1}]
    record = {"counts": {"passed": 2000, "skipped": 4}, "skipped": skipped, "failed": {"t::a": "boom"}}
    record["passed_alone"] = {"t::b": "timed out"}
    assert figures.everything(record).splitlines() == [
        "2,000 passed, 4 skipped.",
        "",
        "- skipped 3, for want of a GPU: no CUDA",
        "- skipped 1, **could be installed**: no Slurm",
        "- `t::a` failed: boom",
        "- `t::b` failed, and passed when run alone: timed out",
    ]
    assert figures.everything(record | {"arguments": ["tests/a", "-q"]}).startswith("With `tests/a -q`: 2,000 passed")


def test_rdma():
    boots = [{"seconds": 200.4, "wrong": []}, {"seconds": 300, "wrong": ["one: killed"]}]
    assert figures.rdma({"cases": ["one", "two"], "boots": boots}).splitlines() == [
        "1 of 2 boots passed, each with 2 cases, in 200 to 300 s.",
        "- boot 2: one: killed",
    ]


def test_what_an_environment_lacks_is_not_named():
    where = {"cpu_model": "a CPU", "cores_usable": 2, "memory_bytes": 1 << 30, "kernel": "Linux", "python": "CPython"}
    where |= {"weft": None, "ucx": None, "packages": {}, "ucx_variables": {}, "load_average": [1]}
    said = benchmarks.machine({"environment": where | {"date_utc": "2026-01-02T03"}})
    assert said == "a CPU, 2 cores, 1 GiB, Linux, CPython; 2026-01-02, load before 1.0."


# ---- what is published ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["long/kills", "long/kills_lent"])
def test_published_kills_are_as_many_as_were_asked_for(name, records):
    record = of(records, name)
    words = benchmarks.COMMANDS[name][0].split()
    assert sum(map(len, record["told_after_s"].values())) == int(words[words.index("--count") + 1])
    late = sum(seconds > record["soon_s"] for each in record["told_after_s"].values() for seconds in each)
    assert record["other_errors"] <= record["wrong"] <= late + record["other_errors"]


@pytest.mark.parametrize("name", ["long/fuzz", "long/fuzz_ring"])
def test_published_fuzzing_is_of_as_many_cases_as_its_last_mark_says(name, records):
    record = of(records, name)
    assert sum(record["outcomes"].values()) == record["marks"][-1]["cases"]


@pytest.mark.parametrize(("name", "what"), [("long/soak", "cycles"), ("long/handovers", "handovers")])
def test_published_soaks_are_judged_by_their_marks(name, what, records):
    from scripts import soak

    record = of(records, name)
    seen = [tuple(soak.Held(*held) for held in mark) for mark in record[what]["connector_and_listener"]]
    left = [f"{record['files_left']} files in /dev/shm"] if record["files_left"] else []
    assert soak.verdict(seen) + left == record["faults"]


def test_published_tests_of_ucx_py_are_counted_once(records):
    record = of(records, "long/ucx_py")
    assert sum(each.get("skipped", 0) for each in record["files"].values()) == sum(record["skipped"].values())
    assert sum(each.get("failed", 0) for each in record["files"].values()) == len(record["failed"])


def test_published_failures_of_other_versions_are_counted_once(records):
    runs = [run for run in of(records, "long/versions")["runs"].values() if "missing" not in run]
    assert [run["counts"].get("failed", 0) for run in runs] == [len(run["failed"]) for run in runs]
    assert [run["counts"].get("skipped", 0) for run in runs] == [sum(run["skipped"].values()) for run in runs]
