# SPDX-License-Identifier: BSD-3-Clause
"""Small functions that programs import from ``ucxx.utils``."""

from weft.compat._core.network import get_address
from weft.compat._core.printing import (
    format_bytes,
    format_time,
    get_ucxpy_logger,
    hmean,
    print_key_value,
    print_multi,
    print_separator,
)

__all__ = [
    "format_bytes",
    "format_time",
    "get_address",
    "get_ucxpy_logger",
    "hmean",
    "print_key_value",
    "print_multi",
    "print_separator",
]
