# SPDX-License-Identifier: BSD-3-Clause
"""Device memory between two processes, if this machine has a GPU: what arrives, what stays, and what a kill leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.native.test_cuda import cupy, skip_without_gpu

import weft

#: Receives arrays on the device, and answers each with its least and its largest byte.
RECEIVER = """
import sys

import cupy
import weft

cupy.cuda.set_allocator(None)
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    with listener.accept(100) as peer:
        for _ in range(int(sys.argv[1])):
            (x,) = peer.recv_frames(lambda nbytes, device, library: cupy.empty(nbytes, "u1")).wait(100)
            assert isinstance(x, cupy.ndarray)
            peer.send(bytes([int(x.min()), int(x.max())])).wait(100)
            del x
        peer.recv().wait(100)
"""

#: Sends an array from the device, and waits for nothing.
SENDER = """
import time

import cupy
import weft

with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    with listener.accept(100) as peer:
        sent = peer.send_frames([cupy.ones(1 << 26, "u1")])
        peer.recv().wait(100)  # it progresses: the description is on its way
        print("sending", flush=True)
        time.sleep(100)
"""

NBYTES = 1 << 26


@pytest.fixture(autouse=True)
def no_pool() -> Iterator[None]:
    """Have each array allocated by the driver, and given back to it."""
    skip_without_gpu("CuPy, DLPack")
    types = weft.Context().memory_types
    if "cuda" not in types:
        pytest.skip(f"UCX reaches {', '.join(types)} memory only")
    cupy().cuda.set_allocator(None)
    yield
    cupy().cuda.set_allocator(cupy().get_default_memory_pool().malloc)


def answered(peer: weft.Peer, array: Any) -> tuple[int, ...]:
    sent = peer.send_frames([array])
    answer = tuple(peer.recv().wait(100))
    sent.wait(100)
    return answer


def test_an_array_is_copied_from_device_to_device(spawn: Any) -> None:
    child = spawn(RECEIVER, "1")
    with weft.connect(child.line()) as peer:
        assert answered(peer, cupy().full(NBYTES, 7, "u1")) == (7, 7)
        assert "cuda_ipc/cuda" in peer.transports
        peer.send(b"end").wait(100)
    assert child.wait() == 0


def test_memory_that_is_allocated_anew_is_not_taken_for_the_old(spawn: Any) -> None:
    """UCX keeps the mappings of a peer's memory by its address."""
    child = spawn(RECEIVER, "40")
    addresses = set()
    with weft.connect(child.line()) as peer:
        for i in range(40):
            array = cupy().full(NBYTES + i % 3 * (2 << 20), i, "u1")
            addresses.add(array.data.ptr)
            assert answered(peer, array) == (i, i)
            del array
        peer.send(b"end").wait(100)
    assert len(addresses) < 40
    assert child.wait() == 0


def test_device_memory_is_given_back(spawn: Any) -> None:
    cp = cupy()
    child = spawn(RECEIVER, "25")
    free = []
    with weft.connect(child.line()) as peer:
        for i in range(25):
            assert answered(peer, cp.full(4 * NBYTES, i, "u1")) == (i, i)
            free.append(cp.cuda.runtime.memGetInfo()[0])  # of the device, so of both processes
        peer.send(b"end").wait(100)
    assert child.wait() == 0
    assert free[5] - free[-1] <= 8 * NBYTES, [(free[0] - each) / 1e6 for each in free]


def test_a_sender_that_is_killed_is_lost(spawn: Any) -> None:
    child = spawn(SENDER)
    peer = weft.connect(child.line()).open()
    peer.send(b"go").wait(100)
    assert child.line() == "sending"
    child.kill()
    with pytest.raises(weft.PeerLostError):
        peer.recv_frames(lambda nbytes, device, library: cupy().empty(nbytes, "u1")).wait(100)
    peer.abort()
    again = spawn(RECEIVER, "1")
    with weft.connect(again.line()) as peer:
        assert answered(peer, cupy().full(NBYTES, 3, "u1")) == (3, 3)
        peer.send(b"end").wait(100)


def test_a_receiver_that_is_killed_is_lost(spawn: Any) -> None:
    child = spawn(RECEIVER, "9")
    peer = weft.connect(child.line()).open()
    assert answered(peer, cupy().full(NBYTES, 3, "u1")) == (3, 3)
    child.stop()
    sent = peer.send_frames([cupy().full(NBYTES, 4, "u1")])
    child.kill()
    with pytest.raises(weft.PeerLostError):
        sent.wait(100)
    peer.abort()
