# SPDX-License-Identifier: BSD-3-Clause
"""One positive quantity that is measured repeatedly: a latency, or the seconds per byte.

The mean is taken over logarithms, because measurements of a link differ by factors. The newest samples count most, old
ones fade with time, and a single outlier counts nothing.
"""

from __future__ import annotations

import math

#: Each sample scales the weight of the former ones by this: about the last ten count.
_KEEP = 0.9
#: Seconds after which samples count half: an estimate that is not refreshed falls back to that of its kind.
HALF_LIFE_S = 600.0
#: The logarithm of what a weight is multiplied by each second.
FADING = -math.log(2.0) / HALF_LIFE_S
#: A sample further off than this factor, and than three deviations, is a surprise; a single one does not count.
_SURPRISE = math.log(2.0)
#: After this many surprises in a row on the same side, the link has changed, and its old samples are dropped.
_CHANGED = 3
#: Lower bound of the variance of the logarithm: no measurement is more exact than 10 %.
LEAST_VARIANCE = 0.01
#: Initial variance, while the spread is unknown: a factor of 1.35.
FIRST_VARIANCE = 0.09


class Learned:
    """A decaying mean of the samples' logarithms, and their variance.

    Parameters
    ----------
    follow : bool
        Drop the old samples when the quantity has changed. False for the mean over many links, whose samples differ by
        nature: there each sample counts, clipped to three deviations.
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
        """Return the number of fresh samples that this is worth at `now_s`, in seconds of the model's clock."""
        age_s = now_s - self.seen_s
        return self.weight * math.exp(age_s * FADING) if age_s > 0 else self.weight

    def add(self, value: float, now_s: float) -> None:
        """Add a sample: a positive, finite number."""
        x = math.log(value)
        weight = self.weight_at(now_s)
        self.seen_s = max(now_s, self.seen_s)
        if weight < 1e-3:  # the first sample, or the first after a long time
            self.mean, self.weight, self.variance = x, 1.0, FIRST_VARIANCE
            self._surprises.clear()
            return
        off = x - self.mean
        most = max(_SURPRISE, 3 * math.sqrt(self.variance))
        if abs(off) > most:
            # it still widens the spread, so a link that alternates between fast and slow soon surprises nobody
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
