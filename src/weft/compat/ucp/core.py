# SPDX-License-Identifier: BSD-3-Clause
"""ucx-py's functions, and the one context of the process, which they use."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

import weft
from weft import _load, _native
from weft.compat.ucp import _describe, _handshake
from weft.compat.ucp._address import UCXAddress
from weft.compat.ucp._connection import Connection
from weft.compat.ucp._context import ApplicationContext
from weft.compat.ucp._endpoint import Endpoint, plain
from weft.compat.ucp._listener import Listener, endpoint_of
from weft.compat.ucp.exceptions import (
    UCXCanceled,
    UCXCloseError,
    UCXError,
    UCXMsgTruncated,
    translated,
)

__all__ = [
    "ApplicationContext",
    "Endpoint",
    "Listener",
    "UCXCanceled",
    "UCXCloseError",
    "UCXError",
    "continuous_ucx_progress",
    "create_endpoint",
    "create_endpoint_from_worker_address",
    "create_listener",
    "fence",
    "flush",
    "get_active_transports",
    "get_config",
    "get_ucp_context_info",
    "get_ucp_worker",
    "get_ucp_worker_info",
    "get_ucx_address_from_buffer",
    "get_ucx_version",
    "get_worker_address",
    "init",
    "progress",
    "recv",
    "register_am_allocator",
    "reset",
]

#: The context, made at the first use.
_ctx: ApplicationContext | None = None


def _get_ctx() -> ApplicationContext:
    global _ctx
    if _ctx is None:
        _ctx = ApplicationContext()
    return _ctx


def init(
    options: Mapping[str, str] | None = None,
    env_takes_precedence: bool = False,
    blocking_progress_mode: bool | None = None,
    connect_timeout: float | None = None,
) -> None:
    """Make the context with these settings; without this, the first use makes it.

    Parameters
    ----------
    options : mapping of str to str, optional
        UCX settings without ``UCX_``.
    env_takes_precedence : bool
        ``UCX_*`` in the environment wins over `options`.
    blocking_progress_mode : bool, optional
        Has no effect: weft spins for a while and then sleeps.
    connect_timeout : float, optional
        Seconds for a handshake; by default ``UCXPY_CONNECT_TIMEOUT``, else 5.

    Raises
    ------
    RuntimeError
        There is a context already.
    UCXConfigError
        UCX knows no such setting, or not such a value.
    """
    global _ctx
    if _ctx is not None:
        raise RuntimeError("init: UCX is initiated already; call reset() first")
    settings = dict(options or {})
    if env_takes_precedence:
        settings = {name: os.environ.get(f"UCX_{name}", value) for name, value in settings.items()}
    _ctx = ApplicationContext(settings, connect_timeout)


def reset() -> None:
    """Destroy the context; the next use makes another.

    Raises
    ------
    UCXError
        Endpoints or listeners are open.
    """
    global _ctx
    ctx, _ctx = _ctx, None
    if ctx is None:
        return
    gc.collect()
    still_open = ctx.open_objects()
    if still_open:
        raise UCXError(f"Trying to reset UCX but not all Endpoints and/or Listeners are closed(): {still_open}")
    ctx.close()


def create_listener(
    callback_func: Callable[[Endpoint], Any],
    port: int | None = None,
    endpoint_error_handling: bool = True,
) -> Listener:
    """Listen, and call `callback_func`, a function or coroutine function, with each new endpoint.

    Parameters
    ----------
    callback_func : callable
    port : int, optional
        Any free one by default.
    endpoint_error_handling : bool
        False: these endpoints never say that their peer is gone.

    Returns
    -------
    Listener
        It stops listening when it is deleted.
    """
    ctx = _get_ctx()
    _ = ctx.worker
    listener = Listener(ctx, port or 0, callback_func, error_handling=endpoint_error_handling)
    ctx.listeners.add(listener)
    return listener


async def create_endpoint(
    ip_address: str,
    port: int,
    endpoint_error_handling: bool = True,
) -> Endpoint:
    """Connect to a listener.

    Raises
    ------
    UCXUnreachable
        Nobody listens there, or no transport leads there.
    TimeoutError
        No answer in time; see :func:`init`.
    """
    ctx = _get_ctx()
    worker = ctx.worker
    what = f"create_endpoint to {ip_address}:{port}"
    sock = socket.socket()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(ctx.connect_timeout):
            try:
                await asyncio.get_running_loop().sock_connect(sock, (ip_address, port))
            except BaseException:
                sock.close()
                raise
            joined = await _handshake.client(worker, sock, error_handling=endpoint_error_handling)
    except weft.Error as e:
        raise translated(e, what) from None
    except TimeoutError:
        raise TimeoutError(f"{what}: no answer within {ctx.connect_timeout} s") from None
    except OSError as e:
        raise translated(weft.UnreachableError(str(e)), what) from None
    return endpoint_of(ctx, joined)


async def create_endpoint_from_worker_address(
    address: UCXAddress,
    endpoint_error_handling: bool = True,
) -> Endpoint:
    """Make an endpoint to the worker with this address. It has no tags of its own: give ``force_tag=True``.

    Raises
    ------
    UCXError
        The worker is gone, or no transport leads there.
    """
    ctx = _get_ctx()
    worker = ctx.worker
    native, worker_id, near = UCXAddress(address).parts()
    if worker_id is None:
        worker_id = hash(native) & 0xFFFF_FFFF_FFFF_FFFF
    try:
        wire = worker.wire_to(worker_id, native)
        if near and not wire.watched:
            wire.reach_door()
    except weft.Error as e:
        raise translated(e, "create_endpoint_from_worker_address") from None
    return Endpoint(Connection(wire, worker_id, error_handling=endpoint_error_handling), ctx)


async def recv(buffer: Any, tag: int) -> None:
    """Receive a message that any endpoint sent with this forced tag into `buffer`."""
    worker = _get_ctx().worker
    data, nbytes = plain(buffer)
    what = f"[Worker Recv] tag: {tag:#x}, nbytes: {nbytes}"
    try:
        received, _ = await worker.native.tag_recv(data, tag)
    except weft.Error as e:
        raise translated(e, what) from None
    if received != nbytes:
        raise UCXMsgTruncated(f"<{what}>: length mismatch: {received} (got) != {nbytes} (expected)")


def progress() -> None:
    """Take in what has arrived. A running loop does it by itself."""
    _get_ctx().worker.progress()


def continuous_ucx_progress(event_loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Progress in this loop, by default the running one; what makes endpoints does it by itself."""
    _get_ctx().continuous_ucx_progress(event_loop)


