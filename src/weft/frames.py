# SPDX-License-Identifier: BSD-3-Clause
"""Several buffers as one message: a table and the small ones first, each large one in memory of its own.

The first segment is ``count, size * count`` as little-endian 64-bit integers and then the small buffers, each
padded to 16 B; the large buffers follow as segments. Small ones are copied out on arrival: a small survivor must
not keep the whole message alive.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.errors import HandshakeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: From here a buffer travels as a segment of its own: it is sent from where it lies, and received into a
#: block of whole pages.
LARGE_NBYTES = 64 * 1024
#: The most segments that one header holds beside the first.
MAX_LARGE = 512
_PAD = 16

Message = memoryview | tuple[memoryview, ...]


def pack(buffers: Sequence[Buffer]) -> tuple[Buffer, list[Buffer]]:
    """Arrange `buffers` as the first segment and the large ones."""
    views = [memoryview(b) for b in buffers]
    sizes = [v.nbytes for v in views]
    threshold = _threshold(sizes)
    parts: list[Buffer] = [struct.pack(f"<{2 + len(sizes)}Q", len(sizes), threshold, *sizes)]
    large: list[Buffer] = []
    offset = 16 + 8 * len(sizes)
    for view, size in zip(views, sizes, strict=True):
        if size >= threshold:
            large.append(view)
            continue
        parts += [b"\0" * (-offset % _PAD), view]
        offset += -offset % _PAD + size
    return b"".join(parts), large


def _threshold(sizes: list[int]) -> int:
    """With more large buffers than one header holds, the smallest of them travel with the small ones."""
    large = sorted((s for s in sizes if s >= LARGE_NBYTES), reverse=True)
    return LARGE_NBYTES if len(large) <= MAX_LARGE else large[MAX_LARGE] + 1


def unpack(message: Message) -> list[Buffer]:
    """Return the buffers of a message made by :func:`pack`, writable and aligned."""
    first, large = (message, ()) if isinstance(message, memoryview) else (message[0], message[1:])
    try:
        count, threshold = struct.unpack_from("<2Q", first)
        if count > first.nbytes // 8:
            raise ValueError(f"a table of {count} buffers in {first.nbytes} B")
        sizes = struct.unpack_from(f"<{count}Q", first, 16)
        rest = iter(large)
        out: list[Buffer] = []
        offset = 16 + 8 * count
        for size in sizes:
            if size >= threshold:
                out.append(next(rest))
                continue
            offset += -offset % _PAD
            if offset + size > first.nbytes:
                raise ValueError("the table does not fit the message")
            out.append(bytearray(first[offset : offset + size]))
            offset += size
    except (struct.error, ValueError, StopIteration) as e:
        raise HandshakeError(f"recv: the message is not a list of buffers, was it sent by send_frames? {e}") from None
    return out
