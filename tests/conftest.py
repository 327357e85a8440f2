# SPDX-License-Identifier: BSD-3-Clause
"""What every test has: workers of its own, child processes that end with it, and counts of what leaks."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

import weft
from weft import _native


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="FOLDER", help="keep the dashboard's screenshots there")
    parser.addoption("--one-process", action="store_true", help="skip each test that starts another process")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> None:
    """Let SIGINT be what it is in a terminal: a shell starts background jobs with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def small_pages() -> None:
    """Keep small blocks of this process on small pages, whatever they cost this machine: tests count pages.

    Child processes decide by the machine.
    """
    _native.pool_small_on_huge(False)


@pytest.fixture(autouse=True, scope="module")
def collect_quickly() -> None:
    """Leave what is there before a module's tests out of their collections: each takes 1 ms in place of 60 and more.

    Once is not enough: pytest keeps a report of each test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the test skipped as soon as it starts another process, if the run is to be of one."""

    def refuse(*_: object, **__: object) -> None:
        pytest.skip("starts another process")

    if request.config.getoption("--one-process"):
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(os, "fork", refuse)


@pytest.fixture
def context() -> Iterator[weft.Context]:
    context = weft.Context({"TLS": "posix,self"})
    yield context
    gc.collect()


@pytest.fixture
def worker(context: weft.Context) -> Iterator[weft.Worker]:
    worker = weft.Worker(context)
    yield worker
    worker.close()


@pytest.fixture
def endpoint(worker: weft.Worker) -> weft.Endpoint:
    """An endpoint from the worker to itself: one thread can crank both sides."""
    return worker.connect(worker.address)


class Child:
    """A Python process that runs `code` and talks in lines."""

    def __init__(self, code: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child ended without a word"
        return line.strip()

    def say(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Stop it, and wait until it stands: on a busy machine it may take its signal late."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self, *, reap: bool = True) -> None:
        self.process.kill()
        if reap:
            self.process.wait(100)

    def wait(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(100)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """Start children; whatever is left of them is killed, by process id, at the end of the test."""
    children: list[Child] = []

    def start(code: str, *arguments: str, env: dict[str, str] | None = None) -> Child:
        children.append(Child(code, *arguments, env=env))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def fds() -> Callable[[], int]:
    """Count this process's open file descriptors."""

    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    return count
