# SPDX-License-Identifier: BSD-3-Clause
"""Two records beside each other: ratios of known times, what cannot be compared, and the exit status."""

import argparse
import copy
import json
import re
from pathlib import Path

import pytest

from weft.bench import compare

PUBLISHED = Path(__file__).parents[2] / "docs" / "benchmarks"


def compared(*arguments):
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args([*map(str, arguments)]))


@pytest.fixture
def write(tmp_path):
    def write(name, record):
        path = tmp_path / name
        path.write_text(json.dumps(record))
        return path

    return write


def slower(record, factor):
    record = copy.deepcopy(record)
    for r in record["records"]:
        r["seconds"]["round_medians"] = [factor * s for s in r["seconds"]["round_medians"]]
    return record


def test_ratio_lies_between_the_extremes_of_rounds():
    rows, alone = compare.compare({("x",): [1.0, 2.0, 4.0], ("y",): [1.0]}, {("x",): [3.0, 4.0, 5.0], ("z",): [1.0]})
    assert rows == [compare.Row(("x",), 2.0, 4.0, compare.Ratio(2.0, 0.75, 5.0), 3)]
    assert alone == [("y",), ("z",)]
    assert not rows[0].slower(1.1)
    assert rows[0].verdict() == ""
    clear = rows[0]._replace(ratio=compare.Ratio(2.0, 1.01, 5.0))
    assert clear.slower(1.1)
    assert clear.verdict() == "slower"


def test_one_round_cannot_tell_but_can_fail():
    rows, _ = compare.compare({("x",): [1.0]}, {("x",): [2.0]})
    assert (rows[0].within(), rows[0].verdict()) == ("one round", "")
    assert rows[0].slower(1.1)


@pytest.mark.parametrize(("name", "key"), [("pingpong", "records"), ("demo", "workloads")])
def test_a_published_record_equals_itself(name, key, capsys):
    path = PUBLISHED / f"{name}.json"
    rows = len(json.loads(path.read_text())[key])
    assert compared(path, path, "--fail-above", "1.01") == 0
    out = capsys.readouterr().out
    assert f"All {rows} rows together (geometric mean): 1.00" in out
    assert "Not alike" not in out


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.4, 0), (2.0, 1), (0.1, 0)])
def test_only_what_is_slower_in_every_round_fails(factor, status, swept, write, capsys):
    # the rounds of a row differ by a half, so 1.4 could be one machine's mood
    a, b = write("a.json", swept), write("b.json", slower(swept, factor))
    assert compared(a, b, "--fail-above", "1.1") == status
    captured = capsys.readouterr()
    assert captured.err.count("slower than 1.1 times") == (24 if status else 0)
    assert captured.out.count("faster") == (24 if factor == 0.1 else 0)
    assert compared(a, b) == 0


def test_what_differs_around_the_figures_is_told(swept, write, capsys):
    other = copy.deepcopy(swept)
    other["environment"]["ucx"]["version"] = "1.21.0"
    del other["records"][0]
    assert compared(write("a.json", swept), write("b.json", other)) == 0
    out = capsys.readouterr().out
    assert "Not alike: ucx:" in out
    assert "In one record only: 1 rows (latency posix block reused 8 B)" in out


LINKS = '{"command": "weft bench links", "records": [{"scenario": "fanout", "runs": {"stock": []}}], "environment": {}}'


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "[]",
        "{}",
        '{"records": []}',
        '{"records": [{}]}',
        '{"records": [1]}',
        '{"records": 3}',
        '{"workloads": [{}]}',
        '{"workloads": 3, "environment": {}}',
    ],
)
def test_other_files_are_refused(content, tmp_path, capsys):
    (tmp_path / "x.json").write_text(content)
    assert compared(tmp_path / "x.json", PUBLISHED / "demo.json") == 2
    assert re.search(r"x\.json(: not JSON| is no)", capsys.readouterr().err)


def test_a_file_that_is_not_there(tmp_path, capsys):
    file = tmp_path / "x.json"
    assert compared(file, file) == 2
    assert capsys.readouterr().err == f"weft bench compare: {file}: No such file or directory\n"


def test_a_record_of_links_is_refused_by_its_name(tmp_path, capsys):
    (tmp_path / "x.json").write_text(LINKS)
    assert compared(tmp_path / "x.json", tmp_path / "x.json") == 2
    assert "x.json: a record of bench links cannot be compared" in capsys.readouterr().err


def test_workloads_are_paired_by_name_and_protocol(write, capsys):
    record = json.loads((PUBLISHED / "demo.json").read_text())
    other = copy.deepcopy(record)
    other["workloads"].reverse()
    assert compared(write("a.json", record), write("b.json", other)) == 0
    assert "Not alike" not in capsys.readouterr().out


def test_records_of_two_benchmarks_are_refused(capsys):
    assert compared(PUBLISHED / "demo.json", PUBLISHED / "pingpong.json") == 2
    assert "demo.json is of weft demo, pingpong.json of weft bench pingpong" in capsys.readouterr().err


def test_records_without_a_common_row_are_refused(swept, write, capsys):
    other = copy.deepcopy(swept)
    for r in other["records"]:
        r["transport"] = "sysv"
    assert compared(write("a.json", swept), write("b.json", other)) == 2
    assert "a.json and b.json have no row in common" in capsys.readouterr().err


def test_records_of_one_workload_are_told_by_their_command_and_sizes(write, capsys):
    record = json.loads((PUBLISHED / "demo.json").read_text()) | {"command": "weft bench merge"}
    other = copy.deepcopy(record)
    for e in other["workloads"]:
        e["parameters"] = {"Rows per chunk": 7}
    assert compared(write("a.json", record), write("b.json", other)) == 0
    shown = capsys.readouterr().out
    assert "weft bench merge" in shown
    assert "Not alike: transpose-sum: {'Size': " in shown
    assert compared(write("a.json", record), PUBLISHED / "demo.json") == 2
