# SPDX-License-Identifier: BSD-3-Clause
"""Whether a value travels through a third worker; pieces pass through it, so the slower half determines the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.links import LinkModel

#: Use a relay only if it takes less than this share of the direct path's time.
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
    """Return the worker through which `nbytes` bytes arrive first, if that is worth it.

    Parameters
    ----------
    among : iterable of str
        Workers that may relay.
    used : callable
        How many transfers a worker relays now; among equally fast ones, the least used is chosen.
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
