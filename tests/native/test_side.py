# SPDX-License-Identifier: BSD-3-Clause
"""The socket beside a link of one host: what a process of this user may say there, and garbage."""

import array
import fcntl
import gc
import os
import random
import socket
import struct
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import _native

PAGE = 4096
#: Marks of a file: bytes that nobody reads or writes. Of pages about to be held there is one for each page and number.
ABOUT_TO_HOLD, HELD = 1 << 32, 1 << 62
OWNER, UNSETTLED = HELD - 1, HELD - 2

HANDED, TAKEN, REFUSED, DROPPED, LEASE_OVER, GOODBYE = range(1, 7)


class LinkToNobody:
    """A link whose other side is a socket here."""

    def __init__(self):
        self.worker = weft.Worker(weft.Context({"TLS": "posix,self"}), links_only=True)
        self.link = _native.prepare_link(self.worker, True, "nobody")
        mine, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.link.join(self.link.address, mine.detach())
        self.channel = self.link.open(1, 2, "nobody")
        self.waiting = self.channel.recv()
        self.theirs.setblocking(False)

    def crank(self):
        with pytest.raises((weft.TimedOutError, weft.PeerLostError)):
            self.waiting.wait(0.002)

    def say(self, *records, descriptors=()):
        body = b"".join(struct.pack("<QQ", *record) for record in records)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.theirs.sendmsg([body], rights)

    def hear(self):
        self.crank()
        data = self.theirs.recv(1 << 16)
        return [struct.unpack_from("<QQ", data, at) for at in range(0, len(data), 16)]


@pytest.fixture
def side():
    side = LinkToNobody()
    yield side
    side.worker.close()
    side.theirs.close()


@pytest.fixture
def memory():
    """A file of memory that cannot shrink, as the pool's segments are."""
    fd = os.memfd_create("lent", os.MFD_ALLOW_SEALING)
    os.truncate(fd, 1 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    yield fd
    os.close(fd)


def test_a_sealed_segment_is_taken(side, memory, fds):
    before = fds()
    side.say((HANDED, 7), descriptors=[memory])
    assert side.hear() == [(TAKEN, 7)]
    assert fds() == before + 1
    side.say((DROPPED, 7))
    side.crank()
    assert fds() == before


def test_so_is_a_nameless_file_of_memory(side, fds):
    """Such a file takes no seals, but nobody else can open it."""
    with open(os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600), "wb") as memory:
        side.say((HANDED, 7), descriptors=[memory.fileno()])
        assert side.hear() == [(TAKEN, 7)]


@pytest.mark.parametrize("why", ["has a name", "is open to others"])
def test_a_file_that_another_could_shorten_is_refused(side, why):
    path = Path(f"/dev/shm/weft-test-{os.getpid()}")
    with path.open("wb") as memory:
        path.chmod(0o644 if why == "is open to others" else 0o600)
        if why != "has a name":
            path.unlink()
        try:
            side.say((HANDED, 7), descriptors=[memory.fileno()])
            assert side.hear() == [(REFUSED, 7)]
        finally:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_descriptors_that_are_no_segments_are_closed(side, fds, count):
    """A file that may shrink under a mapping would be a SIGBUS."""
    before = fds()
    with open(os.devnull, "rb") as other:
        side.say((HANDED, 7), descriptors=[other.fileno()] * count)
        assert side.hear() == [(REFUSED, 7)]
    assert fds() == before


def test_a_segment_that_is_there_is_not_taken_again(side, memory, fds):
    side.say((HANDED, 7), descriptors=[memory])
    assert side.hear() == [(TAKEN, 7)]
    before = fds()
    side.say((HANDED, 7), descriptors=[memory, memory])
    assert side.hear() == [(REFUSED, 7)]
    assert fds() == before


