# SPDX-License-Identifier: BSD-3-Clause
"""The decisions of distributed that weft replaces: where the scheduler runs a task, what it steals and copies, and from
where a worker fetches.

See also ``patches``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import time
from typing import TYPE_CHECKING, Any

from weft.dask import patches

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler
    from distributed.worker import Worker

logger = logging.getLogger("weft")

#: Scheduler methods that decide by transfer times, with their parameters (scheduler.py:3181, 2361, 6733).
_SCHEDULERS = {
    "get_comm_cost": ("ts", "ws"),
    "decide_worker_non_rootish": ("ts",),
    "decide_worker_rootish_queuing_disabled": ("ts",),
    "decide_worker_rootish_queuing_enabled": (),
    "is_rootish": ("ts",),
    "stimulus_queue_slots_maybe_opened": ("stimulus_id",),
    "gather_on_worker": ("worker_address", "who_has"),
}


def steer_scheduler(
    scheduler: Scheduler,
    *,
    steal_time_ratio: Callable[..., Any],
    find_recipient: Callable[..., Any],
    **functions: Callable[..., Any],
) -> list[Callable[[], None]]:
    """Replace decisions of the scheduler, of work stealing and of the memory manager with functions.

    Each function receives the replaced method, and its arguments. Returns one undo function for each replacement.
    """
    undo: list[Callable[[], None]] = []
    for name, function in functions.items():
        undo += steer(scheduler, name, function, _SCHEDULERS[name], "Scheduler")
    stealing = scheduler.extensions.get("stealing")  # stealing.py:267; None if switched off
    if stealing is not None:
        undo += steer(stealing, "steal_time_ratio", steal_time_ratio, ("ts",), "WorkStealing")
    manager = scheduler.extensions.get("amm")  # active_memory_manager.py:235
    if manager is not None:
        parameters = ("ts", "candidates", "pending_repl")
        undo += steer(manager, "_find_recipient", find_recipient, parameters, "ActiveMemoryManagerExtension")
    return undo


def steer_replicate(scheduler: Scheduler, replicate: Callable[..., Any]) -> list[Callable[[], None]]:
    """Replace ``Scheduler.replicate`` (scheduler.py:7185) with a function, which receives it.

    Requests for it and ``scatter(broadcast=True)`` then use the function, too. Returns the undo functions.
    """
    parameters = ("keys", "n", "workers", "branching_factor", "delete", "stimulus_id")
    undo = steer(scheduler, "replicate", replicate, parameters, "Scheduler")
    return undo + _steer_handler(scheduler, "replicate")


def steer(
    owner: Any, name: str, function: Callable[..., Any], parameters: tuple[str, ...], of: str
) -> list[Callable[[], None]]:
    """Replace a method of one object with a function, which receives it. Returns the undo functions."""
    method = getattr(owner, name, None)
    without = "Dask's own decision is used"
    if not patches.as_known(patches.takes(method, *parameters), f"{of}.{name}", without) or name in vars(owner):
        return []
    guarded = _or_stock_awaited if inspect.iscoroutinefunction(method) else _or_stock
    setattr(owner, name, patches.Replaced(method, functools.partial(guarded, f"{of}.{name}", function)))  # type: ignore[arg-type]
    here = weakref.ref(owner)

    def undo() -> None:
        owner = here()
        if owner is not None:
            delattr(owner, name)

    return [undo]


class _Stock:
    """Dask's own method, and what came of its latest call: an estimate that fails must not have it run twice."""

    __slots__ = ("_method", "answer", "answered", "failed")

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.answer, self.answered, self.failed = method, None, False, False

    def __call__(self, *values: Any, **named: Any) -> Any:
        self.failed = True
        self.answer = self._method(*values, **named)
        self.answered, self.failed = True, False
        return self.answer

    async def awaited(self, *values: Any, **named: Any) -> Any:
        self.failed = True
        self.answer = await self._method(*values, **named)
        self.answered, self.failed = True, False
        return self.answer


