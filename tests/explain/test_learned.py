# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft explain`` finds in the files of clusters about the link between two hosts."""

import json
import logging
import math
import os

import pytest

from weft import _cli as cli
from weft.errors import InvalidParamError
from weft.explain import learned, round_trip
from weft.explain.explanation import Explanation
from weft.links import LinkModel, Place, store

HERE, THERE, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.3"
MiB = 1 << 20


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def keep(cluster, rate, *, source=HERE, destination=THERE, n=12):
    """Have a cluster's file that knows one direction between two hosts."""
    model = LinkModel()
    model.place("a", Place(source))
    model.place("b", Place(destination))
    for i in range(n):
        model.observe("a", "b", 8 * MiB, 8 * MiB / rate, float(i))
    store.save(model, store.path_of(cluster))
    return store.path_of(cluster)


def test_a_named_cluster_tells_both_directions_and_how_sure_it_is():
    keep("my cluster", 10e6)
    there, back = learned.of_cluster("my cluster", HERE, THERE)
    assert (there.source, there.destination, there.known_from) == (HERE, THERE, "hosts")
    assert there.bandwidth_Bps == pytest.approx(10e6, rel=0.1)
    assert there.predicted_s == pytest.approx(there.latency_s + there.nbytes / there.bandwidth_Bps)
    assert there.samples == pytest.approx(7.2, abs=0.1)  # more than what a new scheduler takes them for
    assert there.spread < 0.5  # pairs of the same hosts may differ by so much
    assert (back.source, back.destination, back.known_from) == (THERE, HERE, "kind")
    assert back.spread > 1
    assert back.samples == there.samples


def test_hosts_that_it_never_saw_are_of_a_kind():
    keep("mine", 10e6)
    assert [row.known_from for row in learned.of_cluster("mine", HERE, OTHER)] == ["kind", "kind"]
    [itself] = learned.of_cluster("mine", OTHER, OTHER)
    assert (itself.known_from, itself.samples) == ("assumed", 0)


def test_what_is_lent_has_no_bandwidth():
    model = LinkModel()
    model.place("a", Place(HERE))
    model.place("b", Place(HERE))
    model.observe_lent("a", "b", 100 * MiB, 0)
    store.save(model, store.path_of("mine"))
    [row] = learned.of_hosts(HERE, HERE)
    assert row.bandwidth_Bps is None
    assert row.predicted_s == row.latency_s


def test_a_file_may_be_named():
    path = keep("mine", 10e6)
    assert learned.of_cluster(str(path), HERE, THERE)[0].cluster == str(path)
    other = path.rename(path.with_suffix(""))
    assert learned.of_cluster(str(other), HERE, THERE)[0].cluster == str(other)


def test_unnamed_it_is_all_that_know_the_hosts_the_latest_first():
    for age_s, (name, rate) in enumerate([("new", 1e6), ("old/", 2e6)]):
        path = keep(name, rate)
        os.utime(path, (1e9 - age_s, 1e9 - age_s))
    keep("another", 3e6, source=OTHER)
    assert [(row.cluster, row.source) for row in learned.of_hosts(HERE, THERE)] == [("new", HERE), ("old/", HERE)]
    assert learned.of_hosts(HERE, HERE) == []


def test_nothing_was_ever_kept():
    assert learned.of_hosts(HERE, THERE) == []


def test_a_damaged_file_is_told_and_the_others_are_read(caplog):
    keep("good", 10e6)
    store.path_of("bad").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert [row.cluster for row in learned.of_hosts(HERE, THERE)] == ["good"]
    [record] = caplog.records
    assert "bad.json" in record.getMessage()
    with pytest.raises(InvalidParamError, match=r"bad\.json is damaged"):
        learned.of_cluster("bad", HERE, THERE)


def test_a_cluster_that_there_is_not():
    with pytest.raises(InvalidParamError, match=r"--cluster none: .*none\.json: No such file"):
        learned.of_cluster("none", HERE, THERE)


def test_the_command_shows_it(monkeypatch, capsys):
    keep("mine", 10e6)
    parts = {"apart": "", "why_ucx": "", "ucx": "", "endpoint": "", "scope": "", "settings": {}}
    lists = {"lanes": [], "sizes": [], "times": [], "transports": []}
    told = Explanation(f"{THERE}:1", f"{HERE}:2", False, **parts, **lists)
    monkeypatch.setattr(round_trip, "explain", lambda _: told)
    assert cli.main(["explain", f"{THERE}:1"]) == 0
    printed = capsys.readouterr().out
    assert "learned by" in printed
    [row] = [line for line in printed.splitlines() if line.startswith("mine")]
    assert "10 MB/s" in row
    assert "hosts" in row
    assert cli.main(["explain", f"{THERE}:1", "--cluster", "mine", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["learned"]
    assert [math.isclose(row["bandwidth_Bps"], 1e7, rel_tol=0.1) for row in rows] == [True, True]
    assert cli.main(["explain", f"{THERE}:1", "--cluster", "none"]) == 2
