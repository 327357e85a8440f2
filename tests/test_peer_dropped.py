# SPDX-License-Identifier: BSD-3-Clause
"""Receives that are dropped while they are pending: they take no message, and keep no connection."""

import asyncio
import contextlib
import functools
import gc
import os
import pathlib
import pickle
import queue
import random
import signal
import sys
import threading
import time
import weakref
from concurrent import futures

import numpy as np
import pytest
from tests.placed import Allocator, Placed
from tests.test_peer import pair, run
from tests.tls_pair import tls_pair

import weft
from weft import _native

HANG_S = 30
UCX = {"TLS": "posix,self"}
CARRIERS = pytest.mark.parametrize("settings", [None, UCX], ids=["ring", "ucx"])
PAIRS = pytest.mark.parametrize(
    "pair_of", [pair, functools.partial(pair, settings=UCX), tls_pair], ids=["ring", "ucx", "tls"]
)
RECEIVES = {
    "recv": lambda peer: peer.recv(),
    "recv_into": lambda peer: peer.recv_into(bytearray(4096)),
    "recv_many": lambda peer: peer.recv_many(3),
    "recv_frames": lambda peer: peer.recv_frames(),
    "recv_obj": lambda peer: peer.recv_obj(),
}
EACH_RECEIVE = pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)


def drop_here(held):
    held.clear()


def in_another_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def drop_elsewhere(held):
    """Let another thread's garbage collector drop what is in `held`."""
    held.append(held)
    references = held[:]
    held.clear()
    references.append(references)
    gc.disable()
    try:
        del references
        in_another_thread(gc.collect)
    finally:
        gc.enable()


DROPS = pytest.mark.parametrize("drop", [drop_here, drop_elsewhere], ids=["here", "elsewhere"])


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not happen")


# ---- the connection


@CARRIERS
@EACH_RECEIVE
@DROPS
def test_a_peer_that_is_dropped_with_a_receive_pending_is_aborted(settings, receive, drop):
    async def main():
        ends = []

        async def handler(peer):
            with pytest.raises(weft.PeerLostError):
                await peer.recv()
            ends.append("lost")

        async with weft.listen("127.0.0.1:0", handler, settings=settings) as listener:
            peer = await weft.connect(listener.address, settings=settings)
            held = [peer, receive(peer), receive(peer)]
            del peer
            await asyncio.sleep(0.05)  # all is quiet: nothing but the drop can wake the worker
            drop(held)
            await until(lambda: ends)

    run(main(), HANG_S)


@CARRIERS
@EACH_RECEIVE
@DROPS
def test_the_same_without_an_event_loop(settings, receive, drop):
    def serve(listener):
        with listener.accept(100) as lost, listener.accept(100) as other:
            with pytest.raises(weft.PeerLostError):
                lost.recv().wait(100)
            lost.abort()
            other.send(b"lost").wait(100)
            other.close().wait(100)

    with (
        weft.listen("127.0.0.1:0", settings=settings) as listener,
        futures.ThreadPoolExecutor(1) as thread,
    ):
        served = thread.submit(serve, listener)
        peer = weft.connect(listener.address, settings=settings).open()
        with weft.connect(listener.address, settings=settings) as other:
            held = [peer, receive(peer)]
            with pytest.raises(weft.TimedOutError):
                held[1].wait(0.01)
            del peer
            drop(held)
            assert bytes(other.recv().wait(100)) == b"lost"
        served.result(100)


@CARRIERS
@DROPS
def test_dropped_peers_leave_no_descriptors(settings, drop, fds):
    async def main():
        counts = []

        async def handler(peer):
            with contextlib.suppress(weft.PeerLostError):
                await peer.recv()

        async with weft.listen("127.0.0.1:0", handler, settings=settings) as listener:
            for _ in range(8):
                peer = await weft.connect(listener.address, settings=settings)
                channel = weakref.ref(peer._channel)
                held = [peer, *(receive(peer) for receive in RECEIVES.values())]
                del peer
                await asyncio.sleep(0)
                drop(held)
                await until(lambda c=channel: c() is None)
                await asyncio.sleep(0.01)
                counts.append(fds())
        assert max(counts) <= counts[0]

    run(main(), HANG_S)


