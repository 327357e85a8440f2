# SPDX-License-Identifier: BSD-3-Clause
"""Connections explained: two workers of this process, each in a thread of its own, joined by shared memory."""

import contextlib
import json
import logging
import threading

import pytest

import weft
from weft import explain
from weft.explain.protocols import UNKNOWN
from weft.explain.reasons import Setting

SETTINGS = {"TLS": Setting("^ib", "the environment")}


@contextlib.contextmanager
def connected():
    """A peer whose other end, in another thread, sends back what comes."""

    over = threading.Event()

    def echo():
        with listener.accept(100) as other, contextlib.suppress(weft.PeerClosedError):
            while True:
                other.send(other.recv().wait(100)).wait(100)
        over.wait(100)  # its worker goes with the thread, and with it the link

    with weft.listen("127.0.0.1:0") as listener:
        thread = threading.Thread(target=echo)
        thread.start()
        try:
            with weft.connect(listener.address) as peer:
                yield peer
        finally:
            over.set()
            thread.join(100)


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    for name in ("UCX_TLS", "UCX_NET_DEVICES", "WEFT_EXPLAIN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_on_one_host():
    with connected() as peer:
        for nbytes in (8, 300_000):
            peer.send(bytes(nbytes)).wait(100)
            assert peer.recv().wait(100).nbytes == nbytes
        told = peer.explain()
        assert told.endpoint == hex(peer._channel.handle)
    assert [(lane.transport, lane.device) for lane in told.lanes] == [("posix", "memory")]
    assert told.scope == "intra-node cfg#0"
    assert told.settings["TLS"].weft
    assert told.same_host
    assert not told.apart
    sends = [size for size in told.sizes if size.operation == "send"]
    # UCX 1.16 names no lane for a rendezvous whose receiver has yet to choose.
    assert {size.lanes for size in sends if "no data fetch" not in size.protocol} == {"posix/memory"}
    assert "rendezvous" in sends[-1].protocol
    assert [size.first for size in told.sizes if size.operation == "lend"] == [0, 64 << 10]
    assert all(time.predicted_s > 0 and time.observed_s is None for time in told.times)
    used = {each.transport for each in told.transports if each.chosen}
    assert used == {"posix"}
    assert json.loads(json.dumps(told.json()))["lines"][0] == "UCX_TLS=^tcp,sysv,cma,ib"
    text = str(told)
    assert f"{told.endpoint} intra-node cfg#0 tag(posix/memory)" in text
    assert "it cannot tell a dead peer" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_worker_lends_to_itself_too():
    import asyncio

    import numpy

    with weft.arrays_in_pool():
        array = numpy.zeros(1 << 20, "u1")

    async def main():
        async def talk(peer):
            await peer.lend(array)
            await peer.recv()
            assert peer.lent_nbytes == (1 << 20, 1 << 20)
            told.append(peer.explain())

        async with weft.listen("127.0.0.1:0", talk) as listener, weft.connect(listener.address) as peer:
            await talk(peer)
            with contextlib.suppress(weft.PeerLostError):
                await peer.recv()

    told = []
    asyncio.run(asyncio.wait_for(main(), 100))
    assert [each.scope for each in told] == ["self cfg#0"] * 2
    assert [[size.first for size in each.sizes if size.operation == "lend"] for each in told] == [[0, 64 << 10]] * 2


def test_a_connection_whose_worker_is_closed():
    with connected() as peer:
        peer.close().wait(100)
        assert peer.explain().lanes  # the link is there for the next connection


def test_a_peer_that_was_lost(spawn):
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn("import sys, weft; weft.connect(sys.argv[1]).open().recv().wait()", listener.address)
        peer = listener.accept(100)
    child.kill()
    with pytest.raises(weft.PeerLostError):
        peer.recv().wait(100)
    with pytest.raises(weft.PeerLostError, match="its lanes with it"):
        peer.explain()


def new_scope():
    """What UCX calls an endpoint that has sent nothing: from 1.23 on it chooses protocols with the first message."""
    return "intra-node cfg#0" if weft.ucx_library().version < (1, 23) else UNKNOWN


def test_new_endpoints_are_told_of_when_asked(monkeypatch, capfd):
    monkeypatch.setenv("WEFT_EXPLAIN", "1")
    with connected():
        pass
    lines = capfd.readouterr().err.splitlines()
    assert lines[::2] == ["UCX_TLS=^tcp,sysv,cma,ib"] * 2
    assert all(line.startswith("0x") and line.endswith(f" {new_scope()} tag(posix/memory)") for line in lines[1::2])


def test_a_logger_that_takes_it_gets_it(monkeypatch, capfd, caplog):
    monkeypatch.setenv("WEFT_EXPLAIN", "1")
    caplog.set_level(logging.INFO, "weft")
    with connected():
        pass
    assert not capfd.readouterr().err
    assert len([record for record in caplog.messages if f"{new_scope()} tag(" in record]) == 2


def test_who_set_what(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    found = explain.limits({"NET_DEVICES": ("lo", "argument"), "MM_ERROR_HANDLING": ("y", "weft")}, same_host=False)
    assert found == {
        "TLS": Setting("tcp", "the environment"),
        "NET_DEVICES": Setting("lo", "weft for peers across the network", weft=True),
    }


def test_two_lines_without_knowledge():
    assert explain.lines({}, "0x0", UNKNOWN, []) == ("UCX_TLS=all", "0x0 unknown tag()")
