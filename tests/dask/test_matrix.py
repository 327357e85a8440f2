# SPDX-License-Identifier: BSD-3-Clause
"""What the dashboard's page says, without bokeh."""

from __future__ import annotations

import pytest

from weft.dask.observe import matrix
from weft.dask.observe.matrix import Scale, busiest, cell, empty_cell, heading, lanes_table, short, short_nbytes
from weft.dask.observe.pairs import Pair

PALETTE = [f"#{i:06x}" for i in range(256)]


def pair(rate: float | None = None, *, a: str = "0", b: str = "1", nbytes: int = 100, lent: int = 0) -> Pair:
    return Pair(
        a, b, ("ring/memory", "lent") if lent else ("ring/memory",), 3, nbytes, lent, 2 if lent else 0, 1.0, rate, 0
    )


@pytest.mark.parametrize(
    ("rates", "low", "high"),
    [([], 0.1, 10.0), ([2e9], 1, 10), ([0.5e9, 20e9], 0.1, 100), ([1e9], 1, 10), ([10e9], 10, 100)],
)
def test_the_scale_is_of_whole_decades(rates: list[float], low: float, high: float) -> None:
    scale = Scale.over(PALETTE, [pair(rate) for rate in [*rates, None]])
    assert (scale.low, scale.high) == pytest.approx((low, high))
    assert all(0 <= scale.shade(rate / 1e9) <= 255 for rate in rates)


def test_colours_are_by_the_logarithm() -> None:
    scale = Scale(PALETTE, 0.1, 10.0)
    assert [scale.shade(rate) for rate in (0.1, 1.0, 9.99, 10.0)] == [0, 128, 255, 255]
    assert scale.ticks == pytest.approx([0.1, 1, 10])
    assert Scale(PALETTE, 1.0, 10.0).ticks == pytest.approx([1, 2, 5, 10])


def test_a_cell_says_what_most_of_its_bytes_went_by() -> None:
    scale = Scale(PALETTE, 0.1, 10.0)
    moved = cell(pair(9e9, nbytes=100, lent=10), scale, 1.5e9, roomy=True)
    assert (moved.figure, moved.ink, moved.bandwidth, moved.dask) == ("9.0", "black", "9 GB/s", "1.5 GB/s")
    assert cell(pair(0.2e9), scale, None, roomy=True).ink == "white"
    lent = cell(pair(9e9, nbytes=3 << 30, lent=2 << 30), scale, None, roomy=True)
    assert (lent.figure, lent.colour, lent.lent) == ("lent\n2.0 GiB", matrix.LENT, "2 GiB in 2")
    assert cell(pair(9e9, nbytes=3 << 30, lent=2 << 30), scale, None, roomy=False).figure == "lent"
    small = cell(pair(), scale, None, roomy=True)
    assert (small.figure, small.colour, small.bandwidth) == ("", matrix.SMALL, "no transfer that moved 1 MiB")
    assert empty_cell("0", "1").colour == matrix.NONE != empty_cell("0", "0").colour


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0123, "0.012"), (0.5, "0.50"), (0.999, "1.0"), (8.126, "8.1"), (9.96, "10"), (123.4, "123")]
)
def test_numbers_have_two_digits(rate: float, text: str) -> None:
    assert short(rate) == text


@pytest.mark.parametrize(("nbytes", "text"), [(1, "1 MiB"), (500_000_000, "477 MiB"), (2 << 30, "2.0 GiB")])
def test_sizes_fit_a_cell(nbytes: int, text: str) -> None:
    assert short_nbytes(nbytes) == text


def test_workers_stand_in_their_natural_order_and_the_busiest_stay() -> None:
    assert busiest(["10", "2", "w1", "0"], []) == ["0", "2", "10", "w1"]
    names = [str(i) for i in range(100)]
    shown = busiest(names, [pair(a="99", b="98")])
    assert len(shown) == matrix.MOST_WORKERS
    assert shown[-2:] == ["98", "99"]


def test_the_heading_says_why_there_is_nothing() -> None:
    assert "No worker has reported yet" in heading(0, [])
    assert "No transfer of 1 MiB" in heading(2, [pair()])
    assert "Median" in heading(2, [pair(1e9)])
    assert "lent" not in heading(2, [pair(1e9)])
    assert "lent" in heading(2, [pair(lent=100)])
    assert "64 of 100 workers" in heading(100, [pair(1e9)])


def test_lent_memory_has_a_row_of_its_own() -> None:
    table = lanes_table([pair(2e9, nbytes=3 << 20, lent=1 << 20), pair(4e9, nbytes=1 << 20), pair()])
    assert table.count("<tr>") == 3
    for text in ("ring/memory", "3 MiB", "3 GB/s", "lent", "2", "1 MiB"):
        assert f">{text}<" in table
    assert lanes_table([]) == ""
    assert "<i>" not in lanes_table([Pair("0", "1", ("<i>",), 1, 1, 0, 0, 1.0, None, 0)])
