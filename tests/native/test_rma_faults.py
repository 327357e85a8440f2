# SPDX-License-Identifier: BSD-3-Clause
"""The owner of memory dies while others write into it."""

import base64
import os
import pickle
import signal

import pytest

import weft

HANG_S = 20

OWNER = """
import base64, pickle, sys, weft
context = weft.Context({"TLS": sys.argv[1]}, features=["rma"])
worker = weft.Worker(context)
memory = context.mem_alloc(1 << 20)
print(worker.address.hex(), flush=True)
print(base64.b64encode(pickle.dumps(memory.rkey_pack())).decode(), flush=True)
worker.tag_recv(bytearray(1), 1).wait(100)
print("ready", flush=True)
worker.tag_recv(bytearray(1), 2).wait(60)
"""


def start(spawn, tls):
    owner = spawn(OWNER, tls)
    context = weft.Context({"TLS": tls, "KEEPALIVE_INTERVAL": "100ms"}, features=["rma"])
    worker = weft.Worker(context)
    endpoint = worker.connect(bytes.fromhex(owner.line()))
    rkey = pickle.loads(base64.b64decode(owner.line()))
    endpoint.tag_send(b"x", 1).wait(HANG_S)
    assert owner.line() == "ready"
    return owner, worker, endpoint, endpoint.rkey_unpack(rkey)


def write_and_read(endpoint, rkey):
    endpoint.put(bytes(1 << 20), rkey).wait(HANG_S)
    endpoint.get(bytearray(1 << 20), rkey).wait(HANG_S)


def test_a_reaped_owner_is_missed_over_posix(spawn):
    """Once UCX's keepalive looks, here within 100 ms."""
    owner, worker, endpoint, rkey = start(spawn, "posix")
    write_and_read(endpoint, rkey)
    owner.kill()
    with pytest.raises(weft.PeerLostError):
        write_and_read(endpoint, rkey)
    worker.close()


def test_a_zombie_is_not_missed_over_posix(spawn):
    """Its number is still taken, and that is what UCX asks for. Closing the worker ends what waits."""
    owner, worker, endpoint, rkey = start(spawn, "posix")
    write_and_read(endpoint, rkey)
    owner.kill(reap=False)
    pending = endpoint.get(bytearray(1 << 20), rkey)
    with pytest.raises(weft.TimedOutError):
        pending.wait(0.5)
    worker.close()
    with pytest.raises(weft.CanceledError):
        pending.wait(0)


@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_the_owner_is_missed_where_it_is_asked(spawn, reap):
    """Over tcp the owner writes: an operation under way and later ones end with the loss."""
    owner, worker, endpoint, rkey = start(spawn, "tcp")
    data = bytes(1 << 20)
    endpoint.put(data, rkey).wait(HANG_S)
    endpoint.flush().wait(HANG_S)
    under_way = [endpoint.put(data, rkey) for _ in range(20)]
    owner.kill(reap=reap)
    with pytest.raises(weft.PeerLostError):
        [request.wait(HANG_S) for request in (*under_way, endpoint.flush())]
    with pytest.raises(weft.PeerLostError):
        [request.wait(HANG_S) for request in (endpoint.put(data, rkey), endpoint.flush())]
    worker.close()


@pytest.mark.parametrize("tls", ["posix", "tcp"])
def test_a_stopped_owner_is_waited_for(spawn, tls):
    """What has not ended by itself (UCX writes some memory without the owner's help) goes on when the owner does."""
    owner, worker, endpoint, rkey = start(spawn, tls)
    write_and_read(endpoint, rkey)
    owner.stop()
    try:
        written = endpoint.put(b"\x07" * (1 << 20), rkey)
        got = endpoint.get(buffer := bytearray(1 << 20), rkey)
        with pytest.raises(weft.TimedOutError):
            got.wait(0.5)
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    written.wait(HANG_S)
    got.wait(HANG_S)
    endpoint.flush().wait(HANG_S)
    endpoint.get(buffer, rkey).wait(HANG_S)
    assert buffer == b"\x07" * (1 << 20)
    worker.close()
