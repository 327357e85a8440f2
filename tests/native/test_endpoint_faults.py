# SPDX-License-Identifier: BSD-3-Clause
"""What a bare endpoint, made from a worker's address, tells of a peer that dies: nothing."""

import os
import signal
import time

import pytest

import weft

HANG_S = 20
#: UCX's default is 20 s. What is larger than 64 KiB waits for its receiver; UCX 1.18 would send it eagerly.
SETTINGS = {"TLS": "posix,self", "KEEPALIVE_INTERVAL": "100ms", "RNDV_THRESH": "64k"}

VICTIM = """
import sys, weft
worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
print(worker.address.hex(), flush=True)
first = bytearray(1)
worker.tag_recv(first, 1).wait(30)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def bare(spawn):
    """A victim, a worker, and an endpoint to the victim."""
    victim = spawn(VICTIM)
    worker = weft.Worker(weft.Context(SETTINGS))
    endpoint = worker.connect(bytes.fromhex(victim.line()))
    endpoint.tag_send(b"x", 1).wait(HANG_S)
    assert victim.line() == "ready"
    yield victim, worker, endpoint
    worker.close()


@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_a_dead_peer_is_not_noticed(bare, reap):
    """Not even by a worker that is cranked, with UCX's keepalive at 100 ms; closing the worker ends it."""
    if reap and weft.ucx_library().version >= (1, 23):
        pytest.skip("UCX 1.23 notices")
    victim, worker, endpoint = bare
    sending = endpoint.tag_send(bytes(64 << 20), 2)
    victim.kill(reap=reap)
    until = time.monotonic() + 1
    while not sending.done() and time.monotonic() < until:
        worker.progress()
    assert not sending.done()
    worker.close()
    with pytest.raises(weft.CanceledError):
        sending.wait(0)


def test_sigstop_is_not_death(bare):
    victim, _, endpoint = bare
    victim.stop()
    sending = endpoint.tag_send(bytes(1 << 20), 2)
    with pytest.raises(weft.TimedOutError):
        sending.wait(0.3)
    os.kill(victim.pid, signal.SIGCONT)
    assert not sending.done()
