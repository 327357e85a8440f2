# SPDX-License-Identifier: BSD-3-Clause
"""What goes wrong on a link of one host: peers that stand still, forks, limits, links by the hundred.

A peer that writes what it must not is in `native/test_ring_hostile.py`, a writer that is killed in `ring/kill.cpp` and
`scripts/kills.py`.
"""

import asyncio
import contextlib
import gc
import json
import mmap
import os
import random
import socket
import subprocess
import sys
import threading
import time
import zlib

import pytest
from scripts import kills

import weft
from weft import _native

HANG_S = 20
RING = ["ring/memory"]

ECHO = """
import weft
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    peer = listener.accept(100)
    try:
        while True:
            peer.send(peer.recv().wait(100)).wait(100)
    except weft.PeerLostError as e:
        print(type(e).__name__, flush=True)
"""

#: Tells of each message that came.
READER = """
import sys, weft, zlib
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    peer = listener.accept(100)
    try:
        while True:
            message = peer.recv().wait(100)
            print(message.nbytes, zlib.crc32(message), flush=True)
    except weft.Error as e:
        print(type(e).__name__, flush=True)
"""


def told_of(message):
    return f"{len(message)} {zlib.crc32(message)}"


def echoes(peer, message=b"x"):
    sent = peer.send(message)
    assert peer.recv().wait(HANG_S) == message
    sent.wait(HANG_S)


# ---- links made by hand -----------------------------------------------------------------------------------------


class Pair:
    """A link between two workers of this thread, turned by hand."""

    def __init__(self, one, other, number=1):
        sockets = socket.socketpair()
        self.links = [_native.prepare_link(worker, True, "other") for worker in (one, other)]
        for link, sock in zip(self.links, sockets, strict=True):
            link.offer(sock.fileno())
        for link, there, sock in zip(self.links, reversed(self.links), sockets, strict=True):
            link.join(there.address, sock.detach())
        ids = (2 * number, 2 * number + 1)
        self.here = self.links[0].open(ids[0], ids[1], "other")
        self.there = self.links[1].open(ids[1], ids[0], "other")
        self.workers = (one, other)

    def turn(self):
        return sum(worker.progress() for worker in self.workers)

    def carry(self, *messages):
        """Send these one way, and the same the other; return whether all arrived as they were."""
        sent = [end.send(*message) for message in messages for end in (self.here, self.there)]
        got = [end.recv() for _ in messages for end in (self.there, self.here)]
        for _ in range(100_000):
            self.turn()
            if all(request.done() for request in (*sent, *got)):
                break
        wanted = [as_sent(*message) for message in messages for _ in range(2)]
        return [as_came(request.result()) for request in got] == wanted

    def close(self):
        for link in self.links:
            link.close()
        self.turn()


def as_sent(first, rest=()):
    return bytes(first), *map(bytes, rest)


def as_came(message):
    return tuple(map(bytes, message)) if isinstance(message, tuple) else (bytes(message),)


@pytest.fixture
def workers():
    workers = [weft.Worker(None, links_only=True) for _ in range(2)]
    yield workers
    for worker in workers:
        worker.close()


