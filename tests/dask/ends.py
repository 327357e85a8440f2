# SPDX-License-Identifier: BSD-3-Clause
"""Two comms that talk to each other: in one loop, in the loops of two threads, or with a process that listens.

Tests with the fixture `ends` run twice: both ends in one loop, where UCX only copies, and in the loops of two threads,
where there is a link that can break. The fixtures reach the tests through conftest, where distributed is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from distributed.comm import connect, listen
from distributed.comm.core import Comm

LOOPBACK = "ucx://127.0.0.1"
KIB, MIB = 1024, 1024**2


@pytest.fixture
def no_comms_left() -> Iterator[None]:
    """Every comm that a test opened is closed at its end."""
    yield
    gc.collect()  # dropped ones are open until then
    assert [comm for comm in Comm._instances if not comm.closed()] == []


class Elsewhere:
    """A comm in another thread's loop, used from this one's."""

    def __init__(self, comm: Comm, loop: asyncio.AbstractEventLoop) -> None:
        self.comm, self.loop = comm, loop

    def run(self, work: Awaitable[Any]) -> Awaitable[Any]:
        async def there() -> Any:
            return await work

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self.loop))

    def ask(self, question: Callable[[], Any]) -> Any:
        async def there() -> Any:
            return question()

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(100)

    async def read(self) -> Any:
        return await self.run(self.comm.read())

    async def write(self, msg: Any, **kwargs: Any) -> int:
        return await self.run(self.comm.write(msg, **kwargs))

    async def close(self) -> None:
        await self.run(self.comm.close())

    def abort(self) -> None:
        self.ask(self.comm.abort)

    def closed(self) -> bool:
        return self.ask(self.comm.closed)

    def __repr__(self) -> str:
        # pytest shows it when all is over, too.
        return object.__repr__(self) if self.loop.is_closed() else self.ask(lambda: repr(self.comm))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.ask(lambda: getattr(self.comm, name))


@contextlib.contextmanager
def second_loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[asyncio.AbstractEventLoop]:
    """Run another loop in another thread."""
    loop: asyncio.AbstractEventLoop | None = None
    stop: asyncio.Event | None = None
    ready = threading.Event()

    async def main() -> None:
        nonlocal loop, stop
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await stop.wait()

    def target() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    thread = threading.Thread(target=target)
    thread.start()
    assert ready.wait(100)
    assert loop is not None
    assert stop is not None
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(100)
        assert not thread.is_alive()


@contextlib.asynccontextmanager
async def ends_here(address: str = LOOPBACK, **both: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A connector's and a listener's comm, both in this loop."""
    accepted = asyncio.get_running_loop().create_future()

    async def handler(comm: Comm) -> None:
        accepted.set_result(comm)

    async with listen(address, handler, **both) as listener:
        connected = await connect(listener.contact_address, **both)
        other = await accepted
    try:
        yield connected, other
    finally:
        connected.abort()
        other.abort()


@contextlib.asynccontextmanager
async def ends_across(
    factory: Callable[[], asyncio.AbstractEventLoop], address: str = LOOPBACK, **both: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """The connector's comm in this loop, the listener's in another thread's."""
    with second_loop(factory) as loop:
        accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()
        here = accepted.get_loop()

        async def handler(comm: Comm) -> None:
            here.call_soon_threadsafe(accepted.set_result, comm)

        async def start() -> Any:
            return await listen(address, handler, **both)

        async def stop() -> None:
            listener.stop()

        listener = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), loop))
        connected = await connect(listener.contact_address, **both)
        other = Elsewhere(await accepted, loop)
        await other.run(stop())
        try:
            yield connected, other
        finally:
            connected.abort()
            other.abort()


Ends = Callable[..., contextlib.AbstractAsyncContextManager[tuple[Any, Any]]]


@pytest.fixture(params=["one loop", "two threads"])
def ends(request: pytest.FixtureRequest, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Ends:
    """``async with ends(address, **listen_and_connect_args) as (a, b)``."""
    if request.param == "one loop":
        return ends_here
    return lambda *args, **kwargs: ends_across(loop_factory, *args, **kwargs)


CHILD = """
import asyncio, contextlib, sys
from distributed.comm import CommClosedError, listen

async def main():
    async def handler(comm):
        with contextlib.suppress(CommClosedError):
            while sys.argv[1] != "sit":
                msg = await comm.read()
                if sys.argv[1] == "echo": await comm.write(msg)
            await asyncio.Event().wait()
    async with listen("ucx://127.0.0.1", handler, deserialize=False) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


def start_listening(mode: str) -> tuple[str, subprocess.Popen[str]]:
    """Start a process that listens and echoes, reads or just sits there; return its address and itself."""
    command = [sys.executable, "-c", CHILD, mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address.startswith("ucx://"):
        process.kill()
        process.communicate(timeout=100)
        pytest.fail(f"no listener: {address}")
    return address, process


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """The address of a process that sends back what it gets."""
    address, process = start_listening("echo")
    yield address
    process.communicate("", timeout=100)
    assert process.returncode == 0


async def until(true: Callable[[], bool], timeout: float = 10.0) -> None:
    """Wait until `true` says so; there is no event for a comm that its peer has left."""
    async with asyncio.timeout(timeout):
        while not true():
            await asyncio.sleep(0.001)
