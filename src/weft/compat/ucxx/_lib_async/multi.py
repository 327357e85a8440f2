# SPDX-License-Identifier: BSD-3-Clause
"""How several buffers go as one: messages of one tag, first the sizes, in pieces of a known size, then the buffers."""

from __future__ import annotations

import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

_PER_HEADER = 32


def headers(sizes: Sequence[int]) -> list[array.array[int]]:
    """Return the messages that tell `sizes`: in each how many follow after it, and up to 32 sizes."""
    starts = range(0, max(len(sizes), 1), _PER_HEADER)
    pieces = [sizes[start : start + _PER_HEADER] for start in starts]
    return [
        array.array("Q", [len(sizes) - start, *piece, *[0] * (_PER_HEADER - len(piece))])
        for start, piece in zip(starts, pieces, strict=True)
    ]


async def sizes(recv: Callable[[Any], Awaitable[None]]) -> list[int]:
    """Receive what `headers` made."""
    found: list[int] = []
    while True:
        header = array.array("Q", bytes(8 * (_PER_HEADER + 1)))
        await recv(header)
        left, *piece = header
        found += piece[:left]
        if left <= _PER_HEADER:
            return found
