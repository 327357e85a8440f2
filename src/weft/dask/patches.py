# SPDX-License-Identifier: BSD-3-Clause
"""Every part of distributed that weft replaces, and every private part that it uses: here and nowhere else.

The rest of ``weft.dask`` calls these functions as if distributed had them. Files and lines refer to distributed
2026.8.0 and zict 3.0.0. Each function first checks that the part is unchanged. If it is not, Dask's own stays in place,
with one warning per process. ``tests/dask/test_patches.py`` has a canary for each part, which fails with the part's
name when Dask changes it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import msgpack
from distributed.comm import utils
from distributed.protocol.serialize import msgpack_decode_default
from distributed.protocol.utils import msgpack_opts
from distributed.utils import nbytes
from distributed.worker_memory import NannyMemoryManager

if TYPE_CHECKING:
    from distributed.nanny import Nanny
    from distributed.scheduler import Scheduler, WorkerState
    from distributed.system_monitor import SystemMonitor
    from distributed.worker import Worker


logger = logging.getLogger("weft")

#: Sum and count of the bandwidths that a worker measured, in bytes/second.
Bandwidths = Mapping[str, tuple[float, int]]


@functools.cache
def _warn(part: str, without: str) -> None:
    logger.warning("weft does not support Dask's %s in distributed %s: %s", part, version("distributed"), without)


def as_known(known: bool, part: str, without: str) -> bool:
    """Return `known`; if False, warn once, with the consequence."""
    if not known:
        _warn(part, without)
    return known


def takes(function: object, *names: str) -> bool:
    """Tell whether a function or method takes exactly these parameters."""
    try:
        return callable(function) and tuple(inspect.signature(function).parameters) == names
    except ValueError:  # no signature
        return False


class Replaced:
    """Replaces a method of one object with a function, which receives the method and may call it.

    Holds the object weakly: a worker is freed when it is dropped.
    """

    def __init__(self, method: Callable[..., Any], function: Callable[..., Any]) -> None:
        self._method = weakref.WeakMethod(method)
        self.function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        method = self._method()
        assert method is not None, "its owner calls this"
        return self.function(method, *arguments, **named)


# ---- servers --------------------------------------------------------------------------------------------------------


def server_of(comm_handler: Callable[..., object]) -> object | None:
    """Return the server of a listener: `comm_handler` is its ``handle_comm`` (core.py:691)."""
    return getattr(comm_handler, "__self__", None)


def is_nanny(server: object) -> TypeGuard[Nanny]:
    """Recognize a nanny without its class, whose module may be half imported when a comm is loaded (nanny.py:259)."""
    return isinstance(getattr(server, "memory_manager", None), NannyMemoryManager)


def close_without_delay(worker: Worker) -> None:
    """Let a listening worker close its connections without pauses of 0.2 s between them.

    If ``_protocol`` begins with ucx, ``Worker.close`` pauses after its own connections are closed (worker.py:1524);
    shuffles that still send to it then fail. Nothing else reads ``_protocol`` once the worker listens
    (worker.py:1294).
    """
    known = isinstance(getattr(worker, "_protocol", None), str)
    if as_known(known, "Worker._protocol", "closing a worker takes 0.2 s longer"):
        worker._protocol = "weft"  # pyright: ignore[reportPrivateUsage]


def close_beside_its_nanny(worker: Worker) -> None:
    """Let a worker that its scheduler closes be closed by its nanny meanwhile.

    ``Worker.close`` first connects to its nanny, for 30 s if need be, and a second close waits for the first
    (worker.py:1430, 1472). But a nanny that closes stops listening before it closes its worker (nanny.py:594), and
    kills it after 4 s. An adaptive cluster does both; the scheduler's message comes last over tcp, and first over ucx.
    """
    stock: Any = getattr(worker, "close", None)
    handlers: dict[str, Any] = getattr(worker, "stream_handlers", {})
    if getattr(handlers.get("close"), "__module__", None) == __name__:  # for another port of this worker
        return
    names = ("timeout", "executor_wait", "nanny", "reason")
    known = takes(stock, *names) and handlers.get("close") == stock
    if not as_known(known, "Worker.close", "workers of an adaptive cluster take 4 s to close"):
        return
    here: weakref.ref[Any] = weakref.ref(worker)

    async def close(reason: str = "worker-close") -> None:
        owner = here()
        assert owner is not None, "owner calls its handlers"
        if owner.nanny:
            # Nobody listens there any more, or the worker has closed meanwhile, and its pool of connections.
            with contextlib.suppress(OSError, RuntimeError):
                async with owner.rpc(owner.nanny) as nanny:
                    await nanny.close_gracefully(reason=reason)
        await owner.close(nanny=False, reason=reason)

    handlers["close"] = close


def set_in_context_of_tasks(set_variable: Callable[[], object]) -> None:
    """Set a context variable for the tasks of the worker that is starting its listener.

    ``Worker.start_unsafe`` awaits its listener before it contacts the scheduler, in the context from which everything
    later starts, and each task runs in a copy of it (worker.py:2197, utils.py:1446).
    """
    known = hasattr(importlib.import_module("distributed.utils"), "run_in_executor_with_context")
    if as_known(known, "run_in_executor_with_context", "arrays of tasks are copied, not lent"):
        set_variable()


def extend(server: Scheduler | Worker, name: str, extension: object) -> bool:
    """Add an extension to a server, unless it has one with this name.

    The result of a worker extension's ``heartbeat`` (worker.py:1175) is passed to the scheduler extension of the same
    name, at the end of ``Scheduler.heartbeat_worker`` (scheduler.py:4653).
    """
    return server.extensions.setdefault(name, extension) is extension


def bandwidths_seen_by(ws: WorkerState) -> tuple[Bandwidths, Bandwidths]:
    """Return the bandwidths in a worker's latest heartbeat: from each other worker, and of each type of value."""
    try:
        seen: dict[str, Bandwidths] = ws.metrics["bandwidth"]
        return dict(seen["workers"]), dict(seen["types"])
    except (KeyError, TypeError, ValueError):
        as_known(False, "heartbeats' bandwidth", "the bandwidths on its dashboard are not corrected")
        return {}, {}


