# SPDX-License-Identifier: BSD-3-Clause
"""The loops of ``weft bench pingpong``, each as a user of that library would write it, and the child that runs one.

What a child and its parent say to each other is at the head of ``c_loop.cpp``.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import operator
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from weft.bench.common.child import FILL, TAG, Child, connected, opened, trips_of
from weft.bench.common.errors import BenchError


class Cell(NamedTuple):
    """What is measured at every size: a library and the way it waits."""

    library: str
    mode: str


_NAMES = (
    *("c block", "peer block", "peer await", "tags block", "tags await"),
    *("lent block", "tcp block", "asyncio await"),
)
#: In the order of a round. "peer" is :class:`weft.Peer`, "tags" are UCP's, over the worker and endpoint of weft. "lent"
#: is Peer's, too: what is handed over in place of being copied; see ``lent_loops``.
CELLS = tuple(Cell(*cell.split()) for cell in _NAMES)


class Loops(NamedTuple):
    """A library's loop from both ends, and the lanes that it takes."""

    ping: Callable[[array.array[int]], None]
    pong: Callable[[int], None]
    lanes: Callable[[], list[str]]


def awaited(
    runner: asyncio.Runner,
    ping: Callable[[array.array[int]], Coroutine[Any, Any, None]],
    pong: Callable[[int], Coroutine[Any, Any, None]],
    lanes: Callable[[], list[str]],
) -> Loops:
    """Make loops of coroutines."""

    def run_ping(stamps: array.array[int]) -> None:
        runner.run(ping(stamps))

    def run_pong(count: int) -> None:
        runner.run(pong(count))

    return Loops(run_ping, run_pong, lanes)