def timers():
    """Count this process's timers: UCX's workers of other tests may have some."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            count += "timerfd" in os.readlink(f"/proc/self/fd/{fd}")
    return count


def test_a_turn_does_not_look_at_idle_links(workers):
    """Nor is there a timer for them; and the first message after that comes."""
    before = timers()
    pairs = [Pair(*workers, number) for number in range(1, 201)]
    assert [worker._attended for worker in workers] == [200, 200]
    for _ in range(20_000):
        for worker in workers:
            worker.progress()
    assert [worker._attended for worker in workers] == [0, 0]
    assert all(worker.arm() for worker in workers)
    assert timers() == before
    for pair in random.Random(3).sample(pairs, 20):
        waiting = pair.there.recv()
        pair.here.send(b"x").result()
        workers[1].progress()
        assert workers[1]._attended == 1
        assert waiting.result() == b"x"
        for _ in range(20_000):
            workers[1].progress()
        assert workers[1]._attended == 0


def test_loops_with_idle_links_have_no_timers():
    async def main():
        async def handler(peer):
            with contextlib.suppress(weft.Error):
                await peer.recv()

        async with weft.listen("127.0.0.1:0", handler) as listener:
            thread = asyncio.to_thread(other_loop, listener.address, 20)
            held = await thread
            assert not asyncio.get_running_loop()._scheduled
            return held

    assert asyncio.run(main()) == RING


def other_loop(address, count):
    async def main():
        peers = [await weft.connect(address) for _ in range(count)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not asyncio.get_running_loop()._scheduled
        return peers[0].transports

    return asyncio.run(main())


def test_many_links_opened_and_closed_in_any_order(workers, fds):
    dice = random.Random(5)
    open_pairs = []
    number = 1
    before = None
    for step in range(600):
        if len(open_pairs) < 200 and (step < 200 or dice.random() < 0.5):
            open_pairs.append(Pair(*workers, number))
            number += 1
        else:
            open_pairs.pop(dice.randrange(len(open_pairs))).close()
        if step % 20 == 0 and open_pairs:
            assert dice.choice(open_pairs).carry((dice.randbytes(dice.choice((8, 9000, 300_000))),))
        if step == 0:
            before = fds()
    while open_pairs:
        open_pairs.pop(dice.randrange(len(open_pairs))).close()
    assert fds() <= before


def test_records_wrap_around_at_every_alignment(workers):
    """With few segments and with more than a record is made of at once, empty ones among them."""
    pair = Pair(*workers)
    dice = random.Random(7)
    content = dice.randbytes(1 << 16)
    for number in range(3000):
        nbytes = (number * 8 + number // 500) % 4000
        count = number % 13
        cuts = sorted(dice.randrange(nbytes + 1) for _ in range(count))
        parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, nbytes], strict=True)]
        assert pair.carry((parts[0], parts[1:]) if count else (parts[0],)), number


def test_a_worker_that_waits_for_room_sleeps(workers):
    """Nothing is to be done before the other side reads."""
    pair = Pair(*workers)
    sent = [pair.here.send(b"x" * size) for size in (4000, 200_000, 200_000, 1 << 20, 8) for _ in range(10)]
    for _ in range(1000):
        if workers[0].progress() == 0 and workers[0].arm():
            break
    else:
        pytest.fail("it does not sleep")
    assert not all(request.done() for request in sent)
    got = [pair.there.recv() for _ in sent]
    for _ in range(100_000):
        pair.turn()
        if got[-1].done():
            break
    assert [request.result().nbytes for request in got] == [
        size for size in (4000, 200_000, 200_000, 1 << 20, 8) for _ in range(10)
    ]


# ---- who is linked to whom --------------------------------------------------------------------------------------

SIZES = (0, 8, 5000, 100_000, 1 << 20, 5 << 20)


async def both_ways(one, other):
    messages = [os.urandom(size) for size in SIZES for _ in range(3)]
    sent = [peer.send(message) for message in messages for peer in (one, other)]
    for message in messages:
        assert await other.recv() == message
        assert await one.recv() == message
    for request in sent:
        await request


def test_a_link_to_itself_carries_large_messages_both_ways():
    async def main():
        accepted = asyncio.get_running_loop().create_future()

        async def handler(peer):
            accepted.set_result(peer)
            await asyncio.Event().wait()

        async with weft.listen("127.0.0.1:0", handler) as listener, weft.connect(listener.address) as peer:
            assert peer.transports == RING
            await asyncio.wait_for(both_ways(peer, await accepted), HANG_S)

    asyncio.run(main())


def test_two_loops_in_two_threads():
    async def listens(ready):
        done = asyncio.Event()

        async def handler(peer):
            for size in SIZES:
                await peer.send(bytes(size))
            for size in SIZES:
                assert (await peer.recv()).nbytes == size
            with contextlib.suppress(weft.PeerClosedError):
                await peer.recv()
            done.set()

        async with weft.listen("127.0.0.1:0", handler) as listener:
            ready.put_nowait(listener.address)
            await asyncio.wait_for(done.wait(), HANG_S)

    async def connects(address):
        async with weft.connect(address) as peer:
            assert peer.transports == RING
            sent = [peer.send(bytes(size)) for size in SIZES]
            for size in SIZES:
                assert (await peer.recv()).nbytes == size
            for request in sent:
                await request

    import queue

    ready = queue.Queue()
    thread = threading.Thread(target=lambda: asyncio.run(listens(ready)))
    thread.start()
    asyncio.run(connects(ready.get(timeout=HANG_S)))
    thread.join(HANG_S)
    assert not thread.is_alive()


# ---- peers that stand still -------------------------------------------------------------------------------------


def test_stopped_peers_that_hold_the_area_hold_up_nobody(spawn):
    """Two that do not read have all of it: what goes to the third takes its ring."""
    stopped, working = [spawn(READER) for _ in range(2)], spawn(ECHO)
    peers = [weft.connect(child.line()).open() for child in stopped]
    good = weft.connect(working.line()).open()
    for child in stopped:
        child.stop()
    messages = [os.urandom(size) for size in (150_000, 150_000, 1 << 20, 10, 4000, 4000, 4000, 4000, 4000, 4000)]
    sends = [[peer.send(message) for message in messages] for peer in peers]
    for size in (8, 100_000, 200_000, 1 << 20, 5 << 20):
        echoes(good, os.urandom(size))
    assert not any(requests[-1].done() for requests in sends)
    for child in stopped:
        os.kill(child.pid, 18)
    for child, requests in zip(stopped, sends, strict=True):
        for request in requests:
            request.wait(HANG_S)
        assert [child.line() for _ in messages] == [told_of(message) for message in messages]
    for peer in (*peers, good):
        peer.abort()


def test_what_was_sent_arrives_whole_though_its_worker_is_closed(spawn):
    """The pieces lie in memory of the sender's, and a reader may come to them late."""
    children = [spawn(READER) for _ in range(4)]
    kept = weft.connect(children[0].line()).open()  # so the memory of this process's rings stays
    for child in children[1:]:
        address = child.line()
        message = os.urandom(150_000)

        async def main(address=address, child=child, message=message):
            peer = await weft.connect(address)
            child.stop()
            sent = peer.send(message)
            assert sent.done()

        asyncio.run(main())
        os.kill(child.pid, 0)
        echoes_later(kept)
        os.kill(child.pid, 18)
        assert child.line() == told_of(message)
        assert child.line() == "PeerLostError"
    kept.abort()


