# SPDX-License-Identifier: BSD-3-Clause
"""The loops of ``weft bench sweep`` over UCX's self: one process that sends to itself; its twin has nothing to do.

A round trip is two messages. Both ways at once would be the same as one way, so there is none of it.
"""

from __future__ import annotations

import array
import time
from typing import TYPE_CHECKING, Any

from weft.bench.common.side import TAG

if TYPE_CHECKING:
    from weft.bench.sweep.loops import Line

MEASURES = ("latency", "bandwidth")

clock = time.perf_counter_ns


def ping_block(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
    """Send and receive until all stamps are taken; return the last message."""
    ep, w, out, places, _ = line
    into: Any = None
    for i in range(len(stamps)):
        if measure == "latency":
            for into in places(2 * window):
                received = w.tag_recv(into, TAG)
                ep.tag_send(out, TAG).wait()
                received.wait()
        else:
            taken = list(places(window))
            all_received = w.tag_recv_many(taken, TAG)
            ep.tag_send_many([out] * window, TAG).wait()
            all_received.wait()
            into = taken[-1]
        stamps[i] = clock()
    return into


async def ping_await(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
    """Do as `ping_block`, awaiting."""
    ep, w, out, places, _ = line
    into: Any = None
    for i in range(len(stamps)):
        if measure == "latency":
            for into in places(2 * window):
                received = w.tag_recv(into, TAG)
                await ep.tag_send(out, TAG)
                await received
        else:
            taken = list(places(window))
            all_received = w.tag_recv_many(taken, TAG)
            await ep.tag_send_many([out] * window, TAG)
            await all_received
            into = taken[-1]
        stamps[i] = clock()
    return into


def pong_block(line: Line, measure: str, window: int, count: int) -> None:
    """Do nothing: the other process is alone."""


async def pong_await(line: Line, measure: str, window: int, count: int) -> None:
    """Do nothing: the other process is alone."""
