# SPDX-License-Identifier: BSD-3-Clause
"""A signal handler raises, at each place where it can, while a TLS connection works: every message arrives, once."""

import asyncio
import contextlib
import os
import socket
import struct
import sys

import pytest
from tests.interrupted import Interrupt, Interrupted
from tests.test_tls_channel import peer, sessions

import weft
from weft._tls.framing import DATA, PIECE_NBYTES, RECORD_NBYTES, Message, Outgoing

#: ``ssl.py`` stands between weft and OpenSSL, so what a call there returns can be lost.
FILES = ("weft/_tls/channel.py", "weft/_tls/framing.py", "weft/_tls/operation.py", "weft/_request.py", "/ssl.py")
#: Of no byte, of one, of one record with its head, of records whose last would have a single byte.
MESSAGES = [b"", b"x", os.urandom(300), os.urandom((2 << 14) + 1)]


class Ends:
    """Two ends in one thread."""

    def __init__(self):
        self.sockets = socket.socketpair()
        self.a, self.b = (peer(session, sock) for session, sock in zip(sessions(), self.sockets, strict=True))

    def abort(self):
        for end in (self.a, self.b):
            end.abort()

    def finish(self, request, again):
        """Let both take turns until `request` is done, and return its result."""
        for _ in range(100):
            for end in (self.a, self.b):
                again(end._channel.turn)
            with contextlib.suppress(weft.TimedOutError):
                return again(request.wait, 0)
        raise AssertionError("it does not end")


def each_step(error, prepare, work):
    """Do `work` interrupted at some steps, from another first one each time; return how often that was."""
    count = 0
    for first in range(1, 51):
        ends = Ends()
        given = prepare(ends)
        interrupted = Interrupted(first, FILES, error=error)
        try:
            with interrupted:
                work(ends, interrupted, given)
        except BaseException as e:
            raise AssertionError(f"interrupted at {interrupted.raised}") from e
        finally:
            ends.abort()
        count += len(interrupted.raised)
    return count


NEAR_PIECES = [n * size + d for n in (1, 2, 3) for size in (RECORD_NBYTES, PIECE_NBYTES) for d in (-1, 0, 1, 2)]


@pytest.mark.parametrize("nbytes", NEAR_PIECES)
def test_the_receiver_knows_how_much_the_records_hold(nbytes):
    """By this it tells how far an interrupted call came."""
    outgoing, records = Outgoing(None, DATA, [memoryview(bytes(nbytes))]), []
    while not outgoing.complete:
        piece = outgoing.piece().nbytes
        records += [min(RECORD_NBYTES, piece - at) for at in range(0, piece, RECORD_NBYTES)]
        outgoing.go_on(piece)
    assert 1 not in records
    message = Message(0, 0)
    for part in (struct.pack("<II", DATA, 1), struct.pack("<Q", nbytes)):
        message.room()[:] = part
        message.fill(len(part))
        message.go_on()
    left = records[0] - 16
    for record in [left, *records[1:]] if left else records[1:]:
        if message.place[1] or not left:
            assert message.record_nbytes() in (record, 1)
        message.fill(record)
    assert not message.room()


ERRORS = pytest.mark.parametrize("error", [Interrupt, TimeoutError])


def send_all(ends):
    for message in MESSAGES:
        ends.a.send(message)


@ERRORS
def test_an_interrupted_receive_goes_on(error):
    def work(ends, interrupted, _):
        again = interrupted.again
        assert ends.finish(again(ends.b.recv), again) == MESSAGES[0]
        into = bytearray(1)
        assert ends.finish(again(ends.b.recv_into, into), again) == 1
        assert into == MESSAGES[1]
        assert ends.finish(again(ends.b.recv_many, 2), again) == MESSAGES[2:]
        sys.settrace(None)
        assert ends.b._channel.unread_nbytes == 0

    assert each_step(error, send_all, work) > 100


