# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch tensors: type, strides, device, gradient, and whether they require one.

distributed's handler stays in use where it needs no copy: contiguous tensors in host memory of types that NumPy knows.
Processes without weft can read its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dask.sizeof import sizeof
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from weft.dask import patches
from weft.dask.tensors.device import Header, exported, is_contiguous

_plain = patches.torch_handlers()
assert _plain is not None, "imported only if it exists"
_serialize_plain, _deserialize_plain = _plain
_BYTES = (1, 8, 1)  # DLPack: unsigned, 8 bits, one lane


def _is_plain(t: Any) -> bool:
    return type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided and not t.is_quantized


def _take_apart(t: Any) -> tuple[Header, Any]:
    """Return a tensor's description, and its memory as bytes, in memory order."""
    plain = t.detach().resolve_conj().resolve_neg()
    order = sorted(range(plain.dim()), key=plain.stride, reverse=True)
    if not plain.permute(order).is_contiguous():
        plain = plain.contiguous()
        order = list(range(plain.dim()))
    header = {
        "dtype": str(plain.dtype).removeprefix("torch."),
        "shape": tuple(plain.shape),
        "strides": tuple(plain.stride()),
        "requires-grad": t.requires_grad,
        "parameter": type(t) is torch.nn.Parameter,
    }
    return header, plain.permute(order).reshape(-1).view(torch.uint8)


def _put_together(header: Header, memory: Any) -> Any:
    t = memory.view(getattr(torch, header["dtype"])).as_strided(header["shape"], header["strides"])
    if header["parameter"]:
        return torch.nn.Parameter(t, requires_grad=header["requires-grad"])
    return t.requires_grad_(header["requires-grad"])


def _with_gradient(t: Any, frame_of: Callable[[Any], Any]) -> tuple[Header, list[Any]]:
    header, memory = _take_apart(t)
    frames = [frame_of(memory)]
    if t.is_leaf and t.grad is not None:
        header["grad"], memory = _take_apart(t.grad)
        frames.append(frame_of(memory))
    return header, frames


def _gradient_back(header: Header, frames: list[Any], memory_of: Callable[[Any], Any]) -> Any:
    t = _put_together(header, memory_of(frames[0]))
    if "grad" in header:
        t.grad = _put_together(header["grad"], memory_of(frames[1]))
    return t


@cuda_serialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
def _serialize_on_device(t: Any) -> tuple[Header, list[Any]]:
    if t.device.type != "cuda" or not _is_plain(t):
        raise NotImplementedError(type(t).__name__)
    return _with_gradient(t, lambda memory: memory)


@cuda_deserialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
def _deserialize_on_device(header: Header, frames: list[Any]) -> Any:
    def memory_of(frame: Any) -> Any:
        return torch.from_dlpack(exported(frame, _BYTES, (frame.nbytes,), (1,)))

    return _gradient_back(header, frames, memory_of)


@dask_serialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
def _serialize(t: Any) -> tuple[Header, list[Any]]:
    if not _is_plain(t) or t.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(type(t).__name__)  # pickled instead
    if t.device.type == "cpu" and t.is_leaf and is_contiguous(t.shape, t.stride()) and _numpy_knows(t.detach()):
        return _serialize_plain(t)
    header, frames = _with_gradient(t, lambda memory: memoryview(memory.cpu().numpy()))
    return {**header, "weft-device": t.device.index if t.device.type == "cuda" else None}, frames


@dask_deserialize.register(torch.Tensor)  # type: ignore[untyped-decorator]
def _deserialize(header: Header, frames: list[Any]) -> Any:
    if "weft-device" not in header:
        return _deserialize_plain(header, frames)
    index = header["weft-device"]

    def memory_of(frame: Any) -> Any:
        if not frame.nbytes if isinstance(frame, memoryview) else not frame:  # frombuffer rejects an empty one
            return torch.empty(0, dtype=torch.uint8)
        memory = torch.frombuffer(frame, dtype=torch.uint8)
        there = index is not None and index < torch.cuda.device_count()
        return memory.to(f"cuda:{index}") if there else memory

    return _gradient_back(header, frames, memory_of)


def _numpy_knows(t: Any) -> bool:
    try:
        t.numpy()  # a view
    except (TypeError, RuntimeError):  # NumPy has no such type, or the view is conjugated
        return False
    return True


@sizeof.register(torch.Tensor)  # type: ignore[untyped-decorator]
def _sizeof(t: Any) -> int:
    if t.layout is torch.strided:
        return int(t.nbytes)
    return int(t._nnz() * (t.element_size() + 8 * t.dim()))  # sparse: values and indices
