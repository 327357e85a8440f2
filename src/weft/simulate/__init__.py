# SPDX-License-Identifier: BSD-3-Clause
"""Simulate jobs on networks that are not at hand, by Dask's decisions and by learned ones: ``weft simulate``.

``sharing`` and ``engine`` are time and links, ``network`` what there is, ``tasks``, ``worker`` and ``cluster`` the
parts of Dask, ``policy`` its decisions, ``learned`` and ``chain`` weft's.
"""
