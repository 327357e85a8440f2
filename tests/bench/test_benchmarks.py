# SPDX-License-Identifier: BSD-3-Clause
"""``scripts/benchmarks.py``: the committed pages and charts are what the committed records give."""

import html
import json
import re
import statistics
import subprocess

import pytest

pytest.importorskip("dask.dataframe")
from scripts import benchmarks

ROOT = benchmarks.ROOT


@pytest.fixture(scope="module")
def records():
    return benchmarks.read(ROOT / benchmarks.RECORDS)


@pytest.mark.parametrize("page", benchmarks.PAGES)
def test_the_pages_are_what_the_records_give(page, records):
    written = (ROOT / page).read_text()
    assert written.count("<!-- figures: ") == len(benchmarks.MARK.findall(written)), "a mark without its end"
    assert benchmarks.fill(written, records) == written, "run scripts/benchmarks.py --redraw"


class Noted(dict):
    """A record that adds its name to `shown` when something of it is read."""

    def __init__(self, record, name, shown):
        super().__init__(record)
        self.name, self.shown = name, shown

    def __getitem__(self, key):
        self.shown.add(self.name)
        return super().__getitem__(key)


def shown_by(page, records):
    """Return the names of the records that the figures of `page` are written from."""
    shown = set()
    benchmarks.fill(page, {name: Noted(record, name, shown) for name, record in records.items()})
    return shown


def commit_of(record):
    """Return the commit that a record was taken of; None if it does not say, or if the sources were changed."""
    commit = record.get("environment", {}).get("commit")
    return None if commit is None or commit.endswith("+") else commit


@pytest.mark.parametrize("page", benchmarks.PAGES)
def test_the_records_of_a_page_are_of_one_commit(page, records):
    """README's figures are those of several pages; each of its records names its own commit.

    So does a record of another processor (``NAME-PROCESSOR``), which stands beside one of the page's machine.
    """
    shown = sorted(shown_by((ROOT / page).read_text(), records))
    commits = {name: commit_of(records[name]) for name in shown if "-" not in name}
    for name in shown:
        base, beside, _ = name.partition("-")
        if beside:
            assert commit_of(records[name]), f"{name} does not name its commit"
            cpus = [records[each]["environment"]["cpu_model"] for each in (base, name)]
            assert cpus[0] != cpus[1], f"{name} is of the processor of {base}: only one of them is to be kept"
    assert commits, "the page shows no record"
    found = set(commits.values())
    assert None not in found, commits
    assert page == "README.md" or len(found) == 1, commits


def test_a_page_shows_what_its_figures_are_written_from(records):
    def shown(*names):
        return shown_by("".join(f"<!-- figures: {name} -->\n<!-- end of figures -->\n" for name in names), records)

    assert shown("lend") == {"lend"}
    beside = {"whole_jobs-xeon", "peers-xeon", "dask/tasks-xeon"}
    assert shown("five") == {"whole_jobs", "scale", "peers", "dask/tasks"} | beside
    assert shown("dask") == {name for name in records if name.startswith("dask/")} - beside
    assert shown("tls") == {"tls"}
    assert shown("floor") == {f"dask/{name}" for name in ("shuffle", "groupby", "merge", "transpose", "dot", "svd")}
    assert shown() == set()


def test_changed_sources_are_no_commit():
    assert commit_of({"environment": {"commit": "0123456789"}}) == "0123456789"
    assert commit_of({"environment": {"commit": "0123456789+"}}) is None
    assert commit_of({"environment": {}}) is None
    assert commit_of({}) is None


def texts(svg):
    return [html.unescape(text) for text in re.findall(r"<text [^>]*>([^<]*)</text>", svg)]


@pytest.mark.slow
def test_the_charts_are_what_the_records_give(records):
    pytest.importorskip("matplotlib")
    drawn = dict(benchmarks.charts(records))
    assert {path.stem for path in (ROOT / benchmarks.RECORDS).glob("*.svg")} == set(drawn)
    for name, svg in drawn.items():
        # what they say: where each thing stands differs between versions of matplotlib
        committed = (ROOT / benchmarks.RECORDS / f"{name}.svg").read_text()
        assert texts(svg) == texts(committed), f"{name}: run scripts/benchmarks.py --redraw"
        assert len(texts(svg)) > 10


