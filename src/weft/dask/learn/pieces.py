# SPDX-License-Identifier: BSD-3-Clause
"""The frames of a value in pieces, which are forwarded while others are still in flight.

``fanout`` decides which worker sends to which.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from distributed.comm.core import CommClosedError
from distributed.utils import nbytes

from weft import _native
from weft.errors import Error

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from weft.typing import Request

#: Frames below this size travel with the answer that announces the pieces.
SMALL_NBYTES = 64 << 10
#: Pieces in flight at once. With 3 on two busy cores, a port of 200 Mb/s was idle for a sixth of the time.
_AT_ONCE = 8


class PieceComm(Protocol):
    """The methods of a ``ucx://`` comm that are used here."""

    def send_piece(self, piece: memoryview) -> Request[None]: ...
    def recv_piece(self, into: memoryview) -> Request[int]: ...
    def sending_pieces(self, nbytes: int) -> AbstractContextManager[list[int]]: ...
    def pieces_received(
        self, nbytes: int, seconds: float | None, at_once: float, *, of_nbytes: int | None = None
    ) -> None: ...
    async def read(self) -> Any: ...
    async def write(self, msg: Any) -> int: ...
    async def close(self) -> None: ...
    def abort(self) -> None: ...


class GoneError(Exception):
    """The worker does not have the pieces, or no longer has them."""


class Copy:
    """The frames of one value.

    Parameters
    ----------
    frames : sequence
        Small ones as they are; for a large one its memory, or its size in bytes if it has yet to arrive.
    piece_nbytes : int
        Large frames are sent in pieces of this size; no piece spans two frames.
    on_landed : callable, optional
        Called with the bytes of each piece that arrives.

    Attributes
    ----------
    have : int
        Number of pieces that have arrived without a gap, from the first.
    beyond : set of int
        The numbers of other pieces that have arrived.
    receivers : int
        Workers that receive pieces from here now.
    value : object
        The value, once it was made from the frames.
    """

    def __init__(
        self, frames: Sequence[Any], piece_nbytes: int, on_landed: Callable[[int], None] | None = None
    ) -> None:
        self.frames: list[Any] = []
        self.pieces: list[memoryview] = []
        coming = False
        for frame in frames:
            if isinstance(frame, int):
                coming = True
                memory = _native.pool_allocate(frame)
            else:
                memory = memoryview(frame).cast("B")
            self.frames.append(memory)
            if len(memory) >= SMALL_NBYTES:
                self.pieces += [memory[at : at + piece_nbytes] for at in range(0, len(memory), piece_nbytes)]
        self.have = 0 if coming else len(self.pieces)
        self.beyond: set[int] = set()
        self.value: Any = None
        self.failed = False
        self.users = self.receivers = 0
        self._on_landed = on_landed
        self._changed = asyncio.Event()

    @property
    def whole(self) -> bool:
        """Whether every piece has arrived."""
        return self.have == len(self.pieces)

    @property
    def have_nbytes(self) -> int:
        """The bytes of the pieces that have arrived."""
        return sum(map(len, self.pieces[: self.have])) + sum(len(self.pieces[number]) for number in self.beyond)

    def landed(self, number: int) -> None:
        """Record that a piece has arrived; earlier ones may not have."""
        self.beyond.add(number)
        while self.have in self.beyond:
            self.beyond.discard(self.have)
            self.have += 1
        if self._on_landed is not None:
            self._on_landed(len(self.pieces[number]))
        self.change()

    async def changed(self) -> None:
        """Return when something has changed."""
        await self._changed.wait()

    def change(self) -> None:
        """Wake all waiters: a piece has arrived, the value is made, or nothing more will arrive."""
        self._changed.set()
        self._changed = asyncio.Event()

    def fail(self) -> None:
        """Give up: nothing more will arrive."""
        self.failed = True
        self.change()

    async def until(self, number: int) -> memoryview:
        """Wait for a piece, and return it.

        Raises
        ------
        GoneError
            It will not arrive.
        """
        while self.have <= number:
            if self.failed:
                raise GoneError
            await self._changed.wait()
        return self.pieces[number]

    async def made(self) -> Any:
        """Wait for the value, and return it.

        Raises
        ------
        GoneError
            It will not be made.
        """
        while self.value is None:
            if self.failed:
                raise GoneError
            await self._changed.wait()
        return self.value


def announce(frames: Sequence[Any]) -> list[Any]:
    """Return the announcement of frames: the small ones, and the size of each large one."""
    return [nbytes(frame) if nbytes(frame) >= SMALL_NBYTES else bytes(frame) for frame in frames]


@contextlib.contextmanager
def aborting(comm: PieceComm) -> Generator[None]:
    """Abort a comm if the block fails for any reason; errors of UCX are raised as Dask's."""
    try:
        yield
    except BaseException as e:
        comm.abort()
        if isinstance(e, Error):
            raise CommClosedError(f"{comm!r}: {e}") from e
        raise


async def send(comm: PieceComm, copy: Copy, begin: int) -> None:
    """Send the pieces from number `begin` on, each as soon as it has arrived.

    Raises
    ------
    OSError
        The peer is lost; the comm is aborted.
    GoneError
        The pieces will not arrive; the comm is aborted.
    """
    under_way: deque[Request[None]] = deque()
    with aborting(comm):
        with comm.sending_pieces(sum(map(len, copy.pieces[begin:]))):
            for number in range(begin, len(copy.pieces)):
                piece = copy.pieces[number] if number < copy.have else await copy.until(number)
                under_way.append(comm.send_piece(piece))
                if len(under_way) >= _AT_ONCE:
                    await under_way.popleft()
            while under_way:
                await under_way.popleft()
        if await comm.read() != "OK":
            raise CommClosedError(f"{comm!r}: the pieces were not acknowledged")


async def receive(comm: PieceComm, copy: Copy, *, timed: bool) -> None:
    """Receive the missing pieces, in order.

    Parameters
    ----------
    timed : bool
        The sender has the whole value, so that the time measures the link.

    Raises
    ------
    OSError
        The peer is lost, or sent something else; the comm is aborted. Pieces that have arrived stay.
    """
    under_way: deque[Request[int]] = deque()
    copy.beyond.clear()  # they are sent again
    posted = first = copy.have
    began = time.perf_counter()
    try:
        with aborting(comm):
            while not copy.whole:
                while posted < len(copy.pieces) and len(under_way) < _AT_ONCE:
                    under_way.append(comm.recv_piece(copy.pieces[posted]))
                    posted += 1
                size = await under_way.popleft()
                if size != len(copy.pieces[copy.have]):
                    raise CommClosedError(f"{comm!r}: a piece has {size} B")
                copy.landed(copy.have)
            await comm.write("OK")
    finally:
        got = sum(map(len, copy.pieces[first : copy.have]))
        comm.pieces_received(got, time.perf_counter() - began if timed and copy.whole else None, _AT_ONCE)
