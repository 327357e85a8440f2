# SPDX-License-Identifier: BSD-3-Clause
"""What order statistics must satisfy, whatever the samples. No number measured here."""

import itertools
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.bench.common import stats

LATENCIES = st.floats(min_value=1e-9, max_value=1e3, allow_nan=False)
SAMPLES = st.lists(LATENCIES, min_size=1, max_size=60)
PAIRS = st.lists(st.tuples(LATENCIES, LATENCIES), min_size=1, max_size=20)


@given(SAMPLES)
@example([8.740829999135555e-07] * 6)
def test_quantiles_stay_in_range_and_rise(samples):
    summary, quartiles = stats.summarise(samples), stats.quartiles(samples)
    assert (summary.q1, summary.median, summary.q3) == pytest.approx(quartiles, rel=1e-12)
    assert (summary.min, summary.max) == (min(samples), max(samples))
    rising = [summary.min, summary.q1, summary.median, summary.q3, summary.p99, summary.max]
    assert all(low <= high for low, high in itertools.pairwise(rising))


@given(SAMPLES, st.randoms(use_true_random=False))
def test_summary_does_not_depend_on_order(samples, random):
    shuffled = random.sample(samples, len(samples))
    assert stats.summarise(shuffled) == stats.summarise(samples)


@given(st.lists(LATENCIES, min_size=2, max_size=60))
def test_summary_agrees_with_the_standard_library(samples):
    percentiles = statistics.quantiles(samples, n=100, method="inclusive")
    summary = stats.summarise(samples)
    assert summary.median == pytest.approx(statistics.median(samples))
    assert [summary.q1, summary.q3, summary.p99] == pytest.approx([percentiles[i] for i in (24, 74, 98)])


@given(LATENCIES, st.integers(1, 50))
def test_equal_samples_have_no_spread(sample, count):
    assert stats.summarise([sample] * count) == pytest.approx([sample] * 6, rel=1e-12)
    assert stats.spread([sample] * count) == 0


@given(SAMPLES)
def test_interval_holds_the_median(values):
    low, high = stats.interval(values)
    assert low in values
    assert high in values
    assert low <= statistics.median(values) <= high


@pytest.mark.parametrize(
    ("count", "dropped"),
    # From the sign test's table for 95 %: five values cannot, six need all, nine may drop one at either end.
    [(1, 0), (3, 0), (5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (20, 5)],
)
def test_interval_has_the_sign_tests_width(count, dropped):
    assert stats.interval(list(range(count))) == (dropped, count - 1 - dropped)


@given(SAMPLES)
def test_interval_narrows_with_less_confidence(values):
    low, high = stats.interval(values, confidence=0.95)
    inner_low, inner_high = stats.interval(values, confidence=0.5)
    assert low <= inner_low <= inner_high <= high


@given(PAIRS)
def test_ratio_lies_in_its_interval(pairs):
    ratio = stats.ratio(*zip(*pairs, strict=True))
    assert ratio.low <= ratio.value <= ratio.high


@given(SAMPLES, st.sampled_from([0.5, 1.0, 2.0, 1024.0]))
def test_ratio_of_a_multiple_is_exact(values, factor):
    assert stats.ratio([value * factor for value in values], values) == (factor, factor, factor)


def test_ratio_divides_round_by_round():
    # The machine was four times slower in the last round, for both: the ratio does not show it.
    assert stats.ratio([2.0, 2.0, 8.0], [1.0, 1.0, 4.0]) == (2, 2, 2)


def test_ratio_needs_the_same_rounds():
    with pytest.raises(ValueError, match="shorter"):
        stats.ratio([1.0, 2.0], [1.0])


@pytest.mark.parametrize("function", [stats.summarise, stats.interval])
def test_nothing_says_nothing(function):
    with pytest.raises(ValueError, match="no "):
        function([])


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [([], 0.0), ([(1, 3), (2, 5), (7, 8)], 5.0), ([(0, 10), (2, 3), (4, 12)], 12.0), ([(5, 6), (5, 6)], 1.0)],
)
def test_covered_counts_once_what_several_intervals_cover(intervals, expected):
    assert stats.covered(intervals) == stats.covered(intervals[::-1]) == expected
