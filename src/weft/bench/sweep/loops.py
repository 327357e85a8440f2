# SPDX-License-Identifier: BSD-3-Clause
"""The loops of ``weft bench sweep`` and the child that runs them.

They are those of the OSU micro-benchmarks, by their names there:

- *latency* (``osu_latency``): a message back and forth, one at a time.
- *bandwidth* (``osu_bw``; its message rate is that of ``osu_mbw_mr`` with one pair): a window of messages is sent
  before any is waited for; one byte comes back for the whole window.
- *bibandwidth* (``osu_bibw``): both send a window and receive one at the same time.

A child hears ``MEASURE NBYTES WINDOW COUNT`` and runs the loop until COUNT stamps are taken, and one before them
that waits for the other child to wake. The clock is read once for each window, and in *latency* as in the
ping-pong. Both children hear the same, so that neither needs to be told when the other is done.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import functools
import importlib
import itertools
import operator
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.bench.common.child import FILL, LENT_LEAST_NBYTES, TAG, Child, connected, opened, trips_of
from weft.bench.common.errors import BenchError

if TYPE_CHECKING:
    from weft import Endpoint, Worker

#: The tag of the byte that answers a window.
ACK = TAG + 1
MEASURES = ("latency", "bandwidth", "bibandwidth")
#: Of UCX's self: both ways at once would be the same as one way.
SELF_MEASURES = ("latency", "bandwidth")
#: Where messages are received: into the same memory each time (as OSU's benchmarks do), into memory that the C
#: library or the kernel has just given, into weft's pool, or into a GPU's memory, the same each time.
MEMORIES = ("reused", "fresh", "pooled", "cuda")
#: weft's own, of memory that is handed over; see ``lent_loops``.
LENT = ("lent", "lent-read")
#: Where they are received: in the sender's pages.
MAPPED = "mapped"
#: UCX offers these only to endpoints that do not report a lost peer, which is all that a context for atomics makes.
WITHOUT_PEER_ERRORS = ("self", "cma", "knem")

clock = time.perf_counter_ns


class Line(NamedTuple):
    """A connection to measure, what is sent over it, and where `count` messages are received, one after another."""

    endpoint: Endpoint
    worker: Worker
    out: Any
    places: Callable[[int], Iterable[Any]]
    ack: bytearray


def _ping_block(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
    ep, w, out, places, ack = line
    into: Any = None
    for i in range(len(stamps)):
        if measure == "latency":
            for into in places(window):
                ep.tag_send(out, TAG).wait()
                w.tag_recv(into, TAG).wait()
        elif measure == "bandwidth":
            ep.tag_send_many([out] * window, TAG).wait()
            w.tag_recv(ack, ACK).wait()
        else:
            into = _both_block(line, window)
        stamps[i] = clock()
    return into


def _pong_block(line: Line, measure: str, window: int, count: int) -> Any:
    ep, w, out, places, ack = line
    into: Any = None
    for _ in range(count):
        if measure == "latency":
            for into in places(window):
                w.tag_recv(into, TAG).wait()
                ep.tag_send(out, TAG).wait()
        elif measure == "bandwidth":
            taken = list(places(window))
            w.tag_recv_many(taken, TAG).wait()
            ep.tag_send(ack, ACK).wait()
            into = taken[-1]
        else:
            into = _both_block(line, window)
    return into


def _both_block(line: Line, window: int) -> Any:
    ep, w, out, places, _ = line
    taken = list(places(window))
    for request in (w.tag_recv_many(taken, TAG), ep.tag_send_many([out] * window, TAG)):
        request.wait()
    return taken[-1]


async def _ping_await(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
    ep, w, out, places, ack = line
    into: Any = None
    for i in range(len(stamps)):
        if measure == "latency":
            for into in places(window):
                await ep.tag_send(out, TAG)
                await w.tag_recv(into, TAG)
        elif measure == "bandwidth":
            await ep.tag_send_many([out] * window, TAG)
            await w.tag_recv(ack, ACK)
        else:
            into = await _both_await(line, window)
        stamps[i] = clock()
    return into


async def _pong_await(line: Line, measure: str, window: int, count: int) -> Any:
    ep, w, out, places, ack = line
    into: Any = None
    for _ in range(count):
        if measure == "latency":
            for into in places(window):
                await w.tag_recv(into, TAG)
                await ep.tag_send(out, TAG)
        elif measure == "bandwidth":
            taken = list(places(window))
            await w.tag_recv_many(taken, TAG)
            await ep.tag_send(ack, ACK)
            into = taken[-1]
        else:
            into = await _both_await(line, window)
    return into


async def _both_await(line: Line, window: int) -> Any:
    ep, w, out, places, _ = line
    taken = list(places(window))
    for request in (w.tag_recv_many(taken, TAG), ep.tag_send_many([out] * window, TAG)):
        await request
    return taken[-1]


# Over UCX's self one process sends to itself: a round trip is two messages. Its twin has nothing to do.


def _self_ping_block(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
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


async def _self_ping_await(line: Line, measure: str, window: int, stamps: array.array[int]) -> Any:
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


def _self_pong_block(line: Line, measure: str, window: int, count: int) -> None:
    pass


async def _self_pong_await(line: Line, measure: str, window: int, count: int) -> None:
    pass


def _line(me: Child, memory: str, nbytes: int, endpoint: Endpoint, worker: Worker) -> Line:
    """Lay out what is sent and where it is received."""
    out: Any = memoryview(me.out)[:nbytes]
    into: Any = memoryview(me.into)[:nbytes]
    make: Callable[[], Any] | None = None
    if memory == "fresh":
        from numpy import empty

        make = functools.partial(empty, nbytes, "u1")
    elif memory == "pooled":
        from weft._native import pool_allocate

        make = functools.partial(pool_allocate, nbytes)
    elif memory == "cuda":
        cupy: Any = importlib.import_module("cupy")
        out, into = cupy.full(nbytes, FILL, "u1"), cupy.empty(nbytes, "u1")
        cupy.cuda.get_current_stream().synchronize()

    def again(count: int) -> Iterable[Any]:
        return itertools.repeat(into, count)

    def made(count: int) -> Iterable[Any]:
        return (make() for _ in range(count)) if make else ()

    places = made if make else again
    return Line(endpoint, worker, out, places, bytearray(1))


def _commands(me: Child) -> Iterator[tuple[str, int, int, int]]:
    for heard in iter(me.control.readline, b""):
        measure, nbytes, window, count = heard.decode().split()
        yield measure, int(nbytes), int(window), int(count)


class Loops(NamedTuple):
    """The loop of either end, what it works with at a size, and the lanes that it takes."""

    ping: Callable[[Any, str, int, array.array[int]], Any]
    pong: Callable[[Any, str, int, int], Any]
    line: Callable[[int], Any]
    lanes: Callable[[], list[str]]


def child(arguments: Sequence[str]) -> None:
    """Run one side of a pair; `arguments` are transport, wait, memory, role, nbytes, limit_s, control_fd and tls."""
    transport, wait, memory, role, nbytes, limit_s, control_fd, tls = arguments
    with contextlib.ExitStack() as stack:
        me = stack.enter_context(opened(role, nbytes, limit_s, control_fd, tls))
        runner = stack.enter_context(asyncio.Runner()) if wait == "await" else None
        over = _over_pool(me, transport, wait) if transport in LENT else _over_ucp(me, transport, wait, memory)
        _serve(me, stack.enter_context(over), runner)


@contextlib.contextmanager
def _over_ucp(me: Child, transport: str, wait: str, memory: str) -> Generator[Loops]:
    features = ["amo"] if transport in WITHOUT_PEER_ERRORS else []
    alone = transport == "self"
    with connected(me.swap, {"TLS": me.tls}, features=features, alone=alone) as (endpoint, worker):

        def line(nbytes: int) -> Line:
            return _line(me, memory, nbytes, endpoint, worker)

        awaits = wait == "await"
        if alone:
            pings, pongs = (_self_ping_block, _self_ping_await), (_self_pong_block, _self_pong_await)
        else:
            pings, pongs = (_ping_block, _ping_await), (_pong_block, _pong_await)
        yield Loops(pings[awaits], pongs[awaits], line, lambda: endpoint.transports)


@contextlib.contextmanager
def _over_pool(me: Child, transport: str, wait: str) -> Generator[Loops]:
    from weft.bench.common import lent_loops as lent

    with lent.connected(me) as peer:

        def line(nbytes: int) -> lent.Line:
            return lent.line_of(peer, transport, nbytes)

        awaits = wait == "await"
        pings, pongs = (lent.ping_block, lent.ping_await), (lent.pong_block, lent.pong_await)
        yield Loops(pings[awaits], pongs[awaits], line, lambda: lent.lanes(peer, transport))


def _serve(me: Child, loops: Loops, runner: asyncio.Runner | None) -> None:

    def run(done: Any) -> Any:
        return runner.run(done) if runner else done

    def timed(line: Any, measure: str, window: int, count: int) -> bytes:
        stamps = array.array("q", [0]) * (count + 1)
        if me.pings:
            into = run(loops.ping(line, measure, window, stamps))
        else:
            into = run(loops.pong(line, measure, window, count + 1))
        if into is not None and int(into[-1]) != FILL:
            raise BenchError("the message that arrived is not the one that was sent")
        return array.array("q", map(operator.sub, stamps[1:], stamps)).tobytes()

    timed(loops.line(min(me.nbytes, LENT_LEAST_NBYTES)), "latency", 1, 0)
    me.say(",".join(loops.lanes()))
    laid: tuple[int, Any] | None = None
    for measure, nbytes, window, count in _commands(me):
        if laid is None or laid[0] != nbytes:
            laid = nbytes, loops.line(nbytes)
        durations = timed(laid[1], measure, trips_of(nbytes) if measure == "latency" else window, count)
        if me.pings:
            me.control.write(durations)
            me.control.flush()
