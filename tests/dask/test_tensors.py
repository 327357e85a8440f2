# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of PyTorch, JAX and TensorFlow in host memory: what comes out is what went in, and nothing was copied."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize, to_serialize
from tests.dask.ends import ends_here

import weft.dask  # noqa: F401

LARGE = 100_000


def aligned(frame: Any) -> memoryview:
    """Memory as the comm hands it out: aligned and writable."""
    frame = memoryview(frame).cast("B")
    room = np.empty(frame.nbytes + 64, "u1")
    start = -room.ctypes.data % 64
    memory = room[start : start + frame.nbytes]
    memory[:] = np.frombuffer(frame, "u1")
    return memory.data


def there_and_back(x: Any) -> tuple[str, Any, list[Any], list[memoryview]]:
    """Return the family that took it, what came of it, and the frames of both sides."""
    header, frames = serialize(x, on_error="raise")
    received = [aligned(frame) for frame in frames]
    return header["serializer"], deserialize(header, received), frames, received


def address(frame: Any) -> int:
    return int(np.frombuffer(frame, "u1").ctypes.data)


# ---- PyTorch ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool", "complex64"])
@pytest.mark.parametrize("layout", ["C", "F", "permuted", "strided", "expanded", "scalar", "empty"])
def test_a_tensor_of_torch(torch: Any, dtype: str, layout: str) -> None:
    whole = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).to(getattr(torch, dtype))
    x = {
        "C": whole,
        "F": whole.permute(2, 1, 0),
        "permuted": whole.permute(1, 2, 0),
        "strided": whole[:, ::2],
        "expanded": whole[:1].expand(5, 3, 4),
        "scalar": whole[1, 1, 1],
        "empty": whole[:0],
    }[layout]
    family, y, _, _ = there_and_back(x)
    assert family == "dask"
    assert (y.dtype, y.shape, y.device, type(y)) == (x.dtype, x.shape, x.device, type(x))
    wide = torch.complex64 if x.is_complex() else torch.float32
    assert torch.equal(y.to(wide), x.to(wide))
    if layout in ("C", "F", "permuted"):
        assert y.stride() == x.stride()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensor_of_torch_is_not_copied(torch: Any, dtype: str) -> None:
    x = torch.zeros(LARGE, dtype=getattr(torch, dtype))
    _, y, frames, received = there_and_back(x)
    assert address(frames[0]) == x.data_ptr()
    assert y.data_ptr() == address(received[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_and_parameters_of_torch(torch: Any, dtype: str) -> None:
    x = torch.ones(3, dtype=getattr(torch, dtype), requires_grad=True)
    (x * 2).sum().backward()
    y = there_and_back(x)[1]
    assert y.requires_grad
    assert y.is_leaf
    assert y.grad.tolist() == [2.0] * 3
    assert y.grad.dtype == x.dtype
    parameter = there_and_back(torch.nn.Parameter(x.detach()))[1]
    assert type(parameter) is torch.nn.Parameter
    assert parameter.requires_grad
    module = there_and_back(torch.nn.Linear(2, 3, dtype=x.dtype))[1]
    assert module.weight.dtype == x.dtype
    inner = there_and_back(x * 2)[1]
    assert inner.requires_grad


def test_views_that_conjugate_are_resolved(torch: Any) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert torch.equal(there_and_back(x)[1], x.resolve_conj())


def test_what_is_more_than_memory_is_pickled(torch: Any) -> None:
    family, y, _, _ = there_and_back(torch.eye(3).to_sparse())
    assert family == "pickle"
    assert torch.equal(y.to_dense(), torch.eye(3))


def test_the_size_of_a_tensor_of_torch(torch: Any) -> None:
    assert sizeof(torch.zeros(1000, dtype=torch.bfloat16)) == 2000
    assert sizeof(torch.nn.Parameter(torch.zeros(10, 10))) == 400
    assert sizeof(torch.eye(3).to_sparse()) == 3 * (4 + 16)


async def test_a_tensor_of_torch_through_the_comm(torch: Any) -> None:
    x = torch.arange(LARGE, dtype=torch.bfloat16).reshape(100, -1).t()
    async with ends_here() as (a, b):
        writing = asyncio.ensure_future(a.write({"x": [to_serialize(x), to_serialize(x[0])]}))
        y, first = (await b.read())["x"]
        await writing
    assert torch.equal(x, y)
    assert y.stride() == x.stride()
    assert torch.equal(first, x[0])


# ---- JAX ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jax() -> Any:
    return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "bool", "int4"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_an_array_of_jax(jax: Any, dtype: str, shape: tuple[int, ...]) -> None:
    x = jax.numpy.ones(shape, dtype)
    family, y, _, _ = there_and_back(x)
    assert family == "dask"
    assert (y.dtype, y.shape, type(y)) == (x.dtype, x.shape, type(x))
    assert (y == x).all()


def test_an_array_of_jax_is_not_copied(jax: Any) -> None:
    x = jax.numpy.arange(LARGE, dtype="bfloat16")
    _, y, frames, received = there_and_back(x)
    assert address(frames[0]) == x.unsafe_buffer_pointer()
    assert y.unsafe_buffer_pointer() == address(received[0])


def test_weak_types_of_jax_stay_weak(jax: Any) -> None:
    family, y, _, _ = there_and_back(jax.numpy.asarray(3.0))
    assert family == "pickle"
    assert y.weak_type


def test_the_size_of_an_array_of_jax(jax: Any) -> None:
    assert sizeof(jax.numpy.zeros(1000, "bfloat16")) == 2000


# ---- TensorFlow ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_a_tensor_of_tensorflow(tensorflow: Any, dtype: str, shape: tuple[int, ...]) -> None:
    x = tensorflow.ones(shape, dtype)
    family, y, _, _ = there_and_back(x)
    assert family == "dask"
    assert (y.dtype, y.shape, y.device) == (x.dtype, x.shape, x.device)
    assert (y.numpy() == x.numpy()).all()


def test_a_tensor_of_tensorflow_is_not_copied(tensorflow: Any) -> None:
    x = tensorflow.zeros(LARGE, "bfloat16")
    _, y, frames, received = there_and_back(x)
    assert address(frames[0]) == address(serialize(x)[1][0])
    assert address(serialize(y)[1][0]) == address(received[0])


def test_memory_that_is_not_aligned_is_copied(tensorflow: Any) -> None:
    x = tensorflow.ones(10)
    header, frames = serialize(x)
    y = deserialize(header, [memoryview(bytearray(41))[1:].cast("B")])
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert frames[0].nbytes == 40


def test_text_of_tensorflow_is_pickled(tensorflow: Any) -> None:
    family, y, _, _ = there_and_back(tensorflow.constant("text"))
    assert family == "pickle"
    assert y.numpy() == b"text"
    assert sizeof(y) > 0


def test_the_size_of_a_tensor_of_tensorflow(tensorflow: Any) -> None:
    assert sizeof(tensorflow.zeros(1000, "bfloat16")) == 2000
