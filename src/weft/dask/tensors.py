# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of PyTorch, JAX and TensorFlow: what they weigh, and how they travel in host memory or on a device.

In host memory nothing is copied on either side: the frame is the tensor's memory, and the tensor that comes out lies in
the frame that came in. What lies on a device and goes to a process that has none, or to disk, is copied to the host by
its own library, and back to the same device if the receiver has that one.

distributed has a handler for PyTorch, which stays in use for what it does without a copy: contiguous tensors in host
memory, of types that NumPy knows. Others read its messages who have never heard of weft.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dask.sizeof import sizeof
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from weft import _native
from weft.dask.device import Header, exported, importer, is_contiguous, lazily
from weft.dask.device import serialize as serialize_on_device

_BYTES = (1, 8, 1)  # DLPack: unsigned, 8 bits, one lane


# ---- PyTorch ------------------------------------------------------------------------------------------------


def _register_torch() -> None:
    import torch
    from distributed.protocol import torch as known

    class_of = {False: torch.Tensor, True: torch.nn.Parameter}

    def is_plain(t: Any) -> bool:
        return type(t) in class_of.values() and t.layout is torch.strided and not t.is_quantized

    def take_apart(t: Any) -> tuple[Header, Any]:
        """Return what is to be known of a tensor, and its memory as bytes, in the order in which they lie."""
        header = {"requires-grad": t.requires_grad, "parameter": type(t) is torch.nn.Parameter}
        plain = t.detach().resolve_conj().resolve_neg()
        order = sorted(range(plain.dim()), key=plain.stride, reverse=True)
        if not plain.permute(order).is_contiguous():
            plain = plain.contiguous()
            order = list(range(plain.dim()))
        header |= {
            "dtype": str(plain.dtype).removeprefix("torch."),
            "shape": tuple(plain.shape),
            "strides": plain.stride(),
        }
        return header, plain.permute(order).reshape(-1).view(torch.uint8)

    def put_together(header: Header, memory: Any) -> Any:
        t = memory.view(getattr(torch, header["dtype"])).as_strided(header["shape"], header["strides"])
        if header["parameter"]:
            return torch.nn.Parameter(t, requires_grad=header["requires-grad"])
        return t.requires_grad_(header["requires-grad"])

    def with_gradient(t: Any, apart: Callable[[Any], tuple[Header, list[Any]]]) -> tuple[Header, list[Any]]:
        header, frames = apart(t)
        if t.is_leaf and t.grad is not None:
            header["grad"], more = apart(t.grad)
            frames = [*frames, *more]
        return header, frames

    def gradient_back(header: Header, frames: list[Any], together: Callable[[Header, list[Any]], Any]) -> Any:
        t = together(header, frames[:1])
        if "grad" in header:
            t.grad = together(header["grad"], frames[1:])
        return t

    def from_device(t: Any) -> tuple[Header, list[Any]]:
        header, memory = take_apart(t)
        return header, [memory]

    def to_device(header: Header, frames: list[Any]) -> Any:
        memory = torch.from_dlpack(exported(frames[0], _BYTES, (frames[0].nbytes,), (1,)))
        return put_together(header, memory)

    def from_host(t: Any) -> tuple[Header, list[Any]]:
        index = t.device.index if t.device.type == "cuda" else None
        header, memory = take_apart(t)
        return {**header, "device": index}, [memoryview(memory.cpu().numpy())]

    def to_host(header: Header, frames: list[Any]) -> Any:
        memory = torch.frombuffer(frames[0], dtype=torch.uint8) if len(frames[0]) else torch.empty(0, dtype=torch.uint8)
        index = header["device"]
        if index is not None and index < torch.cuda.device_count():
            memory = memory.to(f"cuda:{index}")
        return put_together(header, memory)

    @cuda_serialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
    def serialize_cuda(t: Any) -> tuple[Header, list[Any]]:
        if t.device.type != "cuda" or not is_plain(t):
            raise NotImplementedError(type(t).__name__)
        return with_gradient(t, from_device)

    @cuda_deserialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
    def deserialize_cuda(header: Header, frames: list[Any]) -> Any:
        return gradient_back(header, frames, to_device)

    @dask_serialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
    def serialize_host(t: Any) -> tuple[Header, list[Any]]:
        if not is_plain(t) or t.device.type not in ("cpu", "cuda"):
            raise NotImplementedError(type(t).__name__)  # they pickle
        if t.device.type == "cpu" and t.is_leaf and is_contiguous(t.shape, t.stride()) and _numpy_knows(t.detach()):
            header, frames = known.serialize_torch_Tensor(t)
            return {"distributed": header}, frames
        return with_gradient(t, from_host)

    @dask_deserialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
    def deserialize_host(header: Header, frames: list[Any]) -> Any:
        if "distributed" in header:
            return known.deserialize_torch_Tensor(header["distributed"], frames)
        return gradient_back(header, frames, to_host)

    @sizeof.register(torch.Tensor)  # type: ignore[untyped-decorator]
    def sizeof_tensor(t: Any) -> int:
        if t.layout is torch.strided:
            return int(t.nbytes)
        return int(t._nnz() * (t.element_size() + 8 * t.dim()))  # a sparse one: values and indices


