# SPDX-License-Identifier: BSD-3-Clause
"""What is said about samples: median, quartiles, p99, spread of rounds, and a ratio with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple


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


def quantile(samples: Sequence[float], fraction: float) -> float:
    """Interpolate the quantile of `samples`.

    Parameters
    ----------
    samples : sequence of float, shape (n,), n > 0, in any order
    fraction : float, 0 <= fraction <= 1
        0.5 is the median, 0.99 is p99.

    Returns
    -------
    float
        In the unit of `samples`, within their range.

    Raises
    ------
    ValueError
        `samples` is empty, or `fraction` is outside 0 to 1.

    Source: Hyndman and Fan (1996), definition 7, which is NumPy's default too.
    """
    if not samples:
        raise ValueError("no samples")
    if not 0 <= fraction <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {fraction}")
    return _at(sorted(samples), fraction)


def _at(ordered: Sequence[float], fraction: float) -> float:
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # Clamped because the weights do not add up exactly: of equal samples the quantile is that sample.
    return min(max(low + (high - low) * (position - below), low), high)


def summarise(samples: Sequence[float]) -> Summary:
    """Sort once and read median, quartiles, p99 and the extremes.

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
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    return Summary(
        median=_at(ordered, 0.5),
        q1=_at(ordered, 0.25),
        q3=_at(ordered, 0.75),
        p99=_at(ordered, 0.99),
        min=ordered[0],
        max=ordered[-1],
    )


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


def ratio_text(value: float) -> str:
    """Write a ratio with two decimals, or two digits where it is small, none where it is large."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Add up what intervals, each a beginning and an end, cover together; what several cover counts once."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
