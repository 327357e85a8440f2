# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints that the drop-in makes from workers' addresses."""

import asyncio
import pickle

import pytest

from weft.compat import ucp
from weft.compat.ucp.exceptions import UCXCanceled, UCXError

PEER = """
import asyncio, sys
from weft.compat import ucp

async def main():
    ucp.init({"TLS": "posix,self"})
    print(bytes(ucp.get_worker_address()).hex(), flush=True)
    address = ucp.get_ucx_address_from_buffer(bytes.fromhex(sys.stdin.readline()))
    ep = await ucp.create_endpoint_from_worker_address(address)
    await ep.send(b"tag", tag=7, force_tag=True)
    await ep.am_send(b"active message")
    await ep.recv(bytearray(1), tag=8, force_tag=True)

asyncio.run(main())
"""


def address_of(child):
    return ucp.get_ucx_address_from_buffer(bytes.fromhex(child.line()))


def test_an_address_is_bytes_and_can_be_pickled():
    address = ucp.get_worker_address()
    assert address.length == len(bytes(address)) == len(bytearray(address))
    again = pickle.loads(pickle.dumps(address))
    assert again == address
    assert again.length == address.length
    assert hash(again) == hash(address)
    assert again.parts() == address.parts()


def test_an_address_begins_with_what_ucx_takes():
    address = ucp.get_worker_address()
    native, worker_id, near = address.parts()
    assert native == ucp.core._ctx.core.native.address
    assert worker_id == ucp.core._ctx.core.id
    assert near
    assert ucp.get_ucx_address_from_buffer(native).parts() == (native, None, False)


def test_forced_tags_and_active_messages_between_processes(spawn):
    async def run():
        child = spawn(PEER)
        address = address_of(child)
        ep = await ucp.create_endpoint_from_worker_address(address)
        child.say(bytes(ucp.get_worker_address()).hex())
        received = bytearray(3)
        await ucp.recv(received, tag=7)
        assert received == b"tag"
        assert await ep.am_recv() == b"active message"
        await ep.send(b"x", tag=8, force_tag=True)
        assert await asyncio.to_thread(child.wait) == 0
        ep.abort()

    asyncio.run(run())


def test_active_messages_that_came_before_the_endpoint(spawn):
    async def run():
        child = spawn(PEER)
        address = address_of(child)
        child.say(bytes(ucp.get_worker_address()).hex())
        worker = ucp.core._ctx.core
        async with asyncio.timeout(100):
            while not worker.early:
                await asyncio.sleep(0.001)
        ep = await ucp.create_endpoint_from_worker_address(address)
        assert await ep.am_recv() == b"active message"
        ep.abort()

    asyncio.run(run())


def test_it_has_no_tags_of_its_own():
    async def run():
        ep = await ucp.create_endpoint_from_worker_address(ucp.get_worker_address())
        with pytest.raises(ValueError, match="force_tag"):
            await ep.send(b"x")
        with pytest.raises(ValueError, match="force_tag"):
            await ep.recv(bytearray(1), tag=5)
        await ep.close()
        assert ep.closed()

    asyncio.run(run())


def test_a_killed_worker_is_noticed(spawn):
    async def run():
        child = spawn(PEER)
        ep = await ucp.create_endpoint_from_worker_address(address_of(child))
        waiting = asyncio.create_task(ep.recv(bytearray(1), tag=9, force_tag=True))
        await asyncio.sleep(0)
        child.kill()
        with pytest.raises(UCXCanceled):
            await waiting
        with pytest.raises(UCXError, match="Endpoint timeout"):
            await ep.send(b"x", tag=7, force_tag=True)
        ep.abort()

    asyncio.run(run())


def test_a_worker_that_is_gone_is_unreachable(spawn):
    child = spawn(PEER)
    address = address_of(child)
    child.kill()

    async def run():
        with pytest.raises(UCXError, match="Destination is unreachable"):
            await ucp.create_endpoint_from_worker_address(address)

    asyncio.run(run())
