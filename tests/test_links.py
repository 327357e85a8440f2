# SPDX-License-Identifier: BSD-3-Clause
"""What a worker keeps of its links, and how long a thread's workers stay."""

import asyncio
import gc
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from scripts import fuzz_handshake as fuzz

import weft
from weft import config, peer
from weft._connect import links
from weft._connect.links import Workers
from weft._connect.route import Route

HANG_S = 100


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(links, "_native", fuzz.PAPER)
    return links.ConnectionWorker(None, same_host=True)


@pytest.mark.parametrize("decides", ["here", "there"])
def test_lost_links_go_when_new_ones_come(worker, decides):
    for number in range(100):
        remote_id = f"{number:032x}"
        with socket.socket() as sock:
            if decides == "here":
                link, _ = fuzz.next_value(worker.decide(remote_id, sock))
            else:
                link = worker.follow(remote_id, {"id": "1", "new": True}, sock, "accept")
            link.prepare(sock, "peer")
        link.settle()
        if number:  # the first one stays
            link.native.close()
    assert {"0" * 32, remote_id} <= set(worker.links)
    assert len(worker.links) <= 16  # swept now and then, not at each


def test_a_look_at_the_way_back_selects_no_protocols():
    """With tags and active messages, UCX asks a device 166 times for its properties as it makes a first endpoint."""
    context = config.LinkContext({"TLS": "self,tcp", "NET_DEVICES": "lo"})
    bare = context.bare()
    assert (context.features, bare.features) == (["am"], [])
    assert bare.config == context.config


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("n", False), ("1", True), ("y", True)])
def test_whether_new_endpoints_are_told_of(value, wanted, monkeypatch):
    monkeypatch.setenv("WEFT_EXPLAIN", value)
    assert peer._announces() is wanted


@pytest.mark.parametrize(
    ("given", "environment", "queue", "left"),
    [
        ({}, {}, {"FIFO_SIZE": "64", "FIFO_ELEM_SIZE": "128", "SEG_SIZE": "8256"}, "MM_FIFO_SIZE"),
        ({"POSIX_FIFO_SIZE": "32"}, {"UCX_POSIX_FIFO_SIZE": "16"}, {"FIFO_SIZE": "32"}, None),
        ({"MM_FIFO_SIZE": "32"}, {"UCX_POSIX_FIFO_SIZE": "16"}, {"FIFO_SIZE": "32"}, None),
        ({}, {"UCX_POSIX_FIFO_SIZE": "16", "UCX_MM_FIFO_SIZE": "8"}, {"FIFO_SIZE": "16"}, None),
        ({}, {"UCX_MM_FIFO_SIZE": "8"}, {"FIFO_SIZE": "8"}, None),
        ({}, {"UCX_POSIX_RX_BUFS_GROW": "512"}, {"FIFO_SIZE": "64"}, "MM_FIFO_SIZE"),
    ],
)
def test_what_the_user_says_of_queues_goes_before_wefts_word(given, environment, queue, left, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    route = Route("127.0.0.1", config.named(given))
    assert queue.items() <= route.queue.items()
    settings = route.settings(same_host=True)
    assert settings.items() >= given.items()
    assert ("MM_FIFO_SIZE" in settings.keys() - given.keys()) is (left is not None)
    assert ("MM_RX_BUFS_GROW" in settings) is ("UCX_POSIX_RX_BUFS_GROW" not in environment)
    assert not Route("127.0.0.1", (("TLS", "tcp,self"),)).settings(same_host=True).keys() - {"TLS"}


#: Has UCX carry the messages between two processes of one host.
UCX = {"TLS": "posix,self"}
OTHER_QUEUE = (
    f"UCX = {UCX}"
    + """
import sys, weft
try:
    weft.connect(sys.argv[1], settings=UCX).open()
except weft.Error as e:
    print(type(e).__name__, e, flush=True)
with weft.listen("127.0.0.1:0", settings=UCX) as listener:
    print(listener.address, flush=True)
    try:
        listener.accept(5)
    except weft.TimedOutError:
        print("nobody", flush=True)
"""
)


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [("FIFO_SIZE", "256", "64"), ("FIFO_ELEM_SIZE", "256", "128"), ("SEG_SIZE", "4096", "8256")],
)
def test_processes_whose_queues_differ_are_told_so(spawn, caplog, name, value, ours):
    """Each side writes to the other's by its own settings: it ended one of them with SIGSEGV, or both waited."""
    with weft.listen("127.0.0.1:0", settings=UCX) as listener:
        child = spawn(OTHER_QUEUE, listener.address, env={f"UCX_POSIX_{name}": value})
        with pytest.raises(weft.TimedOutError):
            listener.accept(5)
        assert f"UCX_POSIX_{name} is {ours} here and {value} there" in child.line()
        assert f"UCX_POSIX_{name} is {ours} here and {value} there" in caplog.text
        with pytest.raises(weft.UnreachableError, match=f"UCX_POSIX_{name} is {value} here and {ours} there"):
            weft.connect(child.line(), settings=UCX).open()
    assert child.line() == "nobody"
    assert child.wait(HANG_S) == 0


