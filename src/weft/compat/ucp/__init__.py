# SPDX-License-Identifier: BSD-3-Clause
"""ucx-py 0.45's interface over weft: ``import weft.compat.ucp as ucp``.

- ``core``: the functions. ``_endpoint``: the objects that they return. ``weft.compat._core`` implements both.
- ``exceptions``, ``utils``, ``_libs``: names that programs import from there.
"""

import os

from weft.compat.ucp import core, exceptions, utils
from weft.compat.ucp._libs.utils import get_address
from weft.compat.ucp.core import (
    ApplicationContext,
    Endpoint,
    Listener,
    UCXCanceled,
    UCXCloseError,
    UCXError,
    continuous_ucx_progress,
    create_endpoint,
    create_endpoint_from_worker_address,
    create_listener,
    fence,
    flush,
    get_active_transports,
    get_config,
    get_ucp_context_info,
    get_ucp_worker,
    get_ucp_worker_info,
    get_ucx_address_from_buffer,
    get_ucx_version,
    get_worker_address,
    init,
    progress,
    recv,
    register_am_allocator,
    reset,
)
from weft.compat.ucp.utils import get_ucxpy_logger

#: The emulated version of ucx-py.
__version__ = "0.45.0"
__git_commit__ = ""
__ucx_min_version__ = "1.16.0"


def __getattr__(name: str) -> str:
    # lazy: this loads UCX, which an import must not do
    if name == "__ucx_version__":
        return ".".join(map(str, get_ucx_version()))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "UCXPY_LOG_LEVEL" in os.environ:
    get_ucxpy_logger()

__all__ = [
    "ApplicationContext",
    "Endpoint",
    "Listener",
    "UCXCanceled",
    "UCXCloseError",
    "UCXError",
    "continuous_ucx_progress",
    "core",
    "create_endpoint",
    "create_endpoint_from_worker_address",
    "create_listener",
    "exceptions",
    "fence",
    "flush",
    "get_active_transports",
    "get_address",
    "get_config",
    "get_ucp_context_info",
    "get_ucp_worker",
    "get_ucp_worker_info",
    "get_ucx_address_from_buffer",
    "get_ucx_version",
    "get_ucxpy_logger",
    "get_worker_address",
    "init",
    "progress",
    "recv",
    "register_am_allocator",
    "reset",
    "utils",
]
