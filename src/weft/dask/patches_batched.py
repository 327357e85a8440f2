# SPDX-License-Identifier: BSD-3-Clause
"""The part of distributed that weft replaces in its streams of small messages: when they are sent.

See also ``patches``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from weft.dask import patches

#: Messages for which nobody waits: a worker holds a copy now, a key may be dropped.
_PATIENT = frozenset({"add-keys", "release-worker-data", "free-keys", "client-releases-keys"})


def send_at_once(kind: type, wanted: Callable[[], bool]) -> None:
    """Let Dask's streams of small messages send what somebody waits for at once, over comms of this kind, if `wanted`.

    A ``BatchedSend`` sends at most one message per interval: from the scheduler to a worker 5 ms, from a worker 2,
    from a client 10 (batched.py:66). Tiny tasks on two workers spend half of their time in these pauses. What a stream
    is given in one turn of the event loop, or while it writes, still travels as one message.
    """
    stream: Any = importlib.import_module("distributed.batched").BatchedSend
    start, send = stream.start, stream.send
    if hasattr(start, "__wrapped__"):
        return
    known = patches.takes(start, "self", "comm") and patches.takes(send, "self", "msgs")
    known = known and {"next_deadline", "waker"} <= {*send.__code__.co_names}
    if not patches.as_known(known, "BatchedSend", "small messages wait for others"):
        return

    @functools.wraps(start)
    def started(self: Any, comm: Any) -> None:
        self.weft_at_once = isinstance(comm, kind) and wanted()
        start(self, comm)

    @functools.wraps(send)
    def sent(self: Any, *msgs: Any) -> None:
        send(self, *msgs)
        if self.next_deadline is not None and getattr(self, "weft_at_once", False) and not _can_wait(msgs):
            self.next_deadline = None
            self.waker.set()

    stream.start, stream.send = started, sent


def _can_wait(messages: tuple[Any, ...]) -> bool:
    return all(message.__class__ is dict and message.get("op") in _PATIENT for message in messages)
