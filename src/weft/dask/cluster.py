# SPDX-License-Identifier: BSD-3-Clause
"""A Dask cluster on this machine, with one worker for each place in the machine's topology."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dask.utils import parse_bytes
from distributed import Adaptive, Nanny, Scheduler
from distributed.deploy.spec import SpecCluster

from weft import _open_files
from weft.errors import InvalidParamError
from weft.topo import cpulist, discovery, nvml
from weft.topo.model import Topology
from weft.topo.options import DASK_CUDA, asks_for_nothing, of
from weft.topo.plan import Plan, WorkerPlan, plan

logger = logging.getLogger("weft")

# not imported: importing the preload binds the process
_PRELOAD = "weft.dask.place"


class TopologyCluster(SpecCluster):  # type: ignore[misc] # distributed has no types
    """A Dask cluster on this machine: a worker for each GPU or NUMA node, bound to its CPUs and memory.

    ``weft topo --plan`` shows the same plan without starting anything. Options of dask-cuda's LocalCUDACluster have the
    same meaning here. The soft limit of open files of this process is raised to the hard limit, for the scheduler and
    the workers, which inherit it.

    Parameters
    ----------
    per : str or int, optional
        One worker for each ``gpu``, ``numa`` node or ``l3`` cache, or the number of cores for each worker. By default
        ``gpu`` if there are GPUs, else ``numa``.
    n_workers : int, optional
        The maximum number of workers; by default one in each place.
    threads_per_worker : int, optional
        Threads of each worker. By default 1 for a worker with a GPU, else one for each core.
    memory_limit : int, float, str or None
        Limit of each worker: bytes, ``"4 GiB"``, or a fraction up to 1 of the machine's usable memory. None and 0 mean
        no limit; ``"auto"`` is the plan's share.
    CUDA_VISIBLE_DEVICES : str or sequence of (int or str), optional
        GPUs to use, by number or UUID, also of MIG instances; by default this process's environment variable.
    protocol : str
        Dask's protocol.
    host, interface : str, optional
        The address of scheduler and workers, or the network device with that address. A prefix of several devices
        (``ib``) gives each worker the nearest one. 127.0.0.1 if neither is given.
    dashboard_address : str, optional
        Address of the scheduler's dashboard; None for no dashboard.
    local_directory : str, optional
        Directory for data that workers spill.
    topology : Topology, optional
        Used instead of this machine's.
    asynchronous, silence_logs, name, security, scheduler_port, worker_dashboard_address
        As for ``distributed.LocalCluster``; workers have no dashboard by default.
    env : mapping of str to str, optional
        Environment variables for the workers; they override the plan's.
    pre_import : str, optional
        Modules that workers import before they accept tasks, separated by commas.
    **dask_cuda
        Other options of LocalCUDACluster are refused, with the reason.

    Attributes
    ----------
    layout : Plan
        The place of each worker, and the reasons for it.

    Raises
    ------
    InvalidParamError
        The machine has no such places, or none that this process may use; `memory_limit` is invalid; or an option of
        LocalCUDACluster for RMM, spilling or transports was given.
    """

    layout: Plan

    def __init__(
        self,
        per: str | int | None = None,
        *,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: float | str | None = "auto",
        CUDA_VISIBLE_DEVICES: str | Sequence[int | str] | None = None,  # noqa: N803 - as in LocalCUDACluster
        protocol: str = "ucx",
        host: str | None = None,
        interface: str | None = None,
        dashboard_address: str | None = ":8787",
        local_directory: str | None = None,
        topology: Topology | None = None,
        asynchronous: bool = False,
        silence_logs: bool | int = logging.WARNING,
        name: str | None = None,
        security: Any | None = None,
        scheduler_port: int = 0,
        worker_dashboard_address: str | None = None,
        env: Mapping[str, str] | None = None,
        pre_import: str | None = None,
        **dask_cuda: object,
    ) -> None:
        _refuse(dask_cuda)
        _open_files.raise_limit()  # of this process, which has the scheduler, and of the workers it starts
        topology = topology or discovery.read(driver=nvml.load(), environ=os.environ)
        wanted = of(
            topology,
            per=per,
            workers=n_workers,
            threads=threads_per_worker,
            memory=memory_limit,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES") if CUDA_VISIBLE_DEVICES is None else CUDA_VISIBLE_DEVICES,
            interface=interface,
        )
        self.layout = plan(topology, wanted)
        address = {
            "host": host if host or interface else "127.0.0.1",
            "interface": self.layout.workers[0].interface,
            "protocol": protocol,
            "security": security,
        }
        options = {
            **address,
            "silence_logs": silence_logs,
            "local_directory": local_directory,
            "dashboard": worker_dashboard_address is not None,
            "dashboard_address": worker_dashboard_address,
        }
        preload = [name.strip() for name in (pre_import or "").split(",") if name.strip()]
        self._places = [_spec(worker, options, env or {}, preload) for worker in self.layout.workers]
        self._place_of = {i: i for i in range(len(self._places))}  # by the worker's name
        dashboard = {"dashboard": dashboard_address is not None, "dashboard_address": dashboard_address or ":0"}
        super().__init__(
            workers=dict(enumerate(self._places)),
            worker=self._places[0],  # the cores and memory of one worker, for scale and adapt
            scheduler={"cls": Scheduler, "options": {**address, **dashboard, "port": scheduler_port}},
            asynchronous=asynchronous,
            silence_logs=silence_logs,
            name=name,
            security=security,
        )

    def new_worker_spec(self) -> dict[int, dict[str, Any]]:
        """Return the first free place of the plan, under a new worker name.

        ``scale`` calls this. Reusing a name would confuse the new worker with the old one, which may still be closing.
        """
        taken = {self._place_of[name] for name in self.worker_spec}
        for place, spec in enumerate(self._places):
            if place not in taken:
                name = len(self._place_of)
                self._place_of[name] = place
                return {name: spec}
        raise InvalidParamError(f"scale: the plan has {len(self._places)} places for workers, and all are taken")

    def scale(self, n: int = 0, memory: int | str | None = None, cores: int | None = None) -> Any:
        """Set the number of workers, or their total memory or cores; at most one worker in each place."""
        if memory is not None:
            n = max(n, math.ceil(parse_bytes(memory) / self._memory_per_worker()))
        if cores is not None:
            n = max(n, math.ceil(cores / self._threads_per_worker()))
        if n > len(self._places):
            logger.warning("scale: %s workers requested, but the plan has only %s places", n, len(self._places))
        return super().scale(min(n, len(self._places)))

    scale_up = scale

    def _memory_per_worker(self) -> int:
        nbytes = self._places[0]["options"]["memory_limit"]
        if not isinstance(nbytes, int) or nbytes == 0:
            raise InvalidParamError(
                "scale or adapt by memory: the workers have no memory limit that would tell how many; give a number of"
                " workers, or cores"
            )
        return nbytes

    def adapt(
        self,
        Adaptive: type[Adaptive] = Adaptive,  # noqa: N803 - as in SpecCluster
        minimum: float = 0,
        maximum: float = math.inf,
        **kwargs: Any,
    ) -> Any:
        """Adapt the number of workers to the load, as ``SpecCluster.adapt`` does; at most one worker in each place.

        Parameters
        ----------
        Adaptive : type
            The class that decides; by default Dask's own.
        minimum, maximum : float
            Numbers of workers. More than the number of places means all places.
        **kwargs
            Passed to `Adaptive`.
        """
        places = len(self._places)
        return super().adapt(Adaptive, min(minimum, places), min(maximum, places), **kwargs)


def _refuse(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if name not in DASK_CUDA:
            raise TypeError(f"TopologyCluster.__init__() got an unexpected keyword argument {name!r}")
        if not asks_for_nothing(name, value):
            raise InvalidParamError(f"TopologyCluster({name}={value!r}) is not supported: {DASK_CUDA[name]}")


def nanny_options(worker: WorkerPlan) -> dict[str, Any]:
    """Return the Nanny options that place one worker. UCX variables that the user has set are kept."""
    env = {name: value for name, value in worker.env.items() if not (name.startswith("UCX_") and name in os.environ)}
    env |= {"WEFT_CPUS": cpulist.join(worker.cpus), "WEFT_MEMORY_NODES": cpulist.join(worker.nodes)}
    memory = "auto" if worker.memory_nbytes is None else worker.memory_nbytes
    placed = {"env": env, "preload": [_PRELOAD], "nthreads": worker.threads, "memory_limit": memory}
    return {**placed, "interface": worker.interface}


def _spec(
    worker: WorkerPlan, options: dict[str, Any], env: Mapping[str, str], preload: Sequence[str]
) -> dict[str, Any]:
    """Make the SpecCluster entry of one worker."""
    placed = nanny_options(worker)
    placed |= {"env": placed["env"] | env, "preload": [*placed["preload"], *preload]}
    return {"cls": Nanny, "options": {**options, **placed}}
