# SPDX-License-Identifier: BSD-3-Clause
"""Memory that is lent to another process of this host: who sees what, how long it stays, and what is taken back."""

import contextlib
import gc
import os
import threading
import time
import zlib

import numpy as np
import pytest

import weft
from weft import _native
from weft._connect import links

MIB = 1 << 20

#: Receives on command, and answers in lines: what arrived, what it writes, and when it lets go.
READER = """
import os, sys, resource
import numpy as np, weft
from weft import _native
held = []
peer = weft.connect(sys.argv[1]).open()
print("ready", flush=True)
for command in sys.stdin:
    word, *rest = command.split()
    if word == "recv":
        held.append(np.frombuffer(peer.recv().wait(100), "u1"))
        print(int(held[-1].sum(dtype="u8")), peer.lent_nbytes[1], flush=True)
    elif word == "frames":
        frames = peer.recv_frames().wait(100)
        held += [np.frombuffer(f, "u1") for f in frames if len(f)]
        print(*(int(np.frombuffer(f, "u1").sum(dtype="u8")) for f in frames), flush=True)
    elif word == "sum":
        print(int(held[-1].sum(dtype="u8")), flush=True)
    elif word == "write":
        held[-1][:] = int(rest[0])
        print("written", flush=True)
    elif word == "close":
        from weft._connect import links
        links._thread.workers.close()
        print("closed", flush=True)
    elif word == "drop":
        held.clear()
        print("dropped", flush=True)
    elif word == "descriptors":
        print(len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines()), flush=True)
    elif word == "mappings":
        _native.pool_limit_mappings(int(rest[0]))
        print(_native.pool_statistics()["lending_mappings"], flush=True)
    elif word == "limit":
        print("limited", flush=True)
        if rest[0] == "mappings":
            used = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
        else:
            lowest_free = os.dup(0)
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free,) * 2)
"""


class Reader:
    """A child with a connection to this process."""

    def __init__(self, spawn):
        with weft.listen("127.0.0.1:0") as listener:
            self.child = spawn(READER, listener.address)
            self.peer = listener.accept(100)
        assert self.child.line() == "ready"

    def ask(self, command):
        self.child.say(command)
        return self.child.line()

    def take(self, request, command="recv"):
        """Have it receive what `request` sends: a rendezvous needs both sides at work."""
        self.child.say(command)
        request.wait(100)
        return self.child.line()


@pytest.fixture
def reader(spawn):
    reader = Reader(spawn)
    yield reader
    reader.child.kill()
    with contextlib.suppress(weft.Error):
        while True:
            reader.peer.recv().wait(100)
    reader.peer.abort()


def pooled(nbytes, value):
    with weft.arrays_in_pool():
        return np.full(nbytes, value, "u1")


def pinned():
    gc.collect()
    return _native.pool_statistics()["pinned_nbytes"]


def until(condition, peer=None):
    """Wait for what the other process does; leases come back in this side's own waits."""
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end
        if peer is not None:
            with contextlib.suppress(weft.TimedOutError):
                peer.recv().wait(0.01)
        time.sleep(0.001)


def test_a_pooled_array_is_lent_and_not_copied(reader):
    array = pooled(8 * MIB, 3)
    assert reader.take(reader.peer.lend(array)) == f"{3 * 8 * MIB} {8 * MIB}"
    assert reader.peer.lent_nbytes == (8 * MIB, 0)


def test_beyond_half_of_the_mappings_that_a_process_may_have_a_borrower_copies(reader):
    reader.take(reader.peer.lend(pooled(MIB, 1)))
    assert reader.ask("mappings 2") == "1"
    reader.take(reader.peer.lend(pooled(MIB, 2)))
    array = pooled(MIB, 3)
    assert reader.take(reader.peer.lend(array)).startswith(f"{3 * MIB} ")  # a copy
    until(lambda: pinned() == 2 * MIB, reader.peer)  # whose lease is over
    assert reader.ask("mappings 3") == "2"
    assert reader.take(reader.peer.lend(array)).startswith(f"{3 * MIB} ")
    assert reader.ask("mappings 3") == "3"
    reader.ask("drop")
    assert reader.ask("mappings 3") == "0"


