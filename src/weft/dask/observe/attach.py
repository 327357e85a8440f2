# SPDX-License-Identifier: BSD-3-Clause
"""Attaches weft to a scheduler or worker that starts to listen on ``ucx://``: extensions, Prometheus metrics, a page.

Users need not do anything for it. Each server loads only its own part, because a host may have a hundred workers.
Modules that need bokeh or prometheus_client are loaded only where the server itself loads these.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from distributed import Scheduler, Worker

from weft.dask import config, patches
from weft.dask.learn import measured
from weft.dask.observe.traffic import EXTENSION

if TYPE_CHECKING:
    from weft.dask.observe.scheduler import SchedulerTraffic


def report_of(worker: Worker) -> measured.Report:
    """Return what a worker's comms measure; those that it makes know of it from then on."""
    report: measured.Report = worker.rpc.connection_args.setdefault(measured.REPORT, measured.Report())
    return report


def attach(server: object) -> None:
    """Attach weft's parts to a `server` that is about to listen; called again for each port that it tries."""
    if isinstance(server, Worker):
        from weft.dask.learn import chains
        from weft.dask.observe.worker import WorkerTraffic

        chains.serve(server)
        if config.links() == "learn":
            from weft.dask.learn import fetch

            fetch.switch(server, "learn")
        # A scheduler reached by another protocol may not know weft; a heartbeat with data for weft's extension would
        # then end the worker.
        if server.scheduler.address.startswith("ucx://"):
            patches.extend(server, EXTENSION, WorkerTraffic(report_of(server)))
        _register_metrics()
    elif isinstance(server, Scheduler):
        from weft.dask.observe.scheduler import KeepUp, SchedulerTraffic

        extension = SchedulerTraffic(server)

        def route(**asked: Any) -> Any:
            return extension.links.route(**asked)

        if patches.extend(server, EXTENSION, extension):
            patches.serve(server, {"weft_route": route})
            _register_metrics()
            _add_page(server, extension)
            server.add_plugin(KeepUp(extension))


def _register_metrics() -> None:
    # distributed's own handler imports it if it is installed, but a worker's does so only after it listens
    if importlib.util.find_spec("prometheus_client") is not None:
        from weft.dask.observe.prometheus import register

        register()


def _add_page(scheduler: Scheduler, extension: SchedulerTraffic) -> None:
    if "distributed.dashboard.core" in sys.modules:
        from weft.dask.observe.dashboard import add_page

        add_page(scheduler, extension)
