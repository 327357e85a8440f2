# SPDX-License-Identifier: BSD-3-Clause
"""A peer of this host that writes what it must not: the link ends with a name, or the peer is ignored.

`scripts/fuzz_ring.py` mixes all of it at random; a short run of it is here.
"""

import contextlib
import mmap
import os
import random
import socket
import struct

import pytest
from scripts import fuzz_ring as fuzz

import weft

CASES = int(os.environ.get("WEFT_TEST_FUZZ", "10000"))


@pytest.fixture
def room():
    room = fuzz.Room()
    yield room
    room.close()


@pytest.fixture
def hostile(room):
    """A link whose other side is this test."""
    case = fuzz.Case(room, 0, random.Random(1))
    yield case
    case.close()


def fate(case):
    """Return what the link's reader is told."""
    waiting = case.channel.recv()
    for _ in range(100):
        case.room.worker.progress()
        if waiting.done():
            break
    with pytest.raises(weft.Error) as e:
        waiting.result()
    return str(e.value).partition("hostile): ")[2]


def allowed(name):
    return f"the peer violated the ring protocol ({name})"


WIRE = fuzz.WIRE.pack(fuzz.MAGIC, fuzz.DATA, 0, 100, 0, 0)
FOR_NOBODY = fuzz.WIRE.pack(fuzz.MAGIC, fuzz.DATA, 0, 12345, 0, 0)
BROKEN = {
    "a kind that is none": ("bad_kind", lambda c: c.record(200, b"")),
    "a record longer than the ring": ("bad_length", lambda c: c.record(fuzz.MESSAGE, b"", 0, 1 << 31)),
    "a header longer than its record": ("bad_header", lambda c: c.record(fuzz.MESSAGE, WIRE, 33)),
    "a header longer than any": ("bad_header", lambda c: c.record(fuzz.MESSAGE, WIRE + bytes(9000), 8001)),
    "an opening that is cut": ("bad_opening", lambda c: c.record(fuzz.BEGIN, bytes(15))),
    "an opening of nothing": ("bad_opening", lambda c: c.record(fuzz.BEGIN, fuzz.OPENING.pack(1, 0) + WIRE)),
    "a stream that should be announced": (
        "bad_opening",
        lambda c: c.record(fuzz.BEGIN, fuzz.OPENING.pack(1, 1 << 18) + WIRE),
    ),
    "the same opening twice": (
        "bad_opening",
        lambda c: [c.record(fuzz.BEGIN, fuzz.OPENING.pack(1, 9000) + c.wire()) for _ in range(2)],
    ),
    "a piece of nothing known": ("bad_piece", lambda c: c.record(fuzz.PIECE, fuzz.AREA_PIECE.pack(9, 0, 8))),
    "a piece that is cut": ("bad_piece", lambda c: c.record(fuzz.PIECE, bytes(7))),
    "a piece outside the area": (
        "bad_piece",
        lambda c: (
            c.record(fuzz.BEGIN, fuzz.OPENING.pack(1, 9000) + c.wire()),
            c.record(fuzz.PIECE, fuzz.AREA_PIECE.pack(1, fuzz.AREA - 8, 9)),
        ),
    ),
    "a piece longer than its message": (
        "bad_piece",
        lambda c: (
            c.record(fuzz.BEGIN, fuzz.OPENING.pack(1, 100) + c.wire()),
            c.record(fuzz.PIECE, fuzz.AREA_PIECE.pack(1, 0, 101)),
        ),
    ),
    "a piece before the answer": (
        "bad_piece",
        lambda c: (
            [c.record(fuzz.ANNOUNCE, fuzz.OPENING.pack(i, 1 << 24) + c.wire()) for i in (1, 2)],
            c.record(fuzz.PIECE, fuzz.AREA_PIECE.pack(2, 0, 8)),
        ),
    ),
    "an answer to nothing": ("bad_answer", lambda c: c.record(fuzz.ANSWER, struct.pack("<Q", 1))),
    "a refusal of nothing": ("bad_answer", lambda c: c.record(fuzz.REFUSE, struct.pack("<Q", 1))),
    "an answer that is cut": ("bad_answer", lambda c: c.record(fuzz.ANSWER, b"1234")),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_breaks_the_rules_is_named(hostile, how):
    name, write = BROKEN[how]
    write(hostile)
    assert fate(hostile) == allowed(name)
    hostile.room.bystander.goes_on()


def test_a_worker_that_finds_the_fault_as_it_falls_asleep_stays_awake(hostile):
    name, write = BROKEN["a record longer than the ring"]
    write(hostile)
    assert not hostile.room.worker.arm()
    assert fate(hostile) == allowed(name)


@pytest.mark.parametrize("cursor", [1 << 40, 3, (1 << 64) - 8])
def test_a_cursor_that_lies_is_named(hostile, cursor):
    """The cursor is looked at when the ring seems full."""
    fuzz.WORD.pack_into(hostile.room.pages, 0, cursor)
    for _ in range(10):
        hostile.channel.send(bytes(4000))
    assert fate(hostile) == allowed("bad_tail")
    hostile.room.bystander.goes_on()


def test_what_comes_before_the_link_is_made_harms_nothing(room):
    """The ring is there, and told, before the other side's is."""
    first = fuzz.Case(room, 0, random.Random(1))
    link = fuzz._native.prepare_link(room.worker, True, "early")
    first.ring = mmap.mmap(room.arena, fuzz.RING, offset=fuzz.ADDRESS.unpack(link.address)[3])
    first.record(fuzz.ANNOUNCE, fuzz.OPENING.pack(1, 1 << 20) + FOR_NOBODY)
    first.record(fuzz.BEGIN, fuzz.OPENING.pack(2, 5000) + FOR_NOBODY)
    first.record(fuzz.ANSWER, struct.pack("<Q", 1))
    for _ in range(10):
        room.worker.progress()
    room.worker.arm()
    assert (room.worker.dropped_messages, link.lost) == (0, False)
    mine, theirs = socket.socketpair()
    socket.send_fds(theirs, [b"\0"], [room.fd])
    link.join(fuzz.ADDRESS.pack(2, 99, 0, 0, fuzz.RING, room.bits, room.state, room.area, fuzz.AREA), mine.detach())
    room.worker.progress()
    room.worker.progress()
    assert (room.worker.dropped_messages, link.lost) == (2, True)
    room.bystander.goes_on()
    theirs.close()
    first.close()


def test_addresses_that_make_no_sense_are_refused(room, fds):
    """Whatever they say, what is mapped is in the file, and the file cannot shrink."""
    good = [2, 99, 0, 0, fuzz.RING, room.bits, room.state, room.area, fuzz.AREA]
    dice = random.Random(11)
    short = os.memfd_create("can be shortened", os.MFD_ALLOW_SEALING)
    os.truncate(short, 1 << 20)
    before = fds()
    joined = 0
    for number in range(2000):
        told = list(good)
        for _ in range(dice.randrange(1, 3)):
            told[dice.randrange(9)] = dice.choice((0, 1, 8, 4096, 1 << 14, 1 << 20, 1 << 30, *fuzz.WORDS))
        address = fuzz.ADDRESS.pack(*told)[: dice.choice((72, 72, 72, 72, 0, 71))]
        link = fuzz._native.prepare_link(room.worker, True, "hostile")
        mine, theirs = socket.socketpair()
        if number % 5:
            socket.send_fds(theirs, [b"\0"], [dice.choice((room.fd, room.fd, room.fd, room.fd, short, mine.fileno()))])
        try:
            link.join(address, mine.fileno())
        except (weft.HandshakeError, weft.NoMemoryError) as e:
            assert "ring" in str(e)  # noqa: PT017
            mine.close()
        else:
            mine.detach()
            joined += 1
        room.worker.progress()
        link.close()
        theirs.close()
    assert 0 < joined < 1000
    assert fds() == before
    os.close(short)
    room.bystander.goes_on()


@pytest.mark.parametrize("kind", [fuzz.MESSAGE, fuzz.BEGIN, fuzz.ANNOUNCE], ids=["whole", "begun", "announced"])
def test_a_connection_of_another_link_is_out_of_reach(room, kind):
    """Even for a peer that has two links, and so knows the ids of both."""
    one, other = (fuzz.Case(room, number, random.Random(number)) for number in range(2))
    opening = fuzz.OPENING.pack(1, 5000) if kind != fuzz.MESSAGE else b""
    one.record(kind, opening + other.wire(), fuzz.WIRE.size)
    waiting = other.channel.recv()
    for _ in range(5):
        room.worker.progress()
    assert not waiting.done()
    assert room.worker.dropped_messages == 1
    one.close()
    room.worker.progress()
    other.close()


# ---- what a peer can have this side keep -------------------------------------------------------------------------


def turn(case):
    case.room.worker.progress()
    case.consume()


def test_a_peer_that_sends_more_than_its_credit_is_lost(hostile):
    kept = 0
    while not hostile.channel.ended and kept < 20_000:
        header = hostile.wire()
        hostile.record(fuzz.MESSAGE, header + b"A" * 3000, len(header))
        turn(hostile)
        kept += not hostile.channel.ended
    assert kept * (3000 + 512) <= 4 << 20
    for _ in range(kept):
        assert hostile.channel.recv().result() == b"A" * 3000
    assert fate(hostile) == "the peer sent more than this side allowed"
    hostile.room.bystander.goes_on()


@pytest.mark.parametrize("kind", [fuzz.BEGIN, fuzz.ANNOUNCE], ids=["begun", "announced"])
def test_messages_opened_without_end_are_bounded(hostile, kind):
    """The channel is right, and so are the numbers."""
    for opened in range(20_000):
        hostile.record(kind, fuzz.OPENING.pack(opened + 1, 200_000) + hostile.wire())
        turn(hostile)
        if hostile.channel.ended:
            break
    assert opened <= (4 << 20) // 200_000
    assert "sent more than this side allowed" in fate(hostile)


def test_messages_begun_for_nobody_are_bounded(hostile):
    for begun in range(100_000):
        hostile.record(fuzz.BEGIN, fuzz.OPENING.pack(begun + 1, 200_000) + FOR_NOBODY)
        turn(hostile)
        if hostile.link.lost:
            break
    assert begun <= 1 << 16
    assert fate(hostile) == allowed("too_many_begun")


def test_a_peer_that_asks_and_never_reads_is_lost(hostile):
    """Each of these is refused, in a record that has no room."""
    for asked in range(100_000):
        hostile.record(fuzz.ANNOUNCE, fuzz.OPENING.pack(asked + 1, 1 << 20) + FOR_NOBODY)
        hostile.room.worker.progress()
        if hostile.link.lost:
            break
    assert asked <= (1 << 16) + fuzz.CAPACITY // 16
    assert fate(hostile) == allowed("never_reads")


def test_a_socket_written_to_without_end_holds_up_nobody(hostile):
    """One look takes a bounded number of records; and answers that nobody reads are bounded."""
    said = struct.pack("<QQ", 1, 5) * 500  # segments, without descriptors: each is answered
    sent = 0
    waiting = hostile.channel.recv()
    hostile.sock.setblocking(False)
    while not hostile.link.lost and sent < 1 << 22:
        with contextlib.suppress(BlockingIOError):
            sent += hostile.sock.send(said) // 16
        hostile.room.worker._turn()
    assert hostile.link.lost
    assert sent < 1 << 18
    with pytest.raises(weft.PeerLostError):
        waiting.result()
    hostile.room.bystander.goes_on()


# ---- all of it --------------------------------------------------------------------------------------------------


def test_spoiled_links_end_with_named_errors():
    outcomes = fuzz.fuzz(CASES, seed=1)
    assert outcomes.total() == CASES
    for name in ("bad_kind", "bad_length", "bad_tail", "bad_header", "bad_opening", "bad_piece", "bad_answer"):
        assert any(name in outcome for outcome in outcomes), outcomes
    assert outcomes["goes on"] > CASES // 20


def test_links_spoiled_by_another_process_at_any_time_end_with_named_errors():
    outcomes = fuzz.at_any_time(100, seed=1)
    assert outcomes.total() == 100
    assert sum("violated the ring protocol" in outcome for outcome in outcomes) > 1, outcomes


def test_the_fuzzer_finds_what_is_wrong(monkeypatch):
    """What comes is looked at: here not all of the area is what the peer says it wrote."""

    class Spoiled(fuzz.Room):
        def __init__(self):
            super().__init__()
            self.pages[self.area + 5000] = ord("C")

    monkeypatch.setattr(fuzz, "Room", Spoiled)
    with pytest.raises(fuzz.FindingError, match=r"seed 1, case .* which nobody sent"):
        fuzz.fuzz(1000, seed=1)