def test_a_part_of_an_array_is_lent(reader):
    array = pooled(2 * MIB, 0)
    array[1000 : 1000 + MIB] = 1
    assert reader.take(reader.peer.lend(array[1000 : 1000 + MIB])) == f"{MIB} {MIB}"


def test_a_message_as_large_as_the_window_follows_one_that_was_read(reader):
    # that it read the small one, the reader says with its next message, or after a quarter of the window
    for nbytes in (MIB, 64 * MIB):
        assert reader.take(reader.peer.lend(pooled(nbytes, 1))) == f"{nbytes} {nbytes + (nbytes > MIB) * MIB}"


@pytest.mark.parametrize(
    "array",
    [np.full(MIB, 5, "u1"), bytearray(b"\x05" * MIB), b"\x05" * 1000, "a part of a pooled block", b""],
    ids=["numpy", "bytearray", "bytes", "small", "empty"],
)
def test_what_cannot_be_lent_is_sent(reader, array):
    if isinstance(array, str):
        array = pooled(MIB, 5)[:1000]
    assert reader.take(reader.peer.lend(array)) == f"{5 * len(array)} 0"
    assert reader.peer.lent_nbytes == (0, 0)


def test_what_was_received_can_be_lent_back(spawn):
    code = """
        import sys, weft
        with weft.connect(sys.argv[1]) as peer:
            peer.lend(peer.recv().wait(100)).wait(100)
            sys.stdin.readline()
    """
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(code, listener.address)
        peer = listener.accept(100)
    peer.send(b"\x07" * MIB).wait(100)
    assert bytes(peer.recv().wait(100)) == b"\x07" * MIB
    assert peer.lent_nbytes == (0, MIB)
    child.say()
    with pytest.raises(weft.PeerClosedError):
        peer.recv().wait(100)
    peer.close().wait(100)


def test_frames_that_are_lent_and_frames_that_are_not(reader):
    frames = [b"\x01" * 10, pooled(MIB, 2), np.full(MIB, 3, "u1"), pooled(MIB, 4), b"", np.full(300_000, 5, "u1")]
    assert reader.take(reader.peer.send_frames(frames, lend=True), "frames") == " ".join(
        str(sum(bytes(f))) for f in frames
    )
    assert reader.peer.lent_nbytes == (2 * MIB, 0)


def test_more_frames_than_a_header_can_lend(reader):
    arrays = [pooled(65536, i % 7) for i in range(500)]
    assert reader.take(reader.peer.send_frames(arrays, lend=True), "frames") == " ".join(
        str(65536 * (i % 7)) for i in range(500)
    )
    lent, _ = reader.peer.lent_nbytes
    assert 100 * 65536 < lent < 500 * 65536


def test_send_has_value_semantics(reader):
    array = pooled(8 * MIB, 3)
    assert reader.take(reader.peer.send(array)) == f"{3 * 8 * MIB} 0"
    array[:] = 9
    assert reader.ask("sum") == f"{3 * 8 * MIB}"


def test_what_the_reader_writes_stays_its_own(reader):
    array = pooled(MIB, 3)
    reader.take(reader.peer.lend(array))
    reader.ask("write 9")
    assert (array == 3).all()
    assert reader.ask("sum") == f"{9 * MIB}"
    # Its pages do not shadow the next tenant of the block.
    reader.ask("drop")
    array[:] = 4
    assert reader.take(reader.peer.lend(array)).startswith(f"{4 * MIB} ")


def test_a_block_is_not_used_again_while_it_is_lent(reader):
    array = pooled(MIB, 3)
    reader.take(reader.peer.lend(array))
    del array
    assert pinned() == MIB
    others = [pooled(MIB, 200) for _ in range(300)]
    del others
    assert reader.ask("sum") == f"{3 * MIB}"
    reader.ask("drop")
    until(lambda: pinned() == 0, reader.peer)


