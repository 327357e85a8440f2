# SPDX-License-Identifier: BSD-3-Clause
"""Device memory through the comm: it lands in device memory, and only where it can be held. The device is a fake."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import sys
import types
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from dask import config
from dask.utils import Dispatch
from distributed import Client
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import Serialized, deserialize, serialize, to_serialize
from tests.dask.clusters import local_cluster
from tests.dask.ends import LOOPBACK, Ends, ends_here, until
from tests.dask.fakecuda import BFLOAT16, FLOAT8, FLOAT32, UINT8, Array, allocated, array, fakecuda  # noqa: F401

import weft.dask
from weft import UnsupportedError
from weft.dask import tensors
from weft.dask.tensors import device

pytestmark = pytest.mark.usefixtures("no_comms_left")
on_device = pytest.mark.usefixtures("fakecuda")

NOISE = bytes(range(1, 251)) * 2000


async def carried(writer: Any, reader: Any, x: Any) -> Any:
    writing = asyncio.ensure_future(writer.write({"x": to_serialize(x), "y": to_serialize(b"host" * 20_000)}))
    message = await reader.read()
    assert await writing > 80_000 + x.nbytes
    assert bytes(message["y"]) == b"host" * 20_000
    return message["x"]


@on_device
@pytest.mark.parametrize(
    ("dtype", "shape", "strides"),
    [
        (FLOAT32, (1000, 2, 60), (120, 60, 1)),
        (BFLOAT16, (1000, 120), (1, 1000)),
        (UINT8, (7,), (1,)),
        (FLOAT32, (), ()),
        (FLOAT8, (1, 5, 1), (9, 1, 9)),
    ],
)
async def test_device_memory_lands_in_device_memory(
    ends: Ends, dtype: tuple[int, int, int], shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    x = array(NOISE[: math.prod(shape) * dtype[1] // 8], dtype, shape, strides, index=3)
    async with ends() as (a, b):
        y = await carried(a, b, x)
    assert type(y) is Array
    assert (y.dtype, y.shape, y.strides, y.index) == (dtype, shape, strides, 3)
    assert y == x
    [(memory, index)] = allocated
    assert index == 3
    assert y.base[0] == memory.address


@on_device
async def test_what_is_not_contiguous_is_copied_by_its_own_library() -> None:
    x = array(NOISE[:4000], FLOAT32, (100, 5), (10, 2), index=1)
    async with ends_here() as (a, b):
        y = await carried(a, b, x)
    assert (y.dtype, y.shape, y.strides, y.index) == (FLOAT32, (100, 5), (5, 1), 1)
    assert y == x.copy()


@on_device
async def test_an_empty_array_needs_no_transfer() -> None:
    async with ends_here() as (a, b):
        y = await carried(a, b, array(b"", FLOAT32, (0, 4), index=2))
    assert (y.shape, y.index) == ((0, 4), 2)


@on_device
async def test_collections_and_many_arrays(ends: Ends) -> None:
    x = [array(NOISE[i : 2 * i + 1], index=i % 2) for i in range(300)]
    async with ends() as (a, b):
        writing = asyncio.ensure_future(a.write({f"x{i}": to_serialize(each) for i, each in enumerate(x)}))
        message = await b.read()
        await writing
    assert [message[f"x{i}"] for i in range(300)] == x
    assert [message[f"x{i}"].index for i in range(300)] == [i % 2 for i in range(300)]


@on_device
async def test_both_sides_say_that_they_can() -> None:
    async with ends_here() as (a, b):
        assert a.remote_info[device.CAPABILITY] is True
        assert b.remote_info[device.CAPABILITY] is True


async def test_without_cuda_in_ucx_nobody_says_so() -> None:
    async with ends_here() as (a, b):
        assert a.remote_info[device.CAPABILITY] is False
        assert b.remote_info[device.CAPABILITY] is False


@on_device
async def test_it_can_be_turned_off() -> None:
    with config.set({"weft.device": False}):
        async with ends_here() as (a, _):
            assert a.remote_info[device.CAPABILITY] is False


@on_device
async def test_without_a_library_that_allocates_nobody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_ALLOCATORS", {"not_installed_anywhere": None})
    async with ends_here() as (a, _):
        assert a.remote_info[device.CAPABILITY] is False
    with pytest.raises(weft.NoMemoryError, match="needs CuPy, PyTorch or Numba"):
        device.allocate(8, 0, "")


async def forwarded(x: Any, **write: Any) -> Any:
    """Write to somebody who does not deserialize; return what lies there."""
    accepted = asyncio.get_running_loop().create_future()

    async def handler(comm: Any) -> None:
        accepted.set_result(comm)

    async with listen(LOOPBACK, handler, deserialize=False) as listener:
        a = await connect(listener.contact_address)
        b = await accepted
        await a.write({"x": to_serialize(x)}, **write)
        got = (await b.read())["x"]
        a.abort()
        b.abort()
    return got


@on_device
async def test_who_passes_messages_on_unread_is_sent_host_memory() -> None:
    got = await forwarded(array(NOISE, index=1))
    assert got.header["serializer"] == "pickle"
    assert all(device.device_of(frame) is None for frame in got.frames)
    assert allocated == []


@on_device
async def test_a_peer_without_a_device_is_sent_host_memory(echo: str) -> None:
    comm = await connect(echo)
    assert comm.remote_info[device.CAPABILITY] is False
    x = array(NOISE, index=1)
    for serializers in (None, ["cuda", "pickle"]):
        await comm.write({"x": to_serialize(x)}, serializers=serializers)
        y = (await comm.read())["x"]
        assert y == x
        assert y.index == 1
    await comm.close()
    assert allocated == []


@on_device
@pytest.mark.parametrize(("asked", "family"), [(["pickle"], "pickle"), (["cuda", "pickle"], "cuda")])
async def test_the_callers_choice_of_serializers_is_kept(asked: list[str], family: str) -> None:
    async with ends_here() as (a, b):
        writing = asyncio.ensure_future(a.write({"x": to_serialize(array(NOISE))}, serializers=asked))
        with pytest.raises(TypeError, match=family):
            await b.read(deserializers=["msgpack"])
        await writing


@on_device
async def test_device_frames_for_a_peer_without_a_device_are_refused_by_name(echo: str) -> None:
    comm = await connect(echo)
    with pytest.raises(UnsupportedError, match=r"write to ucx://.*which this peer cannot hold"):
        await comm.write({"x": Serialized({"serializer": "cuda"}, [array(NOISE)])})
    await comm.write("still open")
    assert await comm.read() == "still open"
    await comm.close()


@on_device
async def test_no_memory_for_a_message_ends_the_comm(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(nbytes: int, index: int) -> Any:
        raise MemoryError("the device is full")

    monkeypatch.setattr(device, "_ALLOCATORS", {"fakecuda": full})
    async with ends() as (a, b):
        writing = asyncio.ensure_future(a.write({"x": to_serialize(array(NOISE))}))
        with pytest.raises(MemoryError, match="the device is full"):
            await b.read()
        with pytest.raises(CommClosedError):
            await writing
        assert b.closed()


@on_device
async def test_a_write_that_is_given_up_halfway_ends_the_comm(ends: Ends) -> None:
    async with ends() as (a, b):
        writing = asyncio.ensure_future(a.write({"x": to_serialize(array(NOISE))}))
        await until(lambda: a._peer._channel.next_place == 1)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert a.closed()
        with pytest.raises(CommClosedError):
            await b.read()


def test_what_is_on_no_device_is_left_to_others() -> None:
    for x in (b"bytes", [1], object(), memoryview(b"x")):
        with pytest.raises(NotImplementedError):
            device.serialize(x)


class NoImporter:
    """An array of a library that cannot make one of memory."""

    nbytes = 4

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_a_library_that_imports_nothing_is_left_to_others() -> None:
    with pytest.raises(NotImplementedError, match="NoImporter"):
        device.serialize(NoImporter())


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [
        ((), (), True),
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (6, 2), False),
        ((4, 1), (1, 7), True),
        ((0, 5), (9, 9), True),
        ((3, 4), (0, 1), False),
        ((2, 3, 4), (4, 8, 1), False),
    ],
)
def test_contiguity(shape: tuple[int, ...], strides: tuple[int, ...], contiguous: bool) -> None:
    assert device.is_contiguous(shape, strides) is contiguous


def test_rmm_allocates_if_asked_and_on_the_first_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class DeviceBuffer:
        def __init__(self, size: int) -> None:
            self.size = size

    monkeypatch.setitem(sys.modules, "rmm", types.SimpleNamespace(DeviceBuffer=DeviceBuffer))
    monkeypatch.setattr(device, "_ALLOCATORS", {"fakecuda": lambda nbytes, index: (nbytes, index)})
    assert device.allocate(7, 0, "fakecuda") == (7, 0)
    with config.set({"weft.rmm": True}):
        assert device.allocate(7, 0, "fakecuda").size == 7
        assert device.allocate(7, 1, "fakecuda") == (7, 1)
    assert device.allocate(7, 1, "rmm").size == 7  # distributed's handler takes nothing else for its own


def test_the_objects_own_library_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        device, "_ALLOCATORS", {"antigravity": None, "sys": lambda *_: "1st", "types": lambda *_: "2nd"}
    )
    assert device.allocate(1, 0, "types") == "2nd"
    assert device.allocate(1, 0, "sys") == "1st"
    assert device.allocate(1, 0, "torch") == "1st"  # neither it, nor what would have to be imported first


class FakeCuPy(types.ModuleType):
    """CuPy as far as it is asked: it notes on which device it allocates."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.current = [-1]
        runtime = types.SimpleNamespace(getDeviceCount=lambda: 2)
        self.cuda = types.SimpleNamespace(Device=self.device, runtime=runtime)

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.current.append(index)
        yield
        self.current.pop()

    def empty(self, nbytes: int, *, dtype: str) -> tuple[int, str, int]:
        return (nbytes, dtype, self.current[-1])

    class ndarray:  # noqa: N801
        def __init__(self, dtype: str) -> None:
            self.dtype = types.SimpleNamespace(name=dtype)

        def view(self, dtype: str) -> Any:
            return FakeCuPy.ndarray(dtype)


