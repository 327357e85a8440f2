# SPDX-License-Identifier: BSD-3-Clause
"""Messages over a TLS socket: they arrive whole and in order, are bounded, and their ends are told apart."""

import asyncio
import contextlib
import gc
import os
import random
import socket
import struct
import threading
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from tests.certificates import authority
from tests.test_peer import pair

import weft
from weft import _frames
from weft._tls import channel
from weft._tls import framing as tls_wire
from weft._tls.channel import TlsChannel
from weft._tls.session import Session
from weft.peer import Peer


@pytest.fixture
def sockets():
    pair = socket.socketpair()
    yield pair
    for sock in pair:
        sock.close()


def sessions():
    """Two sessions that have shaken hands, in memory."""
    a = Session(authority().connector(), "a", host="127.0.0.1")
    b = Session(authority().listener(), "b")
    for _ in range(4):
        for session, other in ((a, b), (b, a)):
            with contextlib.suppress(weft.Error, OSError):
                session.tls.do_handshake()
            other.incoming.write(session.outgoing.read())
    assert a.tls.version() == b.tls.version() == "TLSv1.3"
    return a, b


class Counting:
    """A socket that counts what is sent by it."""

    def __init__(self, sock):
        self.sock, self.sends = sock, 0

    def send(self, data):
        self.sends += 1
        return self.sock.send(data)

    def __getattr__(self, name):
        return getattr(self.sock, name)


def peer(session, sock):
    return Peer(TlsChannel(session, sock, "them"), local_address="", remote_address="", same_host=False, remote={})


@contextlib.asynccontextmanager
async def tls_ends():
    pair = socket.socketpair()
    a, b = (peer(session, sock) for session, sock in zip(sessions(), pair, strict=True))
    try:
        yield a, b
    finally:
        a.abort()
        b.abort()


@pytest.fixture
def ends(sockets):
    """Two peers in one thread: each does something only when it is asked."""
    a, b = (peer(session, sock) for session, sock in zip(sessions(), sockets, strict=True))
    yield a, b
    a.abort()
    b.abort()


def finish(operation, other, turns=2000):
    """Have both ends take turns until `operation` is done."""
    for _ in range(turns):
        if operation.done():
            return operation.wait(0)
        operation._channel.turn()
        other._channel.turn()
    raise AssertionError("it does not end")


def test_a_small_message_costs_few_calls_in_a_loop():
    """Of OpenSSL and of the socket: a call in vain raises an error. Only `recv` looks whether a message is there."""
    calls = Counter()

    def counted(owner, name):
        method = getattr(owner, name)

        def call(*arguments):
            calls[name] += 1
            try:
                return method(*arguments)
            except OSError:  # SSLWantReadError is one, too
                calls["in vain"] += 1
                raise

        return call

    async def main():
        async with tls_ends() as (a, b):
            for each in (a, b):
                inner = each._channel
                inner._tls = SimpleNamespace(
                    **{name: counted(inner._tls, name) for name in ("read", "write", "pending")}
                )
                inner._sock = Socket(inner._sock, counted)
            for _ in range(100):
                sent = a.send(b"12345678")
                assert bytes(await b.recv()) == b"12345678"
                await sent

    class Socket(Counting):
        def __init__(self, sock, counted):
            super().__init__(sock)
            self.send, self.recv = counted(sock, "send"), counted(sock, "recv")

    asyncio.run(main())
    assert calls["in vain"] <= 102
    assert calls["read"] <= 302
    assert calls["recv"] <= 202
    assert calls["send"] <= 102


def test_messages_arrive_whole_and_in_order(ends):
    a, b = ends
    sizes = [0, 1, 5, 0, 300_000, 16_384, 1 << 20, 7]
    messages = [random.Random(size).randbytes(size) for size in sizes]
    sent = [a.send(message) for message in messages]
    for message in messages:
        received = finish(b.recv(), a)
        assert received == message
        assert not received.readonly
    assert all(operation.done() for operation in sent)
    assert not b.ended


