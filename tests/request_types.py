# SPDX-License-Identifier: BSD-3-Clause
"""What type checkers know of requests. Nothing here runs: test_request.py has it checked."""

from typing import Any, assert_type

import weft
from weft import _native


async def of_a_peer(peer: weft.Peer) -> None:
    assert_type(await peer.recv(), memoryview)
    assert_type(peer.recv().wait(1), memoryview)
    assert_type(peer.recv().result(), memoryview)
    assert_type(await peer.recv_frames(), list[Any])
    assert_type(await peer.recv_obj(), Any)
    sent: list[weft.Request[None]] = [
        peer.send(b""),
        peer.lend(b""),
        peer.send_frames([b""]),
        peer.send_obj(b""),
        peer.close(),
    ]
    assert_type(sent[0].exception(), BaseException | None)


async def of_an_endpoint(worker: weft.Worker, endpoint: weft.Endpoint, rkey: weft.Rkey) -> None:
    assert_type(await worker.tag_recv(bytearray(8), 1), tuple[int, int])
    assert_type(await worker.tag_recv_many([bytearray(8)], 1), list[tuple[int, int]])
    assert_type(await worker.am_recv(1), tuple[bytes, memoryview])
    assert_type(await endpoint.stream_recv(bytearray(8)), int)
    assert_type(await endpoint.atomic_op("add", 1, rkey), int)
    assert_type(await endpoint.atomic_op("add", 1, rkey, fetch=False), int | None)
    sent: list[weft.Request[None]] = [
        endpoint.tag_send(b"", 1),
        endpoint.tag_send_many([b""], 1),
        endpoint.stream_send(b""),
        endpoint.am_send(1, b""),
        endpoint.put(b"", rkey),
        endpoint.get(bytearray(8), rkey),
        endpoint.flush(),
        endpoint.close(),
        worker.flush(),
    ]
    assert_type(sent[0].done(), bool)


async def of_others(message: weft.ActiveMessage, listener: weft.SockaddrListener) -> None:
    assert_type(await message.recv(), memoryview)
    assert_type(await message.recv(bytearray(8)), int)
    assert_type(await listener.accept(), weft.Endpoint)


def native(request: _native.Request) -> weft.Request[Any]:
    return request