def put_bandwidths(scheduler: Scheduler, pairs: Mapping[tuple[str, str], float], types: Mapping[str, float]) -> None:
    """Replace the scheduler's mean bandwidths: of a worker from another, by both addresses, and of types.

    ``Scheduler.heartbeat_worker`` treats sums as means (scheduler.py:4588), so its own are too high by up to the
    count.
    """
    scheduler.bandwidth_workers.update(pairs)
    scheduler.bandwidth_types.update(types)


# ---- memory limits --------------------------------------------------------------------------------------------------


class MemoryLimits(NamedTuple):
    """The memory limit of a worker or nanny in bytes, and its thresholds."""

    nbytes: int | None
    #: The worker spills down to this; None: it does not spill.
    spill_until_nbytes: float | None = None
    #: A nanny kills its worker above this; None: it does not.
    terminate_nbytes: float | None = None


def limits_of_worker(worker: Worker) -> MemoryLimits:
    """Read the limits of ``WorkerMemoryManager`` (worker_memory.py:88)."""
    memory = worker.memory_manager
    fraction = memory.memory_target_fraction or memory.memory_spill_fraction
    return MemoryLimits(
        memory.memory_limit,
        spill_until_nbytes=memory.memory_limit * fraction if memory.memory_limit and fraction else None,
    )


def limits_of_nanny(nanny: Nanny) -> MemoryLimits:
    """Read the limits of ``NannyMemoryManager`` (worker_memory.py:357)."""
    memory = nanny.memory_manager
    fraction = memory.memory_terminate_fraction
    return MemoryLimits(
        memory.memory_limit,
        terminate_nbytes=memory.memory_limit * fraction if memory.memory_limit and fraction else None,
    )


def pid_of_worker(nanny: Nanny) -> int | None:
    """Return the pid of a nanny's worker, found as in ``NannyMemoryManager.memory_monitor``."""
    process = nanny.process and nanny.process.process
    pid: int | None = process.pid if process else None
    return pid


async def kill_worker_that_starts(nanny: Nanny) -> None:
    """Kill a nanny's worker if it has not started yet: else ``Nanny.close`` fails an assertion (nanny.py:849)."""
    starting = nanny.process
    if starting is not None and starting.process is not None and starting.status.name == "starting":
        await starting.process.kill()
        await starting.stopped.wait()


