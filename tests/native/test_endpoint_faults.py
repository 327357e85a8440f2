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
worker.tag_recv(first, 1).wait(100)
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


LATE_SURVIVOR = """
import sys, time, weft
worker = weft.Worker(weft.Context({"TLS": sys.argv[1]}))
received = worker.tag_recv(bytearray(1), 1)
print(worker.address.hex(), flush=True)
sys.stdin.readline()  # the sender has ended
deadline = time.monotonic() + 1
while time.monotonic() < deadline:
    worker.progress()
worker.close()
"""

SHORT_LIVED = """
import os, sys, weft
worker = weft.Worker(weft.Context({"TLS": sys.argv[1]}))
request = worker.connect(bytes.fromhex(sys.argv[2])).tag_send_sync(b"x", 1)
for _ in range(300):
    worker.progress()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    "tls",
    [
        "tcp",
        pytest.param(
            "posix",
            marks=pytest.mark.xfail(
                strict=False,
                reason="UCX 1.22 crashes when it cannot answer a new endpoint: it has no configuration yet "
                "(ucp_ep_set_failed, ucp_ep_num_lanes)",
            ),
        ),
    ],
)
def test_a_peer_that_ended_before_it_was_heard(spawn, tls):
    """It connected and ended while the survivor, a process of its own, did not progress."""
    survivor = spawn(LATE_SURVIVOR, tls)
    peer = spawn(SHORT_LIVED, tls, survivor.line())
    assert peer.wait() == -9
    survivor.say()
    assert survivor.wait() == 0