def test_every_record_has_its_command_and_every_chart_its_page(records):
    assert {name.partition("-")[0] for name in records} <= set(benchmarks.COMMANDS)
    pages = "".join((ROOT / page).read_text() for page in benchmarks.PAGES)
    for path in (ROOT / benchmarks.RECORDS).glob("*.svg"):
        assert f"{path.stem}.svg" in pages


def test_a_name_that_there_is_not():
    with pytest.raises(KeyError, match="none"):
        benchmarks.fill("<!-- figures: none -->\n<!-- end of figures -->", {})


def test_what_is_not_measured_is_said():
    filled = benchmarks.fill("<!-- figures: sweep -->\nold\n<!-- end of figures -->", {})
    assert filled.splitlines()[1:-1] == ["Not measured yet."]


def test_a_sweep_is_a_table_for_each_figure(swept):
    lines = benchmarks.sweep(swept | {"environment": WHERE}).splitlines()
    assert "(benchmarks/sweep.svg)" in lines[0]
    assert lines[2] == "One-way latency in us, blocking:"
    assert lines[4:7] == ["|  | posix | tcp |", "|---|---|---|", "| 8 B | ~1.25 | ~12.5 |"]
    assert (
        lines[-1]
        == "a CPU, 2 cores, 1 GiB, Linux, CPython, weft 1, UCX 1.22, UCX_TLS=tcp; 2026-01-02, load before 0.1."
    )


WHERE = {
    "cpu_model": "a CPU",
    "cores_usable": 2,
    "memory_bytes": 1 << 30,
    "kernel": "Linux",
    "python": "CPython",
    "weft": "1",
    "ucx": {"version": "1.22"},
    "packages": {"dask": "1"},
    "ucx_variables": {"UCX_TLS": "tcp"},
    "date_utc": "2026-01-02T03:04:05+00:00",
    "load_average": [0.1, 0.1, 0.1],
}


def scripted(rows, **more):
    return {"rows": rows, "environment": WHERE} | more


def test_a_record_names_its_commit_and_several_of_a_machine_theirs():
    here, there = WHERE | {"commit": "0123456789"}, WHERE | {"commit": "abcdef0123+", "kernel": "Linux 6"}
    of = [scripted({}, environment=each) for each in (here, there, here | {"date_utc": "2026-01-04T00:00:00+00:00"})]
    assert benchmarks.machine(of[0]).endswith("; 2026-01-02, commit 0123456789, load before 0.1.")
    first, second = benchmarks.machines(of)
    assert first.endswith("; 2026-01-02 to 2026-01-04, commit 0123456789.")
    assert second.endswith("Linux 6, CPython, weft 1, UCX 1.22, UCX_TLS=tcp; 2026-01-02, commit abcdef0123+.")
    both = benchmarks.machines([of[0], scripted({}, environment=WHERE | {"commit": "abcdef0123"})])
    assert next(both).endswith(", commits 0123456789, abcdef0123.")
    assert "commit" not in benchmarks.machine(scripted({}))


def test_the_readmes_rows_tell_which_of_several_machines_each_is_of(records):
    needed = {name: records[name] for name in ("whole_jobs", "scale", "peers", "dask/tasks")}
    moved = {name: record | {"environment": WHERE} for name, record in needed.items()}
    lines = benchmarks.five(moved).splitlines()
    assert lines[0] == "|  | tcp:// or TCP | weft | ratio |"
    assert len(lines) == 2 + 5 + 2
    other = moved | {"peers": needed["peers"] | {"environment": WHERE | {"cpu_model": "another CPU"}}}
    lines = benchmarks.five(other).splitlines()
    assert [line.split("|")[-2].strip()[-1] for line in lines[2:7]] == ["¹", "¹", "¹", "¹", "²"]
    assert [line[:10] for line in lines[8::2]] == ["¹a CPU, 2 ", "²another C"]


def test_the_readmes_rows_have_the_ratios_of_another_processor_beside_them(records):
    of = {name: record for name, record in records.items() if name in ("whole_jobs", "peers", "dask/tasks")}
    beside = of | {"peers-xeon": records["peers-xeon"], "whole_jobs-xeon": records["whole_jobs-xeon"]}
    (head, _, *rows), xeons = ([*map(str.strip, lines)] for lines in _lines_of_five(beside))
    assert head.endswith("| ratio on a Xeon |")
    assert [row.split("|")[-2].strip() == "-" for row in rows] == [False, False, False, True, False]
    assert xeons[-1].startswith("Last column: Intel(R) Xeon(R)")
    swapped = {"peers": of["peers"], "peers-xeon": of["peers"]}
    (_, _, row), _ = _lines_of_five(swapped)
    *_, here, there, _ = map(str.strip, row.split("|"))
    assert here == there