def set_in_environment_of_worker(nanny: Nanny, name: str, value: str) -> None:
    """Set an environment variable of the workers that a nanny will start, by ``Nanny.env`` (nanny.py:413)."""
    environment: dict[str, str] | None = getattr(nanny, "env", None)
    if as_known(isinstance(environment, dict), "Nanny.env", "workers keep idle memory by their own peaks"):
        assert environment is not None
        environment[name] = value


def replace_process_memory(monitor: SystemMonitor, measure: Callable[[Callable[[], int]], int]) -> bool:
    """Let `measure` provide a worker's process memory; return False if that is not possible, or already the case.

    ``SystemMonitor.get_process_memory`` is a method of its own so that it can be replaced (system_monitor.py:144).
    """
    method = monitor.get_process_memory
    if isinstance(method, Replaced):
        return False
    part = "SystemMonitor.get_process_memory"
    if not as_known(takes(method), part, "pooled and borrowed memory counts as the worker's"):
        return False
    monitor.get_process_memory = Replaced(method, measure)
    return True


def replace_metrics(
    worker: Worker, change: Callable[[Callable[[], Awaitable[dict[str, Any]]]], Awaitable[dict[str, Any]]]
) -> None:
    """Let `change` wrap the metrics of a worker's heartbeats, ``Worker.get_metrics`` (worker.py:938)."""
    known = takes(worker.get_metrics) and inspect.iscoroutinefunction(worker.get_metrics)
    if as_known(known, "Worker.get_metrics", "borrowed keys show as managed memory"):
        worker.get_metrics = Replaced(worker.get_metrics, change)


def leave_out_of_managed(metrics: dict[str, Any], nbytes: Callable[[], int]) -> dict[str, Any]:
    """Subtract the bytes of keys from what Dask shows as managed memory.

    Dask computes it as the size of a worker's keys minus that of keys on disk (scheduler.py:4630), so the bytes are
    added to the latter. What Dask shows as spilled is another figure, the size on disk.
    """
    try:
        spilled: dict[str, int] = {**metrics["spilled_bytes"]}
        in_memory = max(0, metrics["managed_bytes"] - spilled["memory"])
    except (KeyError, TypeError):
        as_known(False, "metrics' spilled_bytes", "borrowed keys show as managed memory")
        return metrics
    return {**metrics, "spilled_bytes": {**spilled, "memory": spilled["memory"] + min(nbytes(), in_memory)}}


def replace_nanny_monitor(nanny: Nanny, look: Callable[[Callable[[], object]], None]) -> None:
    """Let `look` decide on each call whether a nanny checks its worker's memory, which kills a worker above the limit.

    ``NannyMemoryManager.memory_monitor`` is a periodic callback of the nanny (worker_memory.py:379); without a limit
    it does not exist.
    """
    monitor = nanny.periodic_callbacks.get("memory_monitor")
    if monitor is None:
        return
    callback = getattr(monitor, "callback", None)
    if isinstance(callback, _Looked):
        return
    without = "a nanny counts memory that its worker borrowed as the worker's"
    if as_known(takes(callback), "NannyMemoryManager.memory_monitor", without):
        monitor.callback = _Looked(look, callback)


class _Looked(functools.partial[None]):
    """A periodic callback that was replaced."""


# ---- decisions ------------------------------------------------------------------------------------------------------


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
    if not as_known(takes(method, *parameters), f"{of}.{name}", without) or name in vars(owner):
        return []
    guarded = _or_stock_awaited if inspect.iscoroutinefunction(method) else _or_stock
    setattr(owner, name, Replaced(method, functools.partial(guarded, f"{of}.{name}", function)))  # type: ignore[arg-type]
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
        as_known(False, "WorkStealing.steal_time_ratio", "Dask's own decision is used")
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
    known = takes(stock, "self") and inspect.isgeneratorfunction(stock)
    if not as_known(known, "WorkerState._select_workers_for_gather", "Dask chooses the sources"):
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
        and takes(worker.get_data, "comm", "keys", "who", "serializers")
        and takes(worker.retry_busy_worker_later, "worker")
    )
    if not as_known(known, "Worker.get_data", "a busy worker is asked again after 150 ms"):
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
    worker.retry_busy_worker_later = Replaced(worker.retry_busy_worker_later, retry)

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
        if not as_known(takes(stock, *parameters), "get_data_from_worker", "values do not travel in chains"):
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


