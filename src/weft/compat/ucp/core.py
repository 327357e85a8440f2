# SPDX-License-Identifier: BSD-3-Clause
"""ucx-py's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.compat._core import context
from weft.compat._core.process import Process, get_ucx_address_from_buffer, get_ucx_version, settings_of
from weft.compat.ucp._endpoint import Endpoint, Listener
from weft.compat.ucp.exceptions import UCXCanceled, UCXCloseError, UCXError

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


class ApplicationContext(context.ApplicationContext[Endpoint, Listener]):
    """A UCP context with one worker; see :func:`init`."""

    endpoint_type = Endpoint
    listener_type = Listener


def init(
    options: Mapping[str, str] | None = None,
    env_takes_precedence: bool = False,
    blocking_progress_mode: bool | None = None,
    connect_timeout: float | None = None,
) -> None:
    """Make the context with these settings; otherwise the first use makes it.

    Parameters
    ----------
    options : mapping of str to str, optional
        UCX settings without ``UCX_``.
    env_takes_precedence : bool
        ``UCX_*`` environment variables override `options`.
    blocking_progress_mode : bool, optional
        Has no effect: weft spins for a while and then sleeps.
    connect_timeout : float, optional
        Seconds for a handshake; by default ``UCXPY_CONNECT_TIMEOUT``, else 5.

    Raises
    ------
    RuntimeError
        The context already exists.
    UCXConfigError
        UCX does not know a setting, or does not accept its value.
    """
    _process.init(lambda: ApplicationContext(settings_of(options, env_takes_precedence), connect_timeout))


def fence() -> None:
    """Order remote memory accesses. ``ucp`` has none, so this does nothing."""


_process = Process(ApplicationContext)

continuous_ucx_progress = _process.continuous_ucx_progress
create_endpoint = _process.create_endpoint
create_endpoint_from_worker_address = _process.create_endpoint_from_worker_address
create_listener = _process.create_listener
flush = _process.flush
get_active_transports = _process.get_active_transports
get_config = _process.get_config
get_ucp_context_info = _process.get_ucp_context_info
get_ucp_worker = _process.get_ucp_worker
get_ucp_worker_info = _process.get_ucp_worker_info
get_worker_address = _process.get_worker_address
progress = _process.progress
recv = _process.recv
register_am_allocator = _process.register_am_allocator
reset = _process.reset


def __getattr__(name: str) -> Any:
    if name == "_ctx":  # some programs check whether it exists
        return _process.ctx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
