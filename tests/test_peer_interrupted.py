# SPDX-License-Identifier: BSD-3-Clause
"""A signal handler raises while a received message is converted: the request can be waited for again."""

import asyncio
import contextlib
from fractions import Fraction

import numpy as np
import pytest
from tests.interrupted import NEVER, Interrupt, Interrupted
from tests.test_peer import pair, run
from tests.test_tls_channel import tls_ends

#: Unpickling a fraction calls Python code.
FILES = ("weft/peer.py", "weft/_frames.py", "weft/_request.py", "/fractions.py")
SENT = [Fraction(3, 7), np.arange(20_000)]
FRAMES = [bytes(10), bytes(100_000)]


@pytest.fixture(params=[pair, tls_ends], ids=["ring", "tls"])
def ends(request):
    return request.param


def each_step(ends, send, receive, expect):
    """Receive as often as it takes steps, interrupted at the next step each time; the connection is one."""

    async def main():
        async with ends() as (a, b):
            for number in range(1, 10_000):
                for first in (NEVER, number):  # CPython 3.13 does not trace the opcodes of a function's first call
                    send(a)
                    interrupted = Interrupted(first, FILES)
                    with interrupted:
                        got = await receive(b, interrupted.again)
                    expect(got)
                if not interrupted.raised:
                    return number
        raise AssertionError("it does not end")

    return run(main())


def send_object(peer):
    peer.send_obj(SENT).wait(10)


def is_object(got):
    assert got[0] == SENT[0]
    assert (got[1] == SENT[1]).all()


async def wait(request, again):
    return again(request.wait, 10)


async def result(request, again):
    for _ in range(1000):
        if again(request.done):
            return again(request.result)
        await asyncio.sleep(0)
    raise AssertionError("it is never done")


async def wait_again(request, again):
    """Await it; interrupted, wait for it, as `await` would end the loop."""
    try:
        return await request
    except Interrupt:
        return again(request.wait, 10)


@pytest.mark.parametrize("how", [wait, result, wait_again])
def test_an_object_is_received_after_an_interrupt(ends, how):
    async def receive(b, again):
        return await how(again(b.recv_obj), again)

    assert each_step(ends, send_object, receive, is_object) > 20


@pytest.mark.parametrize("how", [wait, result])
def test_frames_are_received_after_an_interrupt(ends, how):
    async def receive(b, again):
        return await how(again(b.recv_frames), again)

    def expect(got):
        assert [bytes(frame) for frame in got] == FRAMES

    assert each_step(ends, lambda a: a.send_frames(FRAMES).wait(10), receive, expect) > 10


class Refuses:
    def __reduce__(self):
        return int, ("no number",)


def test_what_unpickling_raises_is_the_error_of_the_request(ends):
    async def main():
        async with ends() as (a, b):
            a.send_obj(Refuses()).wait(10)
            a.send_obj("next").wait(10)
            request = b.recv_obj()
            for _ in range(2):
                with pytest.raises(ValueError, match="no number"):
                    request.wait(10)
            assert b.recv_obj().wait(10) == "next"

    run(main())


def test_a_task_that_is_cancelled_loses_no_object(ends):
    async def main():
        async with ends() as (a, b):

            async def receive():
                return await b.recv_obj()

            for turns in range(10):
                task = asyncio.ensure_future(receive())
                for _ in range(turns):
                    await asyncio.sleep(0)
                a.send_obj(turns).wait(10)
                got = None
                if not task.cancel() or not (await asyncio.wait({task}))[0]:
                    raise AssertionError
                with contextlib.suppress(asyncio.CancelledError):
                    got = task.result()
                assert (await b.recv_obj() if got is None else got) == turns

    run(main())
