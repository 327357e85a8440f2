# SPDX-License-Identifier: BSD-3-Clause
"""Whether a value goes by way of a third worker: pieces pass through it, so the slower half is what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.links import LinkModel

#: A relay is worth it if it takes less than this of the direct way.
WORTH = 0.7


def best_relay(
    model: LinkModel,
    source: str,
    destination: str,
    nbytes: int,
    now_s: float,
    among: Iterable[str],
    used: Callable[[str], int],
) -> str | None:
    """Return the worker by way of which so many bytes are there soonest, if that is worth it.

    Parameters
    ----------
    among : iterable of str
        Who may pass something on.
    used : callable
        How much each passes on now: of those that are as fast the least used is taken.
    """
    most = WORTH * model.seconds(source, destination, nbytes, now_s)
    best, least = None, (most, 0)
    for relay in among:
        if relay in (source, destination):
            continue
        first, second = model.predict(source, relay, now_s), model.predict(relay, destination, now_s)
        rate = max(first.seconds_per_byte, second.seconds_per_byte) * (1 + used(relay))
        seconds = first.latency_s + second.latency_s + nbytes * rate
        if (seconds, used(relay)) < least:
            best, least = relay, (seconds, used(relay))
    return best
