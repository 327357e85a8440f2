# SPDX-License-Identifier: BSD-3-Clause
"""Connections explained: two workers of this process, each in a thread of its own, joined by a ring or by UCX."""

import contextlib
import io
import json
import logging
import threading

import pytest
from rich.console import Console

import weft
from weft import explain
from weft.explain.protocols import UNKNOWN
from weft.explain.reasons import Setting

SETTINGS = {"TLS": Setting("^ib", "the environment")}


@contextlib.contextmanager
def connected(settings=None):
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
            with weft.connect(listener.address, settings=settings) as peer:
                yield peer
        finally:
            over.set()
            thread.join(100)


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    for name in ("UCX_TLS", "UCX_NET_DEVICES", "WEFT_EXPLAIN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_memfd(monkeypatch):
    """Have UCX carry the messages, with the transports that weft lets it have within a host."""
    monkeypatch.setattr(weft._native, "ring_error", lambda: "not here")


def test_on_one_host():
    with connected() as peer:
        for nbytes in (8, 5000, 300_000):
            peer.send(bytes(nbytes)).wait(100)
            assert peer.recv().wait(100).nbytes == nbytes
        told = peer.explain()
    assert [(lane.transport, lane.device) for lane in told.lanes] == [("ring", "memory")]
    assert (told.same_host, told.why_ucx, told.ucx) == (True, "", "")
    assert told.lines == ("UCX is not used", "weft intra-node message(ring/memory)")


CONNECT = """
import sys, weft
with weft.connect(sys.argv[1], timeout=100) as peer:
    peer.send(b"x").wait(100)
    peer.recv().wait(100)
    print(*peer.explain().lines, sep="|", flush=True)
    assert "libuc" not in open("/proc/self/maps").read()
    peer.send(b"explained").wait(100)
"""


def test_on_one_host_no_ucx_is_loaded_to_explain(spawn):
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(CONNECT, listener.address)
        with listener.accept(100) as peer:
            peer.send(peer.recv().wait(100)).wait(100)
            assert peer.recv().wait(100) == b"explained"
    assert child.line() == "UCX is not used|weft intra-node message(ring/memory)"


def test_on_one_host_with_transports_that_were_asked_for():
    with connected({"TLS": "posix,self"}) as peer:
        told = peer.explain()
    assert told.settings["TLS"] == Setting("posix,self", "the connection's settings")
    assert told.why_ucx == "the connection was given TLS=posix,self"
    assert told.lines[1].endswith(" tag(posix/memory), not weft's ring: the connection was given TLS=posix,self")
    [tcp] = [each for each in told.transports if each.transport == "tcp"]
    assert (tcp.reason, tcp.evidence) == ("excluded by UCX_TLS", "UCX_TLS=posix,self, set by the connection's settings")


@pytest.mark.slow
@pytest.mark.usefixtures("no_memfd")
def test_on_one_host_by_ucx():
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
    assert told.why_ucx == "memfd_create or fallocate was refused: not here"
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
    assert "tag(posix/memory), not weft's ring: memfd_create or fallocate was refused: not here\n" in text
    assert "it cannot tell a dead peer" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("settings", "scope"), [({}, "intra-node"), ({"TLS": "posix,self"}, "self cfg#0")])
def test_a_worker_lends_to_itself_too(settings, scope):
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

        async with (
            weft.listen("127.0.0.1:0", talk, settings=settings) as listener,
            weft.connect(listener.address, settings=settings) as peer,
        ):
            await talk(peer)
            with contextlib.suppress(weft.PeerLostError):
                await peer.recv()

    told = []
    asyncio.run(asyncio.wait_for(main(), 100))
    assert [each.scope for each in told] == [scope] * 2
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


def test_new_links_are_told_of_when_asked(monkeypatch, capfd):
    monkeypatch.setenv("WEFT_EXPLAIN", "1")
    with connected():
        pass
    lines = capfd.readouterr().err.splitlines()
    assert lines == ["UCX is not used", "weft intra-node message(ring/memory)"] * 2


@pytest.mark.usefixtures("no_memfd")
def test_new_endpoints_are_told_of_with_the_reason(monkeypatch, capfd):
    monkeypatch.setenv("WEFT_EXPLAIN", "1")
    with connected():
        pass
    lines = capfd.readouterr().err.splitlines()
    assert lines[::2] == ["UCX_TLS=^tcp,sysv,cma,ib"] * 2
    end = f" {new_scope()} tag(posix/memory), not weft's ring: memfd_create or fallocate was refused: not here"
    assert all(line.startswith("0x") and line.endswith(end) for line in lines[1::2])


@pytest.mark.usefixtures("no_memfd")
def test_a_logger_that_takes_it_gets_it(monkeypatch, capfd, caplog):
    monkeypatch.setenv("WEFT_EXPLAIN", "1")
    caplog.set_level(logging.INFO, "weft")
    with connected():
        pass
    assert not capfd.readouterr().err
    assert len([record for record in caplog.messages if f"{new_scope()} tag(" in record]) == 2


@pytest.mark.parametrize("settings", [None, {"TLS": "posix,self,tcp"}])
def test_words_stay_whole_on_a_narrow_terminal(settings):
    with connected(settings) as peer:
        told = peer.explain()
    console = Console(width=60, file=io.StringIO(), highlight=False, markup=False)
    console.print(told)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    words = {word for line in lines for word in line.split()}
    assert words >= {"send_frames", "descriptor", *({"rendezvous", "posix/memory"} if settings else {"announced,"})}


def test_who_set_what(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    found = explain.limits({"NET_DEVICES": ("lo", "argument"), "MM_ERROR_HANDLING": ("y", "weft")}, same_host=False)
    assert found == {
        "TLS": Setting("tcp", "the environment"),
        "NET_DEVICES": Setting("lo", "weft for peers across the network", weft=True),
    }


def test_two_lines_without_knowledge():
    assert explain.lines({}, "0x0", UNKNOWN, []) == ("UCX_TLS=all", "0x0 unknown tag()")