def test_cupy_allocates_on_the_device_that_was_told_or_on_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCuPy())
    assert device.allocate(8, 1, "cupy") == (8, "u1", 1)
    assert device.allocate(8, 5, "cupy") == (8, "u1", 0)


def test_numba_and_torch_allocate_on_the_device_that_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCuPy()
    numba = types.SimpleNamespace(gpus=[cupy.device(i) for i in range(2)], device_array=cupy.empty)
    monkeypatch.setitem(sys.modules, "numba", types.SimpleNamespace(cuda=numba))
    monkeypatch.setitem(sys.modules, "numba.cuda", numba)
    assert device.allocate(8, 1, "numba") == (8, "u1", 1)
    torch = types.SimpleNamespace(
        empty=lambda nbytes, dtype, device: (nbytes, dtype, device),
        uint8="uint8",
        cuda=types.SimpleNamespace(device_count=lambda: 2),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert device.allocate(8, 1, "torch") == (8, "uint8", "cuda:1")
    assert device.allocate(8, 2, "torch") == (8, "uint8", "cuda:0")


def test_a_type_that_cupy_has_from_elsewhere_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """distributed's handler says V2 of bfloat16."""
    known = types.SimpleNamespace(
        cuda_serialize_cupy_ndarray=lambda x: ({"typestr": "<V2" if x.dtype.name == "bfloat16" else "<f4"}, [b""]),
        cuda_deserialize_cupy_ndarray=lambda header, _: cupy.ndarray(
            {"<V2": "void16", "<f4": "float32"}[header["typestr"]]
        ),
    )
    cupy = FakeCuPy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "distributed.protocol.cupy", known)
    monkeypatch.setitem(sys.modules, "ml_dtypes", types.ModuleType("ml_dtypes"))
    spec = importlib.util.spec_from_file_location("weft_cupy_again", tensors.__path__[0] + "/cupy.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    for name in ("bfloat16", "float32"):
        header, frames = serialize(cupy.ndarray(name), serializers=("cuda",), on_error="raise")
        assert deserialize(header, frames).dtype.name == name


def test_handlers_are_registered_with_the_first_object_or_at_once_if_distributed_saw_one() -> None:
    calls: list[str] = []
    one, two = Dispatch("one"), Dispatch("two")
    tensors.lazily([one, two], ["decimal"], lambda: calls.append("first"), known="not.loaded")
    assert calls == []
    for dispatch in (one, two):
        with pytest.raises(TypeError):
            dispatch.dispatch(Decimal)
    assert calls == ["first"]
    tensors.lazily([one], ["decimal"], lambda: calls.append("at once"), known="decimal")
    assert calls == ["first", "at once"]


def scaled(x: Any) -> Any:
    return array(bytes(x), x.dtype, x.shape, x.strides, index=x.index)


@pytest.mark.slow
@on_device
def test_a_scheduler_between_client_and_workers_never_holds_any() -> None:
    x = array(NOISE, BFLOAT16, index=1)
    with local_cluster(processes=False) as cluster, Client(cluster) as client:
        one, two = list(client.nthreads())
        sent = client.scatter(x, workers=[one], direct=False)
        assert allocated == []  # through the scheduler
        moved = client.submit(scaled, sent, workers=[two])
        client.submit(len, moved, workers=[one]).result()
        assert [len(memory) for memory, index in allocated if index == 1] == [len(x)] * 2  # there and back
        allocated.clear()
        y = client.gather(moved, direct=False)
        assert allocated == []
        assert (y.dtype, y.index, bytes(y)) == (BFLOAT16, 1, bytes(x))
