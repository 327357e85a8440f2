# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's tensors on a CUDA device, with a PyTorch that is not there: what is asked of it, and what comes of it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize
from tests.dask import faketorch
from tests.dask.faketorch import Bytes, Parameter, Tensor, bfloat16, float32

import weft.dask
from weft.dask import tensors


def known(_: Any, *__: Any) -> Any:
    raise AssertionError("distributed's handler cannot take this")


@pytest.fixture(scope="module", autouse=True)
def handlers() -> Iterator[None]:
    """Load the handlers once more, for this PyTorch; a real one keeps its own."""
    patch = pytest.MonkeyPatch()
    patch.setitem(sys.modules, "torch", faketorch)
    own = SimpleNamespace(serialize_torch_Tensor=known, deserialize_torch_Tensor=known)
    patch.setitem(sys.modules, "distributed.protocol.torch", own)
    spec = importlib.util.spec_from_file_location("weft_torch_again", tensors.__path__[0] + "/torch.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield
    patch.undo()


def tensor(shape: tuple[int, ...], dtype: Any = bfloat16, index: int | None = 1, **kwargs: Any) -> Tensor:
    return Tensor(np.arange(np.prod(shape), dtype=dtype.numpy).reshape(shape), dtype, index, **kwargs)


def landed(frame: Any, index: int) -> Bytes:
    """Memory on a device that holds what was sent."""
    memory = np.array(frame).view(Bytes)
    memory.index = index
    return memory


def same(a: Tensor, b: Tensor) -> bool:
    alike = (a.dtype, a.shape, a.index, a.requires_grad) == (b.dtype, b.shape, b.index, b.requires_grad)
    return alike and type(a) is type(b) and bool((a.array == b.array).all())


LAYOUTS = {
    "C": lambda t: t,
    "F": lambda t: t.permute([2, 1, 0]),
    "permuted": lambda t: t.permute([1, 0, 2]),
    "strided": lambda t: t.like(t.array[:, ::2]),
    "expanded": lambda t: t.like(np.broadcast_to(t.array[:1], (5, 3, 4))),
    "scalar": lambda t: t.like(t.array[1, 1, 1:2].reshape(())),
    "empty": lambda t: t.like(t.array[:0]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_device_to_device(layout: str) -> None:
    x = LAYOUTS[layout](tensor((2, 3, 4)))
    header, frames = serialize(x, serializers=("cuda",), on_error="raise")
    [frame] = frames
    assert frame.__dlpack_device__() == (2, 1)
    assert frame.nbytes == x.array.size * 2
    dense = layout not in ("strided", "expanded", "empty")
    assert np.shares_memory(frame, x.array) is dense
    memory = landed(frame, 1)
    y = deserialize(header, [memory])
    assert same(x, y)
    assert np.shares_memory(y.array, memory) is (layout != "empty")
    if dense:
        assert y.stride() == x.stride()


def test_it_comes_to_the_device_that_its_memory_is_on() -> None:
    header, frames = serialize(tensor((3,), index=7), serializers=("cuda",))
    assert deserialize(header, [landed(frames[0], 0)]).index == 0


def test_gradients_and_parameters() -> None:
    x = Parameter(tensor((3,)), requires_grad=True)
    x.grad = tensor((3,), float32)
    header, frames = serialize(x, serializers=("cuda",))
    assert len(frames) == 2
    y = deserialize(header, [landed(frame, 1) for frame in frames])
    assert same(x, y)
    assert same(x.grad, y.grad)


@pytest.mark.parametrize(("index", "back"), [(1, 1), (5, None), (None, None)])
def test_through_the_host_and_back(index: int | None, back: int | None) -> None:
    """To a process without a device, or to disk: back to the device if there is such a one."""
    x = tensor((4, 2), index=index)
    header, frames = serialize(x, on_error="raise")
    assert header["serializer"] == "dask"
    assert all(type(frame) is memoryview for frame in frames)
    y = deserialize(header, [bytearray(frame) for frame in frames])
    x.index = back
    assert same(x, y)


def test_what_is_not_on_a_device_is_left_to_the_next_family() -> None:
    header, _ = serialize(tensor((3,), index=None), serializers=("cuda", "dask"))
    assert header["serializer"] == "dask"


def test_the_size_is_that_of_the_device_memory() -> None:
    assert sizeof(tensor((1000,))) == 2000
    assert weft.dask is not None
