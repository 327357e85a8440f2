# SPDX-License-Identifier: BSD-3-Clause
"""The comm on real GPUs: arrays of CuPy, PyTorch, JAX and Numba from device to device, if this machine has one."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from dask import config
from dask.sizeof import sizeof
from distributed import Client
from distributed.comm import connect
from distributed.protocol import to_serialize
from tests.dask.clusters import local_cluster
from tests.dask.ends import ends_here
from tests.native.test_cuda import cupy, skip_without_gpu, torch

import weft
import weft.dask
from weft.dask.tensors import device

pytestmark = pytest.mark.usefixtures("no_comms_left")
ITEMS = 1 << 18


@pytest.fixture(autouse=True, scope="module")
def reach() -> None:
    types = weft.Context().memory_types
    if "cuda" not in types:
        pytest.skip(f"UCX reaches {', '.join(types)} memory only")


def count_of_devices() -> int:
    skip_without_gpu("PyTorch")
    return int(torch().cuda.device_count())


async def carried(x: Any) -> Any:
    """Write an array, and say that it came by the device's way."""
    async with ends_here() as (a, b):
        assert a.remote_info[device.CAPABILITY] is True
        seen: list[str] = []
        recv = b._peer.recv_frames

        def noted(allocate: Any) -> Any:
            return recv(lambda nbytes, index, library: seen.append(library) or allocate(nbytes, index, library))

        b._peer.recv_frames = noted
        writing = asyncio.ensure_future(a.write({"x": to_serialize(x)}))
        y = (await b.read())["x"]
        await writing
        assert len(seen) == 1
    return y


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool"])
@pytest.mark.parametrize("layout", ["C", "F", "strided", "scalar", "empty"])
async def test_a_tensor_of_torch(dtype: str, layout: str) -> None:
    skip_without_gpu("PyTorch")
    t = torch().arange(ITEMS, device="cuda").remainder(64).to(torch().float32).to(getattr(torch(), dtype))
    t = t.reshape(512, -1)
    x = {"C": t, "F": t.t(), "strided": t[:, ::2], "scalar": t[1, 1], "empty": t[:0]}[layout]
    y = await carried(x)
    assert (y.dtype, y.shape, y.device) == (x.dtype, x.shape, x.device)
    assert torch().equal(y.float(), x.float())
    if layout in ("C", "F"):
        assert y.stride() == x.stride()
    assert sizeof(y) == x.element_size() * x.nelement()


@pytest.mark.parametrize("index", [0, 1, 7])
async def test_the_device_of_a_tensor_is_kept(index: int) -> None:
    if index >= count_of_devices():
        pytest.skip(f"there is no device {index}")
    x = torch().ones(ITEMS, device=f"cuda:{index}", requires_grad=True)
    y = await carried(x)
    assert y.device == x.device
    assert y.requires_grad


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
async def test_an_array_of_cupy(dtype: str, layout: str) -> None:
    skip_without_gpu("CuPy, DLPack")
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    try:
        a = cupy().ones((512, 512), dtype)
    except (TypeError, ValueError):
        pytest.skip(f"this CuPy has no {dtype}")
    x = {"C": a, "F": a.T, "strided": a[:, ::2]}[layout]
    y = await carried(x)
    assert (y.dtype, y.shape, y.device) == (x.dtype, x.shape, x.device)
    assert cupy().asnumpy(y).tobytes() == cupy().asnumpy(x).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_array_of_jax(dtype: str) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if not any(each.platform == "gpu" for each in jax.devices()):
        pytest.skip("JAX has no GPU")
    x = jax.device_put(jax.numpy.arange(ITEMS, dtype=dtype), jax.devices("gpu")[-1])
    y = await carried(x)
    assert (y.dtype, y.devices()) == (x.dtype, x.devices())
    assert (y == x).all()


async def test_an_array_of_numba() -> None:
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    if not cuda.is_available():
        pytest.skip("no CUDA device")
    x = cuda.to_device(np.arange(ITEMS, dtype="f4"))
    y = await carried(x)
    np.testing.assert_array_equal(y.copy_to_host(), x.copy_to_host())


async def test_rmm_allocates() -> None:
    skip_without_gpu("CuPy, DLPack")
    rmm = pytest.importorskip("rmm", reason="RMM is not installed")
    x = cupy().arange(ITEMS, dtype="f4")
    with config.set({"weft.rmm": True}):
        assert type(device.allocate(8, 0, "cupy")) is rmm.DeviceBuffer
        y = await carried(x)
    assert (y == x).all()


async def test_a_peer_without_a_device_is_sent_host_memory(echo: str) -> None:
    skip_without_gpu("PyTorch")
    x = torch().arange(ITEMS, device="cuda", dtype=torch().bfloat16)
    comm = await connect(echo)
    await comm.write({"x": to_serialize(x)})  # it only passes on what it gets
    y = (await comm.read())["x"]
    assert y.device == x.device
    assert torch().equal(x, y)
    await comm.close()


def doubled(x: Any) -> Any:
    return x + x


@pytest.mark.slow
def test_between_two_workers() -> None:
    skip_without_gpu("PyTorch")
    x = torch().arange(ITEMS, dtype=torch().float32).to(torch().bfloat16).cuda()
    with local_cluster() as cluster, Client(cluster) as client:
        one, two = list(client.nthreads())
        there = client.submit(doubled, client.scatter(x, workers=[one]), workers=[one])
        y = client.submit(doubled, there, workers=[two]).result()
    assert y.device == x.device
    assert torch().equal(y, x * 4)
