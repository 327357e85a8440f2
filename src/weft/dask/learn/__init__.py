# SPDX-License-Identifier: BSD-3-Clause
"""What Dask's workers measure of their links, what the scheduler makes of it, and what both decide by it.

The model itself, and what is decided by it, know nothing of Dask: ``weft.links``.
"""
