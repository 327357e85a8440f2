# SPDX-License-Identifier: BSD-3-Clause
"""What the sweep prints of a known record."""

import io

from rich.console import Console

from weft.bench.sweep import table as sweep_table


def printed(record, *, width=80, form="wide"):
    out = io.StringIO()
    sweep_table.show(record, Console(file=out, width=width), form=form)
    return out.getvalue().splitlines()


def rows(lines, size):
    return [line.split()[2:] for line in lines if line.split()[:2] == size.split()]


def test_a_table_for_each_figure(swept):
    lines = printed(swept)
    titles = [line for line in lines if line.endswith("is better")]
    assert titles == [
        "One-way latency in us, reused memory; less is better",
        "Bandwidth in MB/s, reused memory; more is better",
        "Bi-directional bandwidth in MB/s, reused memory; more is better",
        "Message rate in 1,000 messages/s, reused memory; more is better",
    ]
    # medians of 1 and 1.5 us are 1.25 us for posix, ten times that for tcp; the rounds differ by 40 %
    assert rows(lines, "8 B")[0] == ["~1.25", "~1.25", "~12.5", "~12.5"]
    assert rows(lines, "4 KiB")[2] == ["~6,554", "~6,554", "~655", "~655"]
    assert rows(lines, "8 B")[3] == ["~800", "~800", "~80.0", "~80.0"]


def test_what_is_lent_stands_beside_the_others(swept):
    posix = [r for r in swept["records"] if (r["transport"], r["wait"]) == ("posix", "block")]
    lent = [r | {"transport": "lent", "memory": "mapped"} for r in posix]
    lines = printed(swept | {"measures": ["latency"], "records": posix + lent})
    assert [line for line in lines if line.endswith("is better")] == [
        "One-way latency in us, reused memory; less is better"
    ]
    assert rows(lines, "8 B") == [["~1.25", "~1.25"]]
    assert rows(printed(swept | {"measures": ["latency"], "records": lent}), "8 B") == [["~1.25"]]


def test_wide_tables_are_split(swept):
    lines = printed(swept | {"measures": ["latency"]}, width=40)
    assert rows(lines, "8 B") == [["~1.25", "~1.25"], ["~12.5", "~12.5"]]
    assert all(len(line) <= 40 for line in lines if "─" in line)


def test_missing_is_told_once_for_each_reason(swept):
    assert "missing: cma (block reused, await reused): UCX takes <posix> instead" in printed(swept)


def test_a_busy_machine_is_told(swept):
    assert not any("busy" in line for line in printed(swept))
    swept["environment"]["load_average"][0] = 9.0
    assert any(line.startswith("the machine was busy before (load 9.0 on 2 cores)") for line in printed(swept))


def test_fewer_cores_than_processes_are_told(swept):
    assert not any("took turns" in line for line in printed(swept))
    swept["environment"]["cores_usable"] = 1
    assert "2 processes took turns on 1 core" in printed(swept)


def test_a_row_for_each_point(swept):
    lines = [line.split() for line in printed(swept, form="long")]
    # rounds of 1 and 1.5 us: p99 is the slower one's, and they differ by 40 % of the median
    row = ["latency", "posix", "block", "reused", "8", "B", "1.25", "1.50", "40%", "6.40", "800"]
    assert row in lines
    assert sum(len(line) == len(row) and line[6] == "1.25" for line in lines) == 12


def test_columns_as_osu_has_them(swept):
    lines = printed(swept | {"measures": ["latency", "rate"]}, form="osu")
    assert lines[:5] == [
        "# weft one-way latency, posix, block, reused memory (the loop of osu_latency)",
        "# Size          Latency (us)",
        "8                       1.25",
        "4096                    1.25",
        "",
    ]
    assert lines[21:23] == ["# Size            Messages/s", "8                  800000.00"]
