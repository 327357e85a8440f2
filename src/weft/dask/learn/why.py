# SPDX-License-Identifier: BSD-3-Clause
"""Why a task went to its worker: each candidate's predicted fetch time, and who decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft.dask.observe.traffic import EXTENSION


@dataclass(frozen=True)
class Why:
    """Why a task runs on its worker: print it.

    Attributes
    ----------
    key : str
        The task's key.
    worker : str or None
        The name of the worker that the task was last sent to, or that has its result; None if there is none.
    decided_by : str
        ``links``: the predicted times of the links decided; ``dask``: Dask's own method did.
    reason : str
        The reason, as a sentence.
    fetch_s : dict of str to float
        For each candidate worker, by name: the seconds that it was expected to need to fetch the task's inputs.
    """

    key: str
    worker: str | None
    decided_by: str
    reason: str
    fetch_s: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.key}: on worker {self.worker}", f"decided by {self.decided_by}: {self.reason}"]
        for name, seconds in sorted(self.fetch_s.items(), key=lambda item: item[1]):
            mark = "->" if name == self.worker else "  "
            lines.append(f"{mark} {name}: {seconds * 1e3:.4g} ms to fetch")
        return "\n".join(lines)


def _on_scheduler(key: Any, dask_scheduler: Any) -> dict[str, Any]:
    scheduler = dask_scheduler
    extension = scheduler.extensions.get(EXTENSION)
    ts = scheduler.tasks.get(key)
    at = None if ts is None else ts.processing_on or next(iter(ts.who_has or ()), None)
    told: dict[str, Any] = {"key": str(key), "worker": None if at is None else str(at.name), "decided_by": "dask"}
    if extension is None:
        return {**told, "reason": "the scheduler does not listen on ucx://, so it has no link measurements"}
    decision = extension.links.placing.decisions.get(key)
    if decision is not None:
        names = {address: str(ws.name) for address, ws in scheduler.workers.items()}
        fetch_s = {names.get(address, address): seconds for address, seconds in decision["fetch_s"].items()}
        worker = names.get(decision["worker"], decision["worker"])
        reason = "it was predicted to start first there, including its queue and the inputs to fetch"
        if told["worker"] not in (None, worker):
            reason += f"; that was {worker}, and the task has moved since"
        return {**told, "worker": told["worker"] or worker, "decided_by": "links", "reason": reason, "fetch_s": fetch_s}
    return {**told, "reason": _stock_reason(extension.links, ts)}


def _stock_reason(links: Any, ts: Any) -> str:
    if ts is None:
        return "the scheduler does not know this task"
    if links.mode != "learn":
        return f"weft.links is {links.mode!r}"
    if not ts.dependencies:
        return "the task has no inputs to fetch"
    if not links.decides:
        return "the links between the workers are not known to differ"
    return "there was only one candidate, or the decision is no longer recorded"


async def _ask(client: Any, key: Any) -> Why:
    return Why(**await client.run_on_scheduler(_on_scheduler, key))


def why(client: Any, key: Any) -> Any:
    """Return why a task went to its worker.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster. Only its scheduler is asked.
    key : str, tuple or distributed.Future
        The task.

    Returns
    -------
    Why
        Print it. If `client` is asynchronous, await it first.
    """
    return client.sync(_ask, client, getattr(key, "key", key))
