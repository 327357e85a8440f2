# SPDX-License-Identifier: BSD-3-Clause
"""The format of messages in a TLS channel's stream: kind, number of segments, their sizes, their bytes. No sockets.

Each message knows how far it has been sent or received, and takes each step by storing one value. So a step that an
exception of a signal handler interrupted was either taken or not, and is never taken in part.
"""

from __future__ import annotations

import struct
from typing import Any

from weft import _native
from weft._frames import MAX_LARGE, in_memory_order
from weft._request import PythonRequest
from weft.errors import ReadOnlyError, UnsupportedError

DATA, GOODBYE, ACKNOWLEDGE = range(3)
#: A TLS record holds at most this many bytes.
RECORD_NBYTES = 1 << 14
#: Bytes encrypted at once, and that pass the socket at once.
PIECE_NBYTES = 1 << 18
_HEAD = struct.Struct("<II")


class StreamError(Exception):
    """The other side broke the format, or ended the stream."""


class Outgoing:
    """A message being sent, and the part of it that is not yet encrypted.

    `operation` is None for the channel's own messages; it completes with the `last` of its messages.
    """

    __slots__ = ("begun", "last", "operation", "parts", "place")

    def __init__(
        self, operation: PythonRequest[None] | None, kind: int, segments: list[memoryview], *, last: bool = True
    ) -> None:
        sizes = struct.pack(f"<{len(segments)}Q", *(segment.nbytes for segment in segments))
        head = _HEAD.pack(kind, len(segments)) + sizes
        if segments and segments[0].nbytes <= RECORD_NBYTES:  # in one record with the head: see `piece`
            head = b"".join((head, segments[0]))
            segments = segments[1:]
        self.operation = operation
        self.parts = [memoryview(head), *(segment for segment in segments if segment.nbytes)]
        self.place = (0, 0)  # the next part, and the next byte in it
        self.begun, self.last = False, last

    @property
    def complete(self) -> bool:
        """Whether all of it is encrypted."""
        return self.place[0] == len(self.parts)

    def piece(self) -> memoryview:
        """Return the next piece to encrypt, whose records do not have a single byte.

        Where the receiver does not know how much a record holds, it takes the first byte, and sees by the rest that
        it has done so.
        """
        part, at = self.place
        rest = self.parts[part][at:]
        if rest.nbytes % RECORD_NBYTES == 1 and 1 < rest.nbytes <= PIECE_NBYTES + 1:
            return rest[:-2]  # as `Message.record_nbytes` expects
        return rest[:PIECE_NBYTES]

    def go_on(self, nbytes: int) -> None:
        """Move on by `nbytes` that were encrypted."""
        part, at = self.place
        self.place = (part, at + nbytes) if at + nbytes < self.parts[part].nbytes else (part + 1, 0)


class Message:
    """A message being received, or received; the `number`-th of the connection, after `start` bytes of others."""

    __slots__ = ("_count", "_parts", "kind", "nbytes", "number", "place", "start")

    def __init__(self, number: int, start: int) -> None:
        self.number, self.start = number, start
        self.kind = self.nbytes = self._count = 0
        self._parts: tuple[memoryview, ...] = (
            memoryview(bytearray(_HEAD.size)),
        )  # then the sizes, then the segments, as they become known
        self.place = (0, 0)  # the part being filled, and how much of it is

    @property
    def segments(self) -> tuple[memoryview, ...]:
        """The message itself."""
        return self._parts[2:]

    @property
    def end(self) -> int:
        """The bytes of all messages up to this one."""
        return self.start + self.nbytes

    @property
    def complete(self) -> bool:
        """Whether all of it has arrived."""
        return self.place[0] == len(self._parts)

    def room(self) -> memoryview:
        """Return where the next bytes belong; empty if a part is full, or the message."""
        part, at = self.place
        return self._parts[part][at:]

    def record_nbytes(self) -> int:
        """Return how much of the next record the room takes, if weft has sent it; 1 where that is not known."""
        part, at = self.place
        rest = len(self._parts[part]) - at
        if part > 1 and at % RECORD_NBYTES == 0 and rest >= RECORD_NBYTES:
            return RECORD_NBYTES - 1 if rest == RECORD_NBYTES + 1 else RECORD_NBYTES
        return 1 if part or at else _HEAD.size

    def fill(self, nbytes: int) -> None:
        """Move on by `nbytes` that were written to the room."""
        part, at = self.place
        self.place = (part, at + nbytes)

    def go_on(self) -> None:
        """Go on to the part after one that is full."""
        part = self.place[0] + 1
        if part == len(self._parts) == 1:
            self.kind, self._count = _HEAD.unpack(self._parts[0])
            if self.kind > ACKNOWLEDGE or self._count > MAX_LARGE + 1 or (self.kind == DATA) != (self._count > 0):
                raise StreamError(f"the other side sent a message of kind {self.kind} with {self._count} segments")
            self._parts = (self._parts[0], memoryview(bytearray(8 * self._count)))
        elif part == len(self._parts) == 2:
            sizes = struct.unpack(f"<{self._count}Q", self._parts[1])
            self.nbytes = sum(sizes)
            self._parts = (*self._parts, *(_native.pool_allocate(nbytes) for nbytes in sizes))
        self.place = (part, 0)


def bytes_of(buffer: Any, op: str) -> memoryview:
    """View a contiguous buffer as bytes; `op` is the operation that errors name."""
    try:
        return in_memory_order(buffer, op)
    except TypeError:
        raise _no_bytes(buffer, op, "copy it to host memory first") from None


def _no_bytes(buffer: object, op: str, remedy: str) -> Exception:
    name = type(buffer).__name__
    if hasattr(buffer, "__dlpack__") or hasattr(buffer, "__cuda_array_interface__"):
        return UnsupportedError(f"{op} over TLS: {name} has no buffer protocol; {remedy}", op=op)
    return TypeError(
        f"{op}: {name} is no buffer: it has neither the buffer protocol, nor __dlpack__, nor __cuda_array_interface__"
    )


def writable_bytes_of(buffer: Any) -> memoryview:
    """View a contiguous buffer as bytes to receive into."""
    try:
        view = in_memory_order(buffer, "recv_into")
    except TypeError:
        raise _no_bytes(buffer, "recv_into", "receive into host memory") from None
    if view.readonly:
        text = f"recv_into: the destination ({type(buffer).__name__}) is read-only; use a bytearray or a writable array"
        raise ReadOnlyError(text, op="recv_into")
    return view