def test_lent_memory_is_not_given_to_the_kernel(reader):
    array = pooled(MIB, 3)
    other = pooled(MIB, 1)
    reader.take(reader.peer.lend(array))
    cap = _native.pool_statistics()["cap_nbytes"]
    _native.pool_set_cap(0)
    try:
        del array, other
        assert reader.ask("sum") == f"{3 * MIB}"
    finally:
        _native.pool_set_cap(cap)


def test_a_dead_reader_gives_everything_back(reader):
    for _ in range(3):
        reader.take(reader.peer.lend(pooled(MIB, 3)))
    reader.peer.lend(pooled(MIB, 3)).wait(100)  # and one that was never read
    assert pinned() == 4 * MIB
    reader.child.kill()
    with pytest.raises(weft.PeerLostError):
        reader.peer.recv().wait(100)
    assert pinned() == 0


def test_a_dead_lender_leaves_what_was_read(spawn):
    code = """
        import sys, numpy as np, weft
        with weft.listen("127.0.0.1:0") as listener:
            print(listener.address, flush=True)
            peer = listener.accept(100)
        with weft.arrays_in_pool():
            peer.lend(np.arange(1 << 18)).wait(100)
        sys.stdin.readline()
    """
    lender = spawn(code)
    peer = weft.connect(lender.line()).open()
    view = peer.recv().wait(100)
    assert peer.lent_nbytes == (0, 2 * MIB)
    array = np.frombuffer(view, "i8")
    half = array[: 1 << 17].sum()  # these pages were mapped before it died, the others were not
    lender.kill()
    with pytest.raises(weft.PeerLostError):
        peer.recv().wait(100)
    assert half == np.arange(1 << 17).sum()
    assert (array == np.arange(1 << 18)).all()
    array[:] = 0
    peer.abort()


def test_a_lender_that_closes_its_worker_keeps_what_is_lent(spawn):
    """The process goes on after the loop that lent has ended."""
    code = """
        import asyncio, sys, numpy as np, weft
        from weft import _native

        async def lend():
            with weft.arrays_in_pool():
                array = np.full(1 << 20, 3, "u1")
            served = asyncio.Event()
            async def serve(peer):
                await peer.lend(array)
                await peer.recv()
                served.set()
            async with weft.listen("127.0.0.1:0", serve) as listener:
                print(listener.address, flush=True)
                await served.wait()

        asyncio.run(lend())
        with weft.arrays_in_pool():
            others = [np.full(1 << 20, 9, "u1") for _ in range(300)]
        print("pinned", _native.pool_statistics()["pinned_nbytes"], flush=True)
        sys.stdin.readline()
        w = weft.Worker(weft.Context({"TLS": "posix,self"}))
        w.close()
        print("pinned", _native.pool_statistics()["pinned_nbytes"], flush=True)
    """
    lender = spawn(code)
    peer = weft.connect(lender.line()).open()
    array = np.frombuffer(peer.recv().wait(100), "u1")
    peer.send(b"done").wait(100)
    assert lender.line() == f"pinned {MIB}"
    with pytest.raises(weft.PeerLostError):
        peer.recv().wait(100)
    assert (array == 3).all()
    del array
    gc.collect()
    lender.say()
    assert lender.line() == "pinned 0"
    peer.abort()


def test_a_goodbye_that_is_read_while_lending_ends_the_link(reader):
    """After so many leases, a send reads which ones were returned."""
    *_, link = [link for worker in links._thread.workers._workers.values() for link in worker.links.values()]
    parts = [pooled(1 << 16, 1) for _ in range(70)]
    reader.take(reader.peer.send_frames(parts, lend=True), "frames")
    assert reader.ask("close") == "closed"  # it still has what was lent
    with contextlib.suppress(weft.Error):
        reader.peer.send_frames(parts[:1], lend=True)
    with pytest.raises(weft.PeerLostError):
        reader.peer.recv().wait(100)

    def is_lost():
        links._thread.workers.progress()
        return link.lost

    until(is_lost)


