# SPDX-License-Identifier: BSD-3-Clause
"""The server's and the client's half of ``weft bench send-recv``, over a TCP socket that both have open.

The client sends, the server sends back what came. Over weft the socket only carries the parameters and the workers'
addresses; with the other backends it carries the messages. What both do is written once, as a generator of requests
that is driven blocking or awaiting; that costs 50 ns a request, which ``weft bench pingpong`` does without.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import weft
from weft import _distribution
from weft.bench.common.child import TAG, connected

if TYPE_CHECKING:
    from weft import Endpoint, Request, Worker

#: Of the active messages.
AM_ID = 1
KINDS = ("numpy", "cupy", "rmm", "torch")
#: Seconds that the other side has to stop when this one ends before its time.
STOP_S = 1.0
_GONE = "send-recv: the other side went away"
Steps = Generator["Request[Any]", Any, list[float]]


class Parameters(NamedTuple):
    """What client and server must agree on."""

    over: str
    api: str
    nbytes: int
    buffers: int
    iterations: int


class Objects(NamedTuple):
    """How one side makes what it sends, and where it receives; both return `nbytes` of the kind."""

    filled: Callable[[], Any]
    place: Callable[[], Any]
    host: bool = False


class Result(NamedTuple):
    """What the client brings back: seconds of each round trip, warm-up included, and the lanes."""

    seconds: list[float]
    lanes: list[str]


def objects(kind: str, nbytes: int, device: int) -> Objects:
    """Make the two allocators of a kind.

    Raises
    ------
    UnsupportedError
        The package, or a CUDA device with that index, is missing.
    """
    try:
        if kind == "numpy":
            import numpy as np

            # not np.arange(nbytes), whose integers take eight times as much
            each = np.arange(256, dtype="u1")
            return Objects(lambda: np.resize(each, nbytes), lambda: np.zeros(nbytes, dtype="u1"), host=True)
        if kind == "torch":
            torch: Any = importlib.import_module("torch")

            at = torch.device("cuda", device)
            torch.zeros(1, device=at)
            return Objects(
                lambda: torch.arange(nbytes, dtype=torch.uint8, device=at),
                lambda: torch.zeros(nbytes, dtype=torch.uint8, device=at),
            )
        cupy: Any = importlib.import_module("cupy")

        cupy.cuda.Device(device).use()
        cupy.zeros(1)
        if kind == "rmm":
            rmm: Any = importlib.import_module("rmm")

            return Objects(lambda: rmm.DeviceBuffer.to_device(bytes(nbytes)), lambda: rmm.DeviceBuffer(size=nbytes))
        return Objects(lambda: cupy.arange(nbytes, dtype="u1"), lambda: cupy.zeros(nbytes, dtype="u1"))
    except (ImportError, RuntimeError, AssertionError) as error:
        if kind == "numpy":
            raise weft.UnsupportedError(f"NumPy is not installed: {_distribution.install('bench')}") from error
        needs = f"the package {kind} and CUDA device {device}"
        raise weft.UnsupportedError(f"send-recv of {kind} objects: needs {needs}: {error}") from error


def agree(control: Any, parameters: Parameters) -> None:
    """Tell the other side the parameters; raise unless it has the same."""
    control.write(json.dumps(parameters._asdict()).encode() + b"\n")
    heard = control.readline(4096)
    if not heard:
        raise weft.PeerLostError("send-recv: the other side closed without sending anything")
    try:
        theirs = json.loads(heard)
    except ValueError as error:
        raise weft.HandshakeError(f"send-recv: the other side is not weft bench send-recv: {heard[:60]!r}") from error
    if theirs != parameters._asdict():
        wrong = [
            f"{k} is {v} here and {theirs.get(k)} there" for k, v in parameters._asdict().items() if theirs.get(k) != v
        ]
        raise weft.HandshakeError(f"send-recv: give both sides the same options: {', '.join(wrong)}")


@contextlib.contextmanager
def _controlled(sock: socket.socket, parameters: Parameters) -> Generator[Any]:
    # unbuffered: with some backends messages follow on the same socket
    with sock.makefile("rwb", buffering=0) as control:
        agree(control, parameters)
        yield control


def _gone(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def over_weft(
    sock: socket.socket,
    parameters: Parameters,
    make: Objects,
    *,
    client: bool,
    reuse: bool,
    waits: bool,
    settings: Mapping[str, str],
) -> Result:
    """Run one side over weft, awaiting if `waits`, else blocking."""
    with _controlled(sock, parameters) as control, contextlib.ExitStack() as stack:

        def swap(text: str) -> str:
            control.write(f"{text}\n".encode())
            if heard := control.readline():
                return str(heard.decode().strip())
            raise weft.PeerLostError(_GONE)

        runner = stack.enter_context(asyncio.Runner()) if waits else None
        endpoint, worker = stack.enter_context(connected(swap, settings))
        if parameters.api == "am":
            # UCX drops active messages whose id was never asked for: both have, before either sends
            worker.am_recv(AM_ID).cancel()
            swap("ready")
        move = _Mover(endpoint, worker, parameters, make, reuse=reuse)
        steps = move.client() if client else move.server()
        try:
            seconds = runner.run(_awaited(steps, sock)) if runner else _blocked(steps, sock)
        except BaseException:
            _end(sock, worker)
            raise
        lanes = endpoint.transports
        # what this side sent last must be at the other before either closes
        swap("done")
    return Result(seconds, lanes)


def _end(sock: socket.socket, worker: Worker) -> None:
    """Close before the time. UCX tells of each message that nobody took: have both sides stop, then take them."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(STOP_S)
        while sock.recv(4096):
            pass
    while worker.progress() or worker.tag_probe(TAG, remove=True):
        pass
    worker.close()


