# SPDX-License-Identifier: BSD-3-Clause
"""UCXX 0.52's Python interface over weft: ``import weft.compat.ucxx as ucxx``. It needs NumPy, as UCXX does.

- ``core``: the functions. ``_lib_async``: the context, endpoint and listener for asyncio.
- ``_lib.libucxx``: the core, without C++. ``exceptions``, ``types``, ``utils``, ``benchmarks``: names of UCXX.
"""

import os

from weft.compat._core.network import get_address
from weft.compat.ucxx import core, exceptions, types, utils
from weft.compat.ucxx._lib import libucxx
from weft.compat.ucxx.core import (
    continuous_ucx_progress,
    create_endpoint,
    create_endpoint_from_worker_address,
    create_listener,
    get_active_transports,
    get_config,
    get_ucp_context_info,
    get_ucp_worker,
    get_ucp_worker_info,
    get_ucx_address_from_buffer,
    get_ucx_version,
    get_ucxx_worker,
    get_worker_address,
    init,
    progress,
    recv,
    reset,
    stop_notifier_thread,
)
from weft.compat.ucxx.utils import get_ucxpy_logger

#: The emulated version of UCXX.
__version__ = "0.52.0"
__git_commit__ = ""
__ucx_min_version__ = "1.18.0"


def __getattr__(name: str) -> str:
    # lazy: this loads UCX, which an import must not do
    if name == "__ucx_version__":
        return ".".join(map(str, get_ucx_version()))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "UCXPY_LOG_LEVEL" in os.environ:
    get_ucxpy_logger()

__all__ = [
    "continuous_ucx_progress",
    "core",
    "create_endpoint",
    "create_endpoint_from_worker_address",
    "create_listener",
    "exceptions",
    "get_active_transports",
    "get_address",
    "get_config",
    "get_ucp_context_info",
    "get_ucp_worker",
    "get_ucp_worker_info",
    "get_ucx_address_from_buffer",
    "get_ucx_version",
    "get_ucxpy_logger",
    "get_ucxx_worker",
    "get_worker_address",
    "init",
    "libucxx",
    "progress",
    "recv",
    "reset",
    "stop_notifier_thread",
    "types",
    "utils",
]
