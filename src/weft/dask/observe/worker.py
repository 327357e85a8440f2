# SPDX-License-Identifier: BSD-3-Clause
"""A worker's extension: adds its traffic to its heartbeats. See ``scheduler`` too."""

from __future__ import annotations

from typing import Any

from weft.dask.learn import measured
from weft.dask.observe import traffic


class WorkerTraffic:
    """A worker's extension: reports to the scheduler what has changed since the last report.


    Parameters
    ----------
    links : Report
        What the worker's comms measure.
    """

    def __init__(self, links: measured.Report) -> None:
        self._links = links
        self._told: dict[str, tuple[int, ...]] = {}

    def heartbeat(self) -> dict[str, Any]:
        """Return the news: totals of this process, by process, and what this worker's links took, by peer."""
        peers = traffic.report()["peers"]
        before = self._told
        self._told = {p: (row["sent_messages"], row["received_messages"], row["errors"]) for p, row in peers.items()}
        news = {p: row for p, row in peers.items() if before.get(p) != self._told[p]}
        told: dict[str, Any] = {"process": traffic.PROCESS, "peers": news}
        if links := self._links.take():
            told["links"] = links
        return told
