# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench scale``: what a Dask cluster costs as its workers become more."""
