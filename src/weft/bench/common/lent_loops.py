# SPDX-License-Identifier: BSD-3-Clause
"""The loops of ``weft bench sweep`` and ``weft bench pingpong`` over memory that is lent: the wire that is weft's own.

Between processes of one host a message that lies in weft's pool is not copied: the receiver maps the sender's pages
(``Peer.lend``), which is what Dask's workers do with results. Two lines tell what that is worth:

- *lent*: the receiver has the message, and looks at none of it. That is what handing over costs.
- *lent-read*: it reads all of it, as whoever uses it will; what UCX's transports have then copied is still unread.

Each message gets new mappings, so each page that is read costs the receiver a fault.
"""

from __future__ import annotations

import array
import contextlib
import time
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

import weft
from weft.bench.common.child import CLOSE_S, FILL, Child
from weft.bench.common.errors import BenchError

CONNECT_S = 20.0

clock = time.perf_counter_ns


def lanes(peer: weft.Peer, transport: str) -> list[str]:
    """Return `transport` if what has arrived so far was lent; else the lanes that it was copied over."""
    return [transport] if peer.lent_nbytes[1] else peer.transports


def line_of(peer: weft.Peer, transport: str, nbytes: int) -> Line:
    """Lay out what is lent over `peer`: an array in weft's pool, shape ``(nbytes,)``."""
    with weft.arrays_in_pool():
        return Line(peer, np.full(nbytes, FILL, "u1"), transport == "lent-read")


class Line(NamedTuple):
    """A connection, what is lent over it, and whether the receiver reads it."""

    peer: weft.Peer
    out: Any
    reads: bool

    def seen(self, message: memoryview) -> memoryview:
        """Read the message if that belongs to the measurement."""
        if self.reads and np.frombuffer(message, "u1").max() != FILL:
            raise BenchError("the message that arrived is not the one that was lent")
        return message


@contextlib.contextmanager
def connected(me: Child) -> Generator[weft.Peer]:
    """Connect to the other process of the pair as programs do; close at the same moment as it does."""
    if me.pings:
        peer = weft.connect(me.swap("-"), timeout=CONNECT_S).open()
    else:
        with weft.listen("127.0.0.1:0") as listener:
            me.swap(listener.address)
            peer = listener.accept(CONNECT_S)
    yield peer
    with contextlib.suppress(weft.PeerLostError):
        peer.close().wait(CLOSE_S)


def ping_block(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
    """Send and receive until all stamps are taken; return the last message."""
    peer, out, seen = line.peer, line.out, line.seen
    into: Any = None
    for i in range(len(stamps)):
        if measure == "latency":
            for _ in range(window):
                peer.lend(out).wait()
                into = seen(peer.recv().wait())
        elif measure == "bandwidth":
            for request in [peer.lend(out) for _ in range(window)]:
                request.wait()
            peer.recv().wait()
        else:
            into = _both_block(line, window)
        stamps[i] = clock()
    return into


def pong_block(line: Line, measure: str, window: int, count: int) -> Any:
    """Answer `count` times; return the last message."""
    peer, out, seen = line.peer, line.out, line.seen
    into: Any = None
    for _ in range(count):
        if measure == "latency":
            for _ in range(window):
                into = seen(peer.recv().wait())
                peer.lend(out).wait()
        elif measure == "bandwidth":
            for _ in range(window):
                into = seen(peer.recv().wait())
            peer.send(b"\0").wait()
        else:
            into = _both_block(line, window)
    return into


def _both_block(line: Line, window: int) -> Any:
    into: Any = None
    requests = [line.peer.lend(line.out) for _ in range(window)]
    for _ in range(window):
        into = line.seen(line.peer.recv().wait())
    for request in requests:
        request.wait()
    return into


async def ping_await(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
    """Do as `ping_block`, awaiting."""
    peer, out, seen = line.peer, line.out, line.seen
    into: Any = None
    for i in range(len(stamps)):
        if measure == "latency":
            for _ in range(window):
                await peer.lend(out)
                into = seen(await peer.recv())
        elif measure == "bandwidth":
            for request in [peer.lend(out) for _ in range(window)]:
                await request
            await peer.recv()
        else:
            into = await _both_await(line, window)
        stamps[i] = clock()
    return into


async def pong_await(line: Line, measure: str, window: int, count: int) -> Any:
    """Do as `pong_block`, awaiting."""
    peer, out, seen = line.peer, line.out, line.seen
    into: Any = None
    for _ in range(count):
        if measure == "latency":
            for _ in range(window):
                into = seen(await peer.recv())
                await peer.lend(out)
        elif measure == "bandwidth":
            for _ in range(window):
                into = seen(await peer.recv())
            await peer.send(b"\0")
        else:
            into = await _both_await(line, window)
    return into


async def _both_await(line: Line, window: int) -> Any:
    into: Any = None
    requests = [line.peer.lend(line.out) for _ in range(window)]
    for _ in range(window):
        into = line.seen(await line.peer.recv())
    for request in requests:
        await request
    return into
