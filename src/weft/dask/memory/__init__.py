# SPDX-License-Identifier: BSD-3-Clause
"""Dask's memory limits, corrected for shared memory."""
