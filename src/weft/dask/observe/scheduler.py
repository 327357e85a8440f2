# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's extension: collects the traffic that the workers' heartbeats report (``worker``).

It is attached by ``attach``, and shown by ``dashboard`` and ``pairs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from weft.dask import config, patches
from weft.dask.learn.collect import SchedulerLinks
from weft.dask.observe.expected import Point, points
from weft.dask.observe.pairs import Pair, join, named

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState


class SchedulerTraffic:
    """The scheduler's extension: the latest report of each worker, and corrected means of bandwidths.

    A worker's heartbeat carries the sum and the count of the bandwidths that it measured from each other worker. Dask's
    scheduler treats the sum as a mean, so its figures for a pair are too high by up to the count. Extensions are called
    at the end of a heartbeat; there the correct figure, by the same formula, replaces Dask's.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._reports: dict[str, dict[str, Any]] = {}
        self._means: dict[tuple[str, str], float] = {}
        self._means_of_types: dict[str, float] = {}
        self.links = SchedulerLinks(scheduler, config.links(), config.cluster())

    def heartbeat(self, ws: WorkerState, report: Mapping[str, Any]) -> None:
        """Process a worker's heartbeat."""
        known = self._reports.get(ws.address)
        if known is None or known["process"] != report["process"]:  # a new worker may reuse the address of an old one
            known = self._reports[ws.address] = {"process": report["process"], "peers": {}}
        known["peers"].update(report["peers"])
        # An unknown peer may be a worker that has not reported yet; workers of another protocol never report.
        if all(a in self._reports for a in self._scheduler.workers if a.startswith("ucx://")):
            here = {report["process"] for report in self._reports.values()}
            known["peers"] = {process: row for process, row in known["peers"].items() if process in here}
        from_workers, of_types = patches.bandwidths_seen_by(ws)
        workers, share = self._scheduler.workers, 1 / len(self._scheduler.workers)
        pairs = {
            (ws.address, other): _weigh(self._means, (ws.address, other), seen, share)
            for other, seen in from_workers.items()
            if other in workers  # otherwise it has left, and its entry would stay forever
        }
        types = {kind: _weigh(self._means_of_types, kind, seen, share) for kind, seen in of_types.items()}
        patches.put_bandwidths(self._scheduler, pairs, types)
        self.links.take(ws.address, report["process"], report.get("links", {}))

    def forget(self, left: str) -> None:
        """Forget a worker that has left, and what others told of it."""
        gone = self._reports.pop(left, {}).get("process")
        for report in self._reports.values():
            report["peers"].pop(gone, None)
        self._means = {pair: mean for pair, mean in self._means.items() if left not in pair}
        self.links.forget(left)

    def names(self) -> dict[str, str]:
        """Return the name of each worker's process, by its id."""
        workers = self._scheduler.workers
        return named(
            (report["process"], str(workers[address].name))
            for address, report in self._reports.items()
            if address in workers
        )

    def transfers(self) -> list[Point]:
        """Return the latest transfers between the workers that are here, predicted beside observed."""
        return points(self.links.timed, {a: str(ws.name) for a, ws in self._scheduler.workers.items()})

    def pairs(self) -> list[Pair]:
        """Return the traffic between current workers, as of their latest heartbeats."""
        names = self.names()
        here = set(names.values())
        told = [report for report in self._reports.values() if report["process"] in names]
        return [pair for pair in join(names, told) if {pair.source, pair.destination} <= here]

    def requests(self) -> dict[tuple[str, str], float]:
        """Return the mean bandwidth of whole requests between workers, by the processes of sender and receiver."""
        at = {address: report["process"] for address, report in self._reports.items()}
        return {(at[a], at[b]): mean for (b, a), mean in self._means.items() if a in at and b in at}

    def seen_by_dask(self) -> dict[tuple[str, str], float]:
        """Return the same, by the names of sender and receiver."""
        names = self.names()
        return {(names[a], names[b]): mean for (a, b), mean in self.requests().items() if a in names and b in names}


class KeepUp(SchedulerPlugin):  # type: ignore[misc] # distributed has no types
    """Tells an extension about workers that leave, and has it save what was learned when the scheduler closes."""

    name = "weft-links"

    def __init__(self, extension: SchedulerTraffic) -> None:
        self._extension = extension

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        self._extension.forget(worker)

    async def close(self) -> None:
        self._extension.links.save()


def _weigh(means: dict[Any, float], key: Any, seen: tuple[float, int], share: float) -> float:
    """Average new bandwidths, given by sum and count, into the known mean, as Dask intends."""
    total, count = seen
    mean = total / count
    if key in means:
        alpha = (1 - share) ** count
        mean = means[key] * alpha + mean * (1 - alpha)
    means[key] = mean
    return mean
