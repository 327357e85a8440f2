# SPDX-License-Identifier: BSD-3-Clause
"""Small functions that programs import from ``ucp.utils``."""

from weft.compat._core.printing import get_event_loop, get_ucxpy_logger, hash64bits, hmean

__all__ = ["get_event_loop", "get_ucxpy_logger", "hash64bits", "hmean"]
