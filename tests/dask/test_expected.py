# SPDX-License-Identifier: BSD-3-Clause
"""What the dashboard's page says of transfers, without bokeh; and its plot, with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weft.dask.learn.collect import Timed
from weft.dask.observe.expected import ALONE, GUESSED, SHARED, decades, heading, points

NAMES = {"ucx://a": "0", "ucx://b": "1"}


def timed(predicted_s: float, observed_s: float, *, flows: float = 1.0, known_from: str = "pair") -> Timed:
    return Timed("ucx://a", "ucx://b", 8 << 20, predicted_s, observed_s, flows, known_from)


def test_a_point_says_what_was_predicted_and_what_came() -> None:
    [point] = points([timed(0.5, 0.25)], NAMES)
    assert (point.source, point.destination, point.nbytes) == ("0", "1", "8 MiB")
    assert (point.predicted, point.observed, point.known_from, point.kind) == ("500 ms", "250 ms", "pair", ALONE)


def test_who_left_is_not_shown() -> None:
    assert points([timed(1, 1)], {"ucx://a": "0"}) == []


def test_guesses_and_shared_ports_are_told_apart_and_lie_below() -> None:
    shown = points([timed(1, 1), timed(1, 3, flows=3), timed(1e-3, 1, known_from="assumed")], NAMES)
    assert [point.kind for point in shown] == [GUESSED, SHARED, ALONE]


def test_the_heading_tells_how_far_off_it_was_where_that_says_something() -> None:
    shown = points([timed(1, 1.5), timed(1.5, 1), timed(1, 3, flows=3), timed(1e-3, 1, known_from="assumed")], NAMES)
    assert "a factor of 1.50" in heading(shown)
    assert "Median" not in heading(points([timed(1, 3, flows=3)], NAMES))
    assert "No transfer has been timed" in heading([])


def test_both_axes_are_the_whole_decades_that_hold_all_points() -> None:
    assert decades(points([timed(2e-3, 2.0), timed(0.1, 0.1)], NAMES)) == pytest.approx([1e-3, 1e-2, 0.1, 1, 10])
    assert decades(points([timed(0.1, 0.1)], NAMES)) == pytest.approx([0.1, 1])
    assert decades([]) == pytest.approx([1e-3, 1e-2, 0.1, 1])


def test_the_plot_follows_what_was_timed() -> None:
    pytest.importorskip("bokeh")
    from weft.dask.observe.dashboard import Transfers

    seen = [timed(1, 2)]
    traffic: Any = SimpleNamespace(transfers=lambda: points(seen, NAMES))
    plot = Transfers(traffic)
    plot.update()
    assert plot.figure.visible
    shown: Any = plot.source.data
    assert shown["observed_s"] == [2]
    before = plot.source.data
    plot.update()
    assert plot.source.data is before, "nothing is sent to browsers where nothing is new"
    seen.clear()
    plot.update()
    assert not plot.figure.visible
