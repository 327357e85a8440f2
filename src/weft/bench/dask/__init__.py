# SPDX-License-Identifier: BSD-3-Clause
"""Dask's work over several protocols."""
