# SPDX-License-Identifier: BSD-3-Clause
"""How several buffers travel as one message: with one tag, first the sizes in fixed-size headers, then the buffers."""

from __future__ import annotations

import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

_PER_HEADER = 32


def headers(sizes: Sequence[int]) -> list[array.array[int]]:
    """Return the headers for `sizes`: each says how many follow, and has up to 32 sizes."""
    starts = range(0, max(len(sizes), 1), _PER_HEADER)
    pieces = [sizes[start : start + _PER_HEADER] for start in starts]
    return [
        array.array("Q", [len(sizes) - start, *piece, *[0] * (_PER_HEADER - len(piece))])
        for start, piece in zip(starts, pieces, strict=True)
    ]


async def sizes(recv: Callable[[Any], Awaitable[None]]) -> list[int]:
    """Receive the headers that `headers` made; return the sizes."""
    found: list[int] = []
    while True:
        header = array.array("Q", bytes(8 * (_PER_HEADER + 1)))
        await recv(header)
        left, *piece = header
        found += piece[:left]
        if left <= _PER_HEADER:
            return found
