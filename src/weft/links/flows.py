# SPDX-License-Identifier: BSD-3-Clause
"""How many connections to use for a large value from a host: more than one where each connection is capped.

Clouds give one flow only a part of the port's bandwidth. The pieces of large values are the experiment: twice as many
connections are tried, and kept if throughput rises. Nothing here knows of connections.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: The number of flows is tried in steps of a factor of 2, up to this.
MOST_FLOWS = 8
#: Try more flows only if the rest of the value takes at least this many seconds.
_LARGE_S = 1.0
#: Keep twice the flows only if throughput rises by this factor.
_FASTER = 1.3
#: Seconds until a number of flows that brought nothing is tried again.
_AGAIN_S = 600.0
#: Pieces of each flow that a rate is measured over, after those that are skipped while a new flow finds its speed.
_MEASURED, _SETTLING = 4, 2
#: If a port is already used to this share of its bandwidth, more flows cannot help.
_FULL = 0.8


@dataclass
class _Known:
    """What is known about a host: the best number of flows, and when a larger number brought nothing."""

    best: int = 1
    in_vain_s: dict[int, float] = field(default_factory=dict[int, float])


class Flows:
    """The best number of flows for each sending host."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Known] = {}

    def best(self, host: str) -> int:
        """Return the best number of flows from a host."""
        known = self._hosts.get(host)
        return 1 if known is None else known.best

    def begin(self, host: str, nbytes: int, *, may_try: bool = True, port_Bps: float = 0.0) -> Trial:  # noqa: N803
        """Begin to receive `nbytes` bytes from a host.

        Parameters
        ----------
        may_try : bool
            Nothing else limits the transfer: the sender has the whole value, and no other transfer uses the ports.
        port_Bps : float
            The known bandwidth of both hosts' ports, in bytes/second; 0 if unknown.
        """
        return Trial(self._hosts.setdefault(host, _Known()), nbytes, may_try=may_try, port_Bps=port_Bps)


class Trial:
    """The transfer of one value; the number of flows may change with each piece.

    Attributes
    ----------
    count : int
        The number of flows wanted now.
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

    def landed(self, nbytes: int, now_s: float, *, passed_on: bool = False) -> None:
        """Record the arrival of a piece.

        Parameters
        ----------
        passed_on : bool
            Other workers receive the value from this one. Then no more flows are tried: a new one delivers its first
            pieces late, and all those behind this worker would wait for them.
        """
        self._left -= nbytes
        self._pieces += 1
        if self._pieces <= 0:
            self._since_s = now_s
            return
        self._nbytes += nbytes
        if self._pieces < _MEASURED * self.count:
            return
        rate = self._nbytes / max(now_s - self._since_s, 1e-9)
        self._measured(rate, now_s, may_try=self._may_try and not passed_on)
        self._settle()
        self._since_s = now_s

    def _measured(self, rate: float, now_s: float, *, may_try: bool) -> None:
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
        if may_try and suspected and not lately and more <= MOST_FLOWS and self._left / rate >= _LARGE_S:
            self.count = more

    def refused(self, count: int) -> None:
        """Record that no more than `count` flows are available."""
        self._may_try = False
        self.count = self._base = max(1, min(self.count, count))
        self._settle()


def worth(rate: float, under_way: int, rates: float, left: int) -> bool:
    """Tell whether a flow may request one more piece: it must arrive before all flows together deliver the rest.

    Parameters
    ----------
    rate, rates : float
        Bytes/second of this flow and of all flows; 0 if not known yet.
    under_way, left : int
        Bytes that this flow has in flight, including the piece; and all bytes that have not arrived.
    """
    if rate <= 0 or rates <= 0:
        return True
    return under_way / rate <= 2 * left / rates
