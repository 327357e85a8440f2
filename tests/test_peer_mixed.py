# SPDX-License-Identifier: BSD-3-Clause
"""All ways to send and to receive, mixed on one connection: requests are reused, and what one leaves in them must not
reach the next."""

import asyncio
import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.test_peer import pair, run

import weft

MIB = 1 << 20
SIZES = [0, 8, 4_000, 5_000, 70_000, 262_144, 600_000, 3 * MIB]
READERS = {
    "send": ["recv", "recv_into", "recv_many"],
    "lend": ["recv", "recv_into", "recv_many"],
    "send_many": ["recv", "recv_into", "recv_many"],
    "send_frames": ["recv_frames"],
}


@st.composite
def messages(draw):
    """How a message is sent and read, its size, by which end, whether from the pool, and which request comes first."""
    how = draw(st.sampled_from(sorted(READERS)))
    reader = draw(st.sampled_from(READERS[how]))
    return how, reader, draw(st.sampled_from(SIZES)), *(draw(st.booleans()) for _ in range(3))


def send(peer, how, array):
    match how:
        case "send_many":
            return peer.send_many([array])
        case "send_frames":
            return peer.send_frames([b"head", array])
        case _:
            return getattr(peer, how)(array)


def receive(peer, reader, into):
    match reader:
        case "recv_into":
            return peer.recv_into(into)
        case "recv_many":
            return peer.recv_many(1)
        case _:
            return getattr(peer, reader)()


async def deliver(ends, number, message):
    how, reader, size, back, pooled, early = message
    source, target = reversed(ends) if back else ends
    with weft.arrays_in_pool() if pooled else contextlib.nullcontext():
        array = np.full(size, 1 + number % 250, "u1")
    into = bytearray(size)
    if early:
        got = receive(target, reader, into)
        sent = send(source, how, array)
    else:
        sent = send(source, how, array)
        got = receive(target, reader, into)
    result = await got
    await sent
    match reader:
        case "recv_into":
            result = into[:result]
        case "recv_many":
            (result,) = result
        case "recv_frames":
            head, result = result
            assert bytes(head) == b"head"
    assert bytes(result) == array.tobytes(), (number, message)


@pytest.mark.parametrize("nbytes", [70_000, MIB])
def test_a_lend_after_a_message_that_landed_in_a_buffer(nbytes):
    """The request of the receive, which is used again for the lend, kept the address of its buffer."""

    async def main():
        async with pair() as (a, b):
            into = bytearray(nbytes)
            receiving = a.recv_into(into)
            await b.send(b"-" * nbytes)
            assert await receiving == nbytes
            del receiving
            lent = a.lend(b"x" * nbytes)
            assert bytes(await asyncio.wait_for(b.recv(), 20)) == b"x" * nbytes
            await lent

    run(main())


@pytest.mark.parametrize("tls", [None, "tcp"], ids=["ring", "ucx"])
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(all_of=st.lists(messages(), min_size=2, max_size=20))
def test_each_message_is_what_was_sent(tls, all_of):
    async def main():
        async with pair(settings={"TLS": tls} if tls else None) as ends:
            for number, message in enumerate(all_of):
                await asyncio.wait_for(deliver(ends, number, message), 5)

    run(main())
