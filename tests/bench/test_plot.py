# SPDX-License-Identifier: BSD-3-Clause
"""Charts from a known record: files are made, and every line of the record is in every panel."""

import argparse
import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

from weft.bench.charts import command as plot


def drawn(*arguments):
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    return plot.run(parser.parse_args([*map(str, arguments)]))


@pytest.fixture
def path(swept, tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(swept))
    return path


def test_every_line_is_in_every_panel(swept):
    curves = pytest.importorskip("weft.bench.charts.sweep")
    figure = curves.chart(swept)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["posix, block", "posix, await", "tcp, block", "tcp, await"]
        assert [list(line.get_xdata()) for line in axes.lines] == [[8, 4096]] * 4
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([1.25, 1.25])
    assert len(curves.chart(swept, ["rate"]).axes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_picture(ending, path, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"sweep.{ending}"
    assert drawn(path, "--plot", picture) == 0
    assert picture.stat().st_size > 10_000


@pytest.mark.slow
def test_page_is_whole_and_escaped(path, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "sweep.html"
    assert drawn(path, "--html", page) == 0
    text = page.read_text()
    assert text.count("<svg") == 4
    assert "a &lt;CPU&gt; &amp; more" in text
    assert "UCX takes &lt;posix&gt; instead" in text
    assert "http://" not in text.replace("http://www.w3.org/", "")
    for start in [i for i in range(len(text)) if text.startswith("<svg", i)]:
        xml.etree.ElementTree.fromstring(text[start : text.index("</svg>", start) + 6])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "x.json: not JSON (line 1, column 2)\n"),
        ("{}", "is not what a benchmark that can be drawn wrote with --json"),
        ('{"records": [{"reuse_alloc": true}]}', "is not what a benchmark that can be drawn"),
        ('{"command": "weft bench sweep", "records": []}', "or nothing was measured"),
        ('{"records": 3}', "is not what a benchmark that can be drawn"),
        ('{"workloads": [{}]}', "is not what a benchmark that can be drawn"),
        ('{"workloads": [{"wall_s": [1]}]}', "is no record of a benchmark that can be drawn"),
        (
            '{"command": "weft bench links", "records": [{"scenario": "x", "runs": {}}]}',
            "a record of bench links cannot be drawn",
        ),
    ],
)
def test_other_files_are_refused(content, message, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "x.json").write_text(content)
    assert drawn(tmp_path / "x.json", "--html", tmp_path / "x.html") == 2
    assert message in capsys.readouterr().err


def test_nothing_to_draw_is_said(path, capsys):
    assert drawn(path) == 2
    assert "give --plot FILE or --html FILE" in capsys.readouterr().err


def test_missing_matplotlib_is_named(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert drawn(path, "--plot", tmp_path / "x.png") == 1
    assert 'needs matplotlib: pip install "weft-ucx[bench]"' in capsys.readouterr().err


PUBLISHED = Path(__file__).parents[2] / "docs" / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "charts"), [("demo", 2), ("pingpong", 1)])
def test_a_published_record_is_drawn(name, charts, tmp_path):
    pytest.importorskip("matplotlib")
    assert drawn(PUBLISHED / f"{name}.json", "--html", tmp_path / "x.html") == 0
    assert (tmp_path / "x.html").read_text().count("<svg") == charts


def test_every_library_is_in_every_panel():
    latencies = pytest.importorskip("weft.bench.charts.pingpong")
    figure = latencies.chart(json.loads((PUBLISHED / "pingpong.json").read_text()))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"{size}, one way" for size in ("8 B", "1 KiB", "1 MiB", "128 MiB")
    ]
    own = ["weft.Peer, .wait()", "weft.Peer, await", "weft tags, .wait()", "weft tags, await"]
    names = ["C loop", *own, "TCP socket", "asyncio streams"]
    lent = [0, 0, 1, 1]  # from 1 MiB on, what is lent too
    for axes, more in zip(figure.axes, lent, strict=True):
        assert len(axes.lines) == 2 * (len(names) + more)  # the rounds, and the median
        assert axes.get_xscale() == "log"
    assert {label.get_text() for label in figure.axes[0].get_yticklabels()} == {*names, "weft, lent"}