def test_a_small_message_is_one_write_of_the_socket(ends):
    """In two, the second would wait for the acknowledgement of the first, which the other side delays by 40 ms."""
    a, b = ends
    sock = a._channel._sock = Counting(a._channel._sock)
    a.send_frames([b"head", b"body", bytes(1000)])
    assert sock.sends == 1
    assert [bytes(frame) for frame in finish(b.recv_frames(), a)] == [b"head", b"body", bytes(1000)]


def test_a_tls_that_takes_little_at_a_time(ends):
    a, b = ends
    tls = a._channel._tls
    a._channel._tls = SimpleNamespace(write=lambda data: tls.write(data[:1000]), read=tls.read, pending=tls.pending)
    data = os.urandom(20_000)
    a.send(data)
    assert finish(b.recv(), a) == data


def test_another_thread_may_not_use_it(ends):
    a, _ = ends
    waiting = a.recv()
    with ThreadPoolExecutor(1) as pool:
        for use in (a.recv, a.close, waiting.wait, lambda: a.send(b"x")):
            with pytest.raises(weft.ThreadError, match="belongs to another thread"):
                pool.submit(use).result(100)


def test_a_forked_child_may_not_use_it(ends):
    a, b = ends
    pid = os.fork()
    if pid == 0:
        refused = 0
        for use in (lambda: a.send(b"lost"), a.recv, a.close):
            try:
                use()
            except weft.ThreadError as e:
                refused += "forked from one that uses weft" in str(e)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    a.send(b"x")
    assert finish(b.recv(), a) == b"x"


def test_both_ways_at_once(ends):
    a, b = ends
    data = os.urandom(3 << 20)
    sent = [a.send(data), b.send(data)]
    for mine, other in (ends, ends[::-1]):
        assert finish(mine.recv(), other) == data
    assert [operation.done() for operation in sent] == [True, True]


@pytest.mark.parametrize("sizes", [[1, 2, 3], [0], [], [70_000, 3, 0, 1 << 20]])
def test_frames(ends, sizes):
    a, b = ends
    buffers = [os.urandom(size) for size in sizes]
    sent = a.send_frames(buffers, lend=True)
    assert [bytes(buffer) for buffer in _frames.unpack(finish(b.recv(), a))[0]] == buffers
    assert sent.done()
    assert a.lent_nbytes == b.lent_nbytes == (0, 0)


def test_objects(ends):
    a, b = ends
    a.send_obj({"x": np.arange(5_000)})
    assert (b.recv_obj().wait(100)["x"] == np.arange(5_000)).all()


def test_buffers_that_cannot_be_sent(ends):
    a, b = ends
    with pytest.raises(weft.NotContiguousError):
        a.send(np.arange(10)[::2])
    for objects in (
        np.zeros(4, "O"),
        np.zeros((2, 2), "O", "F"),
        memoryview(np.zeros(4, [("n", "i8"), ("what", "O")])),
    ):
        with pytest.raises(weft.InvalidParamError, match=r"Python objects.* pickle"):
            a.send(objects)
    with pytest.raises(weft.UnsupportedError, match="SimpleNamespace has no buffer protocol"):
        a.send(SimpleNamespace(__dlpack__=None))
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    a.send(array)
    assert finish(b.recv(), a) == array.tobytes("A")
    a.send(np.zeros((0, 3)))
    assert finish(b.recv(), a).nbytes == 0


TYPES_WITHOUT_A_FORMAT = [
    np.array(["2020-01-01", "NaT"], "M8[D]"),
    np.asfortranarray(np.arange(6).reshape(2, 3).astype("m8[s]")),
    np.zeros(3, [("when", "M8[s]"), ("what", "i1")]),
    np.array("2020-01-01", "M8[D]"),
]