def _or_stock(part: str, function: Callable[..., Any], method: Callable[..., Any], *values: Any, **named: Any) -> Any:
    """Call `function`; if it fails, use Dask's own answer, with one warning. Dask's own errors are raised."""
    stock = _Stock(method)
    try:
        return function(stock, *values, **named)
    except Exception:
        if stock.failed:
            raise
        _warn_failed(part)  # an estimate must not end a scheduler
        return stock.answer if stock.answered else stock(*values, **named)


async def _or_stock_awaited(
    part: str, function: Callable[..., Awaitable[Any]], method: Callable[..., Any], *values: Any, **named: Any
) -> Any:
    """Do the same for a coroutine function."""
    stock = _Stock(method)
    try:
        return await function(stock.awaited, *values, **named)
    except Exception:
        if stock.failed:
            raise
        _warn_failed(part)
        return stock.answer if stock.answered else await stock.awaited(*values, **named)


@functools.cache
def _warn_failed(part: str) -> None:
    logger.warning("weft's replacement of Dask's %s failed; Dask's own is used instead", part, exc_info=True)


def _steer_handler(scheduler: Scheduler, name: str) -> list[Callable[[], None]]:
    """Route a request's handler through the method of that name, which may have been replaced (scheduler.py:4171)."""
    handlers = getattr(scheduler, "handlers", {})
    stock = handlers.get(name)
    if stock is None or name not in vars(scheduler):
        return []
    here = weakref.ref(scheduler)

    async def handle(**message: Any) -> Any:
        owner = here()
        assert owner is not None, "owner calls its handlers"
        return await getattr(owner, name)(**message)

    handlers[name] = handle

    def undo() -> None:
        if handlers.get(name) is handle:
            handlers[name] = stock

    return [undo]


def steal_level(
    scheduler: Scheduler, ts: Any, transfer_s: float, *, otherwise: tuple[float | None, int | None]
) -> tuple[float | None, int | None]:
    """Return the result of ``WorkStealing.steal_time_ratio`` for a task whose inputs take `transfer_s` to move.

    As in stealing.py:267. Dask's allowance for the steal itself, ``LATENCY``, is included.
    """
    try:
        from distributed.stealing import LATENCY, fast_tasks

        stealing: Any = scheduler.extensions["stealing"]
        multipliers: Sequence[float] = stealing.cost_multipliers
        compute_s = float(scheduler._get_prefix_duration(ts.prefix))  # pyright: ignore[reportPrivateUsage]
    except (ImportError, AttributeError, KeyError):
        patches.as_known(False, "WorkStealing.steal_time_ratio", "Dask's own decision is used")
        return otherwise
    if ts.prefix.name in fast_tasks or not compute_s:
        return otherwise
    multiplier = (transfer_s + LATENCY) / compute_s
    level = max(1, round(math.log2(multiplier) + 6))
    return (multiplier, level) if level < len(multipliers) else (None, None)


def steer_fetching(worker: Worker, *, select: Callable[..., Iterator[Any]]) -> list[Callable[[], None]]:
    """Let `select` order the sources that a worker fetches from; given Dask's own function, and the state machine.

    ``WorkerState`` has slots, so its class is swapped for one that overrides ``_select_workers_for_gather``
    (worker_state_machine.py:1588). Returns the undo functions.
    """
    state: Any = getattr(worker, "state", None)
    kind: Any = state.__class__
    stock: Any = getattr(kind, "_select_workers_for_gather", None)
    known = patches.takes(stock, "self") and inspect.isgeneratorfunction(stock)
    if not patches.as_known(known, "WorkerState._select_workers_for_gather", "Dask chooses the sources"):
        return []

    def chosen(self: Any) -> Iterator[Any]:
        try:
            yield from select(functools.partial(stock, self), self)
        except Exception:  # noqa: BLE001 - it looks at the same needs, and yields what is left of them
            _warn_failed("WorkerState._select_workers_for_gather")
            yield from stock(self)

    steered = type(kind.__name__, (kind,), {"__slots__": (), stock.__name__: chosen})
    state.__class__ = steered

    def undo() -> None:
        if state.__class__ is steered:
            state.__class__ = kind

    return [undo]


