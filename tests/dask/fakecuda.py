# SPDX-License-Identifier: BSD-3-Clause
"""A library of arrays on CUDA devices that does not exist: its devices' memory is the host's.

Whoever asks an array where it lies is told a device, and gets its memory by DLPack as a device's; but it has the buffer
protocol too, which weft's core takes first, so UCX sees host memory and everything else is as with a GPU.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from distributed.protocol import dask_serialize
from tests.native.dlpack import Deleter, ManagedVersioned, Tensor, new_capsule

import weft
from weft.dask import handshake
from weft.dask.observe import traffic
from weft.dask.tensors import device

#: (code, bits, lanes) of DLPack
UINT8, FLOAT32, BFLOAT16, FLOAT8 = (1, 8, 1), (2, 32, 1), (4, 16, 1), (10, 8, 1)

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype = ctypes.c_void_p
pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Array(bytearray):
    """Items of `dtype` on device `index`. `base`: who owns the memory, if somebody else does."""

    dtype = UINT8
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    index = 0
    base: Any = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype[1] // 8

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self)) if self else 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.index)

    def __dlpack__(self, *, max_version: tuple[int, int], stream: int | None = None) -> object:
        shape, strides = ((ctypes.c_int64 * len(s))(*s) for s in (self.shape, self.strides))
        tensor = Tensor(self.address, 2, self.index, len(shape), *self.dtype, shape, strides, 0)
        managed = ManagedVersioned(1, 0, None, Deleter(lambda _: None), 0, tensor)
        self._kept = (managed, shape, strides)
        return new_capsule(ctypes.addressof(managed), b"dltensor_versioned", None)

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return restored, (bytes(self), self.dtype, self.shape, self.strides, self.index)

    def copy(self) -> Array:
        """Make it contiguous."""
        flat = [sum(i * s for i, s in zip(at, self.strides, strict=True)) for at in indices(self.shape)]
        size = self.dtype[1] // 8
        return array(b"".join(self[size * i : size * (i + 1)] for i in flat), self.dtype, self.shape, index=self.index)


def indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not shape:
        yield ()
        return
    for first in range(shape[0]):
        for rest in indices(shape[1:]):
            yield (first, *rest)


def array(
    memory: bytes,
    dtype: tuple[int, int, int] = UINT8,
    shape: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    *,
    index: int = 0,
) -> Array:
    made = Array(memory)
    made.dtype, made.index = dtype, index
    made.shape = (len(memory) * 8 // dtype[1],) if shape is None else shape
    made.strides = c_strides(made.shape) if strides is None else strides
    return made


def restored(*parts: Any) -> Array:
    *positional, index = parts
    return array(*positional, index=index)


def from_dlpack(exporter: Any) -> Array:
    """What a real library does, and a copy: a bytearray cannot lie in another's memory. `base` is where it lies."""
    kind, index = exporter.__dlpack_device__()
    assert kind == 2, "not on a device"
    capsule = exporter.__dlpack__(max_version=(1, 0))
    tensor = ManagedVersioned.from_address(pointer_of(capsule, b"dltensor_versioned")).tensor
    shape, strides = (tuple(side[i] for i in range(tensor.ndim)) for side in (tensor.shape, tensor.strides))
    nbytes = math.prod(shape) * tensor.bits // 8
    made = array(
        ctypes.string_at(tensor.data, nbytes) if nbytes else b"",
        (tensor.code, tensor.bits, tensor.lanes),
        shape,
        strides,
        index=index,
    )
    made.base = (tensor.data, exporter)
    return made


#: What was allocated: (memory, device)
allocated: list[tuple[Array, int]] = []


def allocate(nbytes: int, index: int) -> Array:
    allocated.append((array(bytes(nbytes), index=index), index))
    return allocated[-1][0]


@dask_serialize.register(Array)
def by_pickle(x: Array) -> Any:
    """Arrays of a real library have no handler for bytearrays above them."""
    raise NotImplementedError


Array.__module__ = restored.__module__ = "fakecuda"
sys.modules["fakecuda"] = sys.modules[__name__]


@pytest.fixture
def fakecuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """This library, able to allocate, in a process whose UCX is said to reach CUDA.

    Such a process has no rings, so Dask's handshake takes messages.
    """
    monkeypatch.setattr(handshake, "info", lambda **_: traffic.INFO)
    monkeypatch.setattr(handshake, "exchanged", lambda peer, *, known: handshake.Exchanged(told=False, heard=None))
    monkeypatch.setattr(weft.Peer, "memory_types", ["host", "cuda"])
    monkeypatch.setattr(device, "_ALLOCATORS", {"fakecuda": allocate})
    allocated.clear()
    return sys.modules["fakecuda"]
