# SPDX-License-Identifier: BSD-3-Clause
"""``ApplicationContext``: the context of UCXX's asyncio interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.compat._core import context
from weft.compat._core.endpoint import plain
from weft.compat.ucxx._lib.tag import TagProbeResult
from weft.compat.ucxx._lib.worker import UCXWorker
from weft.compat.ucxx._lib_async.endpoint import Endpoint
from weft.compat.ucxx._lib_async.listener import Listener

logger = logging.getLogger("ucx")

_MODES = ("blocking", "polling", "thread", "thread-polling")


def _bytes(nbytes: int) -> Any:
    return np.empty(nbytes, "u1")


class ApplicationContext(context.ApplicationContext[Endpoint, Listener]):
    """A UCP context with one worker, which belongs to the thread that first uses it; see :func:`ucxx.init`."""

    endpoint_type = Endpoint
    listener_type = Listener

    def __init__(
        self,
        config_dict: Mapping[str, str] | None = None,
        progress_mode: str | None = None,
        enable_delayed_submission: bool | None = None,
        enable_python_future: bool | None = None,
        connect_timeout: float | None = None,
    ) -> None:
        self.progress_mode = progress_mode or os.environ.get("UCXPY_PROGRESS_MODE", "thread")
        if self.progress_mode not in _MODES:
            raise ValueError(f"Unknown progress mode {self.progress_mode!r}, valid modes are: {', '.join(_MODES)}")
        threaded = self.progress_mode.startswith("thread")
        self.enable_delayed_submission = _switch(enable_delayed_submission, "UCXPY_ENABLE_DELAYED_SUBMISSION", threaded)
        if self.enable_delayed_submission and not threaded:
            raise ValueError(f"Delayed submission requested, but {self.progress_mode!r} does not support it")
        self.enable_python_future = _switch(enable_python_future, "UCXPY_ENABLE_PYTHON_FUTURE", False) and threaded
        super().__init__(config_dict, connect_timeout)

    def allocator(self) -> Callable[[int], Any]:
        """Return the function that allocates memory for active messages, with NumPy."""
        return _bytes

    @property
    def worker(self) -> UCXWorker:
        """The worker, with the interface of UCXX's core."""
        return UCXWorker.of(self, self.enable_delayed_submission, self.enable_python_future)

    def tag_probe(self, tag: Any, remove: bool = False) -> TagProbeResult:
        """Look for a message with this tag; `remove` takes it from the queue, for :meth:`recv_with_handle`."""
        return self.worker.tag_probe(tag, remove=remove)

    async def recv_with_handle(self, buffer: Any, probe_result: TagProbeResult) -> None:
        """Receive into `buffer` the message that a probe removed from the queue."""
        await self.core.native.tag_msg_recv(plain(buffer)[0], probe_result.take())


def _switch(told: bool | None, variable: str, default: bool) -> bool:
    if told is not None:
        return told
    return os.environ[variable] != "0" if variable in os.environ else default