def steer_busy(
    worker: Worker,
    *,
    get_data: Callable[..., Awaitable[Any]],
    wait: Callable[[str], Awaitable[None]],
    tell: str,
    told: Callable[[str], None],
) -> list[Callable[[], None]]:
    """Let a worker await `wait` when a source is busy, and call `told` on a request named `tell`.

    This replaces a sleep of 150 ms (``Worker.retry_busy_worker_later``, worker.py:2028). `get_data` receives the
    handler of requests for values (worker.py:1632), and each request. Returns the undo functions.
    """
    handlers: dict[str, Any] = getattr(worker, "handlers", {})
    serve = handlers.get("get_data")
    known = (
        serve is not None
        and patches.takes(worker.get_data, "comm", "keys", "who", "serializers")
        and patches.takes(worker.retry_busy_worker_later, "worker")
    )
    if not patches.as_known(known, "Worker.get_data", "a busy worker is asked again after 150 ms"):
        return []
    here = weakref.ref(worker)

    # Dask's own parameter names: it checks whether a handler takes `comm` and `serializers` (core.py:123, 788).
    async def handle(comm: Any, keys: Any, who: str | None = None, serializers: Any = None) -> Any:
        return await get_data(serve, comm, keys=keys, who=who, serializers=serializers)

    async def retry(_: Any, source: str) -> Any:
        await wait(source)
        return _retry(source)

    def hear(source: str) -> None:
        told(source)

    handle.in_place_of = serve  # type: ignore[attr-defined] # `undo` must not keep it: it may be the worker's method
    handlers["get_data"] = handle
    handlers[tell] = hear
    worker.retry_busy_worker_later = patches.Replaced(worker.retry_busy_worker_later, retry)

    def undo() -> None:
        worker = here()
        if worker is not None:
            installed: Any = worker.handlers.get("get_data")  # `tell` stays: peers may still send it
            worker.handlers["get_data"] = getattr(installed, "in_place_of", installed)
            del worker.retry_busy_worker_later

    return [undo]


#: The replacement of ``get_data_from_worker``, by the worker's connection pool.
_fetchers: weakref.WeakKeyDictionary[Any, Callable[..., Awaitable[Any]]] = weakref.WeakKeyDictionary()


def steer_get_data(worker: Worker, fetch: Callable[..., Awaitable[Any]]) -> list[Callable[[], None]]:
    """Let `fetch` fetch a worker's values, for its tasks and for copies; it receives Dask's own function.

    Both call ``worker.get_data_from_worker`` (worker.py:1966, 2692; utils_comm.py:58), a module-level function; its
    replacement passes the calls of all other workers on. Returns the undo functions.
    """
    module: Any = importlib.import_module("distributed.worker")
    stock: Any = getattr(module, "get_data_from_worker", None)
    if not isinstance(stock, _Fetched):
        parameters = ("rpc", "keys", "worker", "who", "serializers", "deserializers")
        known = patches.takes(stock, *parameters)
        if not patches.as_known(known, "get_data_from_worker", "values do not travel in chains"):
            return []
        module.get_data_from_worker = _Fetched(stock)
    rpc = worker.rpc
    _fetchers[rpc] = fetch

    def undo() -> None:
        _fetchers.pop(rpc, None)

    return [undo]


class _Fetched:
    """``get_data_from_worker``, with a per-worker replacement."""

    def __init__(self, stock: Callable[..., Awaitable[Any]]) -> None:
        self.stock = stock

    def __call__(
        self,
        rpc: Any,
        keys: Any,
        worker: str,
        *,
        who: str | None = None,
        serializers: list[str] | None = None,
        deserializers: list[str] | None = None,
    ) -> Awaitable[Any]:
        options = {"who": who, "serializers": serializers, "deserializers": deserializers}
        fetch = _fetchers.get(rpc)
        if fetch is None:
            return self.stock(rpc=rpc, keys=keys, worker=worker, **options)
        return fetch(self.stock, rpc=rpc, keys=keys, worker=worker, **options)


def look_for_sources(worker: Worker, itself: str) -> None:
    """Let a worker reconsider what to fetch, and from where: any event triggers that (worker_state_machine.py)."""
    worker.handle_stimulus(_retry(itself))


def _retry(source: str) -> Any:
    from distributed.worker_state_machine import RetryBusyWorkerEvent

    return RetryBusyWorkerEvent(worker=source, stimulus_id=f"retry-busy-worker-{time()}")
