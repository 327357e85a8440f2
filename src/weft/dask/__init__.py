# SPDX-License-Identifier: BSD-3-Clause
"""Dask over weft: the ``ucx://`` protocol. Importing this makes ``ucx`` weft's in this process.

Nothing needs to import it: installing weft is enough (see ``weft/_claim.py``).
"""

from distributed.comm.registry import backends

from weft.dask.comm import UCX, UCXBackend, UCXConnector, UCXListener, lanes

backends["ucx"] = UCXBackend()

__all__ = ["UCX", "UCXBackend", "UCXConnector", "UCXListener", "lanes"]
