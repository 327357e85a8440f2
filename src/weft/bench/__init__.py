# SPDX-License-Identifier: BSD-3-Clause
"""Measurements: the ping-pong beside the C loop, and the Dask demo beside tcp."""
