# SPDX-License-Identifier: BSD-3-Clause
"""``Array`` under UCXX's module name."""

from weft.compat._core.array import Array, asarray

__all__ = ["Array", "asarray"]
