# SPDX-License-Identifier: BSD-3-Clause
"""What Dask's workers measure about their links, how the scheduler collects it, and what both decide with it.

The model itself, and decisions that need no Dask, are in ``weft.links``.
"""
