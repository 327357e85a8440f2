# SPDX-License-Identifier: BSD-3-Clause
"""GPUs as NVIDIA's driver reports them, through the package nvidia-ml-py if it is installed."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from weft.topo import devices
from weft.topo.interconnect import Interconnect, InterconnectClass
from weft.topo.model import Gpu

_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH


def load() -> Any | None:
    """Return the module ``pynvml``, or None where nvidia-ml-py is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def read(nvml: Any, root: Path) -> tuple[tuple[Gpu, ...], dict[tuple[str, str], Interconnect]]:
    """Read the GPUs that this process may see, and the NVLinks between them.

    Parameters
    ----------
    nvml : module
        ``pynvml``, or an object with the same functions.
    root : Path
        The folder with ``sys``, for paths on PCI and NUMA nodes.

    Raises
    ------
    nvml.NVMLError
        There is no driver, or it returns an error.
    """
    nvml.nvmlInit()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        gpus = tuple(_gpu(nvml, handle, i, root) for i, handle in enumerate(handles))
        return gpus, _nvlinks(nvml, handles, gpus)
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any, index: int, root: Path) -> Gpu:
    address = _address(nvml.nvmlDeviceGetPciInfo(handle).busId)
    memory = _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return dataclasses.replace(
        devices.gpu_at(root / "sys/bus/pci/devices" / address, index),
        model=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory_nbytes=memory and int(memory.total),
        mig=tuple(_instances(nvml, handle)),
    )


def _instances(nvml: Any, handle: Any) -> Iterator[str]:
    mode = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] == 0:
        return
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        instance = _asked(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)
        if instance is not None:
            yield _text(nvml.nvmlDeviceGetUUID(instance))


def _nvlinks(nvml: Any, handles: list[Any], gpus: tuple[Gpu, ...]) -> dict[tuple[str, str], Interconnect]:
    """Count the NVLinks between every two GPUs: direct ones, and through switches, which join each to all."""
    direct: dict[tuple[str, str], int] = {}
    switched: dict[str, int] = {}
    addresses = [_address(nvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
    by_address = {address: gpu.name for address, gpu in zip(addresses, gpus, strict=True)}
    for gpu, handle in zip(gpus, handles, strict=True):
        for i in range(nvml.NVML_NVLINK_MAX_LINKS):
            if not _asked(nvml, nvml.nvmlDeviceGetNvLinkState, handle, i):
                continue
            if _asked(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, i) == _SWITCH:
                switched[gpu.name] = switched.get(gpu.name, 0) + 1
                continue
            remote = _asked(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, i)
            other = by_address.get(_address(remote.busId)) if remote else None
            if other is not None:
                direct[gpu.name, other] = direct.get((gpu.name, other), 0) + 1
    found = {both: Interconnect(InterconnectClass.NVLINK, count) for both, count in direct.items()}
    for a, b in ((a, b) for a in switched for b in switched if a != b):
        found[a, b] = Interconnect(InterconnectClass.NVLINK, min(switched[a], switched[b]))
    return found


def _asked(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any | None:
    """Call a function that not every GPU or driver supports; None if this one does not."""
    with contextlib.suppress(nvml.NVMLError):
        return function(*arguments)
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _address(bus_id: str | bytes) -> str:
    """Write NVML's ``00000000:3B:00.0`` as sysfs does: ``0000:3b:00.0``."""
    domain, _, rest = _text(bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