@pytest.mark.parametrize("start", [3, HELD], ids=["about to hold it", "holds it"])
def test_a_block_that_another_process_marked_is_left_alone(side, start):
    """The lease is over, but its borrower has lent the block on, and died."""
    with weft.arrays_in_pool():  # so large that it lies first in a segment of its own
        array = np.empty(256 << 20, "u1")
    lent = side.channel.lend(array)
    data, (segment,), _, _ = socket.recv_fds(side.theirs, 16, 1)
    assert data[:8] == struct.pack("<Q", HANDED)
    side.say((TAKEN, struct.unpack("<QQ", data)[1]))
    side.crank()
    assert lent.done()
    marked = mark(segment, start, 1)
    os.close(segment)
    del array
    side.say((LEASE_OVER, 1))
    side.crank()
    gc.collect()
    before = _native.pool_statistics()
    os.close(marked)
    after = _native.pool_statistics()
    assert [s["pinned_nbytes"] for s in (before, after)] == [256 << 20, 0]
    assert before["live_nbytes"] - after["live_nbytes"] == 256 << 20


def mark(fd, start, count):
    """Return a descriptor that marks the file of `fd`, for as long as it is open."""
    marking = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    fcntl.fcntl(marking, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, start, count, 0))
    return marking


def end_with(side, memory):
    """Hand over `memory`, all of its pages in use, and end the link; return the numbers of pages that stay."""
    os.pwrite(memory, b"x" * (1 << 20), 0)
    handed = os.open(f"/proc/self/fd/{memory}", os.O_RDWR)
    side.say((HANDED, 7), descriptors=[handed])
    os.close(handed)
    assert side.hear() == [(TAKEN, 7)]
    side.theirs.close()
    side.crank()
    assert side.link.lost
    return [page for page in range(256) if os.pread(memory, 1, page * PAGE) == b"x"]


@pytest.mark.parametrize(
    ("marks", "stay"),
    [
        ([], []),
        ([(HELD + 16, 16)], range(16, 32)),
        ([(HELD, 1), (HELD + 100, 50), (HELD + 120, 136)], [0, *range(100, 256)]),
        ([(HELD + 250, 100)], range(250, 256)),
        ([(OWNER, 1)], range(256)),
        ([(UNSETTLED, 1)], range(256)),
        ([(5 * ABOUT_TO_HOLD + 9, 1)], range(256)),
    ],
    ids=["nothing", "some pages", "pages that overlap", "the last pages", "its owner", "a reader to come", "a message"],
)
def test_pages_that_nobody_holds_go_back_to_the_kernel(side, memory, fds, marks, stay):
    before = fds()
    marking = [mark(memory, *place) for place in marks]
    assert end_with(side, memory) == list(stay)
    for fd in marking:
        os.close(fd)
    assert fds() <= before


def test_who_holds_nothing_of_a_file_keeps_no_descriptor_of_it(side, memory):
    """Also if nothing may be given back yet: that is left to the others."""
    marking = mark(memory, OWNER, 1)
    end_with(side, memory)
    os.close(marking)
    files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert files.count(os.path.realpath(f"/proc/self/fd/{memory}")) == 1


@pytest.mark.parametrize("nbytes", [1, 15, 17])
def test_a_part_of_a_record_ends_the_link(side, nbytes):
    side.theirs.send(bytes(nbytes))
    side.crank()
    assert side.link.lost


def test_garbage_harms_nothing(side, fds):
    r = random.Random(1)
    before = fds()
    for _ in range(300):
        kinds = [r.choice((r.getrandbits(64), r.randrange(6))) for _ in range(r.randrange(1, 200))]
        side.say(*((kind, r.choice((0, 1, r.getrandbits(64)))) for kind in kinds if kind != GOODBYE))
        if r.random() < 0.2:
            side.say((r.randrange(6), r.getrandbits(64)), descriptors=[0] * r.randrange(1, 5))
        side.crank()
        with pytest.raises(BlockingIOError):
            while side.theirs.recv(1 << 16):
                pass
    assert not side.link.lost
    assert fds() == before
    side.say((GOODBYE, 0))
    side.crank()
    assert side.link.lost