# Both wait for UCX alone, which tells nothing of a peer whose memory is shared and who is gone. The socket tells it,
# and what is timed stays as it is: blocking, by a signal; awaiting, by the loop, whose callbacks swallow what a signal
# raises.


def _blocked(steps: Steps, sock: socket.socket) -> list[float]:
    value: Any = None
    with _signalled(sock):
        try:
            while True:
                value = steps.send(value).wait()
        except StopIteration as end:
            return list(end.value)


@contextlib.contextmanager
def _signalled(sock: socket.socket) -> Generator[None]:
    def look(*_: object) -> None:
        if _gone(sock):
            raise weft.PeerLostError(_GONE)

    flags = fcntl.fcntl(sock, fcntl.F_GETFL)
    before = signal.signal(signal.SIGIO, look)
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        look()  # it may have gone before
        yield
    finally:
        fcntl.fcntl(sock, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, before)


async def _awaited(steps: Steps, sock: socket.socket) -> list[float]:
    loop, task, gone, value = asyncio.get_running_loop(), asyncio.current_task(), False, None

    def look() -> None:
        nonlocal gone
        loop.remove_reader(sock)  # what it says last may lie there
        if gone := _gone(sock):
            assert task is not None
            task.cancel()

    loop.add_reader(sock, look)
    try:
        while True:
            value = await steps.send(value)
    except StopIteration as end:
        return list(end.value)
    except asyncio.CancelledError:
        if gone:
            raise weft.PeerLostError(_GONE) from None
        raise
    finally:
        loop.remove_reader(sock)


class _Mover:
    """One side's sends and receives."""

    def __init__(
        self, endpoint: Endpoint, worker: Worker, parameters: Parameters, make: Objects, *, reuse: bool
    ) -> None:
        self.endpoint = endpoint
        self.worker = worker
        self.parameters = parameters
        self.make = make
        self.kept = [make.place() for _ in range(parameters.buffers)] if reuse else None

    def client(self) -> Steps:
        out = [self.make.filled() for _ in range(self.parameters.buffers)]
        back: list[Any] = []
        seconds: list[float] = []
        for _ in range(self.parameters.iterations):
            start = time.perf_counter()
            yield from self._send(out)
            back = yield from self._receive()
            seconds.append(time.perf_counter() - start)
        if self.make.host and memoryview(back[-1])[-1] != memoryview(out[-1])[-1]:
            raise weft.Error("send-recv: the data that came back differs from the data sent")
        return seconds

    def server(self) -> Steps:
        for _ in range(self.parameters.iterations):
            came = yield from self._receive()
            yield from self._send(came)
        return []

    def _send(self, buffers: list[Any]) -> Generator[Request[Any], Any, None]:
        if self.parameters.api == "am":
            requests = [self.endpoint.am_send(AM_ID, b"", each) for each in buffers]
        else:
            requests = [self.endpoint.tag_send(each, TAG) for each in buffers]
        for request in requests:  # noqa: UP028  a list's iterator takes no results
            yield request

    def _receive(self) -> Generator[Request[Any], Any, list[Any]]:
        if self.parameters.api == "am":
            received: list[Any] = []
            for request in [self.worker.am_recv(AM_ID) for _ in range(self.parameters.buffers)]:
                _, data = yield request
                received.append(data)
            return received
        places = self.kept or [self.make.place() for _ in range(self.parameters.buffers)]
        for receive in [self.worker.tag_recv(each, TAG) for each in places]:  # noqa: UP028  as above
            yield receive
        return places


def over_socket(sock: socket.socket, parameters: Parameters, make: Objects, *, client: bool, reuse: bool) -> Result:
    """Run one side over the socket itself, blocking."""
    with _controlled(sock, parameters):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out, kept, seconds = make.filled(), make.place() if reuse else None, list[float]()
        for _ in range(parameters.iterations):
            start = time.perf_counter()
            if client:
                sock.sendall(out)
            into = make.place() if kept is None else kept
            left = memoryview(into)
            while left and (got := sock.recv_into(left)):
                left = left[got:]
            if left:
                raise weft.PeerLostError(_GONE)
            if not client:
                sock.sendall(into)
            seconds.append(time.perf_counter() - start)
    return Result(seconds, ["tcp"])


def over_streams(sock: socket.socket, parameters: Parameters, make: Objects, *, client: bool) -> Result:
    """Run one side over asyncio's streams, which allocate for what they receive."""

    async def run() -> list[float]:
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**20)
        try:
            seconds = await trips(reader, writer)
            writer.close()
            await writer.wait_closed()
        finally:
            writer.transport.abort()
        return seconds

    async def trips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[float]:
        out, seconds = memoryview(make.filled()), list[float]()
        for _ in range(parameters.iterations):
            start = time.perf_counter()
            if client:
                writer.write(out)
                await writer.drain()
            came = await reader.readexactly(parameters.nbytes)
            if not client:
                writer.write(came)
                await writer.drain()
            seconds.append(time.perf_counter() - start)
        return seconds

    with _controlled(sock, parameters):
        # the transport takes a descriptor of its own and closes it
        sock = sock.dup()
    try:
        return Result(asyncio.run(run()), ["tcp"])
    except asyncio.IncompleteReadError as error:
        raise weft.PeerLostError(_GONE) from error
