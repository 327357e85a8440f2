# SPDX-License-Identifier: BSD-3-Clause
"""What a scheduler and its workers get beside their comms: figures in the heartbeats, Prometheus' metrics, a page.

All of it comes when a server starts to listen on ``ucx://``, without a line in anyone's program. What needs bokeh
or prometheus_client is loaded only where the server loads them itself.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

from distributed import Scheduler, Worker

from weft.dask.observe import traffic
from weft.dask.observe.pairs import Pair, join, named

#: The name of both extensions: a worker's heartbeat carries what the one tells to the other.
EXTENSION = "weft"


def listening(server: object) -> None:
    """Take note that `server` is about to listen on ``ucx://``."""
    if isinstance(server, Worker):
        # A scheduler that another protocol leads to may know nothing of weft, and then a heartbeat with something for
        # its extension would end the worker.
        if server.scheduler.address.startswith("ucx://"):
            server.extensions.setdefault(EXTENSION, WorkerTraffic())
        _register_metrics()
    elif isinstance(server, Scheduler) and EXTENSION not in server.extensions:
        server.extensions[EXTENSION] = SchedulerTraffic(server)
        _register_metrics()
        _add_page(server)


def _register_metrics() -> None:
    # distributed's own handler loads it where it is there, but a worker's only after it listens
    if importlib.util.find_spec("prometheus_client") is not None:
        from weft.dask.observe.prometheus import register

        register()


def _add_page(scheduler: Any) -> None:
    if "distributed.dashboard.core" in sys.modules:
        from weft.dask.observe.dashboard import add_page

        add_page(scheduler)


class WorkerTraffic:
    """A worker's extension: tells the scheduler what has changed since it last told."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, ...]] = {}

    def heartbeat(self) -> dict[str, Any]:
        """Return the report of this process, of peers with news only. Counts are totals, never differences."""
        peers = traffic.report()["peers"]
        before = self._told
        self._told = {p: (row["sent_messages"], row["received_messages"], row["errors"]) for p, row in peers.items()}
        news = {p: row for p, row in peers.items() if before.get(p) != self._told[p]}
        return {"process": traffic.PROCESS, "peers": news}


class SchedulerTraffic:
    """The scheduler's extension: the latest report of each worker, and the means that Dask gets wrong.

    A worker's heartbeat carries the sum and the count of the bandwidths that it saw from each other worker. Dask's
    scheduler weighs the sum as if it were a mean (``Scheduler.heartbeat_worker``), so its figures for a pair are too
    high by up to the count. Extensions are called at the end of a heartbeat: that is when the right figure is put in
    place of it, by the same formula.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._reports: dict[str, dict[str, Any]] = {}
        self._means: dict[tuple[str, str], float] = {}
        self._means_of_types: dict[str, float] = {}

    def heartbeat(self, ws: Any, report: Mapping[str, Any]) -> None:
        """Take what a worker's heartbeat brought."""
        known = self._reports.get(ws.address)
        if known is None or known["process"] != report["process"]:  # a new worker may get the address of an old one
            known = self._reports[ws.address] = {"process": report["process"], "peers": {}}
        known["peers"].update(report["peers"])
        self._forget_who_left()
        # A stranger may be a worker that has yet to tell; one that comes by another protocol never does.
        if all(a in self._reports for a in self._scheduler.workers if a.startswith("ucx://")):
            here = {report["process"] for report in self._reports.values()}
            known["peers"] = {process: row for process, row in known["peers"].items() if process in here}
        scheduler, told = self._scheduler, ws.metrics["bandwidth"]
        share = 1 / len(scheduler.workers)
        for other, (total, count) in told["workers"].items():
            if other not in scheduler.workers:  # it has left, and would be forgotten no more
                continue
            pair = ws.address, other
            scheduler.bandwidth_workers[pair] = _weigh(self._means, pair, total, count, share)
        for kind, (total, count) in told["types"].items():
            scheduler.bandwidth_types[kind] = _weigh(self._means_of_types, kind, total, count, share)

    def _forget_who_left(self) -> None:
        workers = self._scheduler.workers
        left = [address for address in self._reports if address not in workers]
        for address in left:
            gone = self._reports.pop(address)["process"]
            for report in self._reports.values():
                report["peers"].pop(gone, None)
            for pair in [p for p in self._means if address in p]:
                del self._means[pair]

    def names(self) -> dict[str, str]:
        """Return the name of each worker's process, by its id."""
        workers = self._scheduler.workers
        return named(
            (report["process"], str(workers[address].name))
            for address, report in self._reports.items()
            if address in workers
        )

    def pairs(self) -> list[Pair]:
        """Return what went between the workers that are here, as of their latest heartbeats."""
        names = self.names()
        here = set(names.values())
        told = [report for report in self._reports.values() if report["process"] in names]
        return [pair for pair in join(names, told) if {pair.source, pair.destination} <= here]

    def requests(self) -> dict[tuple[str, str], float]:
        """Return the mean bandwidth of whole requests between workers, by the processes of sender and receiver."""
        at = {address: report["process"] for address, report in self._reports.items()}
        return {(at[a], at[b]): mean for (b, a), mean in self._means.items() if a in at and b in at}

    def seen_by_dask(self) -> dict[tuple[str, str], float]:
        """Return the same by the names of sender and receiver."""
        names = self.names()
        return {(names[a], names[b]): mean for (a, b), mean in self.requests().items() if a in names and b in names}


def _weigh(means: dict[Any, float], key: Any, total: float, count: int, share: float) -> float:
    """Average a new mean of `count` bandwidths with what is known, as Dask means to."""
    mean = total / count
    if key in means:
        alpha = (1 - share) ** count
        mean = means[key] * alpha + mean * (1 - alpha)
    means[key] = mean
    return mean