TCP = {"TLS": "tcp,self"}
takes_tcp_settings = pytest.mark.skipif(
    weft.ucx_library().version < (1, 17), reason="UCX 1.16 takes tcp's settings from the environment only"
)


@takes_tcp_settings
@pytest.mark.parametrize("name", ["TX", "RX"])
def test_processes_whose_tcp_segments_differ_are_told_so(spawn, caplog, name):
    """A sender fills the other's buffers by its own settings: it ended the receiver with SIGSEGV."""
    name = f"TCP_{name}_SEG_SIZE"
    with weft.listen("127.0.0.1:0", settings=TCP) as listener:
        child = spawn(OTHER_QUEUE.replace(str(UCX), str(TCP)), listener.address, env={f"UCX_{name}": "64k"})
        with pytest.raises(weft.TimedOutError):
            listener.accept(5)
        assert "SEG_SIZE is 262144 here and 65536 there" in child.line()
        assert "SEG_SIZE is 262144 here and 65536 there" in caplog.text
        with pytest.raises(weft.UnreachableError, match="SEG_SIZE is 65536 here and 262144 there"):
            weft.connect(child.line(), settings=TCP).open()
    assert child.line() == "nobody"
    assert child.wait(HANG_S) == 0


@takes_tcp_settings
def test_tcp_segments_are_of_one_size_unless_both_are_told(monkeypatch):
    monkeypatch.setenv("UCX_TCP_RX_SEG_SIZE", "1m")
    assert set(config.tcp_segments({}).values()) == {"1048576"}
    assert set(config.tcp_segments({"TCP_TX_SEG_SIZE": "64k"}).values()) == {"65536", "1048576"}
    monkeypatch.delenv("UCX_TCP_RX_SEG_SIZE")
    assert config.tcp_segments({"TCP_TX_SEG_SIZE": "64k"})["TCP_RX_SEG_SIZE"] == "65536"


@takes_tcp_settings
def test_tcp_segments_that_are_written_differently_are_the_same():
    written = ["262144", "256k", "256K", "256kb", "256KB", "262144b"]
    assert {config.tcp_segments({"TCP_TX_SEG_SIZE": size})["TCP_TX_SEG_SIZE"] for size in written} == {"262144"}
    assert config.tcp_segments({"TCP_TX_SEG_SIZE": "inf"})["TCP_TX_SEG_SIZE"] == "inf"


def test_ucx_1_16_takes_tcps_segments_from_the_environment_only(monkeypatch):
    monkeypatch.setattr(config, "ucx_library", lambda: SimpleNamespace(version=(1, 16, 0)))
    monkeypatch.setenv("UCX_TCP_RX_SEG_SIZE", "1m")
    told = config.tcp_segments({"TCP_TX_SEG_SIZE": "64k", "TCP_RX_SEG_SIZE": "64k"})
    assert told == {"TCP_TX_SEG_SIZE": "8192", "TCP_RX_SEG_SIZE": "1048576"}


def test_a_worker_sends_over_tcp_to_peers_with_ucxs_own_segments():
    """Other UCX programs have them, and nobody agrees with them on others."""
    settings = weft.Context(TCP).config
    assert "TCP_TX_SEG_SIZE" not in settings
    assert "TCP_RX_SEG_SIZE" not in settings
    assert settings["TCP_CONN_NB"] == ("y", "weft")  # or a firewall stops the thread for two minutes


def test_a_device_with_another_address_gets_another_worker(monkeypatch):
    """UCX tells peers the address that its worker began with."""
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    workers = Workers(None)
    first, again, other = (
        workers.worker(Route(host), same_host=False) for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2")
    )
    assert first is again
    assert first is not other
    workers.close()


def test_an_outdated_worker_is_replaced_once_nobody_uses_it():
    workers = Workers(None)
    first = workers.ring_worker()
    first.outdated, first.handshakes = True, 1
    assert workers.ring_worker() is first
    first.handshakes = 0
    second = workers.ring_worker()
    assert second is not first
    assert (first.native.closed, second.native.closed) == (True, False)
    workers.close()


def test_where_a_connection_uses_ipv6_ucx_does():
    def first(host, tls):
        given = (("NET_DEVICES", "lo"), ("TLS", tls))
        return Route(host, given).settings(same_host=False).get("TCP_AF_PRIO")

    assert first("fd00::1", "all") == "inet6,inet"
    assert [first(*each) for each in (("10.0.0.1", "all"), ("::ffff:10.0.0.1", "all"), ("fd00::1", "rc"))] == [None] * 3


