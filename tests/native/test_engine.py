# SPDX-License-Identifier: BSD-3-Clause
"""What is under way when a worker closes, and UCX has no way to end it: a context with `amo` reports no lost peer."""

import os
import subprocess
import sys
import textwrap

import pytest

import weft

HANG_S = 60

#: `idle` stands for a peer that is stopped, busy or gone: it never progresses.
BEGIN = """
import gc, logging, sys, weft
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
context = weft.Context({"TLS": sys.argv[1]}, features=["rma", "amo"])
worker, idle = weft.Worker(context), weft.Worker(context)
endpoint = worker.connect(idle.address)
"""

ATOMIC = """
memory = context.mem_alloc(4096)
if sys.argv[2] == "queued":
    endpoint.tag_send(bytes(1 << 20), 1)
request = endpoint.atomic_op("add", 1, endpoint.rkey_unpack(memory.rkey_pack()))
worker.close()
try:
    request.wait(0)
    print("it ended")
except weft.CanceledError:
    print("cancelled")
idle.close()
memory.close()
context.close()
print("closed")
"""

#: The buffers' exports tell whether UCX may still look at them.
DROPPED = """
buffers = [bytearray(1 << 18) for _ in range(64)]
endpoint.tag_send_many(buffers, 1)
receiving = worker.am_recv(2)
worker.progress()
worker.close()
for buffer in buffers:
    buffer.append(0)
others = [bytearray(64 + i % 4096) for i in range(20_000)]
idle.close()
context.close()
print("closed")
"""

#: What outlives the worker's close is UCX's memory, and with it the requests.
LENT = """
itself, held = worker.connect(worker.address), []
worker.set_am_recv_handler(1, lambda message: held.append(memoryview(message)))
itself.am_send(1, b"", bytes(2000)).wait(100)
while not held:
    worker.progress()
buffers = [bytearray(1 << 18) for _ in range(64)]
endpoint.tag_send_many(buffers, 1)
many = endpoint.tag_send_many([bytes(1 << 18)] * 64, 1)
worker.progress()
worker.close()
assert many.done() and isinstance(many.exception(), weft.CanceledError)
try:
    buffers[-1].append(0)
    print("free too early")
except BufferError:
    print("locked")
others = [bytearray(64 + i % 4096) for i in range(20_000)]
assert bytes(held[0]) == bytes(2000)
held.clear()
gc.collect()
for buffer in buffers:
    buffer.append(0)
idle.close()
context.close()
print("closed")
"""


def run(code, *arguments):
    """In a process of its own, whose freed memory is overwritten."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN + code), *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONMALLOC": os.environ.get("PYTHONMALLOC", "debug"), "MALLOC_PERTURB_": "165"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1], done.stderr


@pytest.mark.parametrize(("tls", "how"), [("tcp", "alone"), ("tcp", "queued"), ("posix,self", "queued")])
def test_a_worker_with_an_atomic_operation_under_way_closes(tls, how):
    """UCX ends the process when it is to give one up, so it is left alone."""
    said, logged = run(ATOMIC, tls, how)
    if tls == "posix,self" and weft.ucx_library().version < (1, 22) and said == ["it ended", "closed"]:
        pytest.skip("this UCX does not put an atomic operation behind a message")
    assert said == ["cancelled", "closed"]
    assert "weft WARNING an atomic operation is still pending" in logged


@pytest.mark.parametrize("tls", ["tcp", "posix,self"])
def test_what_was_dropped_while_under_way_lives_until_the_close_is_over(tls):
    assert run(DROPPED, tls) == (["closed"], "")


@pytest.mark.parametrize("tls", ["tcp", "posix,self"])
def test_buffers_are_locked_while_lent_data_keeps_the_engine(tls):
    assert run(LENT, tls) == (["locked", "closed"], "")