def _lines_of_five(records):
    """Return the lines of the table, and those below it."""
    rows, *below = benchmarks.five(records).split("\n\n")
    return rows.splitlines(), below


def test_the_readmes_table_of_workers_has_both_protocols_medians(records):
    record = records["scale"]
    lines = benchmarks.scale_short(record).splitlines()
    assert (
        lines[0]
        == f"| tcp/ucx | {record['workers'][0]} workers | " + " | ".join(map(str, record["workers"][1:])) + " |"
    )
    assert [line.split("|")[1].split(",")[0].strip() for line in lines[2:]] == [
        "first all-to-all",
        "later ones",
        "memory",
        "descriptors",
        "/dev/shm",
    ]
    tcp, ucx = (
        statistics.median(run["descriptors"] for run in entry["runs"])
        for entry in record["records"]
        if entry["workers"] == record["workers"][-1]
    )
    assert lines[-2].split("|")[-2].strip() == f"{tcp:.0f}/{ucx:.0f}"


def test_rows_of_a_script_stand_beside_each_other():
    rows = {
        "tag": {"weft": [2e-6, 3e-6, 4e-6], "ucx_perftest": [1e-6, 2e-6, 3e-6]},
        "parts": {"weft": [0.5e-3] * 3},
    }
    lines = benchmarks.sides(scripted(rows, nbytes={"tag": 8, "parts": 1 << 20})).splitlines()
    assert lines[:4] == [
        "|  | weft | ucx_perftest | weft/ucx_perftest |",
        "|---|---|---|---|",
        "| tag | 3 us (2-4) | 2 us (1-3) | 1.50 (1.33-2.00) |",
        "| parts | 500 us (500-500), 2.1 GB/s | - | - |",
    ]


def test_the_drop_in_stands_beside_ucxx_and_their_rounds_spread_is_told():
    def taken(library, nbytes, *rounds):
        latency = {"median": sorted(rounds)[1], "round_medians": rounds}
        return {"library": library, "mode": "await", "nbytes": nbytes, "latency_s": latency}

    records = [taken("drop-in", 8, 1e-6, 1e-6, 2e-6), taken("drop-in", 1024, 1e-6, 1e-6, 1e-6)]
    records += [taken("ucxx", 8, 20e-6, 20e-6, 40e-6), taken("ucxx", 1024, 20e-6, 90e-6, 100e-6)]
    lines = benchmarks.drop_in({"records": records, "versions": {"ucxx": "1"}, "environment": WHERE}).splitlines()
    assert lines[2].startswith("| 8 B | 1 us (1-2) | 20 us (20-40) | 20")
    assert lines[5] == (
        "Within one size, UCXX's slowest round takes up to 5 times as long as the fastest (1 KiB), "
        "weft's slowest round takes up to 2 times as long as the fastest (8 B)."
    )


def test_an_operation_that_is_slower_is_a_loss():
    rows = {
        "put": {"weft": [2e-6, 2e-6], "ucx_perftest": [1e-6, 1e-6]},
        "get": {"weft": [1e-6, 2e-6], "ucx_perftest": [1e-6, 1e-6]},
    }
    lines = benchmarks.lost({"operations": scripted(rows)}).splitlines()
    assert lines[2:] == ["| put | weft | ucx_perftest | 2.00 (one round) |"]


def test_what_clusters_and_tls_lose_is_told():
    runs = {"tcp": [{"start_s": 1.0, "first_s": 1.0}] * 2, "ucx": [{"start_s": 2.0, "first_s": 0.5}] * 2}
    scale = {"workers": [4], "records": [{"workers": 4, "protocol": p, "runs": r} for p, r in runs.items()]}
    tls = scripted({"8 B": {"weft": [3e-6], "asyncio": [2e-6]}, "1 MiB": {"weft": [1e-3], "asyncio": [2e-3]}})
    lines = benchmarks.lost({"scale_lab": scale, "tls": tls}).splitlines()
    assert lines[2:] == [
        "| 8 B, TLS | weft | asyncio | 1.50 (one round) |",
        "| scale lab | start, 4 workers | the same over tcp | 2.00 (one round) |",
    ]