@ERRORS
def test_the_next_receive_gets_what_an_interrupted_one_had(error):
    def work(ends, interrupted, _):
        got = []
        for _ in range(1000):
            if len(got) == len(MESSAGES):
                break
            try:
                interrupted.again(ends.a._channel.turn)
                got.append(ends.b.recv().wait(0))
            except (Interrupt, TimeoutError):  # weft's own, too
                interrupted.go_on()
        sys.settrace(None)
        assert got == MESSAGES
        assert ends.b._channel.unread_nbytes == 0

    assert each_step(error, send_all, work) > 100


@ERRORS
def test_what_an_interrupted_send_has_to_send_arrives_whole_or_not_at_all(error):
    def prepare(ends):
        return ends.b.recv_many(1)

    def work(ends, interrupted, first):
        sent, unsure = [], []
        for message in MESSAGES:
            try:
                sent.append(ends.a.send(message))
            except error:
                interrupted.go_on()
                unsure.append(message)
        for request in sent:
            ends.finish(request, interrupted.again)
        sys.settrace(None)
        ends.a.send(b"end")
        got = ends.finish(first, interrupted.again)
        while got[-1] != b"end":
            got.append(ends.finish(ends.b.recv(), interrupted.again))
        assert [message for message in MESSAGES if message not in unsure or message in got] == got[:-1]

    assert each_step(error, prepare, work) > 100


@ERRORS
def test_an_interrupted_close_is_completed(error):
    def work(ends, interrupted, _):
        ends.finish(interrupted.again(ends.a.close), interrupted.again)
        sys.settrace(None)
        assert [ends.b.recv().wait(0) for _ in MESSAGES] == MESSAGES
        with pytest.raises(weft.PeerClosedError):
            ends.b.recv().wait(0)
        assert ends.b.close().wait(0) is None

    assert each_step(error, send_all, work) > 100


@ERRORS
@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (lambda peer: peer.recv(), b"x"),
        (lambda peer: peer.recv_into(bytearray(1)), 1),
        (lambda peer: peer.recv_many(1), [b"x"]),
    ],
    ids=["recv", "recv_into", "recv_many"],
)
def test_an_interrupt_at_any_step_delays_no_message(begin, expected, error):
    """Nothing follows that would make the channel look again."""
    ends = Ends()
    for first in range(1, 10_000):
        receive = begin(ends.b)
        ends.a.send(b"x")
        interrupted = Interrupted(first, FILES, error=error, apart=10_000)
        with interrupted:
            got = ends.finish(receive, interrupted.again)
        assert got == expected
        if not interrupted.raised:
            break
    ends.abort()
    assert first > 100


@ERRORS
def test_a_loss_is_told_in_spite_of_interrupts(error):
    def prepare(ends):
        ends.a.send(MESSAGES[-1])
        ends.a.abort()

    def work(ends, interrupted, _):
        again = interrupted.again
        assert ends.finish(again(ends.b.recv), again) == MESSAGES[-1]
        for operation in (ends.b.recv, ends.b.close):
            with pytest.raises(weft.PeerLostError):
                ends.finish(again(operation), again)

    assert each_step(error, prepare, work) > 100


def test_a_loop_goes_on_after_a_handler_that_raised():
    """The loop reports what a handler raised in a turn, and calls the next turn by itself."""

    class HandlerError(Exception):
        pass

    class Raises:
        def __init__(self, sock):
            self.sock, self.left = sock, 1

        def recv(self, nbytes):
            if self.left:
                self.left -= 1
                raise HandlerError
            return self.sock.recv(nbytes)

        def __getattr__(self, name):
            return getattr(self.sock, name)

    async def main():
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        ends = Ends()
        receiving = asyncio.ensure_future(ends.b.recv())
        await asyncio.sleep(0)
        ends.b._channel._sock = Raises(ends.b._channel._sock)
        await ends.a.send(b"x")
        assert await receiving == b"x"
        assert [type(e) for e in reported] == [HandlerError]
        ends.abort()

    asyncio.run(main())
