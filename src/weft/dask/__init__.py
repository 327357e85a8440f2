# SPDX-License-Identifier: BSD-3-Clause
"""Dask over weft: the ``ucx://`` protocol, and functions that show what a cluster's wires carry.

You need not import this to use ``ucx://``: installing weft is enough (see ``weft/_claim_scheme.py``).

- :func:`transports` and :func:`lanes`: which wire carried what.
- :func:`links`, :func:`why` and :func:`set_links`: what each link delivers, and how weft uses that.
- :class:`TopologyCluster`: a cluster with workers placed by the machine's topology.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from distributed.comm.registry import backends

from weft.dask import tensors
from weft.dask.comm import UCX, UCXBackend, UCXConnector, UCXListener, lanes

if TYPE_CHECKING:
    from weft.dask.cluster import TopologyCluster
    from weft.dask.learn.mode import set_links
    from weft.dask.learn.view import Link, Links, links
    from weft.dask.learn.why import Why, why
    from weft.dask.observe.pairs import Transports, transports


class _AsDask(logging.Handler):
    """Prints weft's lines through Dask's handlers, so that they look like Dask's and `silence_logs` reaches them."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or logging.getLogger("weft").handlers != [self]:  # the program prints them
            return
        handlers: list[logging.Handler | None] = [*logging.getLogger("distributed").handlers]
        for handler in handlers or [logging.lastResort]:
            if handler is not None and record.levelno >= handler.level:
                handler.handle(record)


backends["ucx"] = UCXBackend()
tensors.register()
logging.getLogger("weft").addHandler(_AsDask())

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

#: Loaded on first use: these are for clients and user programs, and every worker would pay for them. A cluster needs
#: all of distributed, too, which may be half imported when it loads this package.
_LAZY = {
    "Link": "learn.view",
    "Links": "learn.view",
    "TopologyCluster": "cluster",
    "Transports": "observe.pairs",
    "Why": "learn.why",
    "links": "learn.view",
    "set_links": "learn.mode",
    "transports": "observe.pairs",
    "why": "learn.why",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    return found
