# SPDX-License-Identifier: BSD-3-Clause
"""Simulate jobs on networks that are not available, with Dask's and with learned decisions: ``weft simulate``.

``sharing`` and ``engine`` model time and links, ``network`` the machines, ``tasks``, ``worker`` and ``cluster`` the
parts of Dask, ``policy`` its decisions, ``learned`` and ``chain`` weft's.
"""