def test_what_is_said_of_lending_and_of_the_start():
    ways = {"lend": [1e-4], "send": [2e-3], "a copy in one process": [3e-3]}
    said = benchmarks.lent(scripted({"128 MiB, answered": ways}))
    assert "lent, and answered, in 100 us (100-100); sent, in 2 ms" in said
    rows = {"connect": {"weft": [1e-3, 2e-3, 4e-3]}}
    said = benchmarks.start(scripted(rows, descriptors_per_process=7.0, resident_nbytes_per_process=2 << 20))
    assert said.splitlines()[:2] == ["- connect: 2 ms (1-4)", "- each further process: 7 descriptors, 2.0 MiB"]


def test_scripts_are_run_as_such(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(
        subprocess, "run", lambda argv, **_: commands.append(argv[1:-2]) or subprocess.CompletedProcess(argv, 1)
    )
    benchmarks.measure(["lend", "demo"], tmp_path, quick=True)
    assert commands == [
        ["scripts/measure_lend.py", "--rounds", "5", "--rounds", "1"],
        ["-m", "weft", "demo", "--rounds", "5", "--rounds", "1", "--quick"],
    ]


def test_a_benchmark_that_fails_leaves_its_old_record(tmp_path, monkeypatch, capsys):
    commands = []

    def ran(argv, **_):
        commands.append(argv[3:-2])
        with open(argv[-1], "w") as new:
            json.dump({"new": True}, new)
        return subprocess.CompletedProcess(argv, 1 if "peers" in argv else 0)

    folder = tmp_path / benchmarks.RECORDS
    folder.mkdir(parents=True)
    for name in ("pingpong", "peers"):
        (folder / f"{name}.json").write_text('{"new": false}')
    (folder / "pingpong.failed").write_text("{}")  # of an earlier run
    monkeypatch.setattr(subprocess, "run", ran)
    assert benchmarks.measure(["pingpong", "peers"], tmp_path, quick=False) == ["peers"]
    assert commands[0] == ["bench", "pingpong", "--rounds", "5"]
    assert {name: record["new"] for name, record in benchmarks.read(folder).items()} == {
        "pingpong": True,
        "peers": False,
    }
    assert [file.name for file in folder.glob("*.*") if file.suffix != ".json"] == ["peers.failed"]
    assert json.loads((folder / "peers.failed").read_text()) == {"new": True}


def test_a_benchmark_begins_when_the_load_of_the_one_before_has_passed(tmp_path, monkeypatch):
    loads, slept = [75.0, 30.0, 0.5], []
    monkeypatch.setattr(benchmarks.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(benchmarks.os, "getloadavg", lambda: (loads[len(slept)], 9.0, 9.0))
    monkeypatch.setattr(benchmarks.time, "sleep", slept.append)
    monkeypatch.setattr(
        subprocess, "run", lambda argv, **_: slept.append("ran") or subprocess.CompletedProcess(argv, 1)
    )
    benchmarks.measure(["sweep"], tmp_path, quick=False, wait=True)
    assert slept == [5, 5, "ran"]


def test_what_a_long_run_found_is_published(tmp_path, monkeypatch):
    def ran(argv, **_):
        with open(argv[-1], "w") as new:
            json.dump({"wrong": 1}, new)
        return subprocess.CompletedProcess(argv, 1)

    monkeypatch.setattr(subprocess, "run", ran)
    assert benchmarks.measure(["long/kills"], tmp_path, quick=False) == ["long/kills"]
    assert benchmarks.read(tmp_path / benchmarks.RECORDS) == {"long/kills": {"wrong": 1}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quick"], "give --into FOLDER"),
        (["--only", "pingpong,none"], "no none"),
        ([], "the machine is busy (load 9.0"),
    ],
)
def test_what_is_refused(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(benchmarks.os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    monkeypatch.setattr(benchmarks.os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(SystemExit):
        benchmarks.main(arguments)
    assert said in capsys.readouterr().err


SCRIPTS = [name for name, (command, _) in benchmarks.COMMANDS.items() if command.startswith("scripts/")]
#: What each record is written as.
WRITTEN = {needed: figure for figure, (needed, _) in benchmarks.FIGURES.items()}


#: Run with what uv adds to the environment: tests/bench/test_whole_jobs.py.
WITH_MORE = [name for name, (command, _) in benchmarks.MEASURED.items() if command.startswith("uv ")]


@pytest.mark.parametrize("name", [name for name in benchmarks.MEASURED if name not in (*SCRIPTS, *WITH_MORE)])
def test_the_commands_are_understood(name):
    import argparse

    from weft import _cli as cli

    command, tiny = benchmarks.MEASURED[name]
    seen = []
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser, argv):
        seen.append(parse(parser, argv))
        seen[-1].run = lambda _: 0
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parsed)
        assert cli.main([*command.split(), *tiny.split(), "--json", "x.json"]) == 0
    assert seen[0].json.name == "x.json"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_are_run_and_their_records_read(name, tmp_path):
    if name in benchmarks.ON_A_GPU:
        pytest.importorskip("cupy", reason="CuPy is not installed")
    (tmp_path / benchmarks.RECORDS).mkdir(parents=True)
    assert benchmarks.measure([name], tmp_path, quick=True) == []
    records = benchmarks.read(tmp_path / benchmarks.RECORDS)
    assert benchmarks.machine(records[name]) in benchmarks.FIGURES[WRITTEN[name]][1](records)


def test_what_needs_a_checkout_is_left_as_it_is_without(tmp_path, monkeypatch, capsys):
    measured = []
    monkeypatch.setattr(benchmarks, "measure", lambda names, root, **_: measured.append(names) or [])
    monkeypatch.setattr(benchmarks, "write", lambda root: None)
    monkeypatch.setattr(benchmarks.os, "getloadavg", lambda: (9.0, 9.0, 9.0))  # keeps nobody from what is no speed
    assert benchmarks.main(["--long", "--into", str(tmp_path)]) == 0
    assert "long/ucx_py" in capsys.readouterr().err
    assert benchmarks.main(["--long", "--into", str(tmp_path), "--sources", "/sources"]) == 0
    others = {"long/ucx_py", "long/ucxx", "long/xoscar", "long/hoplite", "long/distributed", "long/distributed_before"}
    assert set(measured[1]) - set(measured[0]) == others
    assert not set(measured[1]) & set(benchmarks.MEASURED)


def test_a_second_run_into_a_folder_adds_to_the_first(tmp_path, monkeypatch):
    def measure(names, root, **_):
        (root / benchmarks.RECORDS / f"{names[0]}.json").write_text("{}")
        return []

    monkeypatch.setattr(benchmarks, "measure", measure)
    monkeypatch.setattr(benchmarks, "write", lambda root: None)
    for name in ("lend", "start"):
        assert benchmarks.main(["--only", name, "--busy", "--into", str(tmp_path)]) == 0
    records = benchmarks.read(tmp_path / benchmarks.RECORDS)
    assert records["lend"] == records["start"] == {}
    assert records["pingpong"] == benchmarks.read(benchmarks.ROOT / benchmarks.RECORDS)["pingpong"]


@pytest.mark.parametrize(("told", "kept"), [(None, "abc"), ("def", "def")])
def test_an_installed_weft_is_of_the_checkout_that_it_was_built_from(tmp_path, monkeypatch, told, kept):
    def ran(argv, **_):
        with open(argv[-1], "w") as new:
            json.dump({"environment": {"commit": told}}, new)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(subprocess, "run", ran)
    monkeypatch.setattr(benchmarks.environment, "commit", {benchmarks.ROOT / "src": "abc"}.get)
    assert benchmarks.measure(["long/kills"], tmp_path, quick=False) == []
    assert benchmarks.read(tmp_path / benchmarks.RECORDS) == {"long/kills": {"environment": {"commit": kept}}}


def test_an_environment_of_its_own_is_uvs_and_has_the_checkout(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(
        subprocess, "run", lambda argv, **_: commands.append(argv) or subprocess.CompletedProcess(argv, 0)
    )
    # nothing is written: skipped, which is no success
    assert benchmarks.measure(["long/ucx_py"], tmp_path, quick=False, sources=tmp_path) == ["long/ucx_py"]
    assert commands[0][:2] == ["uv", "run"]
    assert commands[0][commands[0].index("--source") + 1] == str(tmp_path / "ucx-py")
