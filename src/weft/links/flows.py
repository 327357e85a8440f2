# SPDX-License-Identifier: BSD-3-Clause
"""Over how many connections at once a large value comes from a host: more than one where each has a cap.

Clouds give one flow a part of what the port has. What brings more is found out with the pieces of large values
themselves: twice as many connections are tried, and kept if more arrives. Nothing is known here of connections.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Flows are tried in steps of a factor of 2, up to so many.
MOST_FLOWS = 8
#: A value is worth a trial whose rest takes so many seconds at least.
_LARGE_S = 1.0
#: So much more must arrive with twice the flows for them to be kept.
_FASTER = 1.3
#: After so many seconds that more flows brought nothing they are tried again.
_AGAIN_S = 600.0
#: Pieces of each flow that a rate is measured by, and such as come before, while a new flow finds its speed.
_MEASURED, _SETTLING = 4, 2
#: A port through which other transfers have had this share of its bandwidth leaves nothing to be found.
_FULL = 0.8


@dataclass
class _Known:
    """What was found out of a host: the best number of flows; and when more brought nothing."""

    best: int = 1
    in_vain_s: dict[int, float] = field(default_factory=dict[int, float])


class Flows:
    """What is known of the hosts that values come from."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Known] = {}

    def best(self, host: str) -> int:
        """Return how many flows are worth it from a host."""
        known = self._hosts.get(host)
        return 1 if known is None else known.best

    def begin(self, host: str, nbytes: int, *, may_try: bool = True, port_Bps: float = 0.0) -> Trial:  # noqa: N803
        """Begin to receive so many bytes from a host.

        Parameters
        ----------
        may_try : bool
            Nothing else limits what comes: the sender has all of it, and nobody else uses the ports.
        port_Bps : float
            What the ports of both hosts are known to take, in bytes/second; 0 if that is not known.
        """
        return Trial(self._hosts.setdefault(host, _Known()), nbytes, may_try=may_try, port_Bps=port_Bps)


class Trial:
    """One value, and how many flows it is to come over, which may change with each piece.

    Attributes
    ----------
    count : int
        So many flows are wanted now.
    """

    def __init__(self, known: _Known, nbytes: int, *, may_try: bool, port_Bps: float) -> None:  # noqa: N803
        self._known, self._left = known, nbytes
        self._may_try, self._port_Bps = may_try, port_Bps
        self.count = self._base = known.best
        self._rates: dict[int, float] = {}  # bytes/second, by the number of flows
        self._settle()

    def _settle(self) -> None:
        self._pieces = -_SETTLING * self.count
        self._nbytes, self._since_s = 0, 0.0

    def landed(self, nbytes: int, now_s: float) -> None:
        """Take note of a piece that is here."""
        self._left -= nbytes
        self._pieces += 1
        if self._pieces <= 0:
            self._since_s = now_s
            return
        self._nbytes += nbytes
        if self._pieces < _MEASURED * self.count:
            return
        rate = self._nbytes / max(now_s - self._since_s, 1e-9)
        self._measured(rate, now_s)
        self._settle()
        self._since_s = now_s

    def _measured(self, rate: float, now_s: float) -> None:
        known = self._known
        self._rates[self.count] = rate
        if self.count > self._base:
            if rate < _FASTER * self._rates[self._base]:
                known.in_vain_s[self.count] = now_s
                self.count = self._base
                return
            self._base = known.best = self.count
        more = 2 * self.count
        suspected = not self._port_Bps or rate < _FULL * self._port_Bps
        lately = now_s - known.in_vain_s.get(more, -_AGAIN_S) < _AGAIN_S
        if self._may_try and suspected and not lately and more <= MOST_FLOWS and self._left / rate >= _LARGE_S:
            self.count = more

    def refused(self, count: int) -> None:
        """Take note that no more than so many flows can be had."""
        self._may_try = False
        self.count = self._base = max(1, min(self.count, count))
        self._settle()


def worth(rate: float, under_way: int, rates: float, left: int) -> bool:
    """Tell whether a flow may ask for one more piece: it is there before the rest is, by all flows together.

    Parameters
    ----------
    rate, rates : float
        Bytes/second of this flow and of all; 0 if not known yet.
    under_way, left : int
        Bytes that this flow has asked for, with the piece; and all that is not here.
    """
    if rate <= 0 or rates <= 0:
        return True
    return under_way / rate <= 2 * left / rates
