# SPDX-License-Identifier: BSD-3-Clause
"""What a connection tells of how long data took to arrive: only of what was announced, and without the waiting."""

import asyncio
import socket
import time

from tests.test_peer import pair, run

from weft._connect import local
from weft._connect.sockets import round_trip_of


def test_small_messages_tell_nothing():
    async def main():
        async with pair() as (a, b):
            await a.send_frames([b"x" * 1000])
            await b.recv_frames()
            assert b.landed == (0, 0.0, 0.0)

    run(main())


def test_the_wait_for_a_reader_is_no_time_of_the_link():
    async def main():
        async with pair() as (a, b):
            began = time.perf_counter()
            sends = [a.send_frames([bytearray(6 << 20)]) for _ in range(5)]  # more than lands without a reader
            await asyncio.sleep(0.5)
            for _ in sends:
                await b.recv_frames()
            for each in sends:
                await each
            nbytes, seconds, flow_seconds = b.landed
            assert nbytes >= 30 << 20
            assert 0 < seconds < time.perf_counter() - began - 0.4
            assert flow_seconds == seconds, "within a host each link is alone"

    run(main())


def test_it_goes_on_counting_after_a_peer_is_gone():
    async def main():
        async with pair() as (a, b):
            await asyncio.gather(a.send_frames([bytearray(3 << 20)]), b.recv_frames())
            before = b.landed
            a.send_frames([bytearray(30 << 20)])
            a.abort()
            await asyncio.sleep(0)
            assert b.landed[0] == before[0] >= 3 << 20

    run(main())


def test_the_kernel_tells_the_round_trip(monkeypatch):
    monkeypatch.setattr(local, "reach", lambda family, sockaddr: None)  # over TCP

    async def main():
        async with pair() as (a, b):
            assert 0 < a.round_trip_s < 10
            assert 0 < b.round_trip_s < 10

    run(main())
    one, other = socket.socketpair()
    with one, other:
        assert round_trip_of(one) == 0.0, "no TCP"
