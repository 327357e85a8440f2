# SPDX-License-Identifier: BSD-3-Clause
"""JAX arrays: those on one device as memory; sharded and weakly typed ones are left to pickle."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from dask.sizeof import sizeof
from distributed.protocol.cuda import cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from weft.dask.tensors import device
from weft.dask.tensors.device import Header

_Array = jax.numpy.zeros(()).__class__


def _device_of(x: Any) -> Any:
    if x.weak_type or len(x.sharding.device_set) != 1:
        raise NotImplementedError("a sharded or weakly typed JAX array")
    return next(iter(x.sharding.device_set))


@cuda_serialize.register(_Array)  # type: ignore[untyped-decorator]
def _serialize_on_device(x: Any) -> tuple[Header, list[Any]]:
    _device_of(x)
    return device.serialize(x)


@dask_serialize.register(_Array)  # type: ignore[untyped-decorator]
def _serialize(x: Any) -> tuple[Header, list[Any]]:
    where = _device_of(x)
    array = np.asarray(x)  # a view, if `x` is in host memory
    header = {
        "dtype": array.dtype.name,
        "shape": array.shape,
        "platform": where.platform,
        "index": where.local_hardware_id or 0,
    }
    return header, [np.ascontiguousarray(array).reshape(-1).view("u1").data]


@dask_deserialize.register(_Array)  # type: ignore[untyped-decorator]
def _deserialize(header: Header, frames: list[Any]) -> Any:
    array = np.frombuffer(frames[0], "u1").view(jax.numpy.dtype(header["dtype"])).reshape(header["shape"])
    return jax.device_put(array, _find(header["platform"], header["index"]))  # a view on the host


def _find(platform: str, index: int) -> Any:
    """Return the device of this platform and index, or None for JAX's default."""
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError:
        return None
    return next((each for each in devices if (each.local_hardware_id or 0) == index), None)


@sizeof.register(_Array)  # type: ignore[untyped-decorator]
def _sizeof(x: Any) -> int:
    return int(x.nbytes)
