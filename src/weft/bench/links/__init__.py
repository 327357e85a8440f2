# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench links``: Dask over links that differ or are shared, by its own decisions and by learned ones."""
