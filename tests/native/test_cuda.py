# SPDX-License-Identifier: BSD-3-Clause
"""Device memory as it is: CuPy and PyTorch on a GPU, if this machine has one and UCX its modules for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft

ITEMS = [0, 1, 1000, 1 << 20]  # of 8 B: nothing, eager, and rendezvous


def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed")


def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


class CuPy:
    """Arrays of CuPy: by DLPack, or with that taken away by the CUDA array interface."""

    def __init__(self, *, dlpack: bool) -> None:
        self.dlpack = dlpack

    def array(self, host: np.ndarray) -> Any:
        return cupy().asarray(host)

    def given(self, array: Any) -> Any:
        """Return what is passed to weft."""
        if self.dlpack:
            return array
        interface = array.__cuda_array_interface__
        return type("CudaArray", (), {"__cuda_array_interface__": interface, "array": array})()

    def host(self, array: Any) -> np.ndarray:
        return cupy().asnumpy(array)


class Torch:
    """Tensors of PyTorch."""

    def array(self, host: np.ndarray) -> Any:
        return torch().from_numpy(host).cuda()

    def given(self, array: Any) -> Any:
        return array

    def host(self, array: Any) -> np.ndarray:
        return array.cpu().numpy()


PROVIDERS: dict[str, Callable[[], Any]] = {
    "CuPy, DLPack": lambda: CuPy(dlpack=True),
    "CuPy, CUDA array": lambda: CuPy(dlpack=False),
    "PyTorch": Torch,
}


def skip_without_gpu(name: str) -> None:
    there = cupy().is_available() if name.startswith("CuPy") else torch().cuda.is_available()
    if not there:
        pytest.skip("no CUDA device")


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> Any:
    skip_without_gpu(request.param)
    return PROVIDERS[request.param]()


@pytest.fixture
def worker(provider: Any) -> Iterator[weft.Worker]:
    context = weft.Context()
    if "cuda" not in context.memory_types:
        pytest.skip(f"UCX reaches {', '.join(context.memory_types)} memory only")
    worker = weft.Worker(context)
    yield worker
    worker.close()


@pytest.mark.parametrize("items", ITEMS)
@pytest.mark.parametrize("into_host", [False, True])
def test_device_memory_is_sent(provider, worker, endpoint, items, into_host):
    data = np.arange(items, dtype="f8")
    source = provider.array(data)
    into = np.zeros(items) if into_host else provider.array(np.zeros(items))
    received = worker.tag_recv(into if into_host else provider.given(into), 1)
    sent = endpoint.tag_send(provider.given(source), 1)
    assert received.wait(100) == (8 * items, 1)
    sent.wait(100)
    np.testing.assert_array_equal(into if into_host else provider.host(into), data)


def test_host_memory_is_received_on_the_device(provider, worker, endpoint):
    data, into = np.arange(1000.0), provider.array(np.zeros(1000))
    received = worker.tag_recv(provider.given(into), 1)
    endpoint.tag_send(data, 1).wait(100)
    received.wait(100)
    np.testing.assert_array_equal(provider.host(into), data)


def test_an_active_message_lands_in_host_memory(provider, worker, endpoint):
    data = np.arange(1 << 18, dtype="f8")
    source = provider.array(data)
    received = worker.am_recv(3)
    sent = endpoint.am_send(3, b"", provider.given(source))
    np.testing.assert_array_equal(np.frombuffer(received.wait(100)[1]), data)
    sent.wait(100)


def test_device_and_host_memory_in_one_list_are_refused(provider, worker, endpoint):
    source = provider.array(np.arange(8.0))
    with pytest.raises(weft.UnsupportedError, match="in host and in cuda memory"):
        endpoint.am_send(3, b"", [b"host", provider.given(source)])
    with pytest.raises(weft.UnsupportedError, match="UCX can use only host memory here"):
        endpoint.am_send(3, provider.given(source))


def test_strided_device_memory_is_refused(provider, worker, endpoint):
    source = provider.array(np.arange(16.0).reshape(4, 4))
    with pytest.raises(weft.NotContiguousError):
        endpoint.tag_send(provider.given(source[:, 1]), 1)


@pytest.mark.parametrize("name", ["CuPy, DLPack", "CuPy, CUDA array"])
def test_work_that_is_still_queued_is_waited_for(name):
    """A kernel behind a long queue on a stream of its own fills the array; what arrives is what the kernel wrote."""
    skip_without_gpu(name)
    provider, cp = PROVIDERS[name](), cupy()
    context = weft.Context()
    if "cuda" not in context.memory_types:
        pytest.skip(f"UCX reaches {', '.join(context.memory_types)} memory only")
    worker = weft.Worker(context)
    endpoint = worker.connect(worker.address)
    heavy, source, into = cp.ones((2048, 2048)), cp.zeros(1000), np.zeros(1000)
    cp.cuda.Device().synchronize()
    received = worker.tag_recv(into, 1)
    with cp.cuda.Stream(non_blocking=True):
        for _ in range(50):
            heavy = heavy @ heavy * 1e-4
        source += 7
        endpoint.tag_send(provider.given(source), 1).wait(100)
    received.wait(100)
    worker.close()
    assert (into == 7).all()


def test_managed_memory():
    skip_without_gpu("CuPy, DLPack")
    cp = cupy()
    context = weft.Context()
    if "cuda-managed" not in context.memory_types:
        pytest.skip(f"UCX reaches {', '.join(context.memory_types)} memory only")
    worker = weft.Worker(context)
    endpoint = worker.connect(worker.address)
    with cp.cuda.using_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc):
        source = cp.arange(1 << 18, dtype="u1")
    for dlpack in (True, False):
        into = bytearray(source.nbytes)
        received = worker.tag_recv(into, 1)
        sent = endpoint.tag_send(CuPy(dlpack=dlpack).given(source), 1)
        received.wait(100)
        sent.wait(100)
        assert bytes(into) == cp.asnumpy(source).tobytes()
    worker.close()


ECHO = """
import weft
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    with listener.accept(100) as peer:
        peer.send(peer.recv().wait(100)).wait(100)
"""


def test_a_peer_receives_device_memory_in_host_memory(provider, spawn):
    data = np.arange(1 << 18, dtype="f8")
    child = spawn(ECHO)
    with weft.connect(child.line()) as peer:
        sent = peer.send(provider.given(provider.array(data)))
        np.testing.assert_array_equal(np.frombuffer(peer.recv().wait(100)), data)
        sent.wait(100)
    assert child.wait() == 0
