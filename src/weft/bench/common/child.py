# SPDX-License-Identifier: BSD-3-Clause
"""One of the two processes that are measured, from within: its control socket, its buffers, its endpoint to the other.

What the parent sees of both is in ``children``; the loops are in ``pingpong``, ``sweep`` and ``peers``. What a child
and its parent say to each other is at the head of ``c_loop.cpp``.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import signal
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weft import Endpoint, Worker

TAG = 0x77656674
FILL = 0x5A
CLOSE_S = 10.0
SMALL_NBYTES = 8192
#: Smaller messages are copied: the pool has no blocks for them.
LENT_LEAST_NBYTES = 64 << 10


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Let the kernel end this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def trips_of(nbytes: int) -> int:
    """Return how many round trips one reading of the clock covers.

    Reading it and storing the stamp takes 80 ns in Python, 35 ns in C: a quarter of an 8 B round trip.
    """
    return 10 if nbytes <= SMALL_NBYTES else 1


class Child(NamedTuple):
    """What one of the two works with; both mappings belong to it."""

    control: io.BufferedRWPair
    pings: bool
    nbytes: int
    tls: str
    out: mmap.mmap
    into: mmap.mmap

    def say(self, text: str) -> None:
        self.control.write(f"{text}\n".encode())
        self.control.flush()

    def swap(self, address: str) -> str:
        self.say(address)
        return self.control.readline().decode().strip()


def pages(nbytes: int) -> mmap.mmap:
    """Map pages as the C loop does: private, aligned to a page, faulted in."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


@contextlib.contextmanager
def opened(role: str, nbytes: str, limit_s: str, control_fd: str, tls: str) -> Generator[Child]:
    """Make a child from what its parent wrote on the command line."""
    # The parent may be killed while this spins: whatever happens, it ends.
    signal.alarm(int(limit_s))
    with socket.socket(fileno=int(control_fd)) as sock, sock.makefile("rwb") as control:
        me = Child(control, role == "ping", int(nbytes), tls, pages(int(nbytes)), pages(int(nbytes)))
        for start in range(0, me.nbytes, 2**20):
            me.out[start : start + 2**20] = bytes([FILL]) * min(2**20, me.nbytes - start)
        yield me


@contextlib.contextmanager
def connected(
    swap: Callable[[str], str], settings: Mapping[str, str], *, features: Sequence[str] = (), alone: bool = False
) -> Generator[tuple[Endpoint, Worker]]:
    """Connect weft to the other process, under these UCX settings; close at the same moment as it does.

    `swap` gives the other process a text and returns its own. Who is `alone` connects to itself.
    """
    import weft
    from weft.config import PairedContext

    context = PairedContext(settings, features=features)
    worker = weft.Worker(context)
    theirs = bytes.fromhex(swap(worker.address.hex()))
    endpoint = worker.connect(worker.address if alone else theirs)
    yield endpoint, worker
    # Both close at the same moment: either may see the other go first.
    with contextlib.suppress(weft.PeerLostError):
        endpoint.close().wait(CLOSE_S)
    worker.close()
    context.close()
