# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's model of links: fed by heartbeats, saved under the cluster's name.

Decisions made with it are in ``place``, views of it in ``view``.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.dask import config
from weft.dask.learn.hosts import FORGOTTEN_S, SOFTWARE_S, place_of
from weft.dask.learn.placing import Placing
from weft.dask.learn.relays import name_relay
from weft.links import LinkModel, store

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger("weft")

#: Seconds for which a sender's report about its number of concurrent sends is used.
_SENDING_FRESH_S = 10.0
_SAVE_EVERY_S = 60.0
#: Transfers accepted from one peer in one heartbeat: weft's own workers never report more.
_MOST_TRANSFERS = 64
#: Transfers that are remembered with what was predicted of them.
_MOST_REMEMBERED = 500


class Timed(NamedTuple):
    """A transfer, and what it was expected to take alone, before it was learned from.

    Attributes
    ----------
    source, destination : str
        Addresses of workers.
    flows : float
        How many shared the busier of the two ports, this one counted, on average.
    known_from : str
        What the expectation came from, as of a :class:`weft.links.Prediction`.
    """

    source: str
    destination: str
    nbytes: int
    predicted_s: float
    observed_s: float
    flows: float
    known_from: str


class SchedulerLinks:
    """What a scheduler knows of the links between its workers.

    Parameters
    ----------
    scheduler : Scheduler
        The scheduler of these workers.
    mode : str
        ``learn``, ``observe`` or ``off``, as in ``weft.links``.

    Attributes
    ----------
    model : LinkModel
        Workers are named by their addresses; its clock is :func:`time.monotonic`.
    malformed : int
        Malformed rows in reports.
    timed : deque of Timed
        The latest transfers, for people.
    """

    def __init__(self, scheduler: Scheduler, mode: config.LinksMode, cluster: str | None = None) -> None:
        self.scheduler, self.mode, self.cluster = scheduler, mode, cluster
        self.model = LinkModel()
        self.malformed = 0
        self.timed: deque[Timed] = deque(maxlen=_MOST_REMEMBERED)
        self.placing = Placing(scheduler, self.model)
        self._worker_of: dict[str, str] = {}  # the worker's address, by process
        self._sending: dict[tuple[str, str], tuple[float, float]] = {}  # by worker, and its peer's address or process
        self._saved_s = time.monotonic()
        self._saved_samples = 0
        self.placing.switch_copies(mode == "learn")
        self._unkept = False
        if mode != "off" and cluster is not None:
            try:
                store.load(self.model, store.path_of(cluster), time.monotonic())
            except OSError as e:
                self._say_unkept(e)
        now = time.monotonic()
        self._left_s = {
            host: now for pair in self.model.hosts for host in pair[:2]
        }  # hosts without workers, since when

    def take(self, address: str, process: str, rows: Mapping[str, Any]) -> None:
        """Add a worker's measurements, by the addresses or processes of its peers. Every value is validated."""
        if self.mode == "off" or address not in self.scheduler.workers:
            return
        now = time.monotonic()
        self._forget_hosts(now)
        try:
            self._worker_of[process] = address
            self._know_worker(address)
            peers = list(rows.items())
        except (TypeError, AttributeError) as e:
            self._malformed(address, e)
            return
        for peer, row in peers:
            other = peer if peer in self.scheduler.workers else self._worker_of.get(peer)
            if other is None or other == address:
                continue  # the scheduler or a client: no decision depends on their links
            self._know_worker(other)
            try:
                self._take_row(other, address, (peer, process), row, now)
            except (TypeError, ValueError, KeyError, AttributeError) as e:
                self._malformed(address, e)
        self.placing.switch(self.decides)
        if self.decides:
            self.placing.roots.look(now)
        if self.cluster is not None and now - self._saved_s > _SAVE_EVERY_S:
            self._save_soon(now)

    def _malformed(self, address: str, error: Exception) -> None:
        self.malformed += 1
        logger.debug("links: a report of %s is malformed: %r", address, error)

    def _take_row(
        self, source: str, destination: str, names: tuple[str, str], row: Mapping[str, Any], now: float
    ) -> None:
        """Take what a destination tells of a source; `names` are what each calls the other where it came by itself."""
        model = self.model
        told = (self._sending.get((source, name), (1.0, -math.inf)) for name in (destination, names[1]))
        sending, at = max(told, key=lambda each: each[1])
        egress = sending if now - at < _SENDING_FRESH_S else 1.0
        for nbytes, seconds, flows in row.get("transfers", ())[:_MOST_TRANSFERS]:
            expected = model.predict(source, destination, now)
            if model.observe(source, destination, nbytes, seconds, now, ingress_flows=flows, egress_flows=egress):
                predicted_s, shared = expected.seconds(nbytes), max(flows, egress)
                self.timed.append(Timed(source, destination, nbytes, predicted_s, seconds, shared, expected.source))
        if "received" in row:
            lent, moved = row["received"]
            model.observe_lent(source, destination, lent, moved)
        if "round_trip_s" in row:
            round_trip_s = row["round_trip_s"]
            model.observe(source, destination, 1, round_trip_s + SOFTWARE_S if round_trip_s >= 0 else -1, now)
        if "sending" in row:  # for the opposite direction: this worker is the sender
            flows = row["sending"]
            if 1 <= flows <= 1e6:
                self._sending[destination, names[0]] = (float(flows), now)
            else:
                model.refused += 1

    def _know_worker(self, address: str) -> None:
        if address in self.scheduler.workers and address not in self.model.workers():
            place = place_of(address)
            self.model.place(address, place)
            self._left_s.pop(place.host, None)

    def forget(self, left: str) -> None:
        """Forget a worker that has left. What was learned of its host stays for an hour after its last worker."""
        if left in self.model.workers() and len(self.model.beside(left)) == 1:
            self._left_s[self.model.place_of(left).host] = time.monotonic()
        self.model.forget(left)
        names = {left, *(process for process, address in self._worker_of.items() if address == left)}
        self._worker_of = {process: address for process, address in self._worker_of.items() if address != left}
        self._sending = {pair: at for pair, at in self._sending.items() if not names & set(pair)}

    def _forget_hosts(self, now: float) -> None:
        """Forget hosts that have had no worker for long: a cluster may get its workers on ever new ones."""
        if self._left_s and now - next(iter(self._left_s.values())) > FORGOTTEN_S:
            gone = {host for host, at in self._left_s.items() if now - at > FORGOTTEN_S}
            self.model.forget_hosts(gone)
            self._left_s = {host: at for host, at in self._left_s.items() if host not in gone}

    def route(self, **asked: Any) -> dict[str, Any]:
        """Answer a worker that receives a large value over a slow link with the name of a relay."""
        if self.mode != "learn":
            return {"relay": ""}
        return name_relay(self.model, self.scheduler.workers, **asked)

    def set_mode(self, mode: config.LinksMode) -> None:
        """Change the mode from now on; what was learned stays."""
        self.mode = mode
        self.placing.switch(self.decides)
        self.placing.switch_copies(mode == "learn")

    @property
    def decides(self) -> bool:
        """Whether the model is used for decisions now; otherwise they are Dask's own."""
        return self.mode == "learn" and self.model.differ

    # ---- saving -----------------------------------------------------------------------------------------------------

    def _save_soon(self, now: float) -> None:
        self._saved_s = now
        if self._saved_samples != self.model.samples:
            self._saved_samples = self.model.samples
            self.save()

    def save(self) -> None:
        """Write what was learned to the cluster's file, if the cluster has a name; warn if that fails."""
        if self.cluster is None or self.mode == "off":
            return
        try:
            store.save(self.model, store.path_of(self.cluster))
        except OSError as e:
            self._say_unkept(e)

    def _say_unkept(self, error: OSError) -> None:
        if not self._unkept:
            self._unkept = True
            logger.warning(
                "the link measurements of cluster %s are not saved: %s. Make that a file which the scheduler can read "
                "and write, or set weft.cluster to another name or null",
                self.cluster,
                error,
            )
