# SPDX-License-Identifier: BSD-3-Clause
"""weft's comm, connector, listener and backend, under distributed-ucxx's names."""

from weft.dask.comm import UCX as UCXX
from weft.dask.comm import UCXBackend as UCXXBackend
from weft.dask.comm import UCXConnector as UCXXConnector
from weft.dask.comm import UCXListener as UCXXListener

#: dask-cuda reads this to find out whether distributed-ucxx has initialized UCX or made a CUDA context; it has not.
ucxx = None

__all__ = ["UCXX", "UCXXBackend", "UCXXConnector", "UCXXListener"]
