# SPDX-License-Identifier: BSD-3-Clause
"""Dask over weft: the ``ucx://`` protocol. Importing this makes ``ucx`` weft's in this process.

Nothing needs to import it: installing weft is enough (see ``weft/_claim_scheme.py``).
"""

from typing import TYPE_CHECKING, Any

from distributed.comm.registry import backends

from weft.dask import tensors
from weft.dask.comm import UCX, UCXBackend, UCXConnector, UCXListener, lanes
from weft.dask.learn.mode import set_links
from weft.dask.learn.view import Link, Links, links
from weft.dask.learn.why import Why, why
from weft.dask.observe.pairs import Transports, transports

if TYPE_CHECKING:
    from weft.dask.cluster import TopologyCluster

backends["ucx"] = UCXBackend()
tensors.register()

__all__ = [
    "UCX",
    "Link",
    "Links",
    "TopologyCluster",
    "Transports",
    "UCXBackend",
    "UCXConnector",
    "UCXListener",
    "Why",
    "lanes",
    "links",
    "set_links",
    "transports",
    "why",
]


def __getattr__(name: str) -> Any:
    # distributed may load this package while it is itself half imported; a cluster needs all of it
    if name == "TopologyCluster":
        from weft.dask.cluster import TopologyCluster

        return TopologyCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