def echoes_later(peer):
    """Have this process use its memory for other messages."""
    for _ in range(3):
        peer.send(bytes(200_000)).wait(HANG_S)


def test_a_process_that_exits_at_once_has_sent_what_it_sent(spawn):
    child = spawn("""
        import os, sys, weft
        peer = weft.connect(sys.stdin.readline().strip()).open()
        print("ready", flush=True)
        sys.stdin.readline()
        assert peer.send(b"y" * 150_000).done()
        os._exit(0)
    """)
    with weft.listen("127.0.0.1:0") as listener:
        child.say(listener.address)
        peer = listener.accept(100)
    assert child.line() == "ready"
    child.say()
    assert child.wait() == 0
    assert peer.recv().wait(HANG_S) == b"y" * 150_000
    with pytest.raises(weft.PeerLostError):
        peer.recv().wait(HANG_S)
    peer.abort()


# ---- forks ------------------------------------------------------------------------------------------------------


def rings_of(pid="self"):
    """Where a process has rings and areas mapped."""
    with open(f"/proc/{pid}/maps") as maps:
        found = [line.split()[0] for line in maps if "weft-rings" in line]
    return [tuple(int(end, 16) for end in span.split("-")) for span in found]


def address_of(made):
    return _native_address(made)


def _native_address(made):
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(made))


def test_a_forked_child_leaves_alone_what_took_the_place_of_rings(spawn):
    """No ring is mapped in it, so its own memory may lie there when it lets go of the links."""
    child = spawn(ECHO)
    peer = weft.connect(child.line()).open()
    echoes(peer)
    spans = rings_of()
    assert spans
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            assert not rings_of()
            made = []
            for size in (1 << 20, 1 << 18, 1 << 14, 1 << 12) * 100:
                made.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            places = [address_of(each) for each in made]
            inside = sum(any(begin <= place < end for begin, end in spans) for place in places)
            peer.abort()
            del peer
            gc.collect()
            for each in made:
                each[0] = each[-1] = 1
            code = 0 if inside else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for size in (1, 100_000, 1 << 20):
        echoes(peer, bytes(size))
    peer.abort()


# ---- versions, limits -------------------------------------------------------------------------------------------

ASKS_WHY = """
import sys, weft
peer = weft.connect(sys.argv[1]).open()
peer.send(b"x" * 100_000).wait(100)
print(*peer.transports, flush=True)
print(peer._why_ucx, flush=True)
sys.stdin.readline()
"""


def test_where_two_versions_of_the_ring_meet_ucx_takes_over(spawn):
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn("from weft._connect import ring\nring.VERSION += 1\n" + ASKS_WHY, listener.address)
        peer = listener.accept(100)
    assert peer.recv().wait(HANG_S) == b"x" * 100_000
    assert "posix/memory" in peer.transports
    assert child.line() == " ".join(peer.transports)
    assert child.line() == peer._why_ucx == "the other side uses another version of the ring"
    peer.abort()


LIMITED = """
import asyncio, gc, os, resource, sys, weft
address, what = sys.argv[1:]
kind = getattr(resource, what)
async def connected():
    async with weft.connect(address, timeout=20) as peer:
        for size in (8, 100_000, 1 << 20):
            sent = peer.send(bytes(size))
            assert (await peer.recv()).nbytes == size
            await sent
def open_one():
    asyncio.run(connected())
def used():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
open_one()
before = used()
room = 0
while True:
    base = int(open("/proc/self/statm").read().split()[0]) * 4096 if what == "RLIMIT_AS" else 0
    resource.setrlimit(kind, (base + room, resource.RLIM_INFINITY))
    try:
        open_one()
        outcome = "connected"
    except MemoryError as e:
        outcome = type(e).__name__
    except weft.Error as e:
        outcome = type(e).__name__
        assert "File too large" not in str(e) or "ulimit -f" in str(e), e
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(room, outcome, used() - before, flush=True)
    open_one()
    if outcome == "connected":
        break
    room += 64 << 10
"""


