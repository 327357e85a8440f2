# SPDX-License-Identifier: BSD-3-Clause
"""How the tests of the comm are run: coroutine tests each in a loop of their own, and nothing left behind.

A test that is a coroutine function runs once in asyncio's loop and once in uvloop's, if that is installed; a loop
that takes too long is ended with a traceback of what it was waiting for.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

if importlib.util.find_spec("distributed") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.dask.ends import echo, ends, no_comms_left  # noqa: F401

TIMEOUT_S = 200.0

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def _factories() -> dict[str, LoopFactory]:
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        factories = _factories()
        metafunc.parametrize("loop_factory", factories.values(), ids=factories, indirect=True)


@pytest.fixture(autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """Make the kind of loop that this test runs in."""
    return getattr(request, "param", asyncio.new_event_loop)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await pyfuncitem.obj(**arguments)

    complaints: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=pyfuncitem.funcargs["loop_factory"]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
        runner.run(main())
    gc.collect()  # a task whose exception nobody retrieved complains when it is collected
    assert complaints == []
    return True


def fd_count() -> int:
    """Count this process's open descriptors."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What weft says about parts of Dask that it does not know: each once in a process, here once in a test."""
    from weft.dask import patches

    patches._warn.cache_clear()
    caplog.set_level(logging.WARNING, "weft")
    yield caplog
    patches._warn.cache_clear()


@pytest.fixture(autouse=True)
def no_children_left() -> Iterator[None]:
    """Whatever happens in a test, it ends the processes that it started."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    # multiprocessing's resource tracker lasts as long as this process.
    left = [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]
    assert left == []
