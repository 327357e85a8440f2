# SPDX-License-Identifier: BSD-3-Clause
"""The two processes that are measured, each pinned to a core, as the process that measures them sees them.

What a child sees is in ``child``; what they and this process say to each other is at the head of ``c_loop.cpp``. This
process sleeps while they are measured.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from typing import IO, NamedTuple

from weft.bench.common.child import CLOSE_S
from weft.bench.common.errors import BenchError


class Spawned(NamedTuple):
    """A running child, the parent's end of its control socket, and the file that it prints to."""

    role: str
    process: subprocess.Popen[bytes]
    control: socket.socket
    log: IO[bytes]

    def state(self) -> tuple[str, str]:
        """Say how the child stands and what it printed last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0.5)
        code = self.process.returncode
        ended = f"died of signal {-code}" if (code or 0) < 0 else f"ended with status {code}"
        how = f"{self.role} runs" if code is None else f"{self.role} {ended}"
        self.log.seek(0)
        return how, self.log.read().decode(errors="replace").strip()[-1000:]


@contextlib.contextmanager
def _started(command: list[str], settings: Sequence[str], role: str, *, core: int | None) -> Generator[Spawned]:
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as log:
        with theirs:
            before = os.sched_getaffinity(0)
            # Inherited, not set afterwards: UCX's own threads are pinned with it.
            os.sched_setaffinity(0, before if core is None else {core})
            try:
                # In a session of its own, Ctrl-C reaches this process only, which ends them in order.
                process = subprocess.Popen(
                    [*command, str(theirs.fileno()), *settings],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            finally:
                os.sched_setaffinity(0, before)
        try:
            yield Spawned(role, process, ours, log)
        finally:
            process.kill()
            process.wait()


class Children(NamedTuple):
    """The two children of one measurement, and when (``time.monotonic``) their time is up."""

    pong: Spawned
    ping: Spawned
    deadline: float

    def connect(self) -> str:
        """Exchange their addresses; return the transports of the lanes between them, such as ``"posix"``."""
        pong, ping = self._line(self.pong), self._line(self.ping)
        self.ping.control.sendall(pong)
        self.pong.control.sendall(ping)
        self._line(self.pong)
        lanes = self._line(self.ping).decode().strip().split(",")
        return "+".join(dict.fromkeys(lane.partition("/")[0] for lane in lanes))

    def exchange(self, count: int, *, what: str = "") -> list[float]:
        """Have `what` done until `count` stamps are taken; return the seconds of each."""
        for each in (self.pong, self.ping):
            each.control.sendall(f"{what} {count}".strip().encode() + b"\n")
        durations = array.array("q", self._hear(self.ping, lambda heard: len(heard) == 8 * count))
        return [duration / 1e9 for duration in durations]

    def close(self) -> None:
        """Let both close at once, as peers do, and see that they can."""
        for each in (self.pong, self.ping):
            each.control.shutdown(socket.SHUT_WR)
        for each in (self.pong, self.ping):
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(CLOSE_S)
        if self.pong.process.returncode != 0 or self.ping.process.returncode != 0:
            raise self._failure("the pair did not close")

    def _line(self, speaker: Spawned) -> bytes:
        return self._hear(speaker, lambda heard: heard.endswith(b"\n"))

    def _hear(self, speaker: Spawned, complete: Callable[[bytearray], bool]) -> bytes:
        poll = select.poll()
        for each in (self.pong, self.ping):
            poll.register(each.control, select.POLLRDHUP | (select.POLLIN if each is speaker else 0))
        heard = bytearray()
        while not complete(heard):
            ready = dict(poll.poll(max(0.0, self.deadline - time.monotonic()) * 1e3))
            if not ready:
                raise self._failure("the pair hangs")
            chunk = speaker.control.recv(2**20) if list(ready) == [speaker.control.fileno()] else b""
            if not chunk:
                raise self._failure("the pair broke")
            heard += chunk
        return bytes(heard)

    def _failure(self, what: str) -> BenchError:
        states = [self.pong.state(), self.ping.state()]
        said = [f"{how}: {printed}" if printed else how for how, printed in states]
        last = next((printed.splitlines()[-1] for _, printed in states if printed), "")
        return BenchError("; ".join([what, *said]), last=last)


@contextlib.contextmanager
def children(
    command: Sequence[str],
    settings: Sequence[str],
    *,
    nbytes: int,
    limit_s: float,
    cores: Sequence[int],
    hosts: Sequence[Sequence[str]] = ((), ()),
) -> Generator[Children]:
    """Start both children; whatever happens, both are ended.

    Parameters
    ----------
    command, settings : sequence of str
        What stands before and after role, `nbytes`, limit in seconds and control descriptor on their command lines.
    nbytes : int
        The largest message.
    limit_s : float
        How long both may take together.
    cores : sequence of int
        Of the pong and the ping; empty to leave them where they are.
    hosts : sequence of sequence of str
        What runs a command on the host of the pong, and on that of the ping; nothing for this one.
    """
    with contextlib.ExitStack() as stack:
        spawned: list[Spawned] = []
        for role, core, host in zip(("pong", "ping"), cores or (None, None), hosts, strict=False):
            arguments = [*host, *command, role, str(nbytes), str(int(limit_s) + 5)]
            spawned.append(stack.enter_context(_started(arguments, settings, role, core=core)))
        yield Children(spawned[0], spawned[1], time.monotonic() + limit_s)


def two_cores() -> list[int]:
    """Return the cores to pin both to, or an empty list where there is only one."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    return cores if len(cores) == 2 else []
