# SPDX-License-Identifier: BSD-3-Clause
"""Functions with which programs read distributed-ucxx's configuration."""

from typing import Any

import dask.config

_FLAGS = ("cuda-copy", "tcp", "nvlink", "infiniband", "rdmacm", "create-cuda-context", "multi-buffer")


def setup_config() -> None:
    """Add distributed-ucxx's keys to Dask's configuration, as dask-cuda expects."""
    keys: dict[str, Any] = dict.fromkeys(_FLAGS) | {"environment": {}, "rmm": {"pool-size": None}}
    dask.config.update_defaults({"distributed-ucxx": keys})


def get_ucx_config(key: str, default: Any = None) -> Any:
    """Return ``distributed-ucxx.<key>``, else ``distributed.comm.ucx.<key>``, else `default`."""
    return _first(f"distributed-ucxx.{key}", f"distributed.comm.ucx.{key}", default)


def get_rmm_config(key: str, default: Any = None) -> Any:
    """Return ``distributed-ucxx.rmm.<key>``, else ``distributed.rmm.<key>``, else `default`."""
    return _first(f"distributed-ucxx.rmm.{key}", f"distributed.rmm.{key}", default)


def _first(key: str, legacy: str, default: Any) -> Any:
    value = dask.config.get(key, None)
    return dask.config.get(legacy, default) if value is None else value
