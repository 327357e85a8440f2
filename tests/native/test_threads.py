# SPDX-License-Identifier: BSD-3-Clause
"""Threads: each with a worker of its own, one that uses another's, and the collector in all of them."""

import gc
import threading

import pytest

import weft

ROUNDS = 200


class Cycle:
    """Something that only the collector lets go of, in whatever thread it then runs."""

    def __init__(self, *held):
        self.held = held
        self.self = self


def hammer(context, errors, made, trespassed):
    """Exchange messages with oneself, and leave endpoints, requests and channels to the collector."""
    try:
        worker = weft.Worker(context)
        made.append(worker)
        endpoint = worker.connect(worker.address)
        for i in range(ROUNDS):
            into = bytearray(8)
            received = worker.tag_recv(into, i)
            endpoint.tag_send(i.to_bytes(8, "little"), i).wait(100)
            assert received.wait(100) == (8, i)
            assert int.from_bytes(into, "little") == i
            if i % 20 == 0:
                Cycle(worker.connect(worker.address), received, worker.tag_recv(bytearray(8), 1 << 40))
        trespassed.wait(100)  # nobody may look at a closed worker and take that for the refusal
        worker.close()
    except BaseException as e:
        errors.append(e)


def trespass(made):
    """Use the workers of other threads while they are at work."""
    for _ in range(ROUNDS):
        for worker in list(made):
            for use, arguments in ((worker.progress, ()), (worker.tag_recv, (bytearray(8), 0)), (worker.arm, ())):
                with pytest.raises(weft.ThreadError, match="another thread"):
                    use(*arguments)


def test_workers_in_threads_of_their_own(context):
    errors, made = [], []
    end, trespassed = threading.Event(), threading.Event()
    threads = [threading.Thread(target=hammer, args=(context, errors, made, trespassed)) for _ in range(3)]

    def collect():
        while not end.wait(0.001):
            gc.collect()

    collector = threading.Thread(target=collect)
    for thread in (*threads, collector):
        thread.start()
    try:
        while not made and any(t.is_alive() for t in threads):
            threads[0].join(0.001)
        trespass(made)
    finally:
        trespassed.set()
        for thread in threads:
            thread.join(60)
        end.set()
        collector.join(60)
    assert not errors
    assert len(made) == 3
    assert not any(t.is_alive() for t in (*threads, collector))


def test_requests_that_are_dropped_in_another_thread(worker, endpoint):
    """Whoever drops the last reference, the buffers are let go of by the owner, once."""
    buffers = [bytearray(8) for _ in range(50)]
    requests = [worker.tag_recv(buffer, i) for i, buffer in enumerate(buffers)]
    thread = threading.Thread(target=requests.clear)
    thread.start()
    thread.join(100)
    for i in range(50):
        endpoint.tag_send(i.to_bytes(8, "little"), i).wait(100)
    while worker.progress():
        pass
    for i, buffer in enumerate(buffers):
        buffer.append(0)  # the export is gone
        assert buffer[0] == i


def test_endpoints_that_are_dropped_in_another_thread(worker):
    endpoints = [worker.connect(worker.address) for _ in range(10)]
    thread = threading.Thread(target=endpoints.clear)
    thread.start()
    thread.join(100)
    endpoint = worker.connect(worker.address)
    received = worker.tag_recv(bytearray(4), 1)
    endpoint.tag_send(b"last", 1).wait(100)
    assert received.wait(100) == (4, 1)


def test_two_threads_of_a_process_that_wait_for_each_other_both_get_the_gil():
    """The sender waits for room in the receiver's queue: it took the GIL again each time before the receiver woke."""
    data = bytes(64_000_000)

    def echo(address):
        with weft.connect(address) as peer:
            while message := peer.recv().wait(100):
                peer.send(message).wait(100)

    with weft.listen("127.0.0.1:0") as listener:
        thread = threading.Thread(target=echo, args=[listener.address])
        thread.start()
        with listener.accept(100) as peer:
            for _ in range(3):
                peer.send(data).wait(20)
                assert peer.recv().wait(20) == data
            peer.send(b"").wait(100)
        thread.join(100)
    assert not thread.is_alive()
