# SPDX-License-Identifier: BSD-3-Clause
"""The ping-pong of other libraries, as their users write it, and the children that run it in their environments.

weft is not installed there: the parent hands over the path of its sources, and only the halves of the benchmark that
need nothing but the standard library are imported from it. What the loops share is in ``pingpong.loops``.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import importlib
import os
import time
from collections.abc import Generator, Sequence
from typing import Any

from weft.bench.common.child import Child, trips_of
from weft.bench.pingpong import loops
from weft.bench.pingpong.loops import Cell, Loops


@contextlib.contextmanager
def _uvloop(me: Child) -> Generator[Loops]:
    import uvloop

    with loops.streams(me, uvloop.new_event_loop) as both:
        yield both


@contextlib.contextmanager
def _zmq(me: Child) -> Generator[Loops]:
    """Pair sockets of ZeroMQ over a Unix socket, its fastest way between processes."""
    zmq: Any = importlib.import_module("zmq")

    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        if me.pings:
            sock.connect(me.swap("-"))
        else:
            address = f"ipc://@weft-{os.getpid()}"
            sock.bind(address)
            me.swap(address)
        sock.linger = 0

        def ping(stamps: array.array[int]) -> None:
            trips = range(trips_of(me.nbytes))
            got: Any = None
            for i in range(len(stamps)):
                for _ in trips:
                    sock.send(me.out, copy=False)
                    got = sock.recv(copy=False)
                stamps[i] = time.perf_counter_ns()
            me.into[-1] = got.buffer[-1]

        def pong(count: int) -> None:
            got: Any = None
            for _ in range(count):
                got = sock.recv(copy=False)
                sock.send(me.out, copy=False)
            me.into[-1] = got.buffer[-1]

        yield Loops(ping, pong, lambda: ["ipc"])


@contextlib.contextmanager
def _ucx(me: Child, library: Any) -> Generator[Loops]:
    """Run ucx-py's or UCXX's asyncio API, which are alike, as they ship."""
    import numpy as np

    out, into = np.frombuffer(me.out, "u1"), np.frombuffer(me.into, "u1")
    with asyncio.Runner() as runner:
        endpoint: Any = runner.run(_endpoint(me, library))

        async def ping(stamps: array.array[int]) -> None:
            ep, trips = endpoint, range(trips_of(me.nbytes))
            for i in range(len(stamps)):
                for _ in trips:
                    await ep.send(out)
                    await ep.recv(into)
                stamps[i] = time.perf_counter_ns()

        async def pong(count: int) -> None:
            ep = endpoint
            for _ in range(count):
                await ep.recv(into)
                await ep.send(out)

        yield loops.awaited(runner, ping, pong, lambda: ["default"])
        # Both close at the same moment, which either library may answer with an error; all is measured.
        me.control.close()
        os._exit(0)


async def _endpoint(me: Child, library: Any) -> Any:
    if me.pings:
        return await library.create_endpoint("127.0.0.1", int(me.swap("-")))
    arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def accept(endpoint: Any) -> None:
        arrived.set_result((endpoint, listener))
        # the library closes the endpoint when this returns
        await asyncio.Event().wait()

    listener = library.create_listener(accept)
    me.swap(str(listener.port))
    endpoint, _ = await arrived
    return endpoint


@contextlib.contextmanager
def _ucx_py(me: Child) -> Generator[Loops]:
    with _ucx(me, importlib.import_module("ucp")) as both:
        yield both


@contextlib.contextmanager
def _ucxx(me: Child) -> Generator[Loops]:
    with _ucx(me, importlib.import_module("ucxx")) as both:
        yield both


@contextlib.contextmanager
def _drop_in(me: Child) -> Generator[Loops]:
    with _ucx(me, importlib.import_module("weft.compat.ucxx")) as both:
        yield both


OPENERS: dict[Cell, loops.Opener] = {
    Cell("uvloop", "await"): _uvloop,
    Cell("pyzmq", "block"): _zmq,
    Cell("drop-in", "await"): _drop_in,
    Cell("ucx-py", "await"): _ucx_py,
    Cell("ucxx", "await"): _ucxx,
}


def child(arguments: Sequence[str]) -> None:
    """Run one side of one pair, as :func:`weft.bench.pingpong.loops.child` does."""
    loops.child(arguments, OPENERS)
