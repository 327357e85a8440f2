# SPDX-License-Identifier: BSD-3-Clause
"""The part of distributed that weft replaces in its streams of small messages: the pause between two of them.

See also ``patches``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from weft.dask import patches


def send_at_once(kind: type, wanted: Callable[[], bool]) -> None:
    """Let Dask's streams of small messages, if `wanted`, send without pause over comms of this kind.

    A ``BatchedSend`` sends at most one message per interval: from the scheduler to a worker 5 ms, from a worker 2,
    from a client 10 (batched.py:66). Tiny tasks on two workers spend half of their time in these pauses. Without
    them, what a stream is given in one turn of the event loop, or while it writes, still travels as one message.
    """
    stream: Any = importlib.import_module("distributed.batched").BatchedSend
    start = stream.start
    if hasattr(start, "__wrapped__"):
        return
    if not patches.as_known(patches.takes(start, "self", "comm"), "BatchedSend", "small messages wait for others"):
        return

    @functools.wraps(start)
    def start_at_once(self: Any, comm: Any) -> None:
        if isinstance(comm, kind) and wanted():
            self.interval = 0
        start(self, comm)

    stream.start = start_at_once
