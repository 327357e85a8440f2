# SPDX-License-Identifier: BSD-3-Clause
"""TensorFlow's eager tensors of numbers; text and other types are left to pickle."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from dask.sizeof import sizeof
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from weft import _native
from weft.dask.tensors.device import Header, exported, importer

#: TensorFlow only computes on memory with this alignment; other memory is copied.
_ALIGNMENT = 64
_BYTES = (1, 8, 1)  # DLPack: unsigned, 8 bits, one lane

_Tensor = tf.zeros(()).__class__


def _nbytes(t: Any) -> int:
    return int(t.shape.num_elements() * t.dtype.size)


def _device_name(there: Any) -> str:
    """Return the name of a tensor's device, or of a device, without job and process: ``GPU:0``."""
    return str(getattr(there, "device", None) or there.name).rpartition("device:")[2]


@dask_serialize.register(_Tensor)  # type: ignore[untyped-decorator]
def _serialize(t: Any) -> tuple[Header, list[Any]]:
    if not (t.dtype.is_floating or t.dtype.is_integer or t.dtype.is_bool or t.dtype.is_complex):
        raise NotImplementedError(t.dtype.name)
    header: Header = {"dtype": t.dtype.name, "shape": tuple(t.shape), "device": _device_name(t)}
    if not header["device"].startswith("CPU"):
        with tf.device("CPU:0"):
            t = tf.identity(t)
    return header, [memoryview(_native.view(t, _BYTES, (_nbytes(t),), (1,), (1, 0), False))]


@dask_deserialize.register(_Tensor)  # type: ignore[untyped-decorator]
def _deserialize(header: Header, frames: list[Any]) -> Any:
    numpy_dtype = tf.dtypes.as_dtype(header["dtype"]).as_numpy_dtype
    array = np.frombuffer(frames[0], numpy_dtype).reshape(header["shape"])
    if array.ctypes.data % _ALIGNMENT or not array.size:
        t = tf.convert_to_tensor(array)
    else:
        dtype = _native.layout(tf.zeros((), header["dtype"]))[0]
        strides = tuple(stride // array.itemsize for stride in array.strides)
        t = importer("tensorflow")(exported(frames[0], dtype, header["shape"], strides))
    there = map(_device_name, tf.config.list_logical_devices())
    if header["device"] == _device_name(t) or header["device"] not in there:
        return t
    with tf.device(header["device"]):
        return tf.identity(t)


@sizeof.register(_Tensor)  # type: ignore[untyped-decorator]
def _sizeof(t: Any) -> int:
    return _nbytes(t) or sys.getsizeof(t)  # TensorFlow has no size for text
