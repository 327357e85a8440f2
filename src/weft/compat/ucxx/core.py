# SPDX-License-Identifier: BSD-3-Clause
"""UCXX's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.compat._core.process import Process, get_ucx_address_from_buffer, get_ucx_version, settings_of
from weft.compat.ucxx._lib.pointers import no_pointer
from weft.compat.ucxx._lib_async import ApplicationContext

__all__ = [
    "continuous_ucx_progress",
    "create_endpoint",
    "create_endpoint_from_worker_address",
    "create_listener",
    "get_active_transports",
    "get_config",
    "get_ucp_context_info",
    "get_ucp_worker",
    "get_ucp_worker_info",
    "get_ucx_address_from_buffer",
    "get_ucx_version",
    "get_ucxx_worker",
    "get_worker_address",
    "init",
    "progress",
    "recv",
    "reset",
    "stop_notifier_thread",
]


def init(
    options: Mapping[str, str] | None = None,
    env_takes_precedence: bool = False,
    progress_mode: str | None = None,
    enable_delayed_submission: bool | None = None,
    enable_python_future: bool | None = None,
    connect_timeout: float | None = None,
) -> None:
    """Make the context with these settings; otherwise the first use makes it.

    Parameters
    ----------
    options : mapping of str to str, optional
        UCX settings without ``UCX_``.
    env_takes_precedence : bool
        ``UCX_*`` environment variables override `options`.
    progress_mode : {"thread", "thread-polling", "polling", "blocking"}, optional
    enable_delayed_submission, enable_python_future : bool, optional
        Checked as in UCXX, and stored; they have no effect. In every mode, the running loop progresses: it spins for a
        while and then sleeps.
    connect_timeout : float, optional
        Seconds for a handshake; by default ``UCXPY_CONNECT_TIMEOUT``, else 5.

    Raises
    ------
    RuntimeError
        The context already exists.
    UCXInvalidParamError
        UCX does not know a setting, or does not accept its value.
    """
    _process.init(
        lambda: ApplicationContext(
            settings_of(options, env_takes_precedence),
            progress_mode,
            enable_delayed_submission,
            enable_python_future,
            connect_timeout,
        )
    )


def stop_notifier_thread() -> None:
    """Do nothing: there is no such thread."""


def get_ucxx_worker() -> int:
    """Not supported; raises UCXUnsupportedError: there is no C++ ``ucxx::Worker``."""
    raise no_pointer("Worker")


_process = Process(ApplicationContext)

continuous_ucx_progress = _process.continuous_ucx_progress
create_endpoint = _process.create_endpoint
create_endpoint_from_worker_address = _process.create_endpoint_from_worker_address
create_listener = _process.create_listener
get_active_transports = _process.get_active_transports
get_config = _process.get_config
get_ucp_context_info = _process.get_ucp_context_info
get_ucp_worker = _process.get_ucp_worker
get_ucp_worker_info = _process.get_ucp_worker_info
get_worker_address = _process.get_worker_address
progress = _process.progress
recv = _process.recv
reset = _process.reset
_get_ctx = _process.get


def __getattr__(name: str) -> Any:
    if name == "_ctx":  # some programs check whether it exists
        return _process.ctx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
