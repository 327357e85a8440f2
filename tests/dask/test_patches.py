# SPDX-License-Identifier: BSD-3-Clause
"""Canaries: each part of distributed that ``weft.dask.patches`` replaces or uses is as it was read, or fails by name.

And where a part is not, Dask's own stays in place and the log says so once.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed.comm.registry
import distributed.shuffle._core
import numpy as np
import pytest
from distributed import Nanny, Scheduler, Worker
from distributed.comm import core as comm_core
from distributed.comm import utils as comm_utils
from distributed.core import Server
from distributed.nanny import WorkerProcess
from distributed.protocol import dumps, to_serialize
from distributed.system_monitor import SystemMonitor
from distributed.utils import run_in_executor_with_context
from distributed.worker_memory import NannyMemoryManager, WorkerMemoryManager
from tornado.ioloop import PeriodicCallback

from weft.dask import patches, patches_p2p


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def source(function: object) -> str:
    """Return the code of a function or class without comments, docstrings and line breaks."""
    return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))  # type: ignore[arg-type]


def readers_of(cls: type, attribute: str) -> set[str]:
    """Name the methods of a class that read an attribute of ``self``."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        method.name
        for method in tree.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load)
    }


# ---- canaries: servers ----------------------------------------------------------------------------------------------


def test_server_listens_with_its_own_handle_comm() -> None:
    assert "self.handle_comm" in source(Server.listen)
    assert parameters(Server.handle_comm) == ["self", "comm"]


def test_nanny_has_a_nanny_memory_manager() -> None:
    assert "self.memory_manager = NannyMemoryManager(self" in source(Nanny.__init__)


def test_worker_protocol_is_read_only_before_listening_and_in_close() -> None:
    assert readers_of(Worker, "_protocol") == {"start_unsafe", "close"}
    assert "if self._protocol.startswith('ucx'):\n        await asyncio.sleep(0.2)" in source(Worker.close)


def test_tasks_run_in_a_copy_of_the_context() -> None:
    assert "copy_context()" in source(run_in_executor_with_context)
    assert "await run_in_executor_with_context(" in source(Worker.execute)
    start = source(Worker.start_unsafe)
    assert 0 < start.index("await self.listen(") < start.index("await self._register_with_scheduler()")


def test_worker_heartbeat_asks_extensions() -> None:
    assert "name: extension.heartbeat() for name, extension in self.extensions.items()" in source(Worker.heartbeat)


def test_scheduler_heartbeat_weighs_sums_as_means_and_tells_extensions_last() -> None:
    heartbeat = source(Scheduler.heartbeat_worker)
    assert "alpha = (1 - frac) ** count" in heartbeat
    assert "self.bandwidth_workers[address, other] = bw / count" in heartbeat
    wrong = "self.bandwidth_workers[address, other] * alpha + bw * (1 - alpha)"
    assert wrong in heartbeat
    assert "self.bandwidth_types[typ] * alpha + bw * (1 - alpha)" in heartbeat
    assert heartbeat.index(wrong) < heartbeat.index("ws.metrics = metrics") < heartbeat.index("].heartbeat(ws, data)")


def test_worker_metrics_have_bandwidths_and_spilled_bytes() -> None:
    metrics = source(Worker.get_metrics)
    assert "'workers': dict(self.bandwidth_workers), 'types': keymap(typename, self.bandwidth_types)" in metrics
    assert "spilled_bytes={'memory': spilled_memory, 'disk': spilled_disk}" in metrics
    assert "managed_bytes=self.state.nbytes" in metrics
    assert parameters(Worker.get_metrics) == ["self"]
    assert "metrics['memory'] - ws.nbytes + metrics['spilled_bytes']['memory']" in source(Scheduler.heartbeat_worker)


def test_comm_placeholder_for_ucx_is_a_module_of_its_own() -> None:
    """What ``weft._claim_scheme`` keeps out, before distributed's comms are loaded."""
    register = source(distributed.comm._register_transports)
    assert register.index("import distributed_ucxx") < register.index("from distributed.comm import ucx")
    assert isinstance(distributed.comm.registry.backends, dict)


# ---- canaries: memory -----------------------------------------------------------------------------------------------


def test_worker_memory_manager_has_its_limits() -> None:
    names = ("memory_limit", "memory_target_fraction", "memory_spill_fraction")
    assert set(names) <= set(WorkerMemoryManager.__annotations__)


def test_nanny_memory_manager_has_its_limits() -> None:
    assert {"memory_limit", "memory_terminate_fraction"} <= set(NannyMemoryManager.__annotations__)


def test_system_monitor_get_process_memory() -> None:
    assert parameters(SystemMonitor.get_process_memory) == ["self"]
    assert "return self.proc.memory_info().rss" in source(SystemMonitor.get_process_memory)


def test_worker_memory_monitor_asks_the_system_monitor() -> None:
    assert "worker.monitor.get_process_memory()" in source(WorkerMemoryManager.memory_monitor)
    assert "worker.monitor.get_process_memory()" in source(WorkerMemoryManager._spill)


def test_a_nanny_s_worker_gets_its_environment() -> None:
    assert "env=self.env" in source(Nanny.instantiate)


