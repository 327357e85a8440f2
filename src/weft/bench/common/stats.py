# SPDX-License-Identifier: BSD-3-Clause
"""What is said about samples: median, quartiles, p99, spread of rounds, and a ratio with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft._units import format_ratio, format_seconds


class Summary(NamedTuple):
    """Order statistics of one set of samples, in the samples' unit."""

    median: float
    q1: float
    q3: float
    p99: float
    min: float
    max: float


class Ratio(NamedTuple):
    """A ratio and the interval that it can be told within; ``low <= value <= high``."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write it with its interval, which one round does not have."""
        within = f"{format_ratio(self.low)}-{format_ratio(self.high)}" if self.low < self.high else "one round"
        return f"{format_ratio(self.value)} ({within})"


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile of `samples`, which are not empty."""
    q1, q2, q3 = _quantiles(samples, 4)
    return q1, q2, q3


def summarise(samples: Sequence[float]) -> Summary:
    """Read median, quartiles, p99 and the extremes.

    Parameters
    ----------
    samples : sequence of float, shape (n,), n > 0, in any order

    Returns
    -------
    Summary
        In the unit of `samples`.

    Raises
    ------
    ValueError
        `samples` is empty.

    Source: Hyndman and Fan (1996), definition 7, which is NumPy's default too.
    """
    median, percentiles = statistics.median(samples), _quantiles(samples, 100)
    # interpolation rounds: a higher quantile may come out lower by the last bit
    low, high = min(samples), max(samples)
    q1 = min(max(percentiles[24], low), median)
    q3 = min(max(percentiles[74], median), high)
    return Summary(median, q1, q3, min(max(percentiles[98], q3), high), low, high)


def _quantiles(samples: Sequence[float], n: int) -> list[float]:
    # Of one sample each quantile is that sample, which the standard library says from Python 3.13 on.
    return statistics.quantiles(samples if len(samples) > 1 else [*samples, *samples], n=n, method="inclusive")


def spread(medians: Sequence[float]) -> float:
    """Subtract the smallest of the rounds' medians from the largest; 0 for one round, which cannot tell."""
    return max(medians) - min(medians)


def interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float]:
    """Bound the median that `values` were drawn around, whatever their distribution.

    Parameters
    ----------
    values : sequence of float, shape (n,), n > 0
        Independent measurements, such as one per round.
    confidence : float, 0 < confidence < 1
        How sure to be. Below six values not even their full range is 95 % sure (three: 75 %); the range is
        given then, since nothing wider was seen.

    Returns
    -------
    tuple of float
        Low and high, both members of `values`.

    Raises
    ------
    ValueError
        `values` is empty.

    Source: the sign test. The median lies between the k-th smallest and the k-th largest of n values unless
    fewer than k fall on one side of it: ``1 - 2 * sum(C(n, i) for i < k) / 2**n``.
    """
    if not values:
        raise ValueError("no values")
    ordered, n = sorted(values), len(values)
    outside, k = 2 / 2**n, 1
    while k < n - k and outside + 2 * math.comb(n, k) / 2**n <= 1 - confidence:
        outside += 2 * math.comb(n, k) / 2**n
        k += 1
    return ordered[k - 1], ordered[n - k]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Divide two measurements that were interleaved round by round.

    Parameters
    ----------
    numerators, denominators : sequence of float, shape (rounds,), > 0
        The i-th of both come from the same round: neighbours in time share the machine's mood, so each
        round is divided by itself.

    Returns
    -------
    Ratio
        The median of the rounds' ratios within :func:`interval`.

    Raises
    ------
    ValueError
        The lengths differ or are 0.
    """
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    low, high = interval(ratios)
    return Ratio(statistics.median(ratios), low, high)


def format_rounds(seconds: Sequence[float], *, median: float | None = None) -> str:
    """Write the median of the rounds' times, or `median`, and what they lay within: ``1.2 us (1.1-1.4)``."""
    median = statistics.median(seconds) if median is None else median
    middle, low, high = map(format_seconds, (median, min(seconds), max(seconds)))
    units = {text.rpartition(" ")[2] for text in (middle, low, high)}
    if len(units) > 1:
        return f"{middle} ({low} to {high})"
    return f"{middle} ({low.partition(' ')[0]}-{high.partition(' ')[0]})"


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Add up what intervals, each a beginning and an end, cover together; what several cover counts once."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
