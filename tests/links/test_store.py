# SPDX-License-Identifier: BSD-3-Clause
"""What was learned is kept in a file, and a spoiled file is refused with one warning."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
from tests.links.test_model import MiB, feed, model_of, rate_of

from weft.links import LinkModel, store
from weft.links.store import dump, load, path_of, save


def learned() -> LinkModel:
    model = model_of({"a": "h", "b": "i", "c": "h"})
    feed(model, 10e6)
    model.observe_lent("a", "c", MiB, 0)
    for i in range(5):
        model.observe("c", "b", 8 * MiB, 1.0, i, ingress_flows=2, egress_flows=2)
    return model


def test_what_was_learned_comes_back_and_counts_as_little(tmp_path: Path) -> None:
    path = tmp_path / "under" / "file.json"
    save(learned(), path)
    model = model_of({"x": "h", "y": "i", "z": "h"})
    assert load(model, path, 0.0)
    assert rate_of(model, "x", "y", 0) == pytest.approx(10e6, rel=0.2)
    assert model.seconds("x", "z", 1 << 40, 0) < 1, "lent"
    assert model.port_seconds_per_byte("ingress", "i") > 0
    feed(model, 100e6, pair=("x", "y"), n=5)
    assert rate_of(model, "x", "y", 6) == pytest.approx(100e6, rel=0.3)
    assert [each.name for each in path.parent.iterdir()] == ["file.json"]


def test_no_file_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not load(LinkModel(), tmp_path / "none.json", 0)
    assert caplog.records == []


def test_names_become_files_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert path_of("a/../b c") == tmp_path / "weft/links/a%2F..%2Fb%20c.json"


def spoiled() -> dict[str, str]:
    good = dump(learned())
    text = json.dumps(good)

    def with_rate(value: object) -> str:
        bad = json.loads(text)
        bad["hosts"][0][3]["rate"] = value
        return json.dumps(bad)

    return {
        "cut": text[: len(text) // 2],
        "empty": "",
        "nothing": "null",
        "list": "[]",
        "deep": "[" * 100_000,
        "format": json.dumps(good | {"format": 99}),
        "without": json.dumps({"format": 1, "hosts": []}),
        "infinite": with_rate([math.inf, 0.1, 1]),
        "not a number": with_rate([math.nan, 0.1, 1]),
        "huge": with_rate([1e30, 0.1, 1]),
        "variance": with_rate([-10, -1, 1]),
        "weight": with_rate([-10, 0.1, 1e30]),
        "few": with_rate([1]),
        "text": with_rate("fast"),
        "flag": with_rate([True, 0.1, 1]),
        "kind": json.dumps(good | {"kinds": [["TELEPATHY", "host", {}]]}),
        "port": json.dumps(good | {"ports": [["sideways", "h", [-10, 0.1, 1]]]}),
    }


@pytest.mark.parametrize("how", spoiled())
def test_a_spoiled_file_is_refused_as_a_whole(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file.json"
    path.write_text(spoiled()[how])
    model = LinkModel()
    with caplog.at_level(logging.WARNING):
        assert not load(model, path, 0)
    assert (model.hosts, model.kinds, model.ports) == ({}, {}, {})
    (record,) = caplog.records
    assert str(path) in record.getMessage()


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert not load(LinkModel(), path, 0)
    assert len(caplog.records) == 1


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MOST_NBYTES", 10)
    save(learned(), tmp_path / "file.json")
    assert not load(LinkModel(), tmp_path / "file.json", 0)
