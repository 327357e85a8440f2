# SPDX-License-Identifier: BSD-3-Clause
"""Whether a large value arrives sooner through a third worker, and whether that stays true during the transfer.

A relay forwards each piece as soon as it has arrived, so the slower of the two links counts, plus the time of one piece
on the second. Nothing here knows how pieces travel.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from weft.links.fanout import piece_nbytes
from weft.links.model import LinkModel

#: Values below this size go directly: they arrive before a relay is found.
LEAST_NBYTES = 4 << 20
#: Use a relay only if its predicted time is at most this share of the direct path's.
WORTH = 0.7
#: Consider at most this many hosts.
_MOST_HOSTS = 256
#: Give up a relay that is slower than the direct path over this window, in seconds and in pieces' times.
_LEAST_WINDOW_S, _WINDOW_PIECES = 1.0, 4


class Relay(NamedTuple):
    """The path through a third worker: its seconds, and the direct path's seconds per byte."""

    worker: str
    seconds: float
    direct_seconds_per_byte: float


def route(
    model: LinkModel,
    source: str,
    destination: str,
    nbytes: int,
    now_s: float,
    *,
    memory: str = "host",
    direct_seconds_per_byte: float | None = None,
    avoid: Collection[str] = (),
) -> Relay | None:
    """Choose a worker through which a value arrives sooner than directly.

    Parameters
    ----------
    nbytes : int
        The value's size.
    direct_seconds_per_byte : float, optional
        The direct path's rate, if the caller knows it better than the model.
    avoid : collection of str
        Workers that must not relay.

    Returns
    -------
    Relay or None
        None: use the direct path. The time of an uncertain link is taken to be one standard deviation longer.

    One worker of each host is considered, of at most 256 hosts.
    """
    if nbytes < LEAST_NBYTES:
        return None
    direct = model.predict(source, destination, now_s, memory)
    rate = direct.seconds_per_byte if direct_seconds_per_byte is None else direct_seconds_per_byte
    direct_s = direct.latency_s + nbytes * rate
    piece = min(nbytes, piece_nbytes(nbytes))
    ends = {model.place_of(source).host, model.place_of(destination).host}
    best, least = "", WORTH * direct_s
    for host, workers in islice(model.workers_by_host().items(), _MOST_HOSTS):
        relay = next((worker for worker in workers if worker not in avoid), None)
        if relay is None or (host in ends and len(ends) > 1):
            continue
        if relay in (source, destination):
            continue
        seconds = _by_way_of(model, (source, relay, destination), nbytes, piece, now_s, memory)
        if seconds < least:
            best, least = relay, seconds
    return Relay(best, least, rate) if best else None


def _by_way_of(
    model: LinkModel, way: tuple[str, str, str], nbytes: int, piece_nbytes: int, now_s: float, memory: str
) -> float:
    rates: list[float] = []
    latency_s = 0.0
    for a, b in (way[:2], way[1:]):
        known = model.predict(a, b, now_s, memory)
        latency_s += known.latency_s
        rates.append(known.seconds_per_byte * math.exp(known.deviation))
    return latency_s + nbytes * max(rates) + piece_nbytes * rates[1]


class Pace:
    """Tells whether bytes arrive as fast as another path would bring them.

    Parameters
    ----------
    seconds_per_byte : float
        The other path's rate.
    piece_nbytes : int
        Size of the pieces in which bytes arrive.
    expected_seconds_per_byte : float
        The expected rate of this path.
    """

    def __init__(
        self, seconds_per_byte: float, piece_nbytes: int, expected_seconds_per_byte: float, now_s: float
    ) -> None:
        self._seconds_per_byte = seconds_per_byte
        self.window_s = max(_LEAST_WINDOW_S, _WINDOW_PIECES * piece_nbytes * expected_seconds_per_byte)
        self._since = (now_s + self.window_s, 0)  # the first pieces take two links' time

    def kept(self, nbytes: int, now_s: float) -> bool:
        """Tell whether the pace is kept, with `nbytes` bytes arrived so far; ask several times in each window."""
        began_s, before = self._since
        if now_s - began_s < self.window_s:
            return True
        self._since = (now_s, nbytes)
        return (nbytes - before) * self._seconds_per_byte >= now_s - began_s
