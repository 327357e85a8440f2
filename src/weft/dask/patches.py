# SPDX-License-Identifier: BSD-3-Clause
"""Every part of distributed that weft replaces, and every private part that it uses, with ``patches_*``: nowhere else.

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
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
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


def serve(server: Worker | Scheduler, handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Add request handlers to a server; Dask never answers a request that it does not know (core.py:780)."""
    server.handlers.update(handlers)


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