@CARRIERS
def test_a_request_that_is_held_keeps_the_connection_of_a_dropped_peer(settings):
    async def main():
        got = asyncio.get_running_loop().create_future()

        async def handler(peer):
            await got
            await peer.send(b"still there")

        async with weft.listen("127.0.0.1:0", handler, settings=settings) as listener:
            peer = await weft.connect(listener.address, settings=settings)
            request = peer.recv()
            del peer
            gc.collect()
            await asyncio.sleep(0.01)
            got.set_result(None)
            assert await request == b"still there"

    run(main(), HANG_S)


@PAIRS
@EACH_RECEIVE
def test_a_task_that_nobody_else_refers_to_gets_its_message(pair_of, receive):
    """The loop refers to tasks only weakly; the receive must lead to them."""

    async def take(held):
        peer = held.pop()
        got.append(await receive(peer))

    got = []

    async def main():
        async with pair_of() as (a, b):
            task = weakref.ref(asyncio.get_running_loop().create_task(take([b])))
            del b
            await asyncio.sleep(0.001)
            for _ in range(3):
                gc.collect()
                await asyncio.sleep(0)
            assert task() is not None
            assert not got
            for _ in range(3):
                await a.send_obj(7)
            await until(lambda: got)

    run(main(), HANG_S)


# ---- the messages


@PAIRS
@EACH_RECEIVE
@DROPS
def test_a_dropped_receive_takes_no_message(pair_of, receive, drop):
    async def main():
        async with pair_of() as (a, b):
            held = [receive(b), receive(b)]
            await asyncio.sleep(0)
            drop(held)
            await a.send(b"1")
            await a.send(b"2")
            assert [bytes(await b.recv()), bytes(await b.recv())] == [b"1", b"2"]

    run(main(), HANG_S)


@PAIRS
@EACH_RECEIVE
@DROPS
def test_the_next_one_that_waits_gets_the_message(pair_of, receive, drop):
    async def main():
        async with pair_of() as (a, b):
            held = [receive(b)]
            waiting = [b.recv(), b.recv()]
            drop(held)
            await asyncio.sleep(0.01)
            sent = [a.send(b"1"), a.send(b"2")]
            assert [bytes(await each) for each in waiting] == [b"1", b"2"]
            await asyncio.gather(*sent)

    run(main(), HANG_S)


def expires(receive):
    with pytest.raises(weft.TimedOutError) as caught:
        receive().wait(0.01)
    return caught.value