@pytest.mark.parametrize("what", ["RLIMIT_FSIZE", "RLIMIT_AS"])
def test_a_limit_reached_while_a_link_is_made(spawn, what):
    """Wherever that is: a named error, nothing left over, and it works again with room."""

    async def main():
        async def echo(peer):
            with contextlib.suppress(weft.PeerLostError):
                while True:
                    await peer.send(await peer.recv())

        async with weft.listen("127.0.0.1:0", echo) as listener:
            child = spawn(LIMITED, listener.address, what)
            outcomes = []
            while not outcomes or outcomes[-1] != "connected":
                _, outcome, more = (await asyncio.to_thread(child.line)).split()
                outcomes.append(outcome)
                assert int(more) <= 0
            assert set(outcomes[:-1]) <= {"NoMemoryError", "MemoryError", "UnreachableError"}
            assert "NoMemoryError" in outcomes
            assert await asyncio.to_thread(child.wait) == 0

    asyncio.run(asyncio.wait_for(main(), 3 * HANG_S))


# ---- kills ------------------------------------------------------------------------------------------------------

KILLS = int(os.environ.get("WEFT_TEST_KILLS", "18"))


@pytest.mark.slow
def test_kills_at_random_phases_are_told_and_leave_nothing(tmp_path):
    """Whatever arrived is right, or the outcome is another error. How soon is the script's verdict, not this one's."""
    written = tmp_path / "kills.json"
    words = [kills.__file__, "--count", str(KILLS), "--seed", "3", "--json", str(written)]
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=200)
    record = json.loads(written.read_text())
    assert sum(map(len, record["told_after_s"].values())) == KILLS
    assert record["other_errors"] == 0
    assert record["steady_rounds"] > 0
    assert list(record["rings_mapped"].values())[-1] <= 12  # the chunk, and the steady link's four


def test_what_kills_leave_is_seen():
    early = kills.Held(30, 10, 500, 50_000)
    assert kills.growth([early, early, early]) == []
    assert kills.growth([early, early, early._replace(rings_mapped=14)]) == ["rings_mapped: 10 to 14"]


# ---- what stays -------------------------------------------------------------------------------------------------


def arena_kib(pid):
    """What the kernel has for the rings of a process."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if "weft-rings" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                return os.stat(f"/proc/{pid}/fd/{fd}").st_blocks // 2
    return 0


def held(pid):
    return len(os.listdir(f"/proc/{pid}/fd")), len(rings_of(pid)), arena_kib(pid)


LISTENS = """
import asyncio, contextlib, weft
async def echo(peer):
    with contextlib.suppress(weft.PeerLostError):
        while True:
            await peer.send(await peer.recv())
async def main():
    async with weft.listen("127.0.0.1:0", echo) as listener:
        print(listener.address, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
CYCLES = int(os.environ.get("WEFT_TEST_CYCLES", "150"))


def test_links_made_and_ended_leave_nothing(spawn):
    """Some end with messages on their way, which their readers and writers learn late. Offsets are used once."""
    child = spawn(LISTENS)
    address = child.line()
    kept = weft.connect(address).open()  # or the arena would go each time

    async def cycle(number):
        peer = await weft.connect(address)
        waiting = [peer.recv() for _ in range(4)]
        sent = [peer.send(bytes(size)) for size in (8, 3000, 100_000, 300_000)]
        if number % 3:
            for request in (*sent, *waiting):
                await request
        if number % 2:
            await peer.close()
        else:
            peer.abort()

    def until_settled(marks):
        deadline = time.monotonic() + HANG_S
        while (now := (held(os.getpid()), held(child.pid))) and time.monotonic() < deadline:
            if not marks or all(
                a <= b for one, other in zip(now, marks, strict=True) for a, b in zip(one, other, strict=True)
            ):
                break
            echoes(kept)
        return now

    for number in range(20):
        asyncio.run(cycle(number))
    echoes(kept)
    time.sleep(0.05)
    early = until_settled(())
    most = tuple((fds, spans + 2, kib + 2048) for fds, spans, kib in early)  # chunks of 1 MiB come and go
    for number in range(CYCLES):
        asyncio.run(cycle(number))
    now = until_settled(most)
    for one, other in zip(now, most, strict=True):
        assert all(a <= b for a, b in zip(one, other, strict=True)), (early, now)
    echoes(kept, bytes(1 << 20))
    kept.abort()
