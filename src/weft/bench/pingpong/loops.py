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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.bench.common.side import FILL, TAG, PairError, Side, joined, opened, trips_of


class Cell(NamedTuple):
    """What is measured at every size: a library and the way it waits."""

    library: str
    mode: str


_NAMES = ("c block", "weft block", "weft await", "lent block", "tcp block", "asyncio await")
#: In the order of a round. "lent" is weft's, too: what is handed over in place of being copied; see ``lent_loops``.
CELLS = tuple(Cell(*cell.split()) for cell in _NAMES)


class Loops(NamedTuple):
    """A library's loop from both ends, and the lanes that it takes."""

    ping: Callable[[array.array[int]], None]
    pong: Callable[[int], None]
    lanes: Callable[[], list[str]]


@contextlib.contextmanager
def _weft_block(side: Side) -> Iterator[Loops]:
    with joined(side.swap, {"TLS": side.tls}) as (endpoint, worker):

        def ping(stamps: array.array[int]) -> None:
            ep, w, out, into, clock = endpoint, worker, side.out, side.into, time.perf_counter_ns
            trips = range(trips_of(side.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    ep.tag_send(out, TAG).wait()
                    w.tag_recv(into, TAG).wait()
                stamps[i] = clock()

        def pong(count: int) -> None:
            ep, w, out, into = endpoint, worker, side.out, side.into
            for _ in range(count):
                w.tag_recv(into, TAG).wait()
                ep.tag_send(out, TAG).wait()

        yield Loops(ping, pong, lambda: endpoint.transports)


@contextlib.contextmanager
def _weft_await(side: Side) -> Iterator[Loops]:
    with asyncio.Runner() as runner, joined(side.swap, {"TLS": side.tls}) as (endpoint, worker):

        async def ping(stamps: array.array[int]) -> None:
            ep, w, out, into, clock = endpoint, worker, side.out, side.into, time.perf_counter_ns
            trips = range(trips_of(side.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    await ep.tag_send(out, TAG)
                    await w.tag_recv(into, TAG)
                stamps[i] = clock()

        async def pong(count: int) -> None:
            ep, w, out, into = endpoint, worker, side.out, side.into
            for _ in range(count):
                await w.tag_recv(into, TAG)
                await ep.tag_send(out, TAG)

        run = runner.run
        yield Loops(lambda stamps: run(ping(stamps)), lambda n: run(pong(n)), lambda: endpoint.transports)


@contextlib.contextmanager
def _lent(side: Side) -> Iterator[Loops]:
    from weft.bench.pingpong import lent_loops as lent

    with lent.joined(side) as peer:
        line = lent.line_of(peer, "lent", side.nbytes)

        def ping(stamps: array.array[int]) -> None:
            side.into[-1] = lent.ping_block(line, "latency", trips_of(side.nbytes), stamps)[-1]

        def pong(count: int) -> None:
            side.into[-1] = lent.pong_block(line, "latency", 1, count)[-1]

        yield Loops(ping, pong, lambda: lent.lanes(peer, "lent"))


def _tcp_socket(side: Side) -> socket.socket:
    if side.pings:
        host, _, port = side.swap("-").partition(":")
        sock = socket.create_connection((host, int(port)))
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            side.swap("{}:{}".format(*listener.getsockname()))
            sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextlib.contextmanager
def _tcp(side: Side) -> Iterator[Loops]:
    with _tcp_socket(side) as sock, memoryview(side.into) as into:

        def receive() -> None:
            got = 0
            while got < side.nbytes:
                arrived = sock.recv_into(into[got:])
                if arrived == 0:
                    raise EOFError("the other side closed")
                got += arrived

        def ping(stamps: array.array[int]) -> None:
            trips = range(trips_of(side.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    sock.sendall(side.out)
                    receive()
                stamps[i] = time.perf_counter_ns()

        def pong(count: int) -> None:
            for _ in range(count):
                receive()
                sock.sendall(side.out)

        yield Loops(ping, pong, lambda: ["tcp"])


@contextlib.contextmanager
def streams(side: Side, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Iterator[Loops]:
    """Run asyncio's streams, in a loop of `loop_factory`."""
    with asyncio.Runner(loop_factory=loop_factory) as runner, memoryview(side.out) as out:
        reader, writer = runner.run(asyncio.open_connection(sock=_tcp_socket(side)))

        async def ping(stamps: array.array[int]) -> None:
            trips, got = range(trips_of(side.nbytes)), b""
            for i in range(len(stamps)):
                for _ in trips:
                    writer.write(out)
                    await writer.drain()
                    got = await reader.readexactly(side.nbytes)
                stamps[i] = time.perf_counter_ns()
            side.into[-1] = got[-1]

        async def pong(count: int) -> None:
            got = b""
            for _ in range(count):
                got = await reader.readexactly(side.nbytes)
                writer.write(out)
                await writer.drain()
            side.into[-1] = got[-1]

        run = runner.run
        yield Loops(lambda stamps: run(ping(stamps)), lambda n: run(pong(n)), lambda: ["tcp"])
        writer.transport.abort()


Opener = Callable[[Side], contextlib.AbstractContextManager[Loops]]
LOOPS: dict[Cell, Opener] = dict(zip(CELLS[1:], (_weft_block, _weft_await, _lent, _tcp, streams), strict=True))


def child(arguments: Sequence[str], openers: Mapping[Cell, Opener] = LOOPS) -> None:
    """Run one side of one pair; `arguments` are library, mode, role, nbytes, limit_s, control_fd and tls."""
    library, mode, role, nbytes, limit_s, control_fd, tls = arguments
    loops = openers[Cell(library, mode)]
    with opened(role, nbytes, limit_s, control_fd, tls) as side, loops(side) as (ping, pong, lanes):
        ping(array.array("q", [0])) if side.pings else pong(trips_of(side.nbytes))
        if side.into[-1] != FILL:
            raise PairError("the message that arrived is not the one that was sent")
        side.say(",".join(lanes()))
        for line in iter(side.control.readline, b""):
            count = int(line)
            if not side.pings:
                pong((count + 1) * trips_of(side.nbytes))
                continue
            stamps = array.array("q", [0]) * (count + 1)
            ping(stamps)
            side.control.write(array.array("q", map(operator.sub, stamps[1:], stamps)).tobytes())
            side.control.flush()