def _numpy_knows(t: Any) -> bool:
    try:
        t.numpy()  # a view
    except (TypeError, RuntimeError):  # no such type; a view that conjugates
        return False
    return True


# ---- JAX ----------------------------------------------------------------------------------------------------


def _register_jax() -> None:
    import jax
    import jaxlib
    import numpy as np

    array_class = type(jax.numpy.zeros(()))
    assert array_class.__module__.partition(".")[0] == jaxlib.__name__

    def device_of(x: Any) -> Any:
        """Return the one device of an array; NotImplementedError, and so pickle, for what is more than memory."""
        if x.weak_type or len(x.sharding.device_set) != 1:
            raise NotImplementedError("an array of JAX that is sharded or of a weak type")
        return next(iter(x.sharding.device_set))

    @cuda_serialize.register(array_class)  # type: ignore[untyped-decorator]
    def serialize_cuda(x: Any) -> tuple[Header, list[Any]]:
        device_of(x)
        return serialize_on_device(x)

    @dask_serialize.register(array_class)  # type: ignore[untyped-decorator]
    def serialize_host(x: Any) -> tuple[Header, list[Any]]:
        device = device_of(x)
        array = np.asarray(x)  # a view of it, if it is in host memory
        place = (device.platform, device.local_hardware_id or 0)
        header = {"dtype": array.dtype.name, "shape": array.shape, "device": place}
        return header, [np.ascontiguousarray(array).reshape(-1).view("u1").data]

    @dask_deserialize.register(array_class)  # type: ignore[untyped-decorator]
    def deserialize_host(header: Header, frames: list[Any]) -> Any:
        array = np.frombuffer(frames[0], "u1").view(jax.numpy.dtype(header["dtype"])).reshape(header["shape"])
        platform, index = header["device"]
        return jax.device_put(array, _device(jax, platform, index))

    @sizeof.register(array_class)  # type: ignore[untyped-decorator]
    def sizeof_array(x: Any) -> int:
        return int(x.nbytes)


def _device(jax: Any, platform: str, index: int) -> Any:
    """Return the device of that kind and number, or JAX's default."""
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError:
        return None
    return next((device for device in devices if (device.local_hardware_id or 0) == index), None)


# ---- TensorFlow ---------------------------------------------------------------------------------------------

#: TensorFlow computes on memory of this alignment only; other memory has to be copied.
_ALIGNMENT = 64


def _register_tensorflow() -> None:
    import numpy as np
    import tensorflow as tf

    tensor_class = type(tf.zeros(()))

    def nbytes_of(t: Any) -> int:
        return int(t.shape.num_elements() * t.dtype.size)

    @dask_serialize.register(tensor_class)  # type: ignore[untyped-decorator]
    def serialize_host(t: Any) -> tuple[Header, list[Any]]:
        if not (t.dtype.is_floating or t.dtype.is_integer or t.dtype.is_bool or t.dtype.is_complex):
            raise NotImplementedError(t.dtype.name)  # text and others pickle
        header = {"dtype": t.dtype.name, "shape": tuple(t.shape), "device": _device_name(t)}
        if not header["device"].startswith("CPU"):
            with tf.device("CPU:0"):
                t = tf.identity(t)
        return header, [memoryview(_native.view(t, _BYTES, (nbytes_of(t),), (1,), (1, 0), False))]

    @dask_deserialize.register(tensor_class)  # type: ignore[untyped-decorator]
    def deserialize_host(header: Header, frames: list[Any]) -> Any:
        array = np.frombuffer(frames[0], tf.dtypes.as_dtype(header["dtype"]).as_numpy_dtype).reshape(header["shape"])
        if array.ctypes.data % _ALIGNMENT or not array.size:
            t = tf.convert_to_tensor(array)
        else:
            dtype = _native.layout(tf.zeros((), header["dtype"]))[0]
            strides = tuple(stride // array.itemsize for stride in array.strides)
            t = importer("tensorflow")(exported(frames[0], dtype, header["shape"], strides))
        if header["device"] == _device_name(t) or header["device"] not in map(
            _device_name, tf.config.list_logical_devices()
        ):
            return t
        with tf.device(header["device"]):
            return tf.identity(t)

    @sizeof.register(tensor_class)  # type: ignore[untyped-decorator]
    def sizeof_tensor(t: Any) -> int:
        return nbytes_of(t) or sys.getsizeof(t)  # text is of no size that TensorFlow tells


def _device_name(there: Any) -> str:
    """Return what a tensor or device is called without its job and process: ``GPU:0``."""
    return str(getattr(there, "device", None) or there.name).rpartition("/device:")[2]


# ---- distributed's registry ---------------------------------------------------------------------------------


def register() -> None:
    """Have distributed and dask know these libraries' tensors, each from the first of them that they see."""
    dispatches = [cuda_serialize, cuda_deserialize, dask_serialize, dask_deserialize, sizeof]
    lazily(dispatches, ["torch", "torchvision"], _register_torch, known="distributed.protocol.torch")
    lazily(dispatches, ["jaxlib"], _register_jax)
    lazily(dispatches, ["tensorflow"], _register_tensorflow)