def test_a_worker_that_starts_is_not_closed_by_its_nanny() -> None:
    kill = source(WorkerProcess.kill)
    (allowed,) = (line for line in kill.splitlines() if line.strip().startswith("assert self.status in"))
    assert "Status.failed" in allowed
    assert "Status.starting" not in allowed
    assert "self.stopped.set()" in source(WorkerProcess.mark_stopped)


def test_nanny_memory_monitor_is_a_periodic_callback() -> None:
    init = source(NannyMemoryManager.__init__)
    assert "PeriodicCallback(partial(self.memory_monitor, nanny)" in init
    assert "nanny.periodic_callbacks['memory_monitor'] = pc" in init
    monitor = source(NannyMemoryManager.memory_monitor)
    assert "process = nanny.process.process" in monitor
    assert "psutil.Process(process.pid).memory_info().rss" in monitor
    assert "memory / self.memory_limit <= self.memory_terminate_fraction" in monitor
    assert "callback" in vars(PeriodicCallback(lambda: None, 100))


# ---- canaries: messages ---------------------------------------------------------------------------------------------


def test_comm_has_its_addresses_where_connect_reads_them() -> None:
    connect = source(comm_core.connect)
    assert "comm._peer_addr" in connect
    assert "comm._local_addr" in connect


def test_offload_threshold() -> None:
    assert isinstance(comm_utils.OFFLOAD_THRESHOLD, int)
    assert patches.offload_threshold() == comm_utils.OFFLOAD_THRESHOLD > 0


def test_frames_of_a_message() -> None:
    array = np.arange(1000)
    (part,) = patches.serialized_parts(list(dumps({"data": to_serialize(array)})))
    nbytes, header, frames = part
    assert nbytes > 0
    assert header["serializer"] == "dask"
    assert sum(memoryview(frame).nbytes for frame in frames) == array.nbytes
    (pickled,) = patches.serialized_parts(list(dumps({"data": to_serialize(object)})))
    assert pickled[1]["serializer"] == "pickle"


@pytest.mark.parametrize(("library", "handlers"), [("torch", patches.torch_handlers), ("cupy", patches.cupy_handlers)])
def test_protocol_has_handlers(library: str, handlers: Callable[[], object]) -> None:
    with suppress(ImportError):  # the library is not here
        assert handlers() is not None
        importlib.import_module(f"weft.dask.tensors.{library}")  # loaded last, as where weft loads both


# ---- canaries: P2P --------------------------------------------------------------------------------------------------


def test_shuffles_make_their_buffer_as_read() -> None:
    from distributed.shuffle._core import ShuffleRun
    from distributed.shuffle._disk import DiskShardsBuffer
    from distributed.shuffle._memory import MemoryShardsBuffer

    assert parameters(DiskShardsBuffer) == ["directory", "read", "memory_limiter"]
    assert parameters(DiskShardsBuffer._process) == parameters(MemoryShardsBuffer._process) == ["self", "id", "shards"]
    made = source(ShuffleRun.__init__)
    assert "DiskShardsBuffer(directory=directory, read=self.read, memory_limiter=memory_limiter_disk)" in made
    assert "MemoryShardsBuffer(deserialize=self.deserialize)" in made
    assert "self.digest_metric = digest_metric" in made
    assert "data.append(self._deserialize(shard))" in source(MemoryShardsBuffer.read)
    assert "raise DataUnavailable(id)" in source(DiskShardsBuffer.read)


def test_shuffles_of_dataframes_write_their_shards_as_read() -> None:
    from distributed.shuffle import _arrow, _shuffle
    from distributed.shuffle._disk import DiskShardsBuffer

    assert parameters(_arrow.serialize_table) == ["table"]
    assert "with pa.ipc.new_stream(stream, table.schema) as writer:" in source(_arrow.serialize_table)
    assert "pa.ipc.open_stream(pa.py_buffer(buffer))" in source(_arrow.deserialize_table)
    assert "serialize_table(t)" in source(_shuffle.DataFrameShuffleRun._shard_partition)
    assert "serialize_table(v)" in source(_shuffle.DataFrameShuffleRun._repartition_buffers)
    assert "deserialize_table(buffer)" in source(_shuffle.DataFrameShuffleRun.deserialize)
    assert "if isinstance(shards[0], bytes):" in source(DiskShardsBuffer._process)


# ---- canaries: the dashboard ----------------------------------------------------------------------------------------


def test_dashboard_application_and_look() -> None:
    pytest.importorskip("bokeh")
    from distributed.dashboard import scheduler as pages
    from distributed.dashboard.components import scheduler as components
    from distributed.dashboard.core import BokehApplication

    assert parameters(BokehApplication) == ["applications", "server", "prefix", "template_variables"]
    assert parameters(pages.template_variables) == ["scheduler"]
    assert "'plots': " in source(pages.template_variables.__wrapped__)
    assert "application.add_application(bokeh_app)" in source(pages.connect)
    assert components.env.get_template("simple.html")
    assert components.BOKEH_THEME


# ---- where a part is not as it was read -----------------------------------------------------------------------------


