# SPDX-License-Identifier: BSD-3-Clause
"""What goes over an endpoint of the drop-in."""

import array
import asyncio

import numpy as np
import pytest
from tests.compat.pairs import pair

from weft.compat import ucp
from weft.compat.ucp._libs.arr import Array
from weft.compat.ucp.exceptions import UCXError, UCXMsgTruncated

SIZES = [1, 8, 1000, 1 << 20]


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_message_lands_in_the_buffer_that_was_given(nbytes):
    async def run():
        async with pair() as (here, there):
            sent = np.arange(nbytes, dtype=np.uint8)
            received = np.zeros_like(sent)
            await asyncio.gather(here.send(sent), there.recv(received))
            assert (received == sent).all()

    asyncio.run(run())


def test_messages_keep_their_order():
    async def run():
        async with pair() as (here, there):
            for i in range(50):
                await here.send(bytes([i]))
            received = bytearray(50)
            for i in range(50):
                await there.recv(memoryview(received)[i : i + 1])
            assert received == bytes(range(50))

    asyncio.run(run())


def test_connections_of_the_same_processes_do_not_mix():
    async def run():
        async with pair() as (here, there), pair() as (here2, there2):
            await here.send(b"1")
            await here2.send(b"2")
            first, second = bytearray(1), bytearray(1)
            await there2.recv(second)
            await there.recv(first)
            assert (first, second) == (b"1", b"2")
            assert len({e.uid for e in (here, there, here2, there2)}) == 4

    asyncio.run(run())


@pytest.mark.parametrize("tag", ["a", b"a", 5, ("a", 1)])
def test_tags_choose_among_messages(tag):
    async def run():
        async with pair() as (here, there):
            await here.send(b"x", tag="other")
            await here.send(b"y", tag=tag)
            received = bytearray(1)
            await there.recv(received, tag=tag)
            assert received == b"y"
            await there.recv(received, tag="other")
            assert received == b"x"

    asyncio.run(run())


@pytest.mark.parametrize("tag", [77, np.int64(77)])
def test_a_forced_tag_is_for_the_whole_worker(tag):
    async def run():
        async with pair() as (here, _):
            await here.send(b"x", tag=tag, force_tag=True)
            received = bytearray(1)
            await ucp.recv(received, tag=77)
            assert received == b"x"

    asyncio.run(run())


@pytest.mark.parametrize("tag", [-1, 1 << 64])
def test_a_forced_tag_out_of_range_is_refused(tag):
    async def run():
        async with pair() as (here, there):
            for use in (
                here.send(b"abc", tag=tag, force_tag=True),
                there.recv(bytearray(3), tag=tag, force_tag=True),
                ucp.recv(bytearray(3), tag),
            ):
                with pytest.raises(OverflowError, match=f"{tag} is not an unsigned 64-bit number"):
                    await use

    asyncio.run(run())


@pytest.mark.parametrize("nbytes", [0, *SIZES])
def test_objects_say_how_large_they_are(nbytes):
    async def run():
        async with pair() as (here, there):
            sent = np.arange(nbytes, dtype=np.uint8)
            _, received = await asyncio.gather(here.send_obj(sent), there.recv_obj())
            assert type(received) is bytearray
            assert received == sent.tobytes()

    asyncio.run(run())


def test_objects_go_where_the_allocator_says():
    async def run():
        async with pair() as (here, there):
            await here.send_obj(b"hello")
            received = await there.recv_obj(allocator=lambda n: array.array("B", bytes(n)))
            assert received == array.array("B", b"hello")

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 100])
def test_a_message_of_another_size_is_refused(size):
    async def run():
        async with pair() as (here, there):
            await here.send(b"abc")
            with pytest.raises(UCXMsgTruncated):
                await there.recv(bytearray(size))

    asyncio.run(run())


@pytest.mark.parametrize("nbytes", [0, *SIZES])
def test_active_messages_make_their_own_memory(nbytes):
    async def run():
        async with pair() as (here, there):
            sent = np.arange(nbytes, dtype=np.uint8)
            _, received = await asyncio.gather(here.am_send(sent), there.am_recv())
            assert type(received) is bytearray
            assert received == sent.tobytes()

    asyncio.run(run())


def test_active_messages_go_where_the_allocator_says():
    ucp.register_am_allocator(lambda n: np.empty(n, dtype=np.uint8), "host")

    async def run():
        async with pair() as (here, there):
            await here.am_send(np.arange(10))
            assert ((await there.am_recv()).view(np.int64) == np.arange(10)).all()

    asyncio.run(run())


def test_an_allocator_that_fails_tells_who_receives():
    ucp.register_am_allocator(lambda n: {}[n], "host")

    async def run():
        async with pair() as (here, there):
            await here.am_send(b"abc")
            with pytest.raises(KeyError):
                await there.am_recv()

    asyncio.run(run())


@pytest.mark.parametrize(("nbytes", "sent"), [(2, b"abc"), (4, b"abc"), (1, b"")])
def test_an_allocator_of_another_size_is_named(nbytes, sent):
    ucp.register_am_allocator(lambda _: bytearray(nbytes), "host")

    async def run():
        async with pair() as (here, there):
            await here.am_send(sent)
            with pytest.raises(
                ValueError, match=f"host allocator returned {nbytes} bytes for a message of {len(sent)}"
            ):
                await there.am_recv()

    asyncio.run(run())


def test_an_allocator_without_memory_is_named():
    ucp.register_am_allocator(str, "host")

    async def run():
        async with pair() as (here, there):
            await here.am_send(b"abc")
            with pytest.raises(TypeError, match="host allocator returned str, which is no writable buffer"):
                await there.am_recv()

    asyncio.run(run())


def test_no_allocator_of_unknown_memory():
    with pytest.raises(UCXError, match="Allocator type not supported"):
        ucp.register_am_allocator(bytearray, "tape")


def test_a_cancelled_am_recv_takes_no_message():
    async def run():
        async with pair() as (here, there):
            task = asyncio.create_task(there.am_recv())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await here.am_send(b"abc")
            assert await there.am_recv() == b"abc"

    asyncio.run(run())


def test_a_message_that_came_as_its_reader_was_cancelled_is_for_the_next():
    async def run():
        async with pair() as (here, there):
            task = asyncio.create_task(there.am_recv())
            await asyncio.sleep(0)
            await here.am_send(b"abc")
            ucp.progress()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(100):
                assert await there.am_recv() == b"abc"

    asyncio.run(run())


def test_an_array_of_a_slice_is_the_slice():
    async def run():
        async with pair() as (here, there):
            await here.send(Array(memoryview(b"0123456789")[3:5]))
            received = bytearray(4)
            await there.recv(Array(memoryview(received)[1:3]))
            assert received == b"\x0034\x00"

    asyncio.run(run())


def test_buffers_that_cannot_be_used_are_refused():
    async def run():
        async with pair() as (here, there):
            with pytest.raises(ValueError, match=r"side by side|contiguous"):
                await here.send(np.zeros((4, 4))[:, ::2])
            with pytest.raises(ValueError, match=r"read-only|written"):
                await there.recv(b"constant")

    asyncio.run(run())


def test_flush_of_endpoint_and_worker():
    async def run():
        await ucp.flush()
        async with pair() as (here, there):
            await here.send(b"x")
            await here.flush()
            await ucp.flush()
            ucp.fence()
            received = bytearray(1)
            await there.recv(received)
            assert received == b"x"

    asyncio.run(run())
