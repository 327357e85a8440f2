# SPDX-License-Identifier: BSD-3-Clause
"""Whether a large value gets there sooner by way of a third worker, and whether it goes on doing so.

A relay hands each piece on as soon as it has it, so what counts is the slower of the two links, and the time that a
piece takes over the second. Nothing is known here of how pieces travel.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from weft.links.fanout import piece_nbytes
from weft.links.model import LinkModel

#: Values below this size go directly: they are there before a relay is found.
LEAST_NBYTES = 4 << 20
#: A relay is worth it where it is expected to take so much of the direct way's time at most.
WORTH = 0.7
#: Hosts that are looked at.
_MOST_HOSTS = 256
#: A relay that is slower than the direct way for so many seconds, or pieces' times, is given up.
_LEAST_WINDOW_S, _WINDOW_PIECES = 1.0, 4


class Relay(NamedTuple):
    """The way by a third worker: its seconds, those of the direct way, and how many the latter takes for a byte."""

    worker: str
    seconds: float
    direct_s: float
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
    """Choose a worker by way of which a value gets from one worker to another sooner than directly.

    Parameters
    ----------
    nbytes : int
        Its size.
    direct_seconds_per_byte : float, optional
        What the direct way takes, if that is known better than by the model.
    avoid : collection of str
        Workers that are not to relay.

    Returns
    -------
    Relay or None
        None: the direct way is taken. Of links of which little is known, the time is taken to be one deviation longer.

    One worker is looked at on each host, 256 hosts at most.
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
    return Relay(best, least, direct_s, rate) if best else None


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
    """Tells whether bytes come as fast as some other way would bring them.

    Parameters
    ----------
    seconds_per_byte : float
        What a byte takes the other way.
    piece_nbytes : int
        Bytes come in pieces of this size.
    expected_seconds_per_byte : float
        What a byte is expected to take this way.
    """

    def __init__(
        self, seconds_per_byte: float, piece_nbytes: int, expected_seconds_per_byte: float, now_s: float
    ) -> None:
        self._seconds_per_byte = seconds_per_byte
        self.window_s = max(_LEAST_WINDOW_S, _WINDOW_PIECES * piece_nbytes * expected_seconds_per_byte)
        self._since = (now_s + self.window_s, 0)  # the first pieces take two links' time

    def kept(self, nbytes: int, now_s: float) -> bool:
        """Tell whether it is kept, now that so many bytes are here; to be asked several times in each window."""
        began_s, before = self._since
        if now_s - began_s < self.window_s:
            return True
        self._since = (now_s, nbytes)
        return (nbytes - before) * self._seconds_per_byte >= now_s - began_s
