# SPDX-License-Identifier: BSD-3-Clause
"""What is decided by the model of links."""

from __future__ import annotations

import pytest
from tests.links.test_model import MiB, feed, model_of

from weft.links import Need, Probes, best_source, fetch_seconds, neighbours
from weft.links.choose import Fetch


def islands() -> dict[str, str]:
    return {"a": "h", "a2": "h", "b": "i", "c": "j", "d": "k"}


def test_the_fastest_holder_is_the_source() -> None:
    model = model_of(islands())
    feed(model, 1e6, pair=("b", "d"))
    feed(model, 100e6, pair=("c", "d"))
    best = best_source(model, Need(8 * MiB, {"b", "c"}), "d", 20)
    assert best.source == "c"
    assert best.seconds == pytest.approx(8 * MiB / 100e6, rel=0.2)


def test_sources_go_at_the_same_time_and_what_is_of_one_in_a_row() -> None:
    model = model_of(islands())
    for source in "bc":
        feed(model, 10e6, pair=(source, "d"))
    apart = fetch_seconds(model, [Need(10 * MiB, ["b"]), Need(10 * MiB, ["c"])], "d", 20)
    together = fetch_seconds(model, [Need(10 * MiB, ["b"]), Need(10 * MiB, ["b"])], "d", 20)
    assert together == pytest.approx(2 * apart, rel=0.1)


def test_the_port_bounds_all_sources() -> None:
    model = model_of(islands())
    for i in range(10):
        for source in "bc":
            model.observe(source, "d", 8 * MiB, 8 * MiB / 10e6, i, ingress_flows=2)
    assert fetch_seconds(model, [Need(10 * MiB, [s]) for s in "bc"], "d", 20) == pytest.approx(1.05, rel=0.1)


def test_nothing_to_fetch_costs_nothing() -> None:
    assert fetch_seconds(model_of(islands()), [], "d", 0) == 0
    assert fetch_seconds(model_of(islands()), [Need(5, [])], "d", 0) == 0


def test_neighbours_are_idle_and_of_the_hosts_that_hold_most() -> None:
    hosts = {f"w{i}": f"h{i // 4}" for i in range(12)}
    model = model_of(hosts)
    held = {"w0": 100, "w4": 50, "w8": 1}
    found = list(neighbours(model, held, lambda w: w != "w1"))
    assert set(found) == {"w2", "w3", "w5", "w6"} or set(found) == {"w2", "w3", "w5", "w7"} or len(found) == 4
    assert set(found) <= {"w2", "w3", "w5", "w6", "w7"}
    assert {"w2", "w3"} <= set(found)
    assert list(neighbours(model, held, lambda _: False)) == []


def test_probing_takes_one_in_a_hundred_bytes_and_only_what_may_be_better() -> None:
    model = model_of(islands())
    feed(model, 1e6, pair=("b", "d"))
    need = Need(MiB, ["b", "c"])
    known = Fetch("b", model.seconds("b", "d", MiB, 20))
    probes = Probes()
    tried = 0
    for _ in range(1000):
        tried += probes.choose(model, need, "d", 20, known).source == "c"
        probes.fetched(need.nbytes)
    assert 9 <= tried <= 10
    for i in range(20):  # now it is known, and worse
        model.observe("c", "d", MiB, 20.0, 20 + i)
    probes.fetched(1 << 40)
    assert probes.choose(model, need, "d", 41, known) == known


def test_a_known_link_is_not_probed() -> None:
    model = model_of(islands())
    for source in "bc":
        feed(model, 1e6, pair=(source, "d"))
    probes = Probes()
    probes.fetched(1 << 40)
    known = Fetch("b", model.seconds("b", "d", MiB, 20))
    assert probes.choose(model, Need(MiB, ["b", "c"]), "d", 20, known) == known
