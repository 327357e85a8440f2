# SPDX-License-Identifier: BSD-3-Clause
"""A model of what every link between workers delivers, learned from transfers, and the decisions made with it.

``model`` predicts and learns, ``learned`` averages one quantity, ``kind`` holds the priors, ``choose`` decides about
one task, ``islands`` about many tasks together, ``store`` keeps the file. Nothing here knows of Dask.
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
