# SPDX-License-Identifier: BSD-3-Clause
"""The options of a plan, as commands and `TopologyCluster` take them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weft.topo.model import Topology
from weft.topo.size import memory_limit

_RMM = "weft sets no RMM up: do it in a module that workers preload"
_SPILL = "weft spills no device memory: dask-cuda does"
_UCX = "UCX chooses its transports itself; UCX_TLS narrows the choice"
#: Options of dask-cuda's cluster and worker that have no meaning here, and why.
DASK_CUDA = {
    **dict.fromkeys(("rmm_pool_size", "rmm_maximum_pool_size", "rmm_release_threshold", "rmm_log_directory"), _RMM),
    **dict.fromkeys(("rmm_managed_memory", "rmm_async", "rmm_track_allocations"), _RMM),
    **dict.fromkeys(("rmm_allocator_external_lib_list", "set_rmm_allocator_for_libs"), _RMM),
    **dict.fromkeys(
        ("device_memory_limit", "enable_cudf_spill", "cudf_spill_stats", "jit_unspill", "log_spilling"), _SPILL
    ),
    **dict.fromkeys(("enable_tcp_over_ucx", "enable_infiniband", "enable_nvlink", "enable_rdmacm"), _UCX),
}


def asks_for_nothing(name: str, value: object) -> bool:
    """Tell whether a value of dask-cuda's option `name` asks for what weft does: no RMM, and no spilling.

    Programs pass on dask-cuda's defaults, which are None, False and 0.
    """
    return value is None or (not value and DASK_CUDA[name] != _UCX)


_DEVICE = re.compile(r"[0-9]+|GPU-\S+|MIG-\S+")


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a plan.

    Attributes
    ----------
    per : str or int
        One worker for each ``gpu`` (or MIG instance), ``numa`` node or ``l3`` cache, or the number of cores for each.
    workers : int, optional
        The maximum number of workers; by default all that fit.
    threads : int, optional
        Threads of each worker.
    memory_nbytes : int, optional
        Memory limit of each worker in bytes; 0 means none.
    gpus : tuple of str, optional
        The GPUs to use, as in ``CUDA_VISIBLE_DEVICES``: numbers, UUIDs or prefixes of them, also of MIG instances. As
        in CUDA, an entry that is no device (``-1``, Slurm's ``NoDevFiles``) hides itself and all later ones.
    interface : str, optional
        The network device of the workers' addresses; a prefix of several, such as ``ib``, selects the nearest.
    towards : str, optional
        The network device on the route to the scheduler, which UCX's tcp then uses.
    """

    per: str | int
    workers: int | None = None
    threads: int | None = None
    memory_nbytes: int | None = None
    gpus: tuple[str, ...] | None = None
    interface: str | None = None
    towards: str | None = None


def of(
    topology: Topology,
    *,
    per: str | int | None = None,
    workers: int | None = None,
    threads: int | None = None,
    memory: str | float | None = "auto",
    visible: str | Sequence[int | str] | None = None,
    interface: str | None = None,
    towards: str | None = None,
) -> PlanOptions:
    """Make the options from users' input; the machine gives the rest.

    Parameters
    ----------
    per : str or int, optional
        As in `PlanOptions`; ``gpu`` if a GPU is visible, else ``numa``.
    memory : str, int, float or None
        See `weft.topo.size.memory_limit`.
    visible : str or sequence, optional
        The value of ``CUDA_VISIBLE_DEVICES``, or its entries.

    Raises
    ------
    InvalidParamError
        `memory` is no memory limit.
    """
    words = visible.split(",") if isinstance(visible, str) else visible
    gpus = None if words is None else tuple(name for word in words if (name := str(word).strip()))
    seen = bool(topology.gpus) and (gpus is None or any(map(is_device, gpus[:1])))
    per = ("gpu" if seen else "numa") if per is None else per
    limit = memory_limit(memory, topology.usable_nbytes)
    return PlanOptions(per, workers, threads, limit, gpus, interface, towards)


def is_device(name: str) -> bool:
    """Tell whether `name` has a form that CUDA accepts for a device: a number or a UUID."""
    return _DEVICE.fullmatch(name) is not None
