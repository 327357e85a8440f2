# SPDX-License-Identifier: BSD-3-Clause
"""weft's decisions (``weft.links: learn``), by ``weft.links``, the code that also decides for Dask.

One model stands for those of the scheduler and of all workers; in Dask, each worker learns from its own transfers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from weft.links import Need, best_source
from weft.links.fanout import LEAST_NBYTES
from weft.simulate.chain import Around, Offer
from weft.simulate.cluster import Cluster
from weft.simulate.network import Way
from weft.simulate.placing import ClockedModel, Placing
from weft.simulate.policy import Policy, first_needed
from weft.simulate.relay import best_relay
from weft.simulate.tasks import Task, WorkerState
from weft.simulate.worker import BUSY_S, Worker

#: Wait for a busy source only if it is predicted to deliver within this share of the best free source's time.
_SOONER = 0.8
_MOST_HOLDERS = 16
_MOST_HOSTS = 64


class Learned(Policy):
    """weft's decisions for one cluster.

    Attributes
    ----------
    model : ClockedModel
        What was learned.
    """

    name = "learned"

    def __init__(self) -> None:
        super().__init__()
        self.model = ClockedModel()
        self._offers: dict[tuple[Worker, Task], Offer] = {}
        self._waiting: dict[Worker, dict[Worker, None]] = {}
        self._passing: dict[str, int] = {}

    def join(self, cluster: Cluster) -> None:
        """Start to decide for a cluster."""
        super().join(cluster)
        self.model.clock = lambda: cluster.engine.now_s
        for name, place in cluster.network.places.items():
            self.model.place(name, place)
        self._placing = Placing(cluster, self.model, self.objective)
        self._one_host = len(cluster.network.hosts) == 1

    # ---- where a task runs ------------------------------------------------------------------------------------------

    def update_graph(self, tasks: Sequence[Task]) -> None:
        """Divide the root tasks of a graph among islands if links differ."""
        if self.model.differ:
            self._placing.update_graph(tasks)

    def place(self, task: Task) -> WorkerState:
        """Choose a worker by predicted time if links differ."""
        return self._placing.choose(super().place, task) if self.model.differ else super().place(task)

    def comm_s(self, task: Task, state: WorkerState) -> float:
        """Return the predicted seconds of fetching a task's inputs."""
        return self._placing.comm_s(task, state) if self.model.differ else super().comm_s(task, state)

    def move_s(self, task: Task) -> float:
        """Return the predicted seconds of moving a task to a neighbour of the worker that holds most of its inputs."""
        held: dict[str, int] = {}
        for dep in task.dependencies:
            for state in dep.who_has:
                held[state.address] = held.get(state.address, 0) + dep.nbytes
        holder = max(held, key=held.__getitem__, default=None)
        if not self.model.differ or holder is None:
            return super().move_s(task)
        beside = next((w for w in self.model.beside(holder) if w != holder), None)
        other = beside or next((w for w in self.cluster.idle if w != holder), None)
        now = self.cluster.engine.now_s
        return super().move_s(task) if other is None else self.model.seconds(holder, other, task.get_nbytes_deps(), now)

    # ---- fetching ---------------------------------------------------------------------------------------------------

    def sources(self, worker: Worker) -> Iterator[tuple[Worker, list[Task]]]:
        """Yield sources by predicted time; leave out values that a busy source will deliver sooner."""
        if not self.model.differ:
            yield from super().sources(worker)
            return
        now = self.cluster.engine.now_s
        first = first_needed(worker)
        found: dict[Worker, list[Task]] = {}
        soonest: dict[Worker, float] = {}
        for key in sorted(first, key=first.__getitem__):
            holders = {state.address: self.cluster.at[state] for state in self.holders(worker, key)}
            taken = [w for w in holders.values() if w in worker.in_flight or w in worker.busy]
            free = [name for name, w in holders.items() if w not in taken]
            if not free:
                continue
            if len(free) > _MOST_HOLDERS:  # choose at random among equally good ones
                near = [name for name in free if holders[name].state.host == worker.state.host]
                free = near or self.cluster.random.sample(free, _MOST_HOLDERS)
            best = best_source(self.model, Need(key.nbytes, free), worker.name, now)
            if any(self._until(worker, w, key, now) <= _SOONER * best.seconds for w in taken):
                continue
            source = holders[best.source]
            found.setdefault(source, []).append(key)
            soonest.setdefault(source, best.seconds)
        rank = {source: (first[keys[0]], soonest[source], -len(keys)) for source, keys in found.items()}
        for source in sorted(found, key=rank.__getitem__):
            yield source, found[source]

    def _until(self, worker: Worker, source: Worker, key: Task, now: float) -> float:
        before = sum(each.nbytes for each in worker.in_flight.get(source, ()))
        seconds = self.model.seconds(source.name, worker.name, before + key.nbytes, now)
        return seconds + (BUSY_S / 2 if source in worker.busy else 0.0)

    def fetch(self, worker: Worker, source: Worker, keys: list[Task]) -> None:
        """Fetch large values of another host in pieces, as their chains decide, and the rest in one request."""
        if source.state.host == worker.state.host:
            super().fetch(worker, source, keys)
            return
        large = [key for key in keys if key.nbytes >= LEAST_NBYTES]
        rest = [key for key in keys if key.nbytes < LEAST_NBYTES]
        left = len(large) + bool(rest)

        def one() -> None:
            nonlocal left
            left -= 1
            if not left:
                worker.got(source, keys)

        if rest:
            self.request(worker, source, rest, one)
        latency = self.cluster.network.way(source.name, worker.name).latency_s
        for key in large:
            self.cluster.requests += 1
            self.cluster.engine.after(latency, self._ask, worker, source, key, one)

    def _ask(self, worker: Worker, source: Worker, key: Task, done: Callable[[], None]) -> None:
        offer = self._offers.get((source, key))
        if offer is None or offer.over:
            offer = self._offers[source, key] = Offer(
                Around(self.cluster, self.rates, self.served, self.timed, self.hop_s), source, key
            )
        if not source.alive:
            worker.got(source, ())
        elif not offer.join(worker, done):
            self.refuse(worker, source)

    def rates(self, source: Worker, worker: Worker) -> dict[str, float]:
        """Return the seconds per byte to a worker, by sending host where known; ``""``, for others, is the source's."""
        now = self.cluster.engine.now_s
        predict = self.model.predict
        rates = {"": predict(source.name, worker.name, now).seconds_per_byte}
        for (a, b, _), _level in list(self.model.hosts.items())[:_MOST_HOSTS]:
            if b == worker.state.host and a not in rates:
                other = next(iter(self.model.beside(a)), None)
                if other is not None:
                    rates[a] = predict(other, worker.name, now).seconds_per_byte
        return rates

    def way(self, source: Worker, worker: Worker, nbytes: int) -> Way:
        """Return the path of `nbytes` bytes: direct, or through a third worker if that is predicted to be faster."""
        direct = super().way(source, worker, nbytes)
        if direct.lent or not self._one_host or not self.model.differ:
            return direct
        now, among = self.cluster.engine.now_s, self.cluster.workers
        used = self._passing
        relay = best_relay(self.model, source.name, worker.name, nbytes, now, among, lambda w: used.get(w, 0))
        if relay is None:
            return direct
        first, second = (self.cluster.network.way(*ends) for ends in ((source.name, relay), (relay, worker.name)))
        used[relay] = used.get(relay, 0) + 1
        return Way(first.links + second.links, first.latency_s + second.latency_s, relay=relay)

    def refuse(self, worker: Worker, source: Worker) -> None:
        """Refuse a worker, and remember to notify it when this source is free."""
        self._waiting.setdefault(source, {})[worker] = None
        super().refuse(worker, source)

    def served(self, source: Worker) -> None:
        """Notify the first worker that waits for this source."""
        waiting = self._waiting.get(source)
        if waiting:
            worker = next(iter(waiting))
            del waiting[worker]
            self.cluster.engine.after(self.cluster.costs.message_s, worker.free, source)

    def moved(
        self, worker: Worker, source: Worker, way: Way, nbytes: int, seconds: float, flows: tuple[float, float]
    ) -> None:
        """Learn from a transfer."""
        super().moved(worker, source, way, nbytes, seconds, flows)
        now, names = self.cluster.engine.now_s, (source.name, worker.name)
        if way.relay:
            self._passing[way.relay] -= 1
            self.relayed_nbytes += nbytes
            return
        if way.lent:
            self.model.observe_lent(*names, nbytes, 0)
            return
        self.model.observe(*names, 1, way.latency_s, now)
        self.timed(source, worker, nbytes, seconds, flows)

    def timed(self, source: Worker, worker: Worker, nbytes: int, seconds: float, flows: tuple[float, float]) -> None:
        """Learn how long the bytes of a transfer took."""
        egress, ingress = flows
        now, names = self.cluster.engine.now_s, (source.name, worker.name)
        self.model.observe(*names, nbytes, max(seconds, 1e-6), now, egress_flows=egress, ingress_flows=ingress)

    def lost(self, worker: Worker) -> None:
        """Handle the death of a worker."""
        super().lost(worker)
        for offer in list(self._offers.values()):
            offer.lost(worker)

    def replicate(self, key: Task) -> float:
        """Copy a value to all workers; they all ask at once if it is large."""
        if key.nbytes < LEAST_NBYTES:
            return super().replicate(key)
        cluster = self.cluster
        begin = cluster.engine.now_s
        for state in cluster.workers.values():
            if state not in key.who_has:
                cluster.engine.after(cluster.costs.message_s, cluster.at[state].want, key)
        cluster.engine.run()
        return cluster.engine.now_s - begin
