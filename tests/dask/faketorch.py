# SPDX-License-Identifier: BSD-3-Clause
"""As much of PyTorch as weft calls, with CUDA devices that are the host's memory: NumPy does the work.

Types that NumPy lacks stand for as many bytes. A tensor's bytes on a device have the buffer protocol, as in `fakecuda`.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.dask.fakecuda import pointer_of
from tests.native.dlpack import ManagedVersioned


class DType:
    def __init__(self, name: str, numpy: str) -> None:
        self.name, self.numpy = name, numpy

    def __repr__(self) -> str:
        return f"torch.{self.name}"


uint8, float32, bfloat16 = DType("uint8", "u1"), DType("float32", "f4"), DType("bfloat16", "u2")
strided = "torch.strided"


class Bytes(np.ndarray):
    """Bytes of a tensor on device `index`; the host's, if that is None."""

    index: int | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.index is None else (2, self.index)

    def cpu(self) -> Bytes:
        return np.array(self).view(Bytes)

    def numpy(self) -> np.ndarray:
        return np.asarray(self)


class Tensor:
    layout = strided
    is_quantized = False
    is_leaf = True
    grad: Any = None

    def __init__(
        self, array: np.ndarray, dtype: DType, index: int | None = None, *, requires_grad: bool = False
    ) -> None:
        self.array, self.dtype, self.index, self.requires_grad = array, dtype, index, requires_grad

    def like(self, array: np.ndarray) -> Tensor:
        return Tensor(array, self.dtype, self.index)

    @property
    def device(self) -> Any:
        return SimpleNamespace(type="cpu" if self.index is None else "cuda", index=self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def stride(self, axis: int | None = None) -> Any:
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        return strides if axis is None else strides[axis]

    def dim(self) -> int:
        return self.array.ndim

    def detach(self) -> Tensor:
        return self.like(self.array)

    resolve_conj = resolve_neg = detach

    def permute(self, order: list[int]) -> Tensor:
        return self.like(self.array.transpose(order))

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def contiguous(self) -> Tensor:
        return self.like(np.ascontiguousarray(self.array))

    def reshape(self, *shape: int) -> Tensor:
        return self.like(self.array.reshape(*shape))

    def view(self, dtype: DType) -> Any:
        array = self.array.view(dtype.numpy)
        if dtype is not uint8:
            return Tensor(array, dtype, self.index)
        memory = array.view(Bytes)
        memory.index = self.index
        return memory

    def as_strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        steps = [s * self.array.itemsize for s in strides]
        return self.like(np.lib.stride_tricks.as_strided(self.array, shape, steps))

    def requires_grad_(self, yes: bool) -> Tensor:
        self.requires_grad = yes
        return self

    def numpy(self) -> np.ndarray:
        if self.index is not None or self.dtype is bfloat16:
            raise TypeError("not with NumPy")
        return self.array

    def to(self, device: str) -> Tensor:
        return Tensor(self.array.copy(), self.dtype, int(device.removeprefix("cuda:")))


class Parameter(Tensor):
    def __init__(self, t: Tensor, *, requires_grad: bool) -> None:
        super().__init__(t.array, t.dtype, t.index, requires_grad=requires_grad)


def from_dlpack(exporter: Any) -> Tensor:
    """A tensor in the memory that is exported."""
    tensor = ManagedVersioned.from_address(
        pointer_of(exporter.__dlpack__(max_version=(1, 0)), b"dltensor_versioned")
    ).tensor
    assert (tensor.device_type, tensor.code, tensor.bits, tensor.ndim) == (2, 1, 8, 1)
    memory = (ctypes.c_ubyte * tensor.shape[0]).from_address(tensor.data) if tensor.shape[0] else b""
    t = Tensor(np.frombuffer(memory, "u1"), uint8, tensor.device_id)
    t.exporter = exporter  # type: ignore[attr-defined]
    return t


def frombuffer(memory: Any, *, dtype: DType) -> Tensor:
    return Tensor(np.frombuffer(memory, dtype.numpy), dtype)


def empty(count: int, *, dtype: DType) -> Tensor:
    return Tensor(np.empty(count, dtype.numpy), dtype)


nn = SimpleNamespace(Parameter=Parameter)
cuda = SimpleNamespace(device_count=lambda: 2)
