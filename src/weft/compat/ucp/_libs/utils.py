# SPDX-License-Identifier: BSD-3-Clause
"""Small functions under ucx-py's module name."""

import contextlib
import importlib
from collections.abc import Generator
from typing import Any

from weft.compat._core.network import get_address
from weft.compat._core.printing import format_bytes, format_time, print_key_value, print_multi, print_separator

__all__ = ["format_bytes", "format_time", "get_address", "print_key_value", "print_multi", "print_separator"]


def __getattr__(name: str) -> Any:
    # lazy: programs that do not ask for these import neither Dask nor nvtx
    if name == "parse_bytes":
        return _of("dask.utils", name, None)
    if name == "nvtx_annotate":
        return _of("nvtx", "annotate", _not_annotated)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _of(module: str, name: str, otherwise: Any) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return otherwise


@contextlib.contextmanager
def _not_annotated(message: object = None, color: object = None, domain: object = None) -> Generator[None]:
    yield