def register_am_allocator(allocator: Callable[[int], Any], allocator_type: str) -> None:
    """Have ``am_recv`` put host or CUDA messages into ``allocator(nbytes)``.

    Parameters
    ----------
    allocator : callable
        Takes bytes, returns a writable buffer of that size.
    allocator_type : {"host", "cuda"}

    Raises
    ------
    UCXError
        Another type.
    """
    if allocator_type not in ("host", "cuda"):
        raise UCXError(f"Allocator type not supported: {allocator_type!r}; there are host and cuda")
    _get_ctx().worker.allocators[allocator_type] = allocator


def get_worker_address() -> UCXAddress:
    """Return the address for another process's :func:`create_endpoint_from_worker_address`."""
    return _get_ctx().worker.address()


def get_ucx_address_from_buffer(buffer: Any) -> UCXAddress:
    """Take an address that came as bytes."""
    return UCXAddress.from_buffer(buffer)


def get_ucp_worker() -> int:
    """Return the address of the ``ucp_worker_h``, for libraries that call UCX themselves."""
    return _get_ctx().worker.native.handle


def get_ucx_version() -> tuple[int, int, int]:
    """Return UCX's version. Makes no context, and a child forked after it may still use this."""
    # weft.ucx_library() would bind the native core to it, which marks children as forked from a user of UCX.
    library: _load.Library = _native.keep_sighup(_load.load)
    return library.version


def get_config() -> dict[str, str]:
    """Return every UCP setting without ``UCX_``: the context's, or those that it would get from the environment."""
    return _describe.config({} if _ctx is None else _ctx.settings)


def get_ucp_context_info() -> str:
    """Return what UCX tells of a context with these settings."""
    return _describe.context_text(_get_ctx().settings)


def get_ucp_worker_info() -> str:
    """Return what UCX tells of a worker with these settings."""
    return _describe.worker_text(_get_ctx().settings)


def get_active_transports() -> set[str]:
    """Return the transports that UCX may use."""
    return set(re.findall(r"resource +\d+ .* (\S+)/\S+$", get_ucp_context_info(), re.MULTILINE))


async def flush() -> None:
    """Wait until every peer's worker has everything that was sent before."""
    if _ctx is None:
        await asyncio.sleep(0)
        return
    wires = list(_ctx.worker.wires.values())
    try:
        await asyncio.gather(*(wire.endpoint.flush() for wire in wires))
    except weft.Error as e:
        raise translated(e, "[Flush]") from None


def fence() -> None:
    """Order remote memory accesses before against those after. ``ucp`` has none, so there is nothing to do."""
