# SPDX-License-Identifier: BSD-3-Clause
"""The format of messages in a TLS channel's stream: kind, number of segments, their sizes, their bytes. No sockets."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator
from typing import Any

from weft import _native
from weft._frames import MAX_LARGE, in_memory_order
from weft._tls.operation import Operation
from weft.errors import ReadOnlyError, UnsupportedError

DATA, GOODBYE, ACKNOWLEDGE = range(3)
#: Bytes encrypted at once.
PIECE_NBYTES = 1 << 18
_HEAD = struct.Struct("<II")


class Outgoing:
    """A message being sent, and the part of it that is not yet encrypted.

    `operation` is None for the channel's own messages; it completes with the `last` of its messages.
    """

    __slots__ = ("begun", "last", "operation", "parts")

    def __init__(
        self, operation: Operation[None] | None, kind: int, segments: list[memoryview], *, last: bool = True
    ) -> None:
        sizes = struct.pack(f"<{len(segments)}Q", *(segment.nbytes for segment in segments))
        head = memoryview(_HEAD.pack(kind, len(segments)) + sizes)
        self.operation = operation
        self.parts = deque([head, *(segment for segment in segments if segment.nbytes)])
        self.begun, self.last = False, last

    def next_piece(self) -> memoryview:
        """Remove and return the next piece to encrypt."""
        self.begun = True
        whole = self.parts.popleft()
        if whole.nbytes > PIECE_NBYTES:
            self.parts.appendleft(whole[PIECE_NBYTES:])
        return whole[:PIECE_NBYTES]


def message_parts() -> Generator[memoryview, None, tuple[int, tuple[memoryview, ...]]]:
    """Yield the buffers that the next message fills, one by one; return its kind and segments."""
    head = memoryview(bytearray(_HEAD.size))
    yield head
    kind, count = _HEAD.unpack(head)
    if kind > ACKNOWLEDGE or count > MAX_LARGE + 1 or (kind == DATA) != (count > 0):
        raise ConnectionError(f"the other side sent a message of kind {kind} with {count} segments")
    sizes = memoryview(bytearray(8 * count))
    yield sizes
    segments = tuple(_native.pool_allocate(nbytes) for nbytes in struct.unpack(f"<{count}Q", sizes))
    yield from segments
    return kind, segments


def bytes_of(buffer: Any) -> memoryview:
    """View a contiguous buffer as bytes."""
    try:
        return in_memory_order(buffer)
    except TypeError:
        raise UnsupportedError(
            f"send over TLS: {type(buffer).__name__} has no buffer protocol; copy it to host memory first", op="send"
        ) from None


def writable_bytes_of(buffer: Any) -> memoryview:
    """View a contiguous buffer as bytes to receive into."""
    try:
        view = in_memory_order(buffer, "recv_into")
    except TypeError:
        raise UnsupportedError(
            f"recv_into over TLS: {type(buffer).__name__} has no buffer protocol; receive into host memory",
            op="recv_into",
        ) from None
    if view.readonly:
        text = f"recv_into: the destination ({type(buffer).__name__}) is read-only; use a bytearray or a writable array"
        raise ReadOnlyError(text, op="recv_into")
    return view