def test_a_thread_that_ends_takes_its_workers_along():
    """At once: a collection of garbage may be far, each thread's workers have some 15 descriptors."""
    held = []

    def client(address):
        with weft.connect(address) as peer:
            peer.send(peer.recv().wait(HANG_S)).wait(HANG_S)

    gc.disable()
    try:
        with weft.listen("127.0.0.1:0") as listener:
            for _ in range(6):
                thread = threading.Thread(target=client, args=[listener.address])
                thread.start()
                with listener.accept(HANG_S) as peer:
                    peer.send(b"x").wait(HANG_S)
                    assert peer.recv().wait(HANG_S) == b"x"
                    with pytest.raises(weft.PeerClosedError):
                        peer.recv().wait(HANG_S)
                thread.join()
                held.append(len(os.listdir("/proc/self/fd")))
    finally:
        gc.enable()
    assert held[-1] <= held[1] + 1  # what one thread leaves is more


def test_a_thread_that_ends_with_its_peer_open_aborts_it():
    kept = []

    def client(address):
        kept.append(weft.connect(address).open())
        kept[0].send(b"x").wait(HANG_S)

    with weft.listen("127.0.0.1:0") as listener:
        thread = threading.Thread(target=client, args=[listener.address])
        thread.start()
        peer = listener.accept(HANG_S)
        assert peer.recv().wait(HANG_S) == b"x"
        thread.join()
        with pytest.raises(weft.PeerLostError):
            peer.recv().wait(HANG_S)
    assert kept[0].closed


class Elsewhere:
    """A second thread that runs at a given moment of the first one: until it is done, or waits for a lock."""

    def __init__(self, monkeypatch, work):
        self._work, self._thread, self._waits = work, None, threading.Event()
        self._lock = threading.Lock()
        self.failures = []
        monkeypatch.setattr(links, "_loops_lock", self, raising=False)

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            assert self._lock.acquire(timeout=HANG_S)

    def __exit__(self, *_):
        self._lock.release()

    def _run(self):
        try:
            self._work(self)
        except BaseException as e:
            self.failures.append(e)
        finally:
            self._waits.set()

    def let_run(self):
        """Once: later moments are none of its business."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run)
            self._thread.start()
            assert self._waits.wait(HANG_S)

    def waits(self):
        self._waits.set()

    def end(self):
        self._thread.join(HANG_S)
        assert self.failures == []


def test_two_threads_find_the_same_closed_loop(monkeypatch):
    class Closed(asyncio.AbstractEventLoop):
        def is_closed(self):
            other.let_run()
            return True

    class Orphan:
        closed = 0

        def close(self):
            self.closed += 1

    orphan = Orphan()
    monkeypatch.setattr(links, "_loops", [(Closed(), orphan)])
    other = Elsewhere(monkeypatch, lambda _: asyncio.run(links.workers_of_loop()))
    asyncio.run(links.workers_of_loop())
    other.end()
    assert orphan.closed == 1
    assert links._loops == []


def test_a_loop_that_ends_leaves_those_that_come_meanwhile(monkeypatch):
    class Locals(list):
        armed = False

        def __iter__(self):
            yield from list(super().__iter__())
            if self.armed:
                other.let_run()

    over = threading.Event()

    async def work(other):
        mine = await links.workers_of_loop()
        other.waits()
        assert over.wait(HANG_S)
        assert await links.workers_of_loop() is mine

    async def main():
        await links.workers_of_loop()
        links._loops.armed = True

    monkeypatch.setattr(links, "_loops", Locals())
    other = Elsewhere(monkeypatch, lambda other: asyncio.run(work(other)))
    asyncio.run(main())
    over.set()
    other.end()
    assert links._loops == []


GREETER = """
import asyncio, sys, weft
from weft._connect import links
class Worker(links.ConnectionWorker):  # the one with the lower id decides
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.id = ("0" if sys.argv[1] == "listener" else "f") * 32
links.ConnectionWorker = Worker
async def greet(peer):
    try:
        await peer.send(b"welcome")
        while True:
            await peer.send(await peer.recv())
    except weft.PeerLostError:
        pass
async def main():
    async with weft.listen("127.0.0.1:0", greet) as listener:
        print(listener.address, flush=True)
        await asyncio.to_thread(input)
asyncio.run(main())
"""


@pytest.mark.parametrize("decides", ["listener", "connector"])
def test_what_is_sent_at_once_arrives(spawn, decides):
    """On a link that is there and busy: a first message may come before the handshake's last word is read."""
    child = spawn(GREETER, decides)
    address = child.line()

    async def chatter():
        async with weft.connect(address) as peer:
            while True:
                await peer.recv()
                await peer.send(b"x")

    async def main():
        talking = asyncio.create_task(chatter())
        for _ in range(20):
            async with asyncio.timeout(HANG_S):
                peers = await asyncio.gather(*[weft.connect(address) for _ in range(20)])
                assert [bytes(await each.recv()) for each in peers] == [b"welcome"] * 20
            for each in peers:
                each.abort()
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)

    asyncio.run(main())
    child.kill()