def serve(server: Worker | Scheduler, handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Add request handlers to a server; Dask never answers a request that it does not know (core.py:780)."""
    server.handlers.update(handlers)


def look_for_sources(worker: Worker, itself: str) -> None:
    """Let a worker reconsider what to fetch, and from where: any event triggers that (worker_state_machine.py)."""
    worker.handle_stimulus(_retry(itself))


def _retry(source: str) -> Any:
    from distributed.worker_state_machine import RetryBusyWorkerEvent

    return RetryBusyWorkerEvent(worker=source, stimulus_id=f"retry-busy-worker-{time()}")


# ---- messages -------------------------------------------------------------------------------------------------------


def offload_threshold() -> int:
    """Return the message size from which Dask uses its offload thread, in bytes; 0: never (comm/utils.py:18)."""
    return int(getattr(utils, "OFFLOAD_THRESHOLD", 0) or 0)


def serialized_parts(frames: Sequence[Any]) -> Iterator[tuple[int, dict[str, Any], Sequence[Any]]]:
    """Yield the size of the header, the header and the frames of each value in a message (protocol/core.py:140).

    Raises
    ------
    Exception
        Of any kind: the frames are not Dask's, or come from another version.
    """
    at = 1
    while at < len(frames):
        options: dict[str, Any] = {"object_hook": msgpack_decode_default, "use_list": False, **msgpack_opts}
        header: dict[str, Any] = msgpack.loads(frames[at], **options)
        after = at + 1 + int(header["num-sub-frames"])
        yield nbytes(frames[at]), header, frames[at + 1 : after]
        at = after


#: Two functions: one takes an array apart into header and frames, the other puts it together.
Handlers = tuple[Callable[[Any], tuple[dict[str, Any], list[Any]]], Callable[[dict[str, Any], list[Any]], Any]]


def torch_handlers() -> Handlers | None:
    """Return Dask's serializers of PyTorch tensors in host memory (protocol/torch.py:14), if it has them.

    Raises
    ------
    ImportError
        PyTorch is not installed.
    """
    return _handlers("torch", "serialize_torch_Tensor", "deserialize_torch_Tensor")


def cupy_handlers() -> Handlers | None:
    """Return Dask's serializers of CuPy arrays on a device (protocol/cupy.py:28), if it has them.

    Raises
    ------
    ImportError
        CuPy is not installed.
    """
    return _handlers("cupy", "cuda_serialize_cupy_ndarray", "cuda_deserialize_cupy_ndarray")


def _handlers(library: str, serialize: str, deserialize: str) -> Handlers | None:
    module = importlib.import_module(f"distributed.protocol.{library}")
    known = hasattr(module, serialize) and hasattr(module, deserialize)
    if not as_known(known, f"protocol.{library}", f"{library}'s arrays travel as in stock Dask"):
        return None
    return getattr(module, serialize), getattr(module, deserialize)


# ---- the dashboard --------------------------------------------------------------------------------------------------


def add_dashboard_page(scheduler: Scheduler, path: str, title: str, document: Callable[..., None]) -> None:
    """Add a page to a scheduler's running dashboard, if it has one.

    Dask collects its pages before the scheduler first listens (scheduler.py:4011, dashboard/scheduler.py:61), so this
    adds another Bokeh application, made like those.
    """
    from bokeh.server.tornado import BokehTornado
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    application = scheduler.http_application
    stock = next((app for app in getattr(application, "applications", ()) if isinstance(app, BokehTornado)), None)
    if stock is None:
        return
    known = takes(BokehApplication, "applications", "server", "prefix", "template_variables")
    if not as_known(known, "BokehApplication", f"the dashboard has no page {title!r}"):
        return
    variables = template_variables(scheduler)
    plots: list[dict[str, str]] = variables["plots"]
    plots.append({"url": path, "name": title})  # the menu of all pages
    plots.sort(key=lambda plot: plot["name"])
    page = BokehApplication({f"/{path}": document}, scheduler, prefix=stock.prefix, template_variables=variables)
    application.add_application(page)  # the scheduler stops it with the others
    page.initialize(IOLoop.current())
    page.start()


def dress_as_dashboard(document: Any, extra: Mapping[str, Any]) -> None:
    """Give a page the look of Dask's own (dashboard/components/scheduler.py:4556)."""
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env

    document.template = env.get_template("simple.html")
    document.template_variables.update(extra)
    document.theme = BOKEH_THEME
