# SPDX-License-Identifier: BSD-3-Clause
"""Small functions that programs import from here."""

from weft.compat._core.printing import get_event_loop, hash64bits

__all__ = ["get_event_loop", "hash64bits"]
