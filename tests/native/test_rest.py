# SPDX-License-Identifier: BSD-3-Clause
"""A connection of UCX's tcp that waits for the other process: its descriptor is ready all the time, for nothing."""

import asyncio
import contextlib
import select
import selectors

import pytest

import weft


@contextlib.contextmanager
def connecting():
    """Two workers, and a flush of the first that waits until the second progresses."""
    with weft.Context({"TLS": "tcp"}) as context, weft.Worker(context) as a, weft.Worker(context) as b:
        to_b = a.connect(b.address)
        yield a, b, to_b, a.flush()


def test_a_blocking_wait_rests_until_the_other_worker_answers():
    with connecting() as (a, b, to_b, flushed):
        with pytest.raises(weft.TimedOutError):
            flushed.wait(0.1)
        assert a._resting == 1
        received = b.tag_recv(bytearray(1), 1)
        for _ in range(10_000):
            b.progress()
            if flushed.done():
                break
            with contextlib.suppress(weft.TimedOutError):
                flushed.wait(0.01)
        flushed.result()
        sent = to_b.tag_send(b"x", 1)
        received.wait(10), sent.wait(10)
        answered, answer = a.tag_recv(bytearray(1), 2), b.connect(a.address).tag_send(b"y", 2)
        for _ in range(10_000):
            if answered.done():
                break
            b.progress()
            with contextlib.suppress(weft.TimedOutError):
                answered.wait(0.01)
        assert answered.result() == (1, 2)
        answer.wait(10)
        with pytest.raises(weft.TimedOutError):
            a.tag_recv(bytearray(1), 3).wait(0.1)
        assert a._resting == 0


class Counting(selectors.DefaultSelector):
    """A selector that counts how often a loop looks."""

    count = 0

    def select(self, timeout=None):
        self.count += 1
        return super().select(timeout)


def test_a_loop_seldom_turns_until_the_other_worker_answers():
    selector = Counting()

    async def main():
        with connecting() as (a, b, _, flushed):
            before = selector.count
            await asyncio.wait({asyncio.ensure_future(flushed)}, timeout=0.3)
            assert not flushed.done()
            assert selector.count - before < 200  # 17,000 without the rest
            assert a._resting == 1
            b.attach(asyncio.get_running_loop())
            await asyncio.wait_for(flushed, 10)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(main())


def test_a_rest_ends_with_its_reason():
    with connecting() as (a, b, _, flushed):
        with pytest.raises(weft.TimedOutError):
            flushed.wait(0.1)
        assert a._resting == 1
        b.close()  # before it has answered
        for _ in range(1000):
            if not a._resting:
                break
            with contextlib.suppress(weft.Error):
                a.tag_recv(bytearray(1), 3).wait(0.01)
        assert a._resting == 0


def test_who_sleeps_on_the_descriptor_is_told_everything():
    with connecting() as (a, b, _, flushed):
        with pytest.raises(weft.TimedOutError):
            flushed.wait(0.1)
        assert a._resting == 1
        for _ in range(100):
            assert a.arm()
            assert a._resting == 0
            assert select.select([a], [], [], 1)[0]
            a.progress()
        for _ in range(10_000):
            b.progress(), a.progress()
            if flushed.done():
                break
        flushed.result()