def one(warnings: pytest.LogCaptureFixture, part: str) -> bool:
    (message,) = warnings.messages
    return message.startswith(f"weft does not support Dask's {part} in distributed")


def test_another_process_memory_stays(warnings: pytest.LogCaptureFixture) -> None:
    def other(unit: str) -> int:
        return len(unit)

    for _ in range(2):
        monitor = SimpleNamespace(get_process_memory=other)
        assert not patches.replace_process_memory(monitor, lambda measure: measure())
        assert monitor.get_process_memory is other
    assert one(warnings, "SystemMonitor.get_process_memory")


def test_other_metrics_stay(warnings: pytest.LogCaptureFixture) -> None:
    worker = SimpleNamespace(get_metrics=dict)
    patches.replace_metrics(worker, lambda collect: collect())
    assert worker.get_metrics is dict
    assert one(warnings, "Worker.get_metrics")
    metrics = {"spilled_bytes": 5}
    assert patches.leave_out_of_managed(metrics, lambda: 7) is metrics


def test_another_nanny_monitor_stays(warnings: pytest.LogCaptureFixture) -> None:
    def other(nanny: object) -> None: ...

    nanny = SimpleNamespace(periodic_callbacks={"memory_monitor": SimpleNamespace(callback=other)})
    patches.replace_nanny_monitor(nanny, lambda look: None)
    assert nanny.periodic_callbacks["memory_monitor"].callback is other
    assert one(warnings, "NannyMemoryManager.memory_monitor")


def test_another_protocol_stays(warnings: pytest.LogCaptureFixture) -> None:
    worker = SimpleNamespace()
    patches.close_without_delay(worker)
    assert vars(worker) == {}
    assert one(warnings, "Worker._protocol")


def test_another_close_stays(warnings: pytest.LogCaptureFixture) -> None:
    worker = SimpleNamespace(stream_handlers={"close": print}, close=print)
    patches.close_beside_its_nanny(worker)
    assert worker.stream_handlers == {"close": print}
    assert one(warnings, "Worker.close")


def test_other_bandwidths_are_left(warnings: pytest.LogCaptureFixture) -> None:
    assert patches.bandwidths_seen_by(SimpleNamespace(metrics={"bandwidth": 5})) == ({}, {})
    assert patches.bandwidths_seen_by(SimpleNamespace(metrics={})) == ({}, {})
    assert one(warnings, "heartbeats' bandwidth")


def test_another_buffer_of_shards_stays(warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def __init__(self, folder: str) -> None:
            self.folder = folder

    monkeypatch.setattr("distributed.shuffle._core.DiskShardsBuffer", Other)
    patches_p2p.keep_shards(SimpleNamespace(extensions={}), SimpleNamespace())
    assert distributed.shuffle._core.DiskShardsBuffer is Other
    assert one(warnings, "DiskShardsBuffer")


def test_another_send_of_shards_stays(warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(self: object, address: str) -> None: ...

    monkeypatch.setattr("distributed.shuffle._core.ShuffleRun.send", send)
    patches_p2p.hand_over_to_itself()
    assert distributed.shuffle._core.ShuffleRun.send is send
    assert one(warnings, "ShuffleRun.send")


def test_arrays_stay_where_they_are_without_contexts(
    warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("distributed.utils.run_in_executor_with_context")
    patches.set_in_context_of_tasks(lambda: pytest.fail("was called"))
    assert one(warnings, "run_in_executor_with_context")


# ---- what is replaced -----------------------------------------------------------------------------------------------


def test_a_replaced_method_holds_no_owner() -> None:
    monitor = SystemMonitor()
    before = monitor.get_process_memory()
    assert patches.replace_process_memory(monitor, lambda measure: -measure())
    assert not patches.replace_process_memory(monitor, lambda measure: 0)  # for another port
    assert monitor.get_process_memory() < -before // 2
    replaced = monitor.get_process_memory
    del monitor
    with pytest.raises(AssertionError):
        replaced()


def test_metrics_are_replaced_by_what_awaits_them() -> None:
    class Metered:
        async def get_metrics(self) -> dict[str, Any]:
            return {"managed_bytes": 10, "spilled_bytes": {"memory": 3, "disk": 1}}

    async def change(collect: Callable[[], Any]) -> dict[str, Any]:
        return patches.leave_out_of_managed(await collect(), lambda: 100)

    worker = Metered()
    patches.replace_metrics(worker, change)
    assert asyncio.run(worker.get_metrics())["spilled_bytes"] == {"memory": 10, "disk": 1}


# ---- the one place --------------------------------------------------------------------------------------------------


def test_private_parts_of_others_are_touched_nowhere_else() -> None:
    """A private attribute is of the object that the method belongs to, or of this package."""
    own, touched = {"self", "cls", "_native"}, []
    allowed = ("patches.py", "patches_decisions.py", "patches_p2p.py")
    for path in Path(patches.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                holder = node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value)
                if holder not in own and path.name not in allowed:
                    touched.append(f"{path.name}: {holder}.{node.attr}")
    assert touched == ["torch.py: t._nnz"]  # PyTorch offers nothing else for the size of a sparse tensor