@pytest.mark.parametrize("array", TYPES_WITHOUT_A_FORMAT, ids=lambda array: str(array.dtype))
@pytest.mark.parametrize("connected", [pair, tls_ends])
def test_arrays_without_a_format_are_sent_as_their_bytes(connected, array):
    """NumPy has no format of the buffer protocol for dates."""
    into = np.zeros_like(array)

    async def main():
        async with connected() as (a, b):
            sent = [a.send(array), a.send(array), a.send_many([array]), a.send_frames([array]), a.send_obj(array)]
            assert await b.recv() == array.tobytes("A")
            assert await b.recv_into(into) == array.nbytes
            assert await b.recv_many(1) == [array.tobytes("A")]
            assert await b.recv_frames() == [array.tobytes("A")]
            assert (await b.recv_obj()).tobytes() == array.tobytes()
            await asyncio.gather(*sent)

    asyncio.run(main())
    assert into.tobytes() == array.tobytes()


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1")
@pytest.mark.parametrize("connected", [pair, tls_ends])
def test_strings_of_any_length_are_pointers(connected):
    async def main():
        async with connected() as (a, _):
            for send in (a.send, lambda array: a.send_frames([array])):
                with pytest.raises(weft.InvalidParamError, match=r"Python objects.* pickle"):
                    send(np.array(["a", "bb"], np.dtypes.StringDType()))

    asyncio.run(main())


def test_unread_messages_are_bounded(ends):
    a, b = ends
    message = bytes(1 << 20)
    sent = [a.send(message) for _ in range(40)]
    for _ in range(200):
        a._channel.turn(), b._channel.turn()
    assert not sent[-1].done()
    assert 16 <= b._channel.unread_nbytes >> 20 <= 17
    for _ in range(40):
        assert finish(b.recv(), a).nbytes == 1 << 20
    assert sent[-1].done()
    assert b._channel.unread_nbytes == 0


# ---- cancelling -----------------------------------------------------------------------------------------------


def test_a_send_that_has_not_begun_is_withdrawn(ends):
    a, b = ends
    first, second, third = (a.send(bytes([i]) * (8 << 20)) for i in range(3))
    assert first.cancel()  # goes on
    assert second.cancel()
    assert not second.cancel()
    with pytest.raises(weft.CanceledError):
        second.wait(100)
    assert [finish(b.recv(), a)[0] for _ in range(2)] == [0, 2]
    assert third.done()


def test_a_cancelled_receive_leaves_the_message_to_the_next(ends):
    a, b = ends
    gone, stays = b.recv(), b.recv()
    assert gone.cancel()
    a.send(b"x")
    assert finish(stays, a) == b"x"


def test_a_message_whose_reader_was_cancelled_goes_to_the_next(sockets):
    async def main():
        a, b = (peer(session, sock) for session, sock in zip(sessions(), sockets, strict=True))

        async def read():
            return await b.recv()

        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        await a.send(b"x")
        b._channel.turn()  # the message is the reader's; the reader has not run
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await b.recv() == b"x"
        a.abort(), b.abort()

    asyncio.run(main())


def test_a_wait_that_is_over_leaves_the_operation_pending(ends):
    a, b = ends
    operation = b.recv()
    with pytest.raises(weft.TimedOutError, match="not complete after"):
        operation.wait(0.001)
    a.send(b"x")
    assert operation.wait(100) == b"x"


# ---- ends -----------------------------------------------------------------------------------------------------


def test_close_waits_until_all_has_arrived(ends):
    a, b = ends
    a.send(bytes(4 << 20))
    closing = a.close()
    assert a.closed
    assert not closing.done()
    assert finish(closing, b) is None
    assert b.ended
    assert b.recv().wait(100).nbytes == 4 << 20
    for operation in (b.recv, lambda: b.send(b"x")):
        with pytest.raises(weft.PeerClosedError):
            operation().wait(100)
    for operation in (a.recv, lambda: a.send(b"x")):
        with pytest.raises(weft.ClosedError):
            operation()
    assert b.close().wait(100) is None


def test_close_waits_while_the_peer_leaves_too_much_unread(ends):
    a, b = ends
    for _ in range(20):
        a.send(bytes(1 << 20))
    closing = a.close()
    for _ in range(200):
        a._channel.turn(), b._channel.turn()
    assert not closing.done()
    for _ in range(20):
        finish(b.recv(), a)
    finish(closing, b)


def test_close_succeeds_though_the_peer_goes_at_once(ends):
    """A handler that ends by the goodbye aborts its end: the acknowledgement and the end of the file come together."""
    a, b = ends
    closing = a.close()
    with pytest.raises(weft.PeerClosedError):
        b.recv().wait(100)
    b.abort()
    assert closing.wait(100) is None


