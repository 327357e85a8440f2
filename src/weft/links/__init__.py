# SPDX-License-Identifier: BSD-3-Clause
"""What every link between workers delivers, learned from their transfers, and what is decided by it. Free of Dask.

``model`` predicts and learns, ``learned`` is one quantity of it, ``kind`` what is assumed before, ``choose`` what is
decided, ``islands`` what is decided for many tasks together, ``store`` the file that it is kept in.
"""

from weft.links.choose import Fetch, Need, Probes, best_source, fetch_seconds, neighbours
from weft.links.islands import Backlog, islands, split
from weft.links.kind import Place
from weft.links.model import LinkModel, Prediction

__all__ = [
    "Backlog",
    "Fetch",
    "LinkModel",
    "Need",
    "Place",
    "Prediction",
    "Probes",
    "best_source",
    "fetch_seconds",
    "islands",
    "neighbours",
    "split",
]
