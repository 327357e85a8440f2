# SPDX-License-Identifier: BSD-3-Clause
"""When a value goes by way of a third worker, and when that is given up."""

from __future__ import annotations

import math

import pytest

from weft.links import LinkModel, Place
from weft.links.route import LEAST_NBYTES, Pace, Relay, route

MiB = 1 << 20
MBIT = 125_000.0  # bytes a second


def taught(rates: dict[str, float], hosts: str = "abc") -> LinkModel:
    """Make a model of workers that are called as their hosts, with rates in Mbit/s by pairs as ``ab``."""
    model = LinkModel()
    for host in hosts:
        model.place(host, Place(host))
    for pair, rate in rates.items():
        for _ in range(4):
            model.observe(pair[0], pair[1], 10 * MiB, 10 * MiB / (rate * MBIT), 0.0)
    return model


def test_two_fast_links_are_taken_for_a_slow_one() -> None:
    model = taught({"ab": 10, "ac": 100, "cb": 100})
    found = route(model, "a", "b", 40 * MiB, 0.0)
    assert isinstance(found, Relay)
    assert found.worker == "c"
    assert found.direct_seconds_per_byte == pytest.approx(1 / (10 * MBIT), rel=0.1)
    assert 0.1 < found.seconds / (40 * MiB * found.direct_seconds_per_byte) < 0.2
    assert route(model, "a", "c", 40 * MiB, 0.0) is None
    assert route(model, "a", "b", LEAST_NBYTES - 1, 0.0) is None
    assert route(model, "a", "b", 40 * MiB, 0.0, avoid=["c"]) is None


def test_the_slower_of_the_two_counts() -> None:
    assert route(taught({"ab": 10, "ac": 100, "cb": 13}), "a", "b", 40 * MiB, 0.0) is None
    assert route(taught({"ab": 10, "ac": 13, "cb": 100}), "a", "b", 40 * MiB, 0.0) is None
    model = taught({"ab": 10, "ac": 100, "cb": 20, "ad": 50, "db": 100}, "abcd")
    found = route(model, "a", "b", 40 * MiB, 0.0)
    assert found is not None
    assert found.worker == "d"


def test_a_link_that_was_never_seen_is_not_believed_to_be_fast() -> None:
    model = taught({"ab": 10, "ac": 30})
    assert route(model, "a", "b", 40 * MiB, 0.0) is None


def test_a_direct_way_that_has_become_slow_is_told() -> None:
    model = taught({"ab": 100, "ac": 100, "cb": 100})
    assert route(model, "a", "b", 40 * MiB, 0.0) is None
    found = route(model, "a", "b", 40 * MiB, 0.0, direct_seconds_per_byte=1 / MBIT)
    assert found is not None
    assert found.worker == "c"


@pytest.mark.parametrize("nonsense", [-1.0, 0.0, math.inf, math.nan, 1e30])
def test_nonsense_changes_nothing(nonsense: float) -> None:
    model = taught({"ab": 10, "ac": 100, "cb": 100})
    before = route(model, "a", "b", 40 * MiB, 0.0)
    for _ in range(10):
        assert not model.observe("c", "b", 10 * MiB, nonsense, 0.0)
        assert not model.observe("a", "b", nonsense, 1.0, 0.0)
    assert route(model, "a", "b", 40 * MiB, 0.0) == before


def test_a_relay_that_is_slower_than_the_direct_way_is_given_up() -> None:
    pace = Pace(1 / (10 * MBIT), MiB, 1 / (100 * MBIT), 0.0)
    assert pace.window_s == 1.0
    nbytes = 0.0
    for step in range(1, 13):  # as fast as was said, from one second on
        nbytes += 100 * MBIT / 4 if step > 4 else 0
        assert pace.kept(int(nbytes), step / 4)
    assert [pace.kept(int(nbytes), 3 + step / 4) for step in range(1, 5)] == [True, True, True, False]
