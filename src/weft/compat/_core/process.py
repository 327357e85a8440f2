# SPDX-License-Identifier: BSD-3-Clause
"""``Process``: the functions that both libraries have, and the process's only context, which they use."""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic

import weft
from weft import _load, _native
from weft.compat._core import describe
from weft.compat._core.address import UCXAddress
from weft.compat._core.context import ApplicationContext, E, L
from weft.compat._core.exceptions import UCXError, translated


def settings_of(options: Mapping[str, str] | None, env_takes_precedence: bool) -> dict[str, str]:
    """Return `options`, overridden by ``UCX_*`` if requested."""
    settings = dict(options or {})
    if env_takes_precedence:
        settings = {name: os.environ.get(f"UCX_{name}", value) for name, value in settings.items()}
    return settings


def get_ucx_version() -> tuple[int, int, int]:
    """Return UCX's version. This makes no context, so a child forked later can still use weft."""
    # weft.ucx_library() would bind the native core, which marks forked children as forked from a user of UCX.
    library: _load.Library = _native.keep_sighup(_load.load)
    return library.version


def get_ucx_address_from_buffer(buffer: Any) -> UCXAddress:
    """Make an address from received bytes."""
    return UCXAddress.from_buffer(buffer)


class Process(Generic[E, L]):
    """The functions of a library.

    Parameters
    ----------
    make : callable
        Makes the context on first use, with the library's defaults.
    """

    def __init__(self, make: Callable[[], ApplicationContext[E, L]]) -> None:
        self._make = make
        self.ctx: ApplicationContext[E, L] | None = None
        self._left: list[ApplicationContext[E, L]] = []  # were to be reset while something was open

    def get(self) -> ApplicationContext[E, L]:
        """Return the context."""
        if self.ctx is None:
            self.ctx = self._make()
        return self.ctx

    def init(self, make: Callable[[], ApplicationContext[E, L]]) -> None:
        """Make the context with the program's settings.

        Raises
        ------
        RuntimeError
            The context already exists.
        """
        if self.ctx is not None:
            raise RuntimeError("init: UCX is initiated already; call reset() first")
        self.ctx = make()

    def reset(self) -> None:
        """Destroy the context; the next use makes a new one.

        Raises
        ------
        UCXError
            The context belongs to another thread, or endpoints or listeners are open. In the second case a later
            reset, after they are closed, destroys it.
        """
        ctx = self.ctx
        if ctx is not None:
            try:
                ctx.check_thread()
            except weft.ThreadError as e:
                raise translated(e, "reset") from None
            self.ctx = None
            self._left.append(ctx)
        gc.collect()
        self._left = [each for each in self._left if not each.end()]
        if ctx is not None and ctx in self._left:
            still_open = ctx.open_objects()
            raise UCXError(f"Trying to reset UCX but not all Endpoints and/or Listeners are closed(): {still_open}")

    def create_listener(
        self,
        callback_func: Callable[[E], Any],
        port: int | None = None,
        endpoint_error_handling: bool = True,
        connect_timeout: float | None = None,
    ) -> L:
        """Listen, and call `callback_func`, a function or coroutine function, with each new endpoint.

        Parameters
        ----------
        callback_func : callable
        port : int, optional
            By default any free port.
        endpoint_error_handling : bool
            False: these endpoints never report the loss of their peer.
        connect_timeout : float, optional
            Seconds for the handshake with each caller; by default the context's.

        Returns
        -------
        Listener
            It stops listening when it is deleted.

        Raises
        ------
        UCXError
            The port is in use, or this process may not listen there.
        """
        return self.get().create_listener(callback_func, port, endpoint_error_handling, connect_timeout)

    async def create_endpoint(
        self,
        ip_address: str,
        port: int,
        endpoint_error_handling: bool = True,
        connect_timeout: float | None = None,
    ) -> E:
        """Connect to a listener.

        Raises
        ------
        UCXUnreachable
            Nothing listens there, or no transport reaches it.
        TimeoutError
            No answer within `connect_timeout` seconds, by default the context's.
        """
        return await self.get().create_endpoint(ip_address, port, endpoint_error_handling, connect_timeout)

    async def create_endpoint_from_worker_address(self, address: UCXAddress, endpoint_error_handling: bool = True) -> E:
        """Make an endpoint to the worker with this address. It has no tags of its own: pass ``force_tag=True``.

        Raises
        ------
        UCXError
            The worker is gone, or no transport reaches it.
        """
        return await self.get().create_endpoint_from_worker_address(address, endpoint_error_handling)

    async def recv(self, buffer: Any, tag: Any) -> None:
        """Receive into `buffer` a message that any endpoint sent with this forced tag."""
        await self.get().recv(buffer, tag)

    def progress(self) -> None:
        """Progress the worker once. A running loop does this by itself."""
        try:
            self.get().core.progress()
        except weft.ThreadError as e:
            raise translated(e, "progress") from None

    def continuous_ucx_progress(self, event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Progress in this loop, by default the running one; functions that make endpoints already do so."""
        self.get().continuous_ucx_progress(event_loop)

    def register_am_allocator(self, allocator: Callable[[int], Any], allocator_type: str) -> None:
        """Make ``am_recv`` receive host or CUDA messages into ``allocator(nbytes)``.

        Parameters
        ----------
        allocator : callable
            Takes a size in bytes, returns a writable buffer of that size.
        allocator_type : {"host", "cuda"}

        Raises
        ------
        UCXError
            The type is another one.
        """
        if allocator_type not in ("host", "cuda"):
            raise UCXError(f"Allocator type not supported: {allocator_type!r}; there are host and cuda")
        self.get().core.allocators[allocator_type] = allocator

    def get_worker_address(self) -> UCXAddress:
        """Return this worker's address, for ``create_endpoint_from_worker_address`` in another process."""
        return self.get().core.address()

    def get_ucp_worker(self) -> int:
        """Return the address of the ``ucp_worker_h``, for libraries that call UCX themselves."""
        return self.get().core.native.handle

    def get_config(self) -> dict[str, str]:
        """Return every UCP setting without ``UCX_``: the context's, or without a context the environment's."""
        return describe.config({} if self.ctx is None else self.ctx.settings)

    def get_ucp_context_info(self) -> str:
        """Return UCX's description of a context with these settings."""
        return describe.context_text(self.get().settings)

    def get_ucp_worker_info(self) -> str:
        """Return UCX's description of a worker with these settings."""
        return describe.worker_text(self.get().settings)

    def get_active_transports(self) -> set[str]:
        """Return the transports that UCX may use."""
        return set(re.findall(r"resource +\d+ .* (\S+)/\S+$", self.get_ucp_context_info(), re.MULTILINE))

    async def flush(self) -> None:
        """Wait until every peer's worker has received everything that was sent before."""
        if self.ctx is None:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.gather(*(wire.endpoint.flush() for wire in self.ctx.core.wires.values()))
        except weft.Error as e:
            raise translated(e, "[Flush]") from None
