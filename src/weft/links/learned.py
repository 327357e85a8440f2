# SPDX-License-Identifier: BSD-3-Clause
"""One positive quantity that is measured again and again: a latency, or the seconds that a byte takes.

Its logarithm is what is averaged, because measurements of a link differ by factors. The newest samples count most,
what has not been seen for long counts less and less, and a single sample far off counts nothing.
"""

from __future__ import annotations

import math

#: Each sample leaves the former ones this share of their weight: about the last ten count.
_KEEP = 0.9
#: Seconds after which samples count half: what nobody has seen for long falls back to what is known of its kind.
HALF_LIFE_S = 600.0
#: A sample further off than this factor, and than three deviations, is a surprise, which counts nothing by itself.
_SURPRISE = math.log(2.0)
#: So many surprises in a row, all on the same side: the link has changed, and what was known of it is dropped.
_CHANGED = 3
#: No measurement is more exact than this variance of the logarithm: 10 %.
LEAST_VARIANCE = 0.01
#: Of a quantity whose spread is not known yet: a factor of 1.35.
FIRST_VARIANCE = 0.09


class Learned:
    """The decaying mean of the logarithms of samples, with their variance.

    Parameters
    ----------
    follow : bool
        Drop what was known when the quantity has changed. False for the mean over many links, whose samples differ by
        their nature: there each counts, at most as far off as three deviations.
    """

    __slots__ = ("_surprises", "follow", "mean", "seen_s", "variance", "weight")

    def __init__(self, *, follow: bool = True) -> None:
        self.follow = follow
        self.mean = 0.0
        self.variance = FIRST_VARIANCE
        self.weight = 0.0
        self.seen_s = 0.0
        self._surprises: list[float] = []

    def weight_at(self, now_s: float) -> float:
        """Return how many fresh samples this is worth at a time of the model's clock, in seconds."""
        age_s = now_s - self.seen_s
        return self.weight * 2.0 ** (-age_s / HALF_LIFE_S) if age_s > 0 else self.weight

    def add(self, value: float, now_s: float) -> None:
        """Take a sample: a positive, finite number."""
        x = math.log(value)
        weight = self.weight_at(now_s)
        self.seen_s = max(now_s, self.seen_s)
        if weight < 1e-3:  # the first, or the first for long
            self.mean, self.weight, self.variance = x, 1.0, FIRST_VARIANCE
            self._surprises.clear()
            return
        off = x - self.mean
        most = max(_SURPRISE, 3 * math.sqrt(self.variance))
        if abs(off) > most:
            # the spread is learned from it all the same: a link that is fast or slow by turns surprises nobody for long
            self._spread(math.copysign(most, off))
            if self.follow:
                self.weight = weight
                self._surprised(x, off)
                return
            off = math.copysign(most, off)
        else:
            self._spread(off)
        self._surprises.clear()
        self.weight = weight * _KEEP + 1
        self.mean += off / self.weight

    def _spread(self, off: float) -> None:
        self.variance = max(LEAST_VARIANCE, self.variance + 0.1 * (off * off - self.variance))

    def _surprised(self, x: float, off: float) -> None:
        surprises = self._surprises
        if surprises and (surprises[-1] - self.mean) * off < 0:
            surprises.clear()
        surprises.append(x)
        if len(surprises) < _CHANGED:
            return
        self.mean = sum(surprises) / len(surprises)
        self.weight = float(len(surprises))
        self.variance = FIRST_VARIANCE
        surprises.clear()

    def after(self, mean: float, variance: float, now_s: float) -> tuple[float, float]:
        """Combine what is assumed without these samples, by mean and variance of the logarithm, with them.

        Returns
        -------
        mean, variance : float
            Of the logarithm. The normal distribution's conjugate prior: what is assumed counts as much as so many
            samples as its variance is smaller than theirs.
        """
        weight = self.weight_at(now_s)
        if weight <= 0:
            return mean, variance
        precision = 1 / variance + weight / self.variance
        return (mean / variance + self.mean * weight / self.variance) / precision, 1 / precision