def test_both_close_at_once(ends):
    a, b = ends
    a.send(b"never read")
    closing = [a.close(), b.close()]
    finish(closing[0], b)
    finish(closing[1], a)


def test_close_ends_what_waits_here(ends):
    a, _ = ends
    receive = a.recv()
    a.close()
    with pytest.raises(weft.ClosedError, match="closed by this side"):
        receive.wait(100)


def test_a_goodbye_ends_the_sends_of_the_other_side(ends):
    a, b = ends
    begun, queued = b.send(bytes(16 << 20)), b.send(b"x")
    closing = a.close()
    finish(closing, b, turns=5000)
    assert begun.done()
    with pytest.raises(weft.PeerClosedError):
        queued.wait(100)


@pytest.mark.parametrize("how", ["abort", "end of file", "close_notify", "garbage"])
def test_the_other_side_is_gone(ends, sockets, how):
    a, b = ends
    a.send(b"arrived")
    for _ in range(2):
        a._channel.turn()
    if how == "abort":
        a.abort()
        with pytest.raises(weft.ClosedError):
            a.recv()
    elif how == "end of file":
        sockets[0].shutdown(socket.SHUT_RDWR)
    elif how == "close_notify":
        with contextlib.suppress(OSError):
            a._channel._tls.unwrap()
        sockets[0].send(a._channel._outgoing.read())
    else:
        sockets[0].send(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert b.recv().wait(100) == b"arrived"
    lost = b.recv()
    with pytest.raises(weft.PeerLostError) as caught:
        lost.wait(100)
    assert type(caught.value) is weft.PeerLostError
    assert b.ended
    assert not b.closed
    with pytest.raises(weft.PeerLostError):
        b.send(b"x").wait(100)
    with pytest.raises(weft.PeerLostError):
        b.close().wait(100)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<II", 9, 0),  # no such kind
        struct.pack("<II", 0, 0),  # a message of nothing
        struct.pack("<IIQ", 1, 1, 8),  # a goodbye of something
        struct.pack("<II", 0, 514),
        struct.pack("<IIQ", 0, 1, 1 << 62),
    ],
)
def test_a_head_that_is_none_ends_it(ends, head):
    a, b = ends
    message = tls_wire.Outgoing(None, 0, [])
    message.parts[0] = memoryview(head)
    a._channel._sends.append(message)
    a._channel.turn()
    with pytest.raises((weft.PeerLostError, weft.NoMemoryError)):
        b.recv().wait(100)


def test_what_arrived_before_a_reset_is_received(ends, sockets):
    a, b = ends
    a.send(b"last words")
    a._channel.turn()
    sockets[0].close()
    for _ in range(3):
        with contextlib.suppress(weft.PeerLostError):
            b.send(b"into the void").wait(100)
    assert b.recv().wait(100) == b"last words"


def test_abort_from_another_thread_ends_a_wait(ends):
    a, _ = ends
    receive = a.recv()
    thread = threading.Timer(0.02, a.abort)
    thread.start()
    with pytest.raises(weft.ClosedError):
        receive.wait(100)
    thread.join(100)
    assert a.closed


def test_a_dropped_end_is_an_end(ends, sockets):
    session, _ = sessions()
    one, other = socket.socketpair()
    with other:
        dropped = peer(session, one)
        del dropped, one
        gc.collect()
        assert other.recv(1) == b""


def test_ucx_has_nothing_to_explain(ends):
    with pytest.raises(weft.UnsupportedError, match="TLS"):
        ends[0].explain()


@pytest.mark.parametrize("raised", [True, False])
def test_leaving_a_block_raises_a_loss_once(ends, sockets, raised):
    a, _ = ends
    sockets[0].shutdown(socket.SHUT_RDWR)
    a._channel.turn()
    if raised:
        with pytest.raises(weft.PeerLostError):
            a.recv().wait()
    with contextlib.nullcontext() if raised else pytest.raises(weft.PeerLostError), a:
        pass
    assert a.closed


