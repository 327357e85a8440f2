# SPDX-License-Identifier: BSD-3-Clause
"""The demo's record from known rounds, its printed report and its page."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree
from types import SimpleNamespace

import pytest
from rich.console import Console

from weft.bench.dask import printed, report

MIB = 1 << 20
LANES = {"tcp": "tcp", "ucx": "ring/memory", "ws": "ws"}


def rounds_of(walls, rate, *, nbytes=4 * MIB, difference=""):
    transfers = [
        report.Transfer(0, 1, nbytes, nbytes / rate),
        report.Transfer(0, 1, nbytes, nbytes / (3 * rate)),
        report.Transfer(1, 0, nbytes, nbytes / (2 * rate)),
        report.Transfer(1, 0, 16, 0.001),
    ]
    return [report.Round(wall, transfers, difference) for wall in walls]


def work(name, parameters, nbytes, *, tasks=0):
    return SimpleNamespace(name=name, parameters=parameters, nbytes=nbytes, tasks=tasks, checked=report.CHECKED)


def entry_of(name, protocol, walls, rate, *, nbytes=4 * MIB, difference=""):
    workers = [f"{protocol}://127.0.0.1:4000{i}" for i in range(2)]
    timed = rounds_of(walls, rate, nbytes=nbytes, difference=difference)
    return report.entry(
        work(name, {"Size": "10000 x 10000 float64", "Rows <b>": 7}, 64 * MIB),
        protocol,
        rounds=timed,
        warm_ups=rounds_of([9.0], rate),
        workers=workers,
        threads=[1] * len(workers),
        lanes={workers[0]: {workers[1]: [LANES[protocol]]}, workers[1]: {workers[0]: [LANES[protocol]]}},
    )


def record_of(entries, protocols):
    return {
        "command": "weft demo",
        "quick": False,
        "rounds": 3,
        "protocols": protocols,
        "workloads": entries,
        "idle_cpu_percent": dict.fromkeys(protocols, 6.5),
        "idle_cpu_percent_by_process": {p: {"client and scheduler": 2.5, "worker 0": 4.0} for p in protocols},
        "environment": {
            "cores_usable": 2,
            "cpu_model": "a <CPU> & more",
            "ucx": {"version": "1.22.0"},
            "load_average": [0.5, 1.0],
        },
    }


@pytest.fixture
def record():
    entries = [
        entry_of("transpose-sum", "tcp", [1.0, 2.0, 4.0], 100 * MIB),
        entry_of("transpose-sum", "ucx", [0.5, 1.0, 1.0], 300 * MIB),
        entry_of("merge", "tcp", [1.0, 1.0, 1.0], 100 * MIB),
        entry_of("merge", "ucx", [1.2, 1.5, 1.4], 50 * MIB),
    ]
    return record_of(entries, ["tcp", "ucx"])


def shown_of(record, width):
    out = io.StringIO()
    printed.print_record(record, Console(file=out, width=width))
    return out.getvalue()


def test_entry_has_quartiles_of_large_transfers_only(record):
    first = record["workloads"][0]
    assert first["p2p_min_nbytes"] == report.P2P_MIN_NBYTES
    assert first["p2p_Bps"] == pytest.approx({"q25": 100 * MIB, "q50": 200 * MIB, "q75": 300 * MIB})
    pair = first["pairs"][1]
    assert (pair["w1"], pair["w2"], pair["transfers"], pair["nbytes"]) == (1, 0, 3, 12 * MIB)
    assert pair["lanes"] == ["tcp"]
    assert first["moved_nbytes"] == [12 * MIB + 16] * 3
    assert first["throughput_Bps"] == [64 * MIB, 32 * MIB, 16 * MIB]


def test_the_comparison_has_the_medians_that_its_ratios_are_of(record):
    """One round with most of the transfers would decide a median of them all."""
    for entry, rates in zip(record["workloads"], [(1, 2, 4), (3, 2, 8), (1, 1, 1), (1, 1, 1)], strict=True):
        entry["p2p_q50_Bps_by_round"] = [rate * MIB for rate in rates]
    record["ratios"] = [c._asdict() for c in report.comparisons(record)]
    text = shown_of(record, 120)
    assert re.search(r"bandwidth +2.00 MiB/s +3.00 MiB/s +2.00 +1.00-3.00", text)


def test_lanes_of_another_workload_are_left_out():
    lanes = {"a": {"b": ["lent", "ring/memory"]}, "b": {}}

    def entry(lent_nbytes):
        timed = [report.Round(1.0, [], "", lent_nbytes)]
        made = work("fetch", {}, 1)
        return report.entry(made, "ucx", rounds=timed, warm_ups=[], workers=["a", "b"], threads=[1, 1], lanes=lanes)

    assert entry(0)["lanes"] == ["ring/memory"]
    assert entry(0)["lanes_by_worker"] == {"a": {"b": ["ring/memory"]}, "b": {}}
    assert entry(1)["lanes"] == ["lent", "ring/memory"]


def test_entry_counts_all_transfers_if_none_is_large():
    e = entry_of("merge", "tcp", [1.0], 1000, nbytes=100)
    assert e["p2p_min_nbytes"] == 0
    assert sum(p["transfers"] for p in e["pairs"]) == 4


def test_entry_without_transfers_has_no_bandwidth():
    entries = [
        report.entry(
            work("merge", {}, 1),
            protocol,
            rounds=[report.Round(1.0, [], "")],
            warm_ups=[report.Round(1.0, [], "")],
            workers=["a", "b"],
            threads=[1, 1],
            lanes={},
        )
        for protocol in ("tcp", "ucx")
    ]
    assert entries[0]["p2p_Bps"] == {"q25": None, "q50": None, "q75": None}
    record = record_of(entries, ["tcp", "ucx"])
    assert report.comparisons(record)[0].ratio["p2p"] is None
    assert "none logged" in shown_of(record, 80)


def test_a_wrong_warm_up_is_a_wrong_result():
    timed = rounds_of([1.0], MIB)
    e = report.entry(
        work("merge", {}, 1),
        "tcp",
        rounds=timed,
        warm_ups=[timed[0]._replace(difference="2 rows, pandas has 3")],
        workers=["a", "b"],
        threads=[1, 1],
        lanes={},
    )
    assert e["correct"] is False
    assert e["difference"] == "2 rows, pandas has 3"
    shown = shown_of(record_of([e], ["tcp"]), 80)
    assert "WRONG RESULTS: merge over tcp://" in shown
    assert "WRONG: 2 rows, pandas has 3" in shown


def test_ratios_are_medians_over_rounds_with_their_range(record):
    name, above, below, ratio = report.comparisons(record)[0]
    assert (name, above, below) == ("transpose-sum", "ucx", "tcp")
    assert ratio["wall"] == 0.5
    assert ratio["wall_range"] == [0.25, 0.5]
    assert ratio["p2p"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [(["tcp"], "tcp"), (["ucx", "tcp"], "tcp"), (["ws", "ucx"], "ws")],
)
def test_ratios_are_taken_to_tcp_where_it_took_part(protocols, expected):
    assert report.baseline(protocols) == expected


@pytest.mark.parametrize(
    ("wall", "low", "high", "expected"),
    [
        (0.5, 0.4, 0.6, "ucx is faster: it takes 50% of tcp's time"),
        (1.4, 1.2, 1.5, "ucx is slower: it takes 1.40 times as long as tcp"),
        (0.9, 0.8, 1.1, "no clear difference between ucx and tcp: rounds went both ways"),
        (0.5, 0.5, 0.5, "one round cannot tell: ucx took 0.50 times as long as tcp"),
        (1.03, 1.01, 1.04, "ucx and tcp take the same time, within 5%"),
    ],
)
def test_the_verdict_says_who_lost(wall, low, high, expected):
    assert report.verdict({"wall": wall, "wall_range": [low, high]}, above="ucx", below="tcp") == expected


@pytest.mark.parametrize("width", [80, 120])
def test_the_printed_report_fits_and_has_the_tables(record, width):
    shown = shown_of(json.loads(json.dumps(record)), width)
    assert max(len(line) for line in shown.splitlines()) <= 80
    for line in (
        "transpose-sum over ucx://",
        "Wall clock                | Throughput",
        "500 ms                    | 128.00 MiB/s",
        "(w1,w2)                   | 25% 50% 75% (total nbytes)",
        "(0,1)                     | 100.00 MiB/s 200.00 MiB/s 300.00 MiB/s (24.00 MiB)",
        "(0,1)                     | ring/memory",
        "1                         | ucx://127.0.0.1:40001",
        "merge: ucx is slower: it takes 1.40 times as long as tcp",
    ):
        assert line in shown
    assert re.search(r"^transpose-sum +wall clock +2 s +1 s +0\.50 +0\.25-0\.50", shown, re.MULTILINE)
    assert re.search(r"^\(idle\) +CPU +6\.5 % +6\.5 %", shown, re.MULTILINE)


def test_entry_says_how_long_workers_received_and_what_a_round_cost():
    transfers = [
        report.Transfer(0, 1, 8, 2.0, 10.0),
        report.Transfer(1, 0, 8, 2.0, 11.0),
        report.Transfer(1, 0, 8, 1.0, 20.0),
    ]
    e = report.entry(
        work("merge", {}, 1),
        "tcp",
        rounds=[report.Round(8.0, transfers, "", 0, 1.5, 0.25)],
        warm_ups=[],
        workers=["a", "b"],
        threads=[1, 1],
        lanes={},
    )
    assert e["communication_s"] == [4.0]
    assert (e["worker_cpu_s"], e["client_and_scheduler_cpu_s"]) == ([1.5], [0.25])
    assert e["warm_up_wall_s"] is None
    shown = shown_of(record_of([e], ["tcp"]), 80)
    assert "Communication             | 4 s (4 s .. 4 s)" in shown
    assert "of the wall clock         | 50% (50% .. 50%)" in shown


def test_ignored_sizes_do_not_count():
    rounds = rounds_of([1.0], MIB, nbytes=2 * MIB)
    few = report.entry(
        work("merge", {}, 1),
        "tcp",
        rounds=rounds,
        warm_ups=[],
        workers=["a", "b"],
        threads=[1, 1],
        lanes={},
        ignore_nbytes=0,
    )
    assert sum(p["transfers"] for p in few["pairs"]) == 4
    assert few["p2p_min_nbytes"] == 0


def test_tasks_are_counted_in_place_of_bytes():
    e = report.entry(
        work("tasks", {}, 0, tasks=1000),
        "tcp",
        rounds=[report.Round(0.05, [], "")],
        warm_ups=[],
        workers=["a"],
        threads=[1],
        lanes={},
    )
    assert "50 ms                     | 20,000 tasks/s" in shown_of(record_of([e], ["tcp"]), 80)


def test_more_than_two_protocols_are_compared_with_the_same_one(record):
    walls = ([1.0], [0.5], [2.0])
    entries = [entry_of("merge", p, w, MIB) for p, w in zip(("tcp", "ucx", "ws"), walls, strict=True)]
    record = record_of(entries, ["ucx", "tcp", "ws"])
    assert [(c.above, c.below, c.ratio["wall"]) for c in report.comparisons(record)] == [
        ("ucx", "tcp", 0.5),
        ("ws", "tcp", 2.0),
    ]
    shown = shown_of(record, 120)
    assert re.search(r"^workload +measured +ucx +tcp +ws +ucx/tcp +range +ws/tcp +range", shown, re.MULTILINE)
    assert "merge: one round cannot tell: ws took 2.00 times as long as tcp" in shown


def test_markdown_says_the_same(record):
    text = printed.markdown(record)
    for line in (
        "### transpose-sum over ucx://",
        "| Wall clock | Throughput |",
        "| 500 ms | 128.00 MiB/s |",
        "| (0,1) | 100.00 MiB/s 200.00 MiB/s 300.00 MiB/s (24.00 MiB) |",
        "| transpose-sum | wall clock | 2 s | 1 s | 0.50 | 0.25-0.50 |",
        "- merge: ucx is slower: it takes 1.40 times as long as tcp",
    ):
        assert line in text.splitlines()
    for head, rule in zip(text.splitlines(), text.splitlines()[1:], strict=False):
        if rule.startswith("|---"):
            assert head.count("|") == rule.count("|")
    assert "(w1,w2)" not in printed.markdown(record, show_p2p=False)


# --- the page -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_refers_to_nothing_outside_it(record):
    pytest.importorskip("matplotlib")
    from weft.bench.charts.dask import page

    text = page(json.loads(json.dumps(record)))
    # The names of XML's namespaces look like addresses, but nothing fetches them.
    bare = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "http:" not in bare
    assert "https:" not in bare
    assert not re.search(r"<(script|link|img|iframe|object|image)\b|@import|\bsrc=", bare)
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', bare))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", bare))
    identifiers = re.findall(r'\bid="([^"]*)"', bare)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', bare)) <= set(identifiers)
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        xml.etree.ElementTree.fromstring(svg)


@pytest.mark.slow
def test_the_page_shows_what_the_record_says(record):
    pytest.importorskip("matplotlib")
    from weft.bench.charts.dask import page

    text = page(record)
    assert "ucx is slower: it takes 1.40 times as long as tcp" in text
    assert "a &lt;CPU&gt; &amp; more" in text
    assert "ring/memory" in text
    assert "0.50 (0.25-0.50)" in text


@pytest.mark.slow
def test_the_page_of_one_protocol_without_transfers():
    pytest.importorskip("matplotlib")
    from weft.bench.charts.dask import page

    e = report.entry(
        work("merge", {}, 1),
        "tcp",
        rounds=[report.Round(1.0, [], "2 rows, pandas has 3")],
        warm_ups=[],
        workers=["a", "b"],
        threads=[1, 1],
        lanes={},
    )
    text = page(record_of([e], ["tcp"]))
    assert "none logged" in text
    assert "WRONG RESULTS" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["picture.png", "picture.svg"])
def test_the_picture_is_drawn_from_the_record(record, name, tmp_path):
    pytest.importorskip("matplotlib")
    from weft.bench.charts.dask import chart
    from weft.bench.charts.drawing import save

    save(chart(json.loads(json.dumps(record))), tmp_path / name)
    assert (tmp_path / name).stat().st_size > 10_000


def test_fewer_cores_than_processes_are_told_of_clusters_on_this_machine(record):
    assert "took turns" not in printed.markdown(record)  # its workers may be elsewhere
    assert "- 3 processes took turns on 2 cores" in printed.markdown(record | {"here": True})


def test_the_verdict_is_short_and_names_every_workload_and_wire(record):
    lines = printed.verdict_lines(record)
    assert len(lines) <= 11  # the demo adds where the rest is
    for e in record["workloads"]:
        (row,) = [line for line in lines if line.startswith(f"{e['name']} ")]
        assert f"{e['protocol']}://" in row
    (wires,) = [line for line in lines if line.startswith("Wires between the workers: ")]
    assert all(lane in wires for e in record["workloads"] for lane in e["lanes"])
    assert report.correctness(record) in lines
    whole = "\n".join(lines)
    assert all(text.partition(": ")[2] in whole for text in report.verdicts(record))
