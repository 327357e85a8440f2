# SPDX-License-Identifier: BSD-3-Clause
"""Dask's memory limits beside shared memory."""
