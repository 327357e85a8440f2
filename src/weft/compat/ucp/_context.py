# SPDX-License-Identifier: BSD-3-Clause
"""``ApplicationContext``: the UCP context, its worker, and what is open on it. ``core`` makes the process's one."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Protocol
from weakref import WeakSet

import weft
from weft.compat.ucp import _describe
from weft.compat.ucp._worker import Worker
from weft.compat.ucp.exceptions import UCXConfigError

log = logging.getLogger("ucx")


class Closable(Protocol):
    """An endpoint or a listener."""

    def closed(self) -> bool:
        """Tell whether it has ended."""
        ...


class ApplicationContext:
    """A UCP context with one worker, which belongs to the thread that first uses it.

    Parameters
    ----------
    config_dict : mapping of str to str
        UCX settings without ``UCX_``.
    connect_timeout : float, optional
        Seconds for a handshake; by default ``UCXPY_CONNECT_TIMEOUT``, else 5.
    """

    def __init__(self, config_dict: Mapping[str, str] | None = None, connect_timeout: float | None = None) -> None:
        try:
            self.context = weft.Context(dict(config_dict or {}))
        except weft.InvalidParamError as e:
            raise UCXConfigError(str(e)) from None
        self.connect_timeout = (
            float(os.environ.get("UCXPY_CONNECT_TIMEOUT", 5)) if connect_timeout is None else connect_timeout
        )
        self.listeners: WeakSet[Closable] = WeakSet()
        self.endpoints: WeakSet[Closable] = WeakSet()
        self._worker: Worker | None = None
        for name, (value, origin) in self.context.config.items():
            log.info("UCX_%s: %s (%s)", name, value, origin)

    @property
    def worker(self) -> Worker:
        """The worker, attached to the running loop if there is one."""
        if self._worker is None:
            self._worker = Worker(self.context)
        self.continuous_ucx_progress()
        return self._worker

    @property
    def settings(self) -> dict[str, str]:
        """What differs from UCX's defaults and the environment."""
        return {name: value for name, (value, _) in self.context.config.items()}

    @property
    def cuda_support(self) -> bool:
        """UCX's transports of GPU memory may be used."""
        tls = _describe.config(self.settings)["TLS"]
        named = set(tls.removeprefix("^").split(",")) & {"all", "cuda", "cuda_copy", "cuda_ipc"}
        return bool(named) != tls.startswith("^")

    def continuous_ucx_progress(self, event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Progress in this loop; the functions that make endpoints do it by themselves."""
        if event_loop is None:
            try:
                event_loop = asyncio.get_running_loop()
            except RuntimeError:
                return
        if self._worker is None:
            self._worker = Worker(self.context)
        self._worker.attach(event_loop)

    def open_objects(self) -> list[object]:
        """List the endpoints and listeners that are not closed."""
        return [each for each in (*self.endpoints, *self.listeners) if not each.closed()]

    def close(self) -> None:
        """Destroy the worker."""
        if self._worker is not None:
            self._worker.close()
