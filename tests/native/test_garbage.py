# SPDX-License-Identifier: BSD-3-Clause
"""A worker that nobody can reach is closed, whatever it refers to that refers back to it."""

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

import weft


def make(tls="posix,self"):
    context = weft.Context({"TLS": tls}, features=["rma"])
    worker = weft.Worker(context)
    return context, worker, worker.connect(worker.address)


def awaited():
    async def main():
        _, worker, endpoint = make()
        received = worker.tag_recv(bytearray(8), 1)
        await endpoint.tag_send(b"12345678", 1)
        assert await received == (8, 1)

    asyncio.run(main())


def handles_with_itself():
    _, worker, _ = make()
    worker.set_am_recv_handler(1, lambda message: worker.tag_probe(1))


def answers():
    _, worker, endpoint = make()
    worker.set_am_recv_handler(1, lambda message: endpoint.tag_send(b"12345678", 1))


def keeps_what_came():
    _, worker, endpoint = make()
    kept = []
    worker.set_am_recv_handler(1, kept.append)
    endpoint.am_send(1, b"", bytes(2000))
    while not kept:
        worker.progress()


def never_handled_what_came():
    _, worker, endpoint = make("tcp")
    came = []
    worker.set_am_recv_handler(1, lambda message: came.append(worker.tag_probe(1)))
    endpoint.am_send(1, b"", bytes(2000))
    while not came:
        worker.progress()
    for _ in range(3):
        endpoint.am_send(1, b"", bytes(2000)).wait(100)
    for _ in range(100):
        worker.arm()  # over tcp it looks for what came, and leaves it to the next turn


def writes_where_it_was_told():
    context, worker, endpoint = make()
    memory = context.mem_alloc(4096)
    rkey = endpoint.rkey_unpack(memory.rkey_pack())
    worker.set_am_recv_handler(1, lambda message: (rkey, memory))


def listens():
    context = weft.Context({"TLS": "tcp"})
    worker = weft.Worker(context)
    listener = worker.listen_sockaddr("127.0.0.1:0")
    worker.set_am_recv_handler(1, lambda message: listener.accept())


def probed():
    _, worker, endpoint = make()
    endpoint.tag_send(b"12345678", 1)
    while (taken := worker.tag_probe(1, remove=True)) is None:
        worker.progress()
    worker.set_am_recv_handler(1, lambda message: taken)


def in_another_thread(function):
    errors = []

    def run():
        try:
            function()
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(100)
    assert not thread.is_alive()
    assert not errors


@pytest.mark.parametrize("collect", [gc.collect, lambda: in_another_thread(gc.collect)], ids=["here", "elsewhere"])
@pytest.mark.parametrize(
    "once",
    [
        awaited,
        handles_with_itself,
        answers,
        keeps_what_came,
        never_handled_what_came,
        writes_where_it_was_told,
        listens,
        probed,
    ],
)
def test_a_cycle_with_a_worker_in_it_is_garbage(fds, once, collect):
    once()
    collect()
    before = fds()
    for _ in range(3):
        once()
        collect()
    assert fds() <= before


UNHANDLED = """
import weft
context = weft.Context({"TLS": "tcp"})
worker, handled = weft.Worker(context), []
endpoint = worker.connect(worker.address)
worker.set_am_recv_handler(1, handled.append)
endpoint.am_send(1, b"", bytes(2000)).wait(100)
while not handled:
    worker.progress()
handled.clear()
for _ in range(3):
    endpoint.am_send(1, b"", bytes(2000)).wait(100)
for _ in range(100):
    worker.arm()  # over tcp it looks for what came, and leaves it to the next turn
del worker, endpoint
context.close()
print(handled)
"""


def test_a_worker_that_is_dropped_before_its_messages_were_handled():
    """Without a cycle: there is no worker that a handler could be given with the message."""
    done = subprocess.run([sys.executable, "-c", UNHANDLED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