def is_interrupted(receive):
    def ring(_number, _frame):
        raise KeyboardInterrupt("by a handler")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with pytest.raises(KeyboardInterrupt, match="by a handler") as caught:
            receive().wait(HANG_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return caught.value


def is_invalid(receive):
    with pytest.raises(weft.InvalidParamError) as caught:
        receive().wait(float("nan"))
    return caught.value


@PAIRS
@EACH_RECEIVE
@pytest.mark.parametrize("ends", [expires, is_interrupted, is_invalid])
def test_an_error_of_a_wait_does_not_keep_its_receive(pair_of, receive, ends):
    """As long as a caller keeps the error, it keeps the frames that the error has passed."""

    async def main():
        async with pair_of() as (a, b):
            errors = [ends(lambda: receive(b)) for _ in range(2)]
            await a.send(b"1")
            assert bytes(await b.recv()) == b"1"
            del errors

    run(main(), HANG_S)


@PAIRS
@pytest.mark.parametrize("ends", [expires, is_interrupted])
def test_a_receive_whose_wait_ended_early_keeps_its_place(pair_of, ends):
    async def main():
        async with pair_of() as (a, b):
            receive = b.recv_obj()
            errors = [ends(lambda: receive) for _ in range(2)]
            a.send_obj(1).wait(HANG_S)
            a.send_obj(2).wait(HANG_S)
            assert b.recv_obj().wait(HANG_S) == 2
            assert receive.wait(HANG_S) == 1
            del errors

    run(main(), HANG_S)


@PAIRS
@EACH_RECEIVE
@pytest.mark.parametrize("timeout", [0.02, 0, -1])
def test_an_error_names_the_time_that_its_caller_has_given(pair_of, receive, timeout):
    async def main():
        async with pair_of() as (_, b):
            for _ in range(2):
                with pytest.raises(weft.TimedOutError, match=rf"^recv.*: not complete after {timeout} s$"):
                    receive(b).wait(timeout)

    run(main(), HANG_S)


@PAIRS
@DROPS
@pytest.mark.parametrize("nbytes", [8, 100_000, 3 << 20])
def test_a_dropped_buffer_is_left_alone(pair_of, drop, nbytes):
    async def main():
        async with pair_of() as (a, b):
            buffer = bytearray(nbytes)
            references = sys.getrefcount(buffer)
            drop([b.recv_into(buffer)])
            await asyncio.sleep(0.01)
            assert sys.getrefcount(buffer) == references
            buffer.append(0)
            sent = a.send(b"x" * nbytes)
            assert await b.recv() == b"x" * nbytes
            await sent
            assert not any(buffer)

    run(main(), HANG_S)


@pytest.mark.parametrize("settings", [None, UCX], ids=["ring", "ucx"])
@DROPS
def test_a_buffer_that_is_being_written_to_stays_until_the_message_is_there(settings, drop):
    async def main():
        async with pair(settings=settings) as (a, b):
            data = np.random.default_rng(0).integers(0, 256, 16 << 20, "u1")
            taken = 0
            for number in range(30):
                buffer = bytearray(data.nbytes)
                references = sys.getrefcount(buffer)
                held = [b.recv_into(buffer)]
                sent = a.send(data)
                for _ in range(number % 8):
                    await asyncio.sleep(0)
                done = held[0].done()
                drop(held)
                got = await b.recv()
                assert np.array_equal(got, data)
                del got
                await sent
                await until(lambda b=buffer, r=references: sys.getrefcount(b) == r + 2)  # the lambda's own
                buffer.append(0)
                taken += done
            assert taken < 30

    run(main(), HANG_S)


@PAIRS
@DROPS
def test_the_messages_that_a_dropped_recv_many_collected_go_back_in_order(pair_of, drop):
    async def main():
        async with pair_of() as (a, b):
            held = [b.recv_many(4)]
            waiting = b.recv()
            for i in range(3):
                await a.send(bytes([i]))
            await asyncio.sleep(0.01)
            drop(held)
            sent = a.send(b"\3")
            got = [bytes(await waiting), *[bytes(await b.recv()) for _ in range(3)]]
            assert got == [b"\0", b"\1", b"\2", b"\3"]
            await sent

    run(main(), HANG_S)


@PAIRS
@pytest.mark.parametrize("how", ["cancel", "drop"])
def test_a_receive_that_waits_is_woken_by_what_comes_back(pair_of, how):
    async def main():
        async with pair_of() as (a, b):
            first, second = b.recv_many(2), asyncio.ensure_future(b.recv())
            await a.send(b"1")
            await asyncio.sleep(0.01)
            assert not second.done()
            if how == "cancel":
                first.cancel()
            del first
            assert await second == b"1"  # nothing else happens

    run(main(), HANG_S)


@PAIRS
def test_what_comes_back_goes_before_what_arrives_next(pair_of):
    async def main():
        async with pair_of() as (a, b):
            first, second = b.recv_many(3), b.recv()
            await a.send(b"1")
            await a.send(b"2")
            await asyncio.sleep(0.01)
            first.cancel()
            sent = a.send(b"3")
            assert second.wait(10) == b"1"
            assert [bytes(await b.recv()) for _ in range(2)] == [b"2", b"3"]
            await sent

    run(main(), HANG_S)


@pytest.mark.parametrize("again", [False, True])
@PAIRS
def test_a_receive_that_is_no_longer_watched_may_be_dropped(pair_of, again):
    async def main():
        async with pair_of() as (a, b):
            for receive in RECEIVES.values():
                request = receive(b)
                done, pending = await asyncio.wait([request], timeout=0.001)
                if again:
                    done, pending = await asyncio.wait([request], timeout=0.001)
                assert not done
                del request, pending
            await a.send(b"x")
            assert await b.recv() == b"x"

    run(main(), HANG_S)


@PAIRS
def test_one_that_is_watched_and_then_dropped_is_called_back(pair_of):
    async def main():
        async with pair_of() as (a, b):
            for receive in RECEIVES.values():
                called = []
                receive(b).add_done_callback(lambda request, called=called: called.append(request.done()))
                gc.collect()
                for _ in range(3):
                    await a.send_obj(1)
                await until(lambda called=called: called)
                assert called == [True]
                while True:
                    try:
                        await asyncio.wait_for(b.recv(), 0.01)
                    except TimeoutError:
                        break

    run(main(), HANG_S)


def test_a_weak_reference_keeps_no_receive():
    async def main():
        async with pair() as (a, b):
            request = b.recv()
            seen = weakref.ref(request)
            del request
            assert seen() is None
            await a.send(b"x")
            assert await b.recv() == b"x"

    run(main(), HANG_S)


def test_a_wait_that_timed_out_leaves_nothing():
    async def main():
        async with pair() as (a, b):
            for receive in RECEIVES.values():
                with contextlib.suppress(weft.TimedOutError):
                    receive(b).wait(0.001)
            await a.send(b"x")
            assert await b.recv() == b"x"

    run(main(), HANG_S)


@DROPS
@pytest.mark.parametrize("sent", [False, True])
def test_a_message_with_device_memory_that_is_dropped_halfway_aborts_the_connection(drop, sent):
    async def main():
        async with pair() as (a, b):
            held = [b.recv_frames(Allocator())]
            channel = a._channel
            # the announcement alone, or with the memory, which the receive has asked for already
            packed = a.pack([b"head", Placed(b"x" * (1 << 20))])
            sending = a.send_packed(packed) if sent else channel.send(packed.first, packed.large)
            await until(lambda: held[0].done() or held[0]._parts)
            assert not held[0].done()
            drop(held)
            with pytest.raises(weft.PeerLostError):
                await a.recv()
            del sending
            assert b.closed

    run(main(), HANG_S)


# ---- at random


class Reader:
    """Receives numbered messages, and drops and cancels receives at random; none may be lost, doubled or overtaken."""

    def __init__(self, peer, seed):
        self.peer, self.random, self.expected = peer, random.Random(seed), 0
        self.dropped = dict.fromkeys(DROP, 0)

    def check(self, messages):
        for message in messages:
            assert int.from_bytes(message[:8], "little") == self.expected
            self.expected += 1

    def post(self):
        """Return a receive, and how to read its result."""
        kind = self.random.choice(["recv", "recv_into", "recv_many"])
        if kind == "recv":
            return self.peer.recv(), lambda message: [message]
        if kind == "recv_into":
            buffer = bytearray(LARGE)
            return self.peer.recv_into(buffer), lambda _: [buffer]
        return self.peer.recv_many(self.random.choice([1, 2, 5])), lambda messages: messages

    def drop(self, requests):
        """Drop all of `requests`, each in one of the ways, in a random order."""
        self.random.shuffle(requests)
        while requests:
            held = [requests.pop()]
            way = self.random.choice(list(DROP))
            DROP[way](held)
            self.dropped[way] += 1

    def steps(self):
        """Yield each receive to wait for, and before some drops None, or a receive that need not end yet."""
        while sum(self.dropped.values()) < DROPPED:
            kept = [self.post() for _ in range(self.random.randrange(3))]
            requests = [self.post()[0] for _ in range(self.random.randrange(4))]
            if self.random.random() < 0.5:
                yield kept[0][0] if kept else None, False
            self.drop(requests)  # they stood behind those that are kept, so they have taken nothing that is older
            for request, read in kept:
                self.check(read((yield request, True)))


def cancel(held):
    held.pop().cancel()


def drop_in_another_thread(held):
    in_another_thread(held.clear)


DROP = {
    "here": drop_here,
    "another thread": drop_in_another_thread,
    "collected elsewhere": drop_elsewhere,
    "cancel": cancel,
}
LARGE = 300_000
DROPPED = int(os.environ.get("WEFT_TEST_DROPPED", "50"))


def numbered(number):
    return number.to_bytes(8, "little") + bytes(LARGE - 8 if number % 5 == 4 else number % 3 * 1000)


def resources():
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), _native.pool_statistics()["live_nbytes"], pages * 4