def test_cancelled_before_its_turn(reader):
    """A message that waits for credit and is withdrawn lends nothing."""
    requests = [reader.peer.lend(pooled(8 * MIB, 1)) for _ in range(20)]
    assert not requests[-1].done()
    lent, _ = reader.peer.lent_nbytes
    assert lent <= 72 * MIB
    for request in requests:
        request.cancel()
    while not requests[0].done():
        pass
    requests.clear()
    until(lambda: pinned() == lent)


def test_ten_thousand_rounds_leave_nothing(reader):
    array = pooled(MIB, 1)
    reader.take(reader.peer.lend(array))
    before = reader.ask("drop"), reader.ask("descriptors")
    here = len(os.listdir("/proc/self/fd"))
    for i in range(10_000):
        if i % 100 == 0:  # another block, in a segment of its own now and then
            array = pooled(MIB if i % 1000 else 300 * MIB, 1)
        assert reader.take(reader.peer.lend(array[:MIB])).startswith(f"{MIB} ")
        assert reader.ask("drop") == "dropped"
    del array
    until(lambda: pinned() == 0, reader.peer)
    reader.peer.lend(pooled(MIB, 1)).wait(100)  # tells of the segments that are gone
    reader.ask("recv")
    fds, maps = map(int, reader.ask("descriptors").split())
    fds_before, maps_before = map(int, before[1].split())
    assert fds <= fds_before + 1
    assert maps <= maps_before + 3
    assert len(os.listdir("/proc/self/fd")) <= here + 2


def test_a_reader_without_room_for_a_mapping_gets_a_copy(reader):
    reader.take(reader.peer.send(bytes(40 * MIB)))
    reader.ask("drop")  # leaves it a block to copy into
    reader.ask("limit mappings")
    assert reader.take(reader.peer.lend(pooled(32 * MIB, 3))) == f"{3 * 32 * MIB} {32 * MIB}"
    until(lambda: pinned() == 0, reader.peer)


def test_a_reader_out_of_descriptors_gets_a_copy(reader):
    reader.take(reader.peer.send(b"x" * MIB))  # makes the segment of its own pool
    reader.ask("limit files")
    for _ in range(2):
        array = pooled(MIB, 3)
        assert reader.take(reader.peer.lend(array)) == f"{3 * MIB} 0"
    assert reader.peer.lent_nbytes == (0, 0)
    assert pinned() == 0


BUSY = """
import sys, zlib
import numpy as np, weft
peer = weft.connect(sys.argv[1]).open()
with weft.arrays_in_pool():
    rng = np.random.default_rng(int(sys.argv[2]))
    while True:
        array = rng.integers(0, 255, int(rng.integers(1, 3_000_000)), "u1")
        peer.send_frames([zlib.crc32(array).to_bytes(4, "little"), array], lend=True).wait(100)
        crc, array = peer.recv_frames().wait(100)
        assert zlib.crc32(array).to_bytes(4, "little") == bytes(crc)
"""


@pytest.mark.parametrize("seed", range(int(os.environ.get("WEFT_TEST_KILLS", "12"))))
def test_a_kill_at_any_moment(spawn, seed):
    """Whatever arrived is right, also after the death of its lender; whatever was lent comes back."""
    random = np.random.default_rng(seed)
    with weft.listen("127.0.0.1:0") as listener:
        victim = spawn(BUSY, listener.address, str(seed))
        peer = listener.accept(100)
    killer = threading.Timer(float(random.uniform(0, 0.2)), victim.kill, kwargs={"reap": False})
    killer.start()
    kept = []
    with pytest.raises(weft.PeerLostError), weft.arrays_in_pool():
        for i in range(1_000_000):
            crc, array = peer.recv_frames().wait(100)
            kept = [*kept[-20:], (crc, array)]
            answer = random.integers(0, 255, int(random.integers(1, 3_000_000)), "u1")
            peer.send_frames([zlib.crc32(answer).to_bytes(4, "little"), answer], lend=True).wait(100)
            assert i < 999_999
    killer.join()
    for crc, array in kept:
        assert zlib.crc32(array).to_bytes(4, "little") == bytes(crc)
    answer = None
    until(lambda: pinned() == 0)
    peer.abort()
