# SPDX-License-Identifier: BSD-3-Clause
"""The socket beside a link of one host: what a process of this user may say there, and garbage."""

import array
import fcntl
import os
import random
import socket
import struct

import pytest

import weft
from weft import _native

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