def test_leaving_a_block_after_a_goodbye_answers_it(ends, monkeypatch):
    a, b = ends
    closing = b.close()
    with a, monkeypatch.context() as patch:
        patch.setattr(a._channel, "_send", lambda: None)  # the socket has no room for the answer
        with pytest.raises(weft.PeerClosedError):
            a.recv().wait()
    finish(closing, a)


def test_receives_that_are_dropped_unread_lose_nothing():
    async def main():
        async with tls_ends() as (a, b):
            for i in range(4):
                await a.send(bytes([i]))
            dropped = [b.recv(), b.recv_into(bytearray(1)), b.recv_many(2)]
            for _ in range(100):
                if all(each.done() for each in dropped):
                    break
                await asyncio.sleep(0.01)
            del dropped[2], dropped[0], dropped[0]
            got = [bytes(await b.recv()) for _ in range(2)]
            read = b.recv()
            await read
            assert bytes(read.result()) == b"\x02"
            del read
            assert bytes(await b.recv()) == b"\x03"
            assert got == [b"\x00", b"\x01"]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(b.recv(), 0.01)

    asyncio.run(main())


def test_the_error_of_a_lost_connection_keeps_no_frames_of_its_callers():
    async def main():
        async with tls_ends() as (a, b):
            b.abort()
            depths = []
            for _ in range(20):
                try:
                    await a.recv()
                except weft.PeerLostError as error:
                    depths.append(len(traceback.extract_tb(error.__traceback__)))
            assert len(depths) == 20
            assert max(depths[1:]) == min(depths[1:])

    asyncio.run(main())


def test_an_ended_connection_that_another_thread_drops_is_silent(caplog):
    async def main():
        async with tls_ends() as (a, _):
            a.abort()
            held = [a._channel]
        del a
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert not caplog.records


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_reset_behind_data_that_one_turn_does_not_read_is_noticed(loop, monkeypatch):
    """uvloop calls the reader of a socket that was reset once, and never again."""
    monkeypatch.setattr(channel, "_TURN_NBYTES", 4 << 10)
    monkeypatch.setattr(channel, "PIECE_NBYTES", 4 << 10)
    accepted = []

    async def handler(peer):
        accepted.append(peer)
        while not peer.closed:
            await asyncio.sleep(0.01)

    async def main():
        over_tls = {"payload": "tls", "settings": {"TLS": "tcp"}}
        connector, listener = authority().connector(), authority().listener()
        async with (
            weft.listen("127.0.0.1:0", handler, ssl=listener, **over_tls) as here,
            weft.connect(here.address, ssl=connector, **over_tls) as a,
        ):
            while not accepted:
                await asyncio.sleep(0.01)
            (b,) = accepted
            receiving = a.recv()
            sends = [b.send(bytes(10_000)) for _ in range(10)]
            while not all(sent.done() for sent in sends):
                b._channel.turn()
            a.send(b"x" * 2_000)  # not read there, so the kernel resets the connection
            b.abort()
            with pytest.raises(weft.PeerLostError):
                while True:
                    await asyncio.wait_for(receiving, 20)
                    receiving = a.recv()
            a.abort()

    if loop == "uvloop":
        pytest.importorskip("uvloop").run(main())
    else:
        asyncio.run(main())


@pytest.mark.parametrize(
    "wrong",
    ["text", 3, object(), np.arange(10)[::2], np.zeros(2, "O"), np.zeros(3, [("o", "O")])],
    ids=lambda wrong: type(wrong).__name__,
)
@pytest.mark.parametrize("op", ["send", "lend", "recv_into", "send_many"])
def test_it_refuses_what_is_no_bytes_in_the_words_of_rings(ends, op, wrong):
    def refusal(end):
        with pytest.raises((TypeError, weft.Error)) as caught:
            getattr(end, op)([wrong] if op == "send_many" else wrong)
        return caught.type, str(caught.value).replace("numpy.ndarray", "ndarray")

    async def of_ring():
        async with (
            weft.listen("127.0.0.1:0", lambda peer: peer.close()) as listener,
            weft.connect(listener.address) as plain,
        ):
            return refusal(plain)

    assert refusal(ends[0]) == asyncio.run(of_ring())