@contextlib.contextmanager
def _peer_block(me: Child) -> Generator[Loops]:
    from weft.bench.common import lent_loops

    with lent_loops.connected(me) as peer:

        def ping(stamps: array.array[int]) -> None:
            p, out, clock, into = peer, me.out, time.perf_counter_ns, memoryview(b"")
            trips = range(trips_of(me.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    p.send(out).wait()
                    into = p.recv().wait()
                stamps[i] = clock()
            me.into[-1] = into[-1]

        def pong(count: int) -> None:
            p, out, into = peer, me.out, memoryview(b"")
            for _ in range(count):
                into = p.recv().wait()
                p.send(out).wait()
            me.into[-1] = into[-1]

        yield Loops(ping, pong, lambda: peer.transports)


@contextlib.contextmanager
def _peer_await(me: Child) -> Generator[Loops]:
    from weft.bench.common import lent_loops

    with asyncio.Runner() as runner, lent_loops.connected(me) as peer:

        async def ping(stamps: array.array[int]) -> None:
            p, out, clock, into = peer, me.out, time.perf_counter_ns, memoryview(b"")
            trips = range(trips_of(me.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    await p.send(out)
                    into = await p.recv()
                stamps[i] = clock()
            me.into[-1] = into[-1]

        async def pong(count: int) -> None:
            p, out, into = peer, me.out, memoryview(b"")
            for _ in range(count):
                into = await p.recv()
                await p.send(out)
            me.into[-1] = into[-1]

        yield awaited(runner, ping, pong, lambda: peer.transports)


@contextlib.contextmanager
def _tags_block(me: Child) -> Generator[Loops]:
    with connected(me.swap, {"TLS": me.tls}) as (endpoint, worker):

        def ping(stamps: array.array[int]) -> None:
            ep, w, out, into, clock = endpoint, worker, me.out, me.into, time.perf_counter_ns
            trips = range(trips_of(me.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    ep.tag_send(out, TAG).wait()
                    w.tag_recv(into, TAG).wait()
                stamps[i] = clock()

        def pong(count: int) -> None:
            ep, w, out, into = endpoint, worker, me.out, me.into
            for _ in range(count):
                w.tag_recv(into, TAG).wait()
                ep.tag_send(out, TAG).wait()

        yield Loops(ping, pong, lambda: endpoint.transports)


@contextlib.contextmanager
def _tags_await(me: Child) -> Generator[Loops]:
    with asyncio.Runner() as runner, connected(me.swap, {"TLS": me.tls}) as (endpoint, worker):

        async def ping(stamps: array.array[int]) -> None:
            ep, w, out, into, clock = endpoint, worker, me.out, me.into, time.perf_counter_ns
            trips = range(trips_of(me.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    await ep.tag_send(out, TAG)
                    await w.tag_recv(into, TAG)
                stamps[i] = clock()

        async def pong(count: int) -> None:
            ep, w, out, into = endpoint, worker, me.out, me.into
            for _ in range(count):
                await w.tag_recv(into, TAG)
                await ep.tag_send(out, TAG)

        yield awaited(runner, ping, pong, lambda: endpoint.transports)


@contextlib.contextmanager
def _lent(me: Child) -> Generator[Loops]:
    from weft.bench.common import lent_loops as lent

    with lent.connected(me) as peer:
        line = lent.line_of(peer, "lent", me.nbytes)

        def ping(stamps: array.array[int]) -> None:
            me.into[-1] = lent.ping_block(line, "latency", trips_of(me.nbytes), stamps)[-1]

        def pong(count: int) -> None:
            me.into[-1] = lent.pong_block(line, "latency", 1, count)[-1]

        yield Loops(ping, pong, lambda: lent.lanes(peer, "lent"))


def _tcp_socket(me: Child) -> socket.socket:
    if me.pings:
        host, _, port = me.swap("-").partition(":")
        sock = socket.create_connection((host, int(port)))
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            me.swap("{}:{}".format(*listener.getsockname()))
            sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextlib.contextmanager
def _tcp(me: Child) -> Generator[Loops]:
    with _tcp_socket(me) as sock, memoryview(me.into) as into:

        def receive() -> None:
            got = 0
            while got < me.nbytes:
                arrived = sock.recv_into(into[got:])
                if arrived == 0:
                    raise EOFError("the other side closed")
                got += arrived

        def ping(stamps: array.array[int]) -> None:
            trips = range(trips_of(me.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    sock.sendall(me.out)
                    receive()
                stamps[i] = time.perf_counter_ns()

        def pong(count: int) -> None:
            for _ in range(count):
                receive()
                sock.sendall(me.out)

        yield Loops(ping, pong, lambda: ["tcp"])


@contextlib.contextmanager
def streams(me: Child, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Generator[Loops]:
    """Run asyncio's streams, in a loop of `loop_factory`."""
    with asyncio.Runner(loop_factory=loop_factory) as runner, memoryview(me.out) as out:
        reader, writer = runner.run(asyncio.open_connection(sock=_tcp_socket(me)))

        async def ping(stamps: array.array[int]) -> None:
            trips, got = range(trips_of(me.nbytes)), b""
            for i in range(len(stamps)):
                for _ in trips:
                    writer.write(out)
                    await writer.drain()
                    got = await reader.readexactly(me.nbytes)
                stamps[i] = time.perf_counter_ns()
            me.into[-1] = got[-1]

        async def pong(count: int) -> None:
            got = b""
            for _ in range(count):
                got = await reader.readexactly(me.nbytes)
                writer.write(out)
                await writer.drain()
            me.into[-1] = got[-1]

        yield awaited(runner, ping, pong, lambda: ["tcp"])
        writer.transport.abort()


Opener = Callable[[Child], contextlib.AbstractContextManager[Loops]]
_OPENERS = (_peer_block, _peer_await, _tags_block, _tags_await, _lent, _tcp, streams)
LOOPS: dict[Cell, Opener] = dict(zip(CELLS[1:], _OPENERS, strict=True))


def child(arguments: Sequence[str], openers: Mapping[Cell, Opener] = LOOPS) -> None:
    """Run one side of one pair; `arguments` are library, mode, role, nbytes, limit_s, control_fd and tls."""
    library, mode, role, nbytes, limit_s, control_fd, tls = arguments
    loops = openers[Cell(library, mode)]
    with opened(role, nbytes, limit_s, control_fd, tls) as me, loops(me) as (ping, pong, lanes):
        ping(array.array("q", [0])) if me.pings else pong(trips_of(me.nbytes))
        if me.into[-1] != FILL:
            raise BenchError("the message that arrived is not the one that was sent")
        me.say(",".join(lanes()))
        for line in iter(me.control.readline, b""):
            count = int(line)
            if not me.pings:
                pong((count + 1) * trips_of(me.nbytes))
                continue
            stamps = array.array("q", [0]) * (count + 1)
            ping(stamps)
            me.control.write(array.array("q", map(operator.sub, stamps[1:], stamps)).tobytes())
            me.control.flush()