def flat(seen):
    """Check the second half of the run: the first fills caches."""
    fds, live, kib = zip(*seen[len(seen) // 2 :], strict=True)
    assert max(fds) == fds[0], seen
    assert max(live) - live[0] <= 64 << 20, seen
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # it keeps what was freed, to see its use
        assert kib[-1] - kib[0] <= 16 << 10, seen


@CARRIERS
def test_drops_at_random_in_an_event_loop(settings):
    async def send(peer, reader):
        number = 0
        while True:
            ahead = number - reader.expected
            if ahead < 8:
                await peer.send(numbered(number))
                number += 1
            await asyncio.sleep(0 if ahead < 4 else 0.0005)

    async def main():
        async with pair(settings=settings) as (a, b):
            reader, seen = Reader(b, 1), []
            sending = asyncio.create_task(send(a, reader))
            steps, result, steps_done = reader.steps(), None, 0
            with contextlib.suppress(StopIteration):
                while True:
                    request, must_end = steps.send(result)
                    result = await asyncio.wait_for(request, HANG_S) if must_end else await asyncio.sleep(0)
                    steps_done += 1
                    if steps_done % (1 + DROPPED // 20) == 0:
                        seen.append(resources())
            assert reader.expected
            assert all(reader.dropped.values()), reader.dropped
            flat(seen)
            sending.cancel()

    run(main(), 10 * HANG_S + DROPPED)


@CARRIERS
def test_drops_at_random_without_an_event_loop(settings):
    def send(address):
        with weft.connect(address, settings=settings) as peer:
            number = 0
            while not ended.is_set():
                if number - reader.expected >= 8:
                    time.sleep(0.0005)
                    continue
                with contextlib.suppress(weft.PeerLostError):  # at the end
                    peer.send(numbered(number)).wait(HANG_S)
                number += 1
            peer.abort()

    ended = threading.Event()
    with (
        weft.listen("127.0.0.1:0", settings=settings) as listener,
        futures.ThreadPoolExecutor(1) as thread,
    ):
        reader, seen = Reader(None, 2), []
        sending = thread.submit(send, listener.address)
        reader.peer = listener.accept(HANG_S)
        try:
            steps, result, steps_done = reader.steps(), None, 0
            with contextlib.suppress(StopIteration):
                while True:
                    request, must_end = steps.send(result)
                    with contextlib.nullcontext() if must_end else contextlib.suppress(weft.TimedOutError):
                        result = request.wait(HANG_S if must_end else 0.001) if request else None
                    steps_done += 1
                    if steps_done % (1 + DROPPED // 20) == 0:
                        seen.append(resources())
            assert reader.expected
            assert all(reader.dropped.values()), reader.dropped
            flat(seen)
        finally:
            ended.set()
            reader.peer.abort()
        sending.result(HANG_S)


@CARRIERS
def test_drops_by_another_thread_while_the_owner_waits_lose_nothing(settings):
    """Then it is a matter of chance which receives have taken messages that come back, so the order is, too."""

    def send(address):
        with weft.connect(address, settings=settings) as peer:
            number = 0
            while len(got) < 5 * DROPPED:
                if number - len(got) < 16:
                    peer.send(numbered(number)).wait(HANG_S)
                    number += 1
            peer.close().wait(HANG_S)
            return number

    def drop(requests):
        while (request := requests.get()) is not None:
            del request

    got, requests = [], queue.SimpleQueue()
    with (
        weft.listen("127.0.0.1:0", settings=settings) as listener,
        futures.ThreadPoolExecutor(2) as threads,
    ):
        sending = threads.submit(send, listener.address)
        with listener.accept(HANG_S) as peer:
            reader, dropping = Reader(peer, 3), threads.submit(drop, requests)
            try:
                with contextlib.suppress(weft.PeerClosedError):
                    while True:
                        for _ in range(reader.random.randrange(3)):
                            requests.put(reader.post()[0])
                        got.append(int.from_bytes(peer.recv().wait(HANG_S)[:8], "little"))
            finally:
                requests.put(None)
            dropping.result(HANG_S)
            with contextlib.suppress(weft.PeerClosedError):
                while True:  # what the last ones gave back
                    got.append(int.from_bytes(peer.recv().wait(HANG_S)[:8], "little"))
            count = sending.result(HANG_S)
        assert sorted(got) == list(range(count))


@PAIRS
@pytest.mark.parametrize("what", ["recv_into", "recv_frames", "recv_obj"])
def test_an_error_that_was_caught_does_not_keep_its_caller_alive(pair_of, what):
    """The error that is raised refers to the caller's frames, so a request must not refer to it."""

    async def main():
        async with pair_of() as (a, b):

            async def fails():
                local = Local()
                with pytest.raises((weft.Error, pickle.UnpicklingError)):
                    await (b.recv_into(bytearray(1)) if what == "recv_into" else getattr(b, what)())
                return weakref.ref(local)

            if what == "recv_into":
                await a.send(bytes(100))
            elif what == "recv_frames":
                a.abort()
            else:
                await a.send_frames([b"no pickle"])
            return await fails()

    gc.collect()
    gc.disable()
    try:
        assert run(main())() is None
    finally:
        gc.enable()


class Local:
    """An object that can be referred to weakly."""
